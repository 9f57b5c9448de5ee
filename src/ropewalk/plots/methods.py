"""Figures of methods for long contexts: remapped distances, and temperatures by position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ropewalk.attention.remap import Remapping
from ropewalk.attention.temperature import Temperature
from ropewalk.plots.look import LIGHT, Look, blank, finish, label_axes, legend


def distance_lines(remappings: Mapping[str, Remapping], query: int, trained: int | None = None, look: Look = LIGHT) -> Any:
    """Draw the distance that a remapping uses in the score of position `query` with each key, against the true distance.

    One line per remapping; RoPE itself is the diagonal. `trained` draws a line at the trained length.
    """
    figure, (ax,) = blank(look)
    keys = torch.arange(query, -1, -1)
    ax.plot(range(query + 1), range(query + 1), color=look.quiet, linewidth=1.2, label="RoPE")
    for number, (name, remapping) in enumerate(remappings.items()):
        distances = remapping.distances(torch.tensor([query]), keys)[0]
        ax.plot(range(query + 1), distances.tolist(), color=look.colour(number), linewidth=2, label=name)
    if trained is not None:
        ax.axhline(trained, color=look.quiet, linewidth=1, linestyle="--")
        ax.set(ylim=(0, 1.3 * trained))
    label_axes(ax, look, title="Distances that attention sees", x="true distance", y="distance in the score")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def temperature_lines(temperatures: Mapping[str, Temperature], longest: int, look: Look = LIGHT) -> Any:
    """Draw the factor on queries against their position; one line per temperature, which must have no learned parameters."""
    figure, (ax,) = blank(look)
    positions = torch.linspace(0, longest - 1, 1024).long()
    for number, (name, temperature) in enumerate(temperatures.items()):
        ax.plot(positions.tolist(), temperature.factor(positions).tolist(), color=look.colour(number), linewidth=2, label=name)
    label_axes(ax, look, title="Factor on queries by position", x="position", y="factor")
    legend(ax, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)
