"""Figures of methods: remapped distances, temperatures by position, and plain forms for whatever a
method changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.remap import Remapping
from ropewalk.attention.temperature import factor
from ropewalk.temperatures import Temperature
from ropewalk_lab.plots.look import LIGHT, Look, blank, finish, heat, label_axes, legend


def distance_lines(
    remappings: Mapping[str, Remapping], query: int, trained: int | None = None, look: Look = LIGHT
) -> Any:
    """Draw the distance that a remapping uses in the score of position `query` with each key,
    against the true distance.

    One line per remapping; RoPE itself is the diagonal. `trained` draws a line at the trained
    length, and ends the y axis at 1.3 times that length.
    """
    figure, (ax,) = blank(look)
    keys = torch.arange(query, -1, -1)  # at the distances 0, 1, ..., query
    ax.plot(range(query + 1), range(query + 1), color=look.quiet, linewidth=1.2, label="RoPE")
    for number, (name, remapping) in enumerate(remappings.items()):
        distances = remapping.distances(torch.tensor([query]), keys)[0]
        ax.plot(
            range(query + 1), distances.tolist(), color=look.colour(number), linewidth=2, label=name
        )
    if trained is not None:
        ax.axhline(trained, color=look.quiet, linewidth=1, linestyle="--")
        ax.set(ylim=(0, 1.3 * trained))
    label_axes(
        ax,
        look,
        title="Distances that attention sees",
        x="true distance",
        y="distance in the score",
    )
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def temperature_lines(
    temperatures: Mapping[str, Temperature], longest: int, look: Look = LIGHT
) -> Any:
    """Draw the factor on queries against their position, from 0 to `longest` - 1; one line per
    temperature, which must have no learned parameters.
    """
    figure, (ax,) = blank(look)
    positions = torch.linspace(0, longest - 1, 1024).long()
    for number, (name, temperature) in enumerate(temperatures.items()):
        ax.plot(
            positions.tolist(),
            factor(temperature, positions).tolist(),
            color=look.colour(number),
            linewidth=2,
            label=name,
        )
    label_axes(ax, look, title="Factor on queries by position", x="position", y="factor")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


#: name -> (x values, y values)
Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def method_lines(
    series: Series,
    *,
    title: str,
    x: str,
    y: str,
    look: Look = LIGHT,
    log_x: bool = False,
    log_y: bool = False,
) -> Any:
    """Draw one line for each series, {name: (x values, y values)}; the first is the baseline, which
    is thin and grey.
    """
    figure, (ax,) = blank(look)
    for number, (name, (xs, ys)) in enumerate(series.items()):
        colour, width = (look.quiet, 1.2) if number == 0 else (look.colour(number - 1), 2)
        ax.plot(xs, ys, color=colour, linewidth=width, label=name)
    ax.set(xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    label_axes(ax, look, title=title, x=x, y=y)
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def stripes(
    rows: Mapping[str, Sequence[int]],
    names: Sequence[str],
    *,
    title: str,
    x: str,
    look: Look = LIGHT,
) -> Any:
    """Draw each of `rows`, {name: numbers}, as a strip of cells: a cell with the number i has the
    colour of names[i] in the legend, one with -1 is grey.
    """
    figure, (ax,) = blank(look, height=1.4 + 0.55 * len(rows))
    for y, row in enumerate(rows.values()):
        colours = [look.grid if index < 0 else look.colour(index) for index in row]
        ax.barh([y] * len(row), [0.9] * len(row), left=range(len(row)), height=0.62, color=colours)
    for index, name in enumerate(names):
        # an empty line, only for the legend
        ax.plot([], [], color=look.colour(index), linewidth=6, label=name)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.invert_yaxis()
    ax.grid(False)
    label_axes(ax, look, title=title, x=x)
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def bars(values: Mapping[str, float], *, title: str, x: str, look: Look = LIGHT) -> Any:
    """Draw one horizontal bar for each name, the first on top, with its value at the end."""
    figure, (ax,) = blank(look, height=1.4 + 0.5 * len(values))
    drawn = ax.barh(list(values), list(values.values()), height=0.6, color=look.colour(0))
    ax.bar_label(drawn, [f"{value:,.0f}" for value in values.values()], padding=4, color=look.ink)
    ax.invert_yaxis()
    label_axes(ax, look, title=title, x=x)
    return finish(figure, look)


def directions(vectors: Tensor, *, title: str, look: Look = LIGHT) -> Any:
    """Draw the frequencies of a rotation over two axes as vectors [heads, pairs, 2] of (radians per
    column, radians per row) from the origin, one colour for each head.
    """
    figure, (ax,) = blank(look, 5.4, 4.6)
    for head, pairs in enumerate(vectors.tolist()):
        for number, (x, y) in enumerate(pairs):
            ax.plot(
                [0, x],
                [0, y],
                color=look.colour(head),
                linewidth=1.6,
                label=f"head {head}" if number == 0 else None,
            )
    ax.set_aspect("equal")
    label_axes(ax, look, title=title, x="radians per column", y="radians per row")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def score_maps(maps: Mapping[str, Tensor], *, label: str, look: Look = LIGHT) -> Any:
    """Draw matrices of scores [queries, keys] side by side, each with its name as title and a
    colour bar labelled `label`. Query 0 is at the bottom.
    """
    figure, panels = blank(look, 9.0, 4.2, across=len(maps))
    for ax, (name, scores) in zip(panels, maps.items(), strict=True):
        queries, keys = scores.shape
        heat(
            figure, ax, look, scores.numpy(), signed=True, label=label, extent=(0, keys, 0, queries)
        )
        label_axes(ax, look, title=name, x="key", y="query")
    return finish(figure, look)
