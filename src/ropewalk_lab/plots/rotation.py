"""Figures of rotated vectors: the rotation itself, variants by norm and trajectory, and the
precision of the angle.

Words of this module:
  view    what a figure shows: a spec, its trained length, the longer `served` length, and the look
  look    the colours (`quiet` for reference lines, `ink` for text) and the language; it translates
          labels
  pairs   the pairs of dimensions that rotate, fastest first; `frequencies` are in radians per
          token, those of a sequence of the served length (some scalings depend on it)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.frequencies import Default, XPos, Yarn
from ropewalk_lab import analysis
from ropewalk_lab.plots.look import LIGHT, Look, blank, finish, label_axes, legend
from ropewalk_lab.plots.view import View

#: how many positions the figure `rotation` shows, how many `precision` shows, and the last of those
ROTATION_POSITIONS = 6
PRECISION_POINTS = 33
FARTHEST = 2**40


def rotation(view: View) -> Any:
    """Draw a vector of the fastest pair, rotated to the first six positions."""
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    figure, (ax,) = blank(look, 5, 5)
    circle = np.exp(1j * np.linspace(0, 2 * np.pi, 200))
    ax.plot(np.real(circle), np.imag(circle), color=look.grid, linewidth=1.5)
    # the vector (1, 0) at each position, as a complex number
    tips = analysis.phasors(frequencies[:1], range(ROTATION_POSITIONS))[:, 0]
    for position, tip in enumerate(tips):
        label = look.translate("position {position}", position=position)
        ax.plot(
            (0, tip.real),
            (0, tip.imag),
            color=look.colour(position),
            linewidth=2.6,
            marker="o",
            markevery=[1],
            label=label,
        )
    ax.set(xlim=(-1.25, 1.25), ylim=(-1.25, 1.25), aspect="equal")
    label_axes(ax, look, title="One vector, rotated", x="x", y="y")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def variants(view: View) -> Any:
    """Draw queries rotated without scaling, with YaRN, with xPos and with the spec's own scaling,
    and a query to which a sinusoidal encoding is added instead: the norm against position on the
    left, the trajectory of the middle pair on the right, over the positions in which it turns once
    without scaling.
    """
    look, middle = view.look, view.spec.pairs // 2
    wavelength = float(analysis.wavelengths(analysis.plain_radians(view.spec))[middle])
    # a pair that does not rotate has an infinite wavelength
    positions = np.linspace(0, wavelength if np.isfinite(wavelength) else view.trained, 400)
    figure, (left, right) = blank(look, 10.5, 4.2, across=2)
    for i, (name, path) in enumerate(_paths(view, positions).items()):
        # the vector without an encoding has norm 1 in every pair, so this is the norm of the whole
        # vector divided by its norm without an encoding
        norm = np.sqrt((np.abs(path) ** 2).mean(axis=1))
        # where two lines coincide, the wider one below shows on both sides
        line = {"color": look.colour(i), "linewidth": 3.4 - 0.6 * i, "label": name}
        left.plot(positions, norm, **line)
        right.plot(np.real(path[:, middle]), np.imag(path[:, middle]), **line)
    right.plot(1, 0, "o", color=look.ink, markersize=5)  # the vector without an encoding
    right.set(aspect="equal")
    title = "Variants: norm and trajectory"
    label_axes(left, look, title=title, x="position", y="norm / norm before")
    label_axes(right, look, x="x", y="y")
    legend(right, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def _paths(view: View, positions: np.ndarray) -> dict[str, np.ndarray]:
    """Return the vector (1, 0) of every pair at each position, by variant: complex [positions,
    pairs].
    """
    yarn = Yarn(factor=max(view.served / view.trained, 1.0), original_length=view.trained)
    scalings = (Default(), yarn, XPos())
    specs = {scaling.name: view.spec.with_(scaling=scaling) for scaling in scalings}
    specs[view.spec.scaling.name] = view.spec  # its own scaling replaces one of the same name
    paths = {
        name: analysis.query_path(spec, positions, view.served) for name, spec in specs.items()
    }
    # the sinusoidal encoding is added to the vector (1, 0), the complex number 1
    added = 1 + analysis.phasors(analysis.plain_radians(view.spec), positions)
    return paths | {view.look.translate("added encoding"): added}


def precision(view: View) -> Any:
    """Draw the error of cos and sin against position, for our precisions and for the methods of
    other engines.
    """
    positions = np.unique(np.geomspace(1_000, FARTHEST, PRECISION_POINTS).round().astype(np.int64))
    curves = analysis.error_curves(view.spec, positions, length=view.served)
    return precision_lines(
        {name: (positions, errors) for name, errors in curves.items()}, view.look
    )


def precision_lines(
    curves: Mapping[str, tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]],
    look: Look = LIGHT,
) -> Any:
    """Draw one line per method, {name: (positions, errors)}: errors against positions, on
    logarithmic axes. A dashed line is at the error of rounding to bfloat16.
    """
    figure, (ax,) = blank(look, 9.4, 4.4)
    for i, (name, (positions, errors)) in enumerate(curves.items()):
        ax.plot(
            positions,
            errors,
            color=look.colour(i),
            linewidth=2.4,
            solid_capstyle="round",
            label=name,
        )
    ax.axhline(
        analysis.BFLOAT16_ROUNDING, color=look.quiet, linewidth=1, linestyle=(0, (4, 3)), zorder=1
    )
    placement = {
        "textcoords": "offset points",
        "color": look.quiet,
        "fontsize": 9,
        "ha": "right",
        "va": "top",
    }
    ax.annotate(
        look.translate("rounding to bfloat16"),
        (FARTHEST, analysis.BFLOAT16_ROUNDING),
        (0, -4),
        **placement,
    )
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(
        [1e3, 1e4, 131_072, 1e6, 1e7, 1e9, 2**40],
        ["1k", "10k", "128k", "1M", "10M", "1G", "$2^{40}$"],
    )
    ax.minorticks_off()
    ax.set(xlim=(900, FARTHEST * 1.1), ylim=(8e-9, 5))
    label_axes(
        ax,
        look,
        title="Error of the angle against position",
        x="position",
        y="largest error of cos and sin",
    )
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5), reverse=True)
    return finish(figure, look)
