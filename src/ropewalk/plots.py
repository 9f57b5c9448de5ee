"""Pictures of numbers that others computed: each function takes data, draws one figure and writes one PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INK, QUIET, GRID = "#1d2733", "#8a94a0", "#e6eaee"
COLOURS = ("#0b6e99", "#d9730d", "#ad1a72", "#2f7d4f", "#7a5195", "#b8860b")


def precision(curves: Mapping[str, tuple[Sequence[int], Sequence[float]]], path: Path) -> Path:
    """Error of cos and sin against position, both logarithmic, one line per policy."""
    figure, ax = _figure(8.4, 4.4)
    for colour, (name, (positions, errors)) in zip(COLOURS, curves.items(), strict=False):
        ax.plot(positions, errors, color=colour, linewidth=2.4, solid_capstyle="round", label=name)
    ax.axhline(2**-9, color=QUIET, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.annotate("rounding to bfloat16", (2**40, 2**-9), (0, 5), textcoords="offset points", color=QUIET, fontsize=9, ha="right")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks([1e3, 1e4, 131_072, 1e6, 1e7, 1e9, 2**40], ["1k", "10k", "128k", "1M", "10M", "1G", "2⁴⁰"])
    ax.minorticks_off()
    ax.set(xlim=(900, 2**40 * 1.1), ylim=(8e-9, 5), xlabel="position", ylabel="largest error of cos and sin")
    ax.set_title("How far the angle can be trusted", loc="left", color=INK, weight="bold", fontsize=13, pad=12)
    ax.legend(
        frameon=False,
        labelcolor="linecolor",
        loc="center left",
        bbox_to_anchor=(0.33, 0.42),
        reverse=True,
        prop={"weight": "bold"},
    )
    return _save(figure, path)


def clocks(radians: Sequence[float], positions: Sequence[int], path: Path) -> Path:
    """A face for every pair (columns) and position (rows); the hand stands at the pair's angle, its path shaded."""
    across, down = 1.4 * len(radians) + 1.2, 1.2 * len(positions) + 0.65
    figure, ax = _figure(across, down)
    figure.set_layout_engine("none")
    ax.set_position((0, 0, 1, 1))
    for column, step in enumerate(radians):
        x, colour, turn = 1.4 * column, COLOURS[column % len(COLOURS)], 2 * math.pi / step
        ax.text(x, 0.72, f"a turn in {turn:,.{int(turn < 100)}f}", ha="center", fontsize=10, color=colour, weight="bold")
        for row, position in enumerate(positions):
            _face(ax, x, -1.2 * row, position * step, colour)
    for row, position in enumerate(positions):
        ax.text(-0.7, -1.2 * row, f"position {position:,}", ha="right", va="center", fontsize=11, color=INK)
    ax.set(xlim=(-1.8, across - 1.8), ylim=(1.05 - down, 1.05))
    ax.axis("off")
    return _save(figure, path)


def _face(ax: Any, x: float, y: float, angle: float, colour: str) -> None:
    from matplotlib.patches import Circle, Wedge

    ax.add_patch(Circle((x, y), 0.5, facecolor="white", edgecolor=GRID, linewidth=1.6))
    ax.add_patch(Wedge((x, y), 0.5, 0, min(math.degrees(angle), 360.0), facecolor=colour, alpha=0.15, linewidth=0))
    tip = x + 0.43 * math.cos(angle), y + 0.43 * math.sin(angle)
    ax.plot((x, tip[0]), (y, tip[1]), color=colour, linewidth=2.6, solid_capstyle="round")
    ax.plot(x, y, "o", color=INK, markersize=3.5)


def scalings(ratios: Mapping[str, Sequence[float]], path: Path) -> Path:
    """Each pair's frequency under a scaling, as a share of its plain one."""
    figure, ax = _figure(8.4, 4.2)
    for colour, (name, ratio) in zip(COLOURS, ratios.items(), strict=False):
        ax.plot(range(len(ratio)), ratio, color=colour, linewidth=2.4, label=name)
    ax.set(ylim=(0, 1.06), xlim=(0, max(map(len, ratios.values())) - 1))
    ax.set(xlabel="pair, fastest first", ylabel="frequency / plain frequency")
    ax.set_title("Which pairs a scaling slows", loc="left", color=INK, weight="bold", fontsize=13, pad=12)
    ax.legend(frameon=False, labelcolor="linecolor", loc="lower left", ncols=len(ratios), prop={"weight": "bold"})
    return _save(figure, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    # the object interface: no global state, no display needed
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.add_subplot()
    ax.tick_params(colors=QUIET, length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    ax.grid(color=GRID, linewidth=0.8)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_color(INK)
    return figure, ax


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    return path
