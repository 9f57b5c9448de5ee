"""Figures of the frequency ladder: the wavelength of each pair, its turns within a length, and the
effect of scalings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk_lab import analysis
from ropewalk_lab.plots.look import LIGHT, Look, blank, finish, label_axes, legend
from ropewalk_lab.plots.numerals import short
from ropewalk_lab.plots.view import View

ANGLE_POSITIONS = (0, 1, 4, 8)
CLOCK_POSITIONS = (0, 1, 4, 64)
CLOCK_PAIRS = 6


def spectrum(view: View) -> Any:
    """Draw the wavelength (tokens per turn) of every pair, and the trained length."""
    look = view.look
    figure, (ax,) = blank(look)
    plain = analysis.wavelengths(analysis.plain_radians(view.spec))
    ax.plot(plain, color=look.colour(0), linewidth=2.4, label="default")
    if view.scaled:
        scaled = analysis.wavelengths(analysis.radians(view.spec, view.served))
        ax.plot(scaled, color=look.colour(1), linewidth=2.4, label=view.spec.scaling.name)
    ax.axhline(
        view.trained,
        color=look.quiet,
        linewidth=1,
        linestyle=(0, (4, 3)),
        label=look.translate("trained length"),
    )
    ax.set(yscale="log", xlim=(0, max(view.spec.pairs - 1, 1)))
    label_axes(
        ax, look, title="Wavelength of every pair", x="pair, fastest first", y="tokens per turn"
    )
    legend(ax, look, loc="upper left")
    return finish(figure, look)


def angles(view: View) -> Any:
    """Draw the angle of every pair at a few positions."""
    look = view.look
    figure, (ax,) = blank(look)
    steps = analysis.radians(view.spec, view.served)
    for i, position in enumerate(ANGLE_POSITIONS):
        label = look.translate("position {position}", position=position)
        ax.plot(position * steps / (2 * math.pi), color=look.colour(i), linewidth=2.4, label=label)
    ax.set(xlim=(0, max(view.spec.pairs - 1, 1)))
    label_axes(
        ax, look, title="The angle of every pair", x="pair, fastest first", y="angle, in turns"
    )
    legend(ax, look, loc="upper right")
    return finish(figure, look)


def coverage(view: View) -> Any:
    """Draw the number of turns of each pair within the trained and the served length, with a line
    at one turn.
    """
    look = view.look
    figure, (ax,) = blank(look)
    spec = (
        view.spec if view.scaled else view.stretched()["yarn"]
    )  # a spec without a scaling is shown with YaRN's
    turns = analysis.coverage(spec, view.trained, view.served)
    lines = (
        (look.translate("in training"), turns.trained),
        (look.translate("served unscaled"), turns.unscaled),
        (look.translate("after {name}", name=spec.scaling.name), turns.scaled),
    )
    for i, (label, values) in enumerate(lines):
        ax.plot(values, color=look.colour(i), linewidth=2.4, label=label)
    ax.axhline(
        1, color=look.quiet, linewidth=1, linestyle=(0, (4, 3)), label=look.translate("one turn")
    )
    ax.set(yscale="log", xlim=(0, max(view.spec.pairs - 1, 1)))
    label_axes(ax, look, title="Turns of every pair", x="pair, fastest first", y="turns")
    legend(ax, look, loc="upper right")
    return finish(figure, look)


def scalings(view: View) -> Any:
    """Draw the frequency of each pair under every static scaling, divided by its plain frequency."""
    return ratio_lines(
        {name: analysis.stretch(spec, view.served) for name, spec in view.stretched().items()},
        view.look,
    )


def ratio_lines(ratios: Mapping[str, Sequence[float] | np.ndarray], look: Look = LIGHT) -> Any:
    """Draw one line per scaling: the ratio of scaled to plain frequency of each pair."""
    figure, (ax,) = blank(look)
    for i, (name, ratio) in enumerate(ratios.items()):
        ax.plot(range(len(ratio)), ratio, color=look.colour(i), linewidth=2.4, label=name)
    ax.set(ylim=(0, None), xlim=(0, max(*map(len, ratios.values()), 2) - 1))
    label_axes(
        ax,
        look,
        title="Which pairs a scaling slows",
        x="pair, fastest first",
        y="frequency / plain frequency",
    )
    legend(ax, look, loc="upper left", bbox_to_anchor=(1, 1))
    return finish(figure, look)


def beyond(view: View) -> Any:
    """Draw cos of some pairs within and beyond the trained length, where slow pairs reach new
    angles.
    """
    look = view.look
    figure, (ax,) = blank(look)
    steps = analysis.radians(view.spec, view.served)
    positions = np.linspace(0, view.served, 800)
    for i, pair in enumerate(
        pairs_with_turns(analysis.turns(steps, view.trained), (2.0, 0.5, 0.25, 0.1))
    ):
        label = look.translate("pair {pair}", pair=pair)
        ax.plot(
            positions,
            np.cos(positions * steps[pair]),
            color=look.colour(i),
            linewidth=2,
            label=label,
        )
    ax.axvspan(0, view.trained, color=look.grid, alpha=0.6, zorder=0)
    ax.text(
        0, 1.12, " " + look.translate("trained length"), color=look.quiet, fontsize=9, ha="left"
    )
    ax.set(xlim=(0, view.served), ylim=(-1.1, 1.25))
    title = "Beyond the trained length slow pairs reach new angles"
    label_axes(ax, look, title=title, x="position", y="cos of the angle")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def pairs_with_turns(turns: np.ndarray, targets: Sequence[float]) -> list[int]:
    """Return the pair whose number of turns is closest to each target, on a logarithmic scale,
    without duplicates.
    """
    log_turns = np.log(np.maximum(turns, 1e-12))
    return list(
        dict.fromkeys(int(np.abs(log_turns - math.log(target)).argmin()) for target in targets)
    )


def clocks(view: View) -> Any:
    """Draw clocks of at most CLOCK_PAIRS pairs that are spread evenly over the ladder."""
    steps = analysis.radians(view.spec, view.served)
    pairs = np.unique(np.linspace(0, len(steps) - 1, CLOCK_PAIRS).round().astype(int))
    return clock_faces(steps[pairs].tolist(), CLOCK_POSITIONS, view.look)


def clock_faces(radians: Sequence[float], positions: Sequence[int], look: Look = LIGHT) -> Any:
    """Return a figure with a clock for every pair (columns) and position (rows): the hand shows the
    angle, its path is shaded.
    """
    # one unit is the diameter of a clock, and an inch; clocks are 1.4 apart in a row and 1.2 in a
    # column
    across, down = 1.4 * len(radians) + 1.2, 1.2 * len(positions) + 0.65
    figure, (ax,) = blank(look, across, down)
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    for column, step in enumerate(radians):
        x, colour, wavelength = 1.4 * column, look.colour(column), analysis.wavelengths([step])[0]
        label = look.translate("a turn in {turn}", turn=short(wavelength))
        if math.isinf(wavelength):
            label = look.translate("does not rotate")
        ax.text(x, 0.72, label, ha="center", fontsize=10, color=colour, weight="bold")
        for row, position in enumerate(positions):
            _draw_clock(ax, look, x, -1.2 * row, position * step, colour)
    for row, position in enumerate(positions):
        label = look.translate("position {position}", position=f"{position:,}")
        ax.text(-0.7, -1.2 * row, label, ha="right", va="center", fontsize=11, color=look.ink)
    ax.set(xlim=(-1.8, across - 1.8), ylim=(1.05 - down, 1.05))
    ax.axis("off")
    return finish(figure, look)


def _draw_clock(ax: Any, look: Look, x: float, y: float, angle: float, colour: str) -> None:
    """Draw one clock at (x, y): the circle, the shaded path from angle 0, and the hand at `angle`,
    in radians.
    """
    from matplotlib.patches import Circle, Wedge

    ax.add_patch(Circle((x, y), 0.5, facecolor=look.paper, edgecolor=look.grid, linewidth=1.6))
    ax.add_patch(
        Wedge(
            (x, y),
            0.5,
            0,
            min(math.degrees(angle), 360.0),
            facecolor=colour,
            alpha=0.2,
            linewidth=0,
        )
    )
    tip = x + 0.43 * math.cos(angle), y + 0.43 * math.sin(angle)
    ax.plot((x, tip[0]), (y, tip[1]), color=colour, linewidth=2.6, solid_capstyle="round")
    ax.plot(x, y, "o", color=look.ink, markersize=3.5)
