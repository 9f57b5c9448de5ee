"""Figures of quantities that depend on distance: decay, similarity, maps over positions, t-SNE, the
sum of cosines.

Words of this module:
  view    what a figure shows: a spec, its trained length, the longer `served` length, and the look
  look    the colours (`quiet` for reference lines, `ink` for text) and the language; it translates
          labels
  pairs   the pairs of dimensions that rotate, fastest first; `frequencies` are in radians per
          token, those of a sequence of the served length (some scalings depend on it)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ropewalk_lab import analysis
from ropewalk_lab.plots.look import (
    MAP,
    blank,
    colour_bar,
    finish,
    heat,
    label_axes,
    legend,
)
from ropewalk_lab.plots.view import View
from ropewalk_lab.tsne import tsne as map_to_plane

#: how many distances or positions each figure shows, and the bases θ that `base_bound` compares
DECAY_DISTANCES = 256
SIMILARITY_DISTANCES = 512
MAP_POSITIONS = 128
TSNE_POSITIONS = 128
BASES = (1e3, 1e4, 1e5, 1e6)


def random_pair(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a random q and k, normally distributed and the same in every figure."""
    generator = np.random.default_rng(0)
    return generator.normal(size=dim), generator.normal(size=dim)


def decay(view: View) -> Any:
    """Draw RoFormer's decay curve on the left (S_j is the sum of e^{i distance omega} over j pairs,
    fastest first), and on the right the scores of one q and k, with their bound by Abel summation.
    """
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    distances = np.arange(DECAY_DISTANCES + 1)
    figure, (left, right) = blank(look, 10.5, 4.2, across=2)
    left.plot(
        distances, analysis.decay(frequencies, distances), color=look.colour(0), linewidth=2.2
    )
    label_axes(left, look, title="Decay of scores with distance", x="distance", y="mean of |S_j|")
    q, k = random_pair(2 * len(frequencies))
    bound = analysis.abel_bound(q, k, frequencies, distances)
    scores = np.abs(analysis.scores(q, k, frequencies, distances))
    right.plot(
        distances, bound, color=look.colour(1), linewidth=2.2, label=look.translate("Abel bound")
    )
    right.plot(distances, scores, color=look.colour(2), linewidth=2.2, label="|⟨q, k⟩|")
    right.set(yscale="log", ylim=(1e-1, None))
    label_axes(right, look, x="distance", y="inner product")
    legend(right, look, loc="center left", bbox_to_anchor=(1, 0.5))
    return finish(figure, look)


def similarity(view: View) -> Any:
    """Draw the similarity of two position encodings against their distance."""
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    figure, (ax,) = blank(look)
    distances = np.arange(SIMILARITY_DISTANCES + 1)
    ax.plot(
        distances, analysis.similarity(frequencies, distances), color=look.colour(0), linewidth=2
    )
    ax.set(xlim=(0, SIMILARITY_DISTANCES))
    label_axes(ax, look, title="Similarity against distance", x="distance", y="similarity")
    return finish(figure, look)


def similarity_map(view: View) -> Any:
    """Draw a map of the similarity between the encodings of any two positions."""
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    figure, (ax,) = blank(look, 6, 5)
    values = analysis.similarity_matrix(frequencies, range(MAP_POSITIONS))
    heat(figure, ax, look, values, signed=False, label="similarity", extent=_square(MAP_POSITIONS))
    label_axes(
        ax, look, title="Similarity of every two positions", x="key position", y="query position"
    )
    return finish(figure, look)


def inner_products(view: View) -> Any:
    """Draw a map of the inner products of q and k rotated to any two positions; each diagonal is
    constant.
    """
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    figure, (ax,) = blank(look, 6, 5)
    values = analysis.score_matrix(
        *random_pair(2 * len(frequencies)), frequencies, range(MAP_POSITIONS)
    )
    heat(
        figure, ax, look, values, signed=True, label="inner product", extent=_square(MAP_POSITIONS)
    )
    label_axes(
        ax,
        look,
        title="Inner products of one q and one k, rotated",
        x="key position",
        y="query position",
    )
    return finish(figure, look)


def tsne(view: View) -> Any:
    """Draw a t-SNE of the encodings of the first positions: a curve, because neighbours are
    similar.
    """
    look, frequencies = view.look, analysis.radians(view.spec, view.served)
    figure, (ax,) = blank(look, 6, 5)
    rotated = analysis.phasors(frequencies, range(TSNE_POSITIONS))
    x, y = map_to_plane(np.concatenate([np.real(rotated), np.imag(rotated)], axis=1)).T
    ax.plot(x, y, color=look.quiet, linewidth=1, zorder=1)
    dots = {"cmap": MAP, "s": 30, "zorder": 2, "edgecolors": look.ink, "linewidths": 0.5}
    points = ax.scatter(x, y, c=np.arange(TSNE_POSITIONS), **dots)
    ax.set(xticklabels=[], yticklabels=[])
    colour_bar(figure, ax, look, points, "position")
    title = "Encodings on a plane (t-SNE)"
    label_axes(ax, look, title=title, x="first coordinate", y="second coordinate")
    return finish(figure, look)


def _square(count: int) -> tuple[float, float, float, float]:
    """Return the (left, right, bottom, top) of a map of `count` by `count` positions, an `extent`
    of matplotlib; a cell is centred on its position.
    """
    return -0.5, count - 0.5, -0.5, count - 0.5


def base_bound(view: View) -> Any:
    """Draw the sum of cos(m omega) over all pairs against the distance m, for several bases."""
    look = view.look
    figure, (ax,) = blank(look)
    # whole distances, evenly spread on a logarithmic scale
    distances = np.unique(np.geomspace(1, view.served, 1500).round())
    for i, theta in enumerate(BASES):
        sums = analysis.cosine_sum(
            analysis.radians(view.spec.with_(theta=theta), view.served), distances
        )
        label = look.translate("theta {theta}", theta=f"{theta:,.0f}")
        ax.plot(distances, sums, color=look.colour(i), linewidth=1.4, label=label)
    ax.axhline(0, color=look.quiet, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xscale="log", xlim=(1, view.served))
    label_axes(
        ax, look, title="The sum of cosines for several bases", x="distance", y="sum of cos(m ω)"
    )
    legend(ax, look, loc="upper right")
    return finish(figure, look)
