"""The opening picture as SVG: dials of single pairs while a model reads past its trained length;
the browser runs the motion.
"""

from __future__ import annotations

import math

from ropewalk.spec import RopeSpec
from ropewalk_lab.explorer.drawings import INK, RIM, svg, text
from ropewalk_lab.explorer.words import Translate
from ropewalk_lab.plots.motion import MAX_TURNS, SECONDS, Dial, dials_of
from ropewalk_lab.plots.numerals import short

ACROSS = 4
#: colours of the angles seen in training, of new angles, and of a hand
SEEN, NEW, HAND = "#80889055", "#D55E00", "#0072B2"
#: pixels: width and height of a dial's cell, radius of a dial
_WIDTH, _DOWN, _RADIUS = 150, 160, 52


def reading(spec: RopeSpec, trained: int, served: int, translate: Translate) -> str:
    """Return an SVG in motion: the hands of some pairs while positions 0 to `served` are read, red
    at angles never trained.
    """
    dials = dials_of(spec, trained, served)
    rows = math.ceil(len(dials) / ACROSS)
    parts = [_dial(index, dial, translate) for index, dial in enumerate(dials)]
    # 66 pixels below the dials for the ruler and its labels
    return svg(
        ACROSS * _WIDTH,
        rows * _DOWN + 66,
        [*parts, _ruler(rows * _DOWN + 30, trained, served, translate)],
    )


def _dial(index: int, dial: Dial, translate: Translate) -> str:
    """Return dial number `index` as SVG: ring, angles seen in training, new angles, moving hand and
    labels.
    """
    x, y = _WIDTH * (index % ACROSS) + _WIDTH / 2, _DOWN * (index // ACROSS) + _RADIUS + 8
    turns = min(dial.served_turns, MAX_TURNS)  # a faster hand could not be followed
    seen = 360 * min(dial.trained_turns, 1.0)
    speed = translate("a turn in {turn}", turn=short(dial.wavelength))
    if math.isinf(dial.wavelength):
        speed = translate("does not rotate")
    change = _colour_change(dial.leaves_at)
    hand = (
        f'<line x2="{_RADIUS - 14}" stroke="{HAND}" stroke-width="4" '
        f'stroke-linecap="round">{change}</line>'
    )
    return (
        f'<g transform="translate({x:g} {y:g})"><circle r="{_RADIUS}" fill="none" stroke="{RIM}"/>'
        f"{_band(0, seen, SEEN)}{_new_band(dial, seen, turns)}"
        f"<g>{_rotation(turns)}{hand}</g>"
        f'<circle r="3" fill="{INK}"/>{text(_RADIUS + 20, translate("pair {pair}", pair=dial.pair), INK)}'
        f"{text(_RADIUS + 37, speed, INK)}</g>"
    )


def _band(start: float, degrees: float, colour: str, inside: str = "") -> str:
    """Return a ring segment of `degrees` degrees, counter-clockwise from `start` (0 is right);
    `inside` may animate it.
    """
    # pathLength 360 makes the lengths of dashes degrees; a gap of 400 leaves one dash; scale(1 -1)
    # makes it counter-clockwise
    return (
        f'<circle r="{_RADIUS - 6}" fill="none" stroke="{colour}" stroke-width="10" pathLength="360" '
        f'stroke-dasharray="{degrees:.3f} 400" transform="rotate({-start:.3f}) scale(1 -1)">{inside}</circle>'
    )


def _new_band(dial: Dial, seen: float, turns: float) -> str:
    """Return the band of new angles as SVG, which grows after the first `seen` degrees of the
    hand's `turns` turns; else "".
    """
    if dial.leaves_at >= 1:
        return ""
    new = min(360 * turns, 360.0) - seen
    # a ring that is full before the end stays full
    full_at = dial.leaves_at + (1 - dial.leaves_at) * new / (360 * turns - seen)
    # dash and gap of `_band`: nothing until the hand leaves the trained angles, then growing until
    # the ring is full
    values, times = (
        f"0 400;0 400;{new:.3f} 400;{new:.3f} 400",
        f"0;{dial.leaves_at:.4f};{full_at:.4f};1",
    )
    return _band(seen, 0, NEW, _animate("stroke-dasharray", values, times))


def _rotation(turns: float) -> str:
    """Return the animation that rotates the hand by `turns` turns."""
    return (
        f'<animateTransform attributeName="transform" type="rotate" from="0" to="{-360 * turns:.3f}" dur="{SECONDS}s" '  # noqa: E501
        f'repeatCount="indefinite"/>'
    )


def _colour_change(time: float) -> str:
    """Return the animation that gives the hand the colour of new angles at `time`, from 0 to 1;
    empty if it is 1.
    """
    if time >= 1:
        return ""
    return _animate("stroke", f"{HAND};{NEW}", f"0;{time:.4f}", discrete=True)


def _animate(attribute: str, values: str, times: str, *, discrete: bool = False) -> str:
    """Return an endless animation of an SVG attribute; `values` and `times` (0 to 1) are lists
    separated by semicolons.
    """
    mode = ' calcMode="discrete"' if discrete else ""
    return (
        f'<animate attributeName="{attribute}" values="{values}" keyTimes="{times}" dur="{SECONDS}s" '
        f'repeatCount="indefinite"{mode}/>'
    )


def _ruler(y: float, trained: int, served: int, translate: Translate) -> str:
    """Return a line of positions at the height `y`, with a running dot, the trained length above
    and the served length below.
    """
    left, right = 20, ACROSS * _WIDTH - 20
    mark = left + (right - left) * min(trained / served, 1.0)
    # the label is centred and up to 200 pixels wide, so at the edge it would leave the picture
    label_x = min(max(mark, 110), right - 90)
    label = translate("trained: {tokens} tokens", tokens=f"{trained:,}")
    end = translate("read: {tokens} tokens", tokens=f"{served:,}")
    dot = _animate("cx", f"{left};{right}", "0;1")
    if served > trained:
        dot += _animate("fill", f"{HAND};{NEW}", f"0;{trained / served:.4f}", discrete=True)
    return (
        f'<g transform="translate(0 {y:g})"><line x1="{left}" x2="{mark:.2f}" stroke="{SEEN}" stroke-width="8"/>'  # noqa: E501
        f'<line x1="{mark:.2f}" x2="{right}" stroke="{NEW}66" stroke-width="8"/>'
        f'<circle cx="{left}" r="7" fill="{HAND}">{dot}</circle>'
        f'<g transform="translate({label_x:.2f} 0)">{text(-12, label, INK)}</g>'
        f'<g transform="translate({right} 0)">{text(24, end, INK, anchor="end")}</g></g>'
    )
