"""The clocks and the plane as SVG; the browser runs the animation, not the server."""

from __future__ import annotations

import math
from html import escape

import numpy as np

from ropewalk.spec import RopeSpec
from ropewalk_lab import analysis
from ropewalk_lab.explorer.words import Translate
from ropewalk_lab.plots.look import ON_LIGHT
from ropewalk_lab.plots.numerals import short

#: clocks in the picture, clocks in a row, and earlier positions that the plane shows as dots
CLOCKS = 12
ACROSS = 6
TRAIL = 12
#: speed of the animated clocks
TOKENS_PER_SECOND = 2.0
# readable on a light and on a dark background
INK, RIM = "#808890", "#80889066"
_FONT = 'font-family="system-ui, sans-serif"'


def clocks(
    spec: RopeSpec,
    position: int,
    served: int,
    translate: Translate,
    animated: bool = False,
    across: int = ACROSS,
) -> str:
    """Return an SVG of up to twelve clocks for pairs spread over the ladder; the hands show the
    angles at `position`.
    """
    steps = analysis.radians(spec, served)
    pairs = np.unique(np.linspace(0, len(steps) - 1, CLOCKS).round().astype(int))
    angles = analysis.true_angles(steps[pairs], [position])[0]
    faces = []
    for i, (pair, angle) in enumerate(zip(pairs.tolist(), angles.tolist(), strict=True)):
        x, y = 60 + 120 * (i % across), 60 + 150 * (i // across)  # pixels
        face = _clock(
            pair, ON_LIGHT[i % len(ON_LIGHT)], float(steps[pair]), angle, translate, animated
        )
        faces.append(f'<g transform="translate({x} {y})">{face}</g>')
    return svg(across * 120, math.ceil(len(pairs) / across) * 150, faces)


def _clock(
    pair: int, colour: str, step: float, angle: float, translate: Translate, animated: bool
) -> str:
    """Return the clock of a pair as SVG around (0, 0), with its hand at `angle`, in radians.

    If `animated`, the hand moves on from there by `step` radians per token.
    """
    wavelength = math.inf if step == 0 else 2 * math.pi / abs(step)
    rotates = not math.isinf(wavelength)
    label = (
        translate("a turn in {turn}", turn=short(wavelength))
        if rotates
        else translate("does not rotate")
    )
    # the y axis of an SVG points down, so a counter-clockwise angle is negative
    degrees = -math.degrees(angle)
    animation = ""
    if animated and rotates:
        end = degrees - math.copysign(360, step)
        animation = (
            f'<animateTransform attributeName="transform" type="rotate" from="{degrees:.4f}" to="{end:.4f}" '
            f'dur="{wavelength / TOKENS_PER_SECOND:.4f}s" repeatCount="indefinite"/>'
        )
    return (
        f'<circle r="48" fill="none" stroke="{RIM}" stroke-width="2"/>'
        f'<g transform="rotate({degrees:.4f})">{animation}{_line(42, 0, colour)}</g><circle r="3" fill="{INK}"/>'  # noqa: E501
        f"{text(66, translate('pair {pair}', pair=pair), colour)}{text(82, label, INK)}"
    )


def plane(spec: RopeSpec, pair: int, position: int, served: int, translate: Translate) -> str:
    """Return an SVG of the vector (1, 0) of one pair, the same vector rotated to `position`, and
    dots at earlier positions.
    """
    positions = np.arange(max(position - TRAIL, 0), position + 1)
    path = rotated(spec, pair, positions, served)
    # 100 pixels are the longest vector, so that a magnitude above 1 still fits
    largest = max(1.0, float(np.abs(path).max()))
    points, unit = 100 * path / largest, 100 / largest
    degrees = math.degrees(math.atan2(path[-1].imag, path[-1].real)) % 360
    label = (
        f"{translate('pair {pair}', pair=pair)}, "
        f"{translate('position {position}', position=f'{position:,}')}"
    )
    parts = [
        (
            f'<g transform="translate(160 150)"><circle r="{unit:.3f}" fill="none" stroke="{RIM}" '
            'stroke-width="2"/>'
        ),
        f'<line x1="-130" x2="130" stroke="{RIM}"/><line y1="-130" y2="130" stroke="{RIM}"/>',
        *(
            _dot(point, 0.15 + 0.5 * i / len(path)) for i, point in enumerate(points[:-1])
        ),  # fainter the earlier they are
        _line(unit, 0, INK),
        _line(points[-1].real, -points[-1].imag, ON_LIGHT[1]),
        f"{text(150, f'{label}: {degrees:.1f}°, |q| = {abs(path[-1]):.4g}', INK)}</g>",
    ]
    return svg(320, 310, parts)


def rotated(spec: RopeSpec, pair: int, positions: np.ndarray, served: int) -> np.ndarray:
    """Return the query pair (1, 0) rotated to each position, as complex numbers, with exact angles.

    Their absolute values are the scaling's magnitude times xPos's growth. `served` is the length
    for scalings that need one.
    """
    norms = np.abs(analysis.query_path(spec, positions, served)[:, pair])
    angles = analysis.true_angles(analysis.radians(spec, served)[[pair]], positions)[:, 0]
    return norms * np.exp(1j * angles)


def _line(x: float, y: float, colour: str) -> str:
    return (
        f'<line x2="{x:.3f}" y2="{y:.3f}" stroke="{colour}" stroke-width="4" '
        'stroke-linecap="round"/>'
    )


def _dot(place: complex, opacity: float) -> str:
    return (
        f'<circle cx="{place.real:.3f}" cy="{-place.imag:.3f}" r="3" fill="{ON_LIGHT[0]}" '
        f'opacity="{opacity:.2f}"/>'
    )


def text(y: float, words: str, colour: str, anchor: str = "middle") -> str:
    """Return one line of text at x = 0 and height `y`."""
    return (
        f'<text y="{y}" text-anchor="{anchor}" font-size="12" {_FONT} '
        f'fill="{colour}">{escape(words)}</text>'
    )


def svg(width: int, height: int, parts: list[str]) -> str:
    """Return a whole SVG of a size in pixels."""
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(parts)}</svg>'
