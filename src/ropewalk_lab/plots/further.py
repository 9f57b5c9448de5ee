"""A figure of the loss by position of a model that reads beyond its trained length, one line per
method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from ropewalk_lab.plots.look import LIGHT, Look, blank, finish, label_axes, subtitle

#: the method that is the model as it is
PLAIN = "none"
#: height of a label, as a share of the range of losses
LABEL = 0.07


@dataclass(frozen=True)
class LossBand:
    """The mean loss in nats of the tokens at positions low to high - 1, and its standard error."""

    low: int
    high: int
    mean: float
    error: float = 0.0


def loss_by_position(
    methods: Mapping[str, Sequence[LossBand]],
    trained: int,
    model: str,
    about: str = "",
    look: Look = LIGHT,
) -> Any:
    """Draw the loss by position, one line per method: `none` and the method with the lowest loss in
    its last band in colour, the others in grey.

    methods  name -> its bands, from the first position to the last; `none` is the model as it is
    trained  the trained length, within which the background is shaded
    model    the model's name, for the title
    about    a line below the title: texts, windows, what was trained
    """
    end = max(bands[-1].high for bands in methods.values())
    # `default`: the model as it is may be the only line
    best = min(
        (name for name in methods if name != PLAIN),
        key=lambda name: methods[name][-1].mean,
        default=PLAIN,
    )
    figure, (ax,) = blank(look, 8.5, 4.4)
    ax.axvspan(0, trained, color=look.quiet, alpha=0.15, linewidth=0)
    colours = dict.fromkeys(methods, look.quiet) | {best: look.colour(0), PLAIN: look.colour(1)}
    # grey lines first, so that the two in colour are drawn over them
    for name in sorted(methods, key=lambda name: name in (PLAIN, best)):
        _draw_bands(ax, methods[name], colours[name], 2.6 if name in (PLAIN, best) else 1.1)
    means = [band.mean for bands in methods.values() for band in bands]
    span = max(means) - min(means) or 1.0  # equal losses have no span
    heights = _label_heights(
        {name: bands[-1].mean for name, bands in methods.items()}, LABEL * span
    )
    ax.set_ylim(
        min(*means, *heights.values()) - 0.1 * span, max(*means, *heights.values()) + 0.1 * span
    )
    for name, y in heights.items():
        label = (
            f"{look.translate('no scaling') if name == PLAIN else name}  "
            f"{methods[name][-1].mean:.2f}"
        )
        weight = "bold" if name in (PLAIN, best) else "normal"
        ax.annotate(
            label,
            (end, y),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=colours[name],
            annotation_clip=False,
            fontsize=9,
            weight=weight,
        )
    ticks = sorted({0, *(band.high for band in methods[best])})
    ax.set_xticks(
        ticks, [f"{tick // 1024}k" if tick and tick % 1024 == 0 else f"{tick:,}" for tick in ticks]
    )
    ax.set_xlim(0, end)
    title = look.translate(
        "{model}, trained on {trained} tokens, reads {served}",
        model=model,
        trained=f"{trained:,}",
        served=f"{end:,}",
    )
    ax.set_title(title, loc="left", color=look.ink, weight="bold", fontsize=13, pad=12)
    label_axes(ax, look, x="position of the token", y="loss, nats per token")
    if about:
        subtitle(ax, look, about)
    return finish(figure, look)


def _draw_bands(ax: Any, bands: Sequence[LossBand], colour: str, width: float) -> None:
    """Draw the mean of each band as a horizontal line over its positions, joined to the next, with
    its standard error in the middle.
    """
    edges = [bands[0].low, *(band.high for band in bands)]
    ax.stairs([band.mean for band in bands], edges, baseline=None, color=colour, linewidth=width)
    middles = [(band.low + band.high) / 2 for band in bands]
    errors = [band.error for band in bands]
    ax.errorbar(
        middles,
        [band.mean for band in bands],
        errors,
        fmt="none",
        ecolor=colour,
        elinewidth=width / 2,
        capsize=2,
    )


def _label_heights(wanted: Mapping[str, float], gap: float) -> dict[str, float]:
    """Return a height for each label, as near to its `wanted` height as possible (least squares):
    labels keep the order of these heights, and are at least `gap` apart.
    """
    ordered = sorted(wanted, key=wanted.__getitem__)
    # isotonic regression of wanted - rank * gap: neighbours in the wrong order are pooled to their
    # mean
    pools: list[list[float]] = []
    for rank, name in enumerate(ordered):
        pools.append([wanted[name] - rank * gap])
        while len(pools) > 1 and fmean(pools[-2]) > fmean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    heights = [fmean(pool) for pool in pools for _ in pool]
    return {
        name: height + rank * gap
        for rank, (name, height) in enumerate(zip(ordered, heights, strict=True))
    }
