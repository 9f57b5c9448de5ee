"""Figures of the frequency ladder: the wavelength of each pair, its turns within a length, and the
effect of scalings.

Words of this module:
  view    what a figure shows: a spec, its trained length, the longer `served` length, and the look
  look    the colours (`quiet` for reference lines, `ink` for text) and the language; it translates
          labels
  pairs   the pairs of dimensions that rotate, fastest first; `frequencies` are in radians per
          token, those of a sequence of the served length (some scalings depend on it)
  clock   one pair at one position: the hand shows the angle by which the pair is rotated
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

#: the positions that the figures `angles` and `clocks` show, and how many pairs have a clock
ANGLE_POSITIONS = (0, 1, 4, 8)
CLOCK_POSITIONS = (0, 1, 4, 64)
CLOCK_PAIRS = 6
#: how many pairs the figure `angles` shows in radians
RADIAN_PAIRS = 32
#: how many pairs and positions the figure `periodicity` shows
PERIODIC_PAIRS = 3
PERIODIC_POSITIONS = 48
#: how many positions of the fastest pair `beyond` shows on either side of the trained length
NEAR_POSITIONS = 8


def spectrum(view: View) -> Any:
    """Draw the frequency of every pair (inv_freq) on the left, its wavelength (tokens per turn) and
    the trained length on the right.
    """
    look = view.look
    figure, (left, right) = blank(look, 10.5, 4.2, across=2)
    lines = {"default": analysis.plain_radians(view.spec)}
    if view.scaled:
        lines[view.spec.scaling.name] = analysis.radians(view.spec, view.served)
    for i, (name, frequencies) in enumerate(lines.items()):
        # a logarithmic axis has no negative values and no 0: the sign is left out, and a pair that
        # does not rotate has no point
        sizes = np.where(frequencies == 0, np.nan, np.abs(frequencies))
        left.plot(sizes, color=look.colour(i), linewidth=2.4, label=name)
        waves = analysis.wavelengths(frequencies)
        right.plot(waves, color=look.colour(i), linewidth=2.4, label=name)
    label = look.translate("trained length")
    dashes = {"color": look.quiet, "linewidth": 1, "linestyle": (0, (4, 3))}
    right.axhline(view.trained, label=label, **dashes)
    for ax in (left, right):
        # at least 1, because a single pair would give the axis no width
        ax.set(yscale="log", xlim=(0, max(view.spec.pairs - 1, 1)))
    title, x = "Frequency and wavelength of every pair", "pair, fastest first"
    label_axes(left, look, title=title, x=x, y="inv_freq, radians per token")
    label_axes(right, look, x=x, y="tokens per turn")
    legend(right, look, loc="upper left")
    return finish(figure, look)


def angles(view: View) -> Any:
    """Draw the angle of every pair at a few positions: all pairs in turns on the left, the first
    RADIAN_PAIRS in radians on the right.
    """
    look = view.look
    figure, (left, right) = blank(look, 10.5, 4.2, across=2)
    frequencies = analysis.radians(view.spec, view.served)
    first = frequencies[:RADIAN_PAIRS]
    for i, position in enumerate(ANGLE_POSITIONS):
        label = look.translate("position {position}", position=position)
        line = {"color": look.colour(i), "linewidth": 2.4, "label": label}
        left.plot(position * frequencies / (2 * math.pi), **line)
        right.plot(position * first, **line)
    # at least 1, because a single pair would give the axis no width
    left.set(xlim=(0, max(len(frequencies) - 1, 1)))
    right.set(xlim=(0, max(len(first) - 1, 1)))
    title, x = "The angle of every pair", "pair, fastest first"
    label_axes(left, look, title=title, x=x, y="angle, in turns")
    label_axes(right, look, x=x, y="angle, in radians")
    legend(right, look, loc="upper right")
    return finish(figure, look)


def periodicity(view: View) -> Any:
    """Draw cos of the first three pairs over a few tokens, with a dot after every turn."""
    look = view.look
    figure, (ax,) = blank(look)
    positions = np.linspace(0, PERIODIC_POSITIONS, 10 * PERIODIC_POSITIONS + 1)
    for pair, frequency in enumerate(analysis.radians(view.spec, view.served)[:PERIODIC_PAIRS]):
        colour, wave = look.colour(pair), float(analysis.wavelengths([frequency])[0])
        label = look.translate("pair {pair}", pair=pair)
        if math.isfinite(wave):
            label += ": " + look.translate("a turn in {turn}", turn=short(wave))
        ax.plot(positions, np.cos(positions * frequency), color=colour, linewidth=2, label=label)
        # the positions after 1, 2, ... turns; none if the wavelength is longer than the axis
        turns = wave * np.arange(1, int(PERIODIC_POSITIONS // wave) + 1)
        ax.plot(turns, np.ones(len(turns)), "o", color=colour, markersize=6)
    ax.set(xlim=(0, PERIODIC_POSITIONS), ylim=(-1.1, 1.15))
    title = "Each pair repeats after its own wavelength"
    label_axes(ax, look, title=title, x="position", y="cos of the angle")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def coverage(view: View) -> Any:
    """Draw the number of turns of each pair within the trained length, and within the served length
    without and with the view's scaling (YaRN if it has none); a dashed line is at one turn.
    """
    look = view.look
    figure, (ax,) = blank(look)
    # a spec without a scaling is shown with YaRN's
    spec = view.spec if view.scaled else view.stretched()["yarn"]
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
    # at least 1, because a single pair would give the axis no width
    ax.set(yscale="log", xlim=(0, max(view.spec.pairs - 1, 1)))
    label_axes(ax, look, title="Turns of every pair", x="pair, fastest first", y="turns")
    legend(ax, look, loc="upper right")
    return finish(figure, look)


def scalings(view: View) -> Any:
    """Draw the frequency of each pair under each scaling of `View.stretched`, divided by its
    frequency without scaling.
    """
    return ratio_lines(
        {name: analysis.stretch(spec, view.served) for name, spec in view.stretched().items()},
        view.look,
    )


def ratio_lines(ratios: Mapping[str, Sequence[float] | np.ndarray], look: Look = LIGHT) -> Any:
    """Draw one line per scaling, {name: for each pair, the scaled / the plain frequency}."""
    figure, (ax,) = blank(look)
    for i, (name, ratio) in enumerate(ratios.items()):
        ax.plot(range(len(ratio)), ratio, color=look.colour(i), linewidth=2.4, label=name)
    # as for 2 pairs at least, because a single pair would give the axis no width
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
    """Draw values within and beyond the trained length: cos of slow pairs, which reach new angles,
    on the left, and the two dimensions of the fastest pair, which repeat, on the right.
    """
    look = view.look
    figure, (left, right) = blank(look, 12.5, 4.2, across=2)
    frequencies = analysis.radians(view.spec, view.served)
    positions = np.linspace(0, view.served, 800)
    # the pairs whose number of turns in training is closest to each of these
    slow = pairs_with_turns(analysis.turns(frequencies, view.trained), (2.0, 0.5, 0.25, 0.1))
    for i, pair in enumerate(slow):
        line = {"color": look.colour(i), "linewidth": 2}
        label = look.translate("pair {pair}", pair=pair)
        left.plot(positions, np.cos(positions * frequencies[pair]), label=label, **line)
    near = np.linspace(view.trained - NEAR_POSITIONS, view.trained + NEAR_POSITIONS, 800)
    # the vector (1, 0) of the fastest pair, rotated: dimensions 0 and 1 of an interleaved head
    near_angles = near * frequencies[0]
    for dimension, value in enumerate((np.cos(near_angles), np.sin(near_angles))):
        label = look.translate("dimension {dimension}", dimension=dimension)
        right.plot(near, value, color=look.colour(dimension), linewidth=2, label=label)
    for ax, low, high in ((left, 0, view.served), (right, near[0], near[-1])):
        ax.axvspan(low, view.trained, color=look.grid, alpha=0.6, zorder=0)
        ax.set(xlim=(low, high), ylim=(-1.1, 1.25))
        placement = {"color": look.quiet, "fontsize": 9, "ha": "left"}
        ax.text(low, 1.12, " " + look.translate("trained length"), **placement)
    title = "Beyond the trained length slow pairs reach new angles"
    label_axes(left, look, title=title, x="position", y="cos of the angle")
    label_axes(right, look, x="position", y="(1, 0), rotated")
    for ax in (left, right):
        legend(ax, look, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4)
    return finish(figure, look)


def pairs_with_turns(turns: np.ndarray, targets: Sequence[float]) -> list[int]:
    """Return the pair whose number of turns is closest to each target, on a logarithmic scale,
    without duplicates.
    """
    log_turns = np.log(np.maximum(turns, 1e-12))  # 0 turns have no logarithm
    return list(
        dict.fromkeys(int(np.abs(log_turns - math.log(target)).argmin()) for target in targets)
    )


def clocks(view: View) -> Any:
    """Draw clocks of at most CLOCK_PAIRS pairs, spread evenly from the fastest to the slowest."""
    frequencies = analysis.radians(view.spec, view.served)
    pairs = np.unique(np.linspace(0, len(frequencies) - 1, CLOCK_PAIRS).round().astype(int))
    return clock_faces(frequencies[pairs].tolist(), CLOCK_POSITIONS, view.look)


def clock_faces(radians: Sequence[float], positions: Sequence[int], look: Look = LIGHT) -> Any:
    """Return a figure with a clock for every pair (columns) and position (rows): the hand shows the
    angle, its path from angle 0 is shaded. `radians` are the frequencies, in radians per token.
    """
    # one unit is the diameter of a clock, and an inch; clocks are 1.4 apart in a row and 1.2 in a
    # column; 1.2 on the left are for the positions and 0.65 on top for the wavelengths
    across, down = 1.4 * len(radians) + 1.2, 1.2 * len(positions) + 0.65
    figure, (ax,) = blank(look, across, down)
    # the axes fill the figure
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    for column, frequency in enumerate(radians):
        x, colour = 1.4 * column, look.colour(column)
        wavelength = analysis.wavelengths([frequency])[0]
        label = look.translate("a turn in {turn}", turn=short(wavelength))
        if math.isinf(wavelength):
            label = look.translate("does not rotate")
        ax.text(x, 0.72, label, ha="center", fontsize=10, color=colour, weight="bold")
        for row, position in enumerate(positions):
            _draw_clock(ax, look, x, -1.2 * row, position * frequency, colour)
    for row, position in enumerate(positions):
        label = look.translate("position {position}", position=f"{position:,}")
        ax.text(-0.7, -1.2 * row, label, ha="right", va="center", fontsize=11, color=look.ink)
    ax.set(xlim=(-1.8, across - 1.8), ylim=(1.05 - down, 1.05))
    ax.axis("off")
    return finish(figure, look)


def _draw_clock(ax: Any, look: Look, x: float, y: float, angle: float, colour: str) -> None:
    """Draw one clock around (x, y): the circle, the hand at `angle`, in radians counter-clockwise
    from the right, and the shaded path from angle 0, the whole circle after a turn.
    """
    from matplotlib.patches import Circle, Wedge

    ax.add_patch(Circle((x, y), 0.5, facecolor=look.paper, edgecolor=look.grid, linewidth=1.6))
    # a wedge is drawn counter-clockwise; the hand is its start if the frequency is negative
    start, end = sorted((0.0, max(-360.0, min(math.degrees(angle), 360.0))))
    ax.add_patch(Wedge((x, y), 0.5, start, end, facecolor=colour, alpha=0.2, linewidth=0))
    tip = x + 0.43 * math.cos(angle), y + 0.43 * math.sin(angle)
    ax.plot((x, tip[0]), (y, tip[1]), color=colour, linewidth=2.6, solid_capstyle="round")
    ax.plot(x, y, "o", color=look.ink, markersize=3.5)
