"""What a study says of its rows: tables, figures, and claims whose verdict is left to the noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ropewalk.lab.statistics import Comparison, Score, compare
from ropewalk.lab.studies.rows import Row, score
from ropewalk.plots import LIGHT, blank, dress, finish, legend

#: how much one training differs from the next at this size, where only one was run (tiny language models, as published)
SEED_NOISE = 0.015
HOLDS, TIED, FAILS, UNKNOWN = "holds", "covered by noise", "does not hold", "not measured"


@dataclass(frozen=True)
class Table:
    """Cells under columns; `note` says how to read them."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence, what became of it here, and the numbers."""

    text: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Page:
    """The part of a report that one study fills; figures are drawn when called, for tables need no matplotlib."""

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


def floor_of(scores: Sequence[Score | None], *, same_model: bool = False) -> float:
    """Noise beyond that of the windows: between two trainings it is known only where several seeds were run."""
    single = any(each is not None and each.seeds == 1 for each in scores)
    return SEED_NOISE * 2**0.5 if single and not same_model else 0.0


def number(found: Score | None) -> str:
    """A mean with its standard error."""
    if found is None:
        return "-"
    return f"{found.mean:.3f} ± {found.error:.3f}" if found.values.size > 1 else f"{found.mean:.3f}"


def lower(text: str, scores: Mapping[str, Score | None], order: Sequence[str], *, same_model: bool = False) -> Claim:
    """That the scores of `order` rise in this order; each step must be beyond its paired error."""
    absent = [name for name in order if scores.get(name) is None]
    if absent:
        return Claim(text, UNKNOWN, f"no rows for {', '.join(absent)}")
    floor = floor_of(list(scores.values()), same_model=same_model)
    steps = [(a, b, compare(scores[a], scores[b], floor=floor)) for a, b in pairwise(order)]  # type: ignore[arg-type]
    verdicts = [step.verdict for _, _, step in steps]
    verdict = FAILS if "b" in verdicts else TIED if "tied" in verdicts else HOLDS
    return Claim(text, verdict, "; ".join(f"{a} - {b} {gap(step)}" for a, b, step in steps))


def gap(step: Comparison) -> str:
    """A paired difference with its error."""
    return f"{step.difference:+.3f} ± {step.error:.3f}"


def within(text: str, one: Score | None, other: Score | None, limit: float) -> Claim:
    """That two scores of one model differ by at most `limit`, beyond doubt."""
    if one is None or other is None:
        return Claim(text, UNKNOWN, "no rows")
    step = compare(one, other)
    sure = abs(step.difference) + 2 * step.error <= limit
    verdict = HOLDS if sure else FAILS if abs(step.difference) - 2 * step.error > limit else TIED
    return Claim(text, verdict, f"{gap(step)}, limit {limit:g}")


def not_higher(text: str, one: Score | None, other: Score | None, limit: float) -> Claim:
    """That one score exceeds another of the same model by at most `limit`, beyond doubt; less is as good."""
    if one is None or other is None:
        return Claim(text, UNKNOWN, "no rows")
    step = compare(one, other)
    verdict = HOLDS if step.difference + 2 * step.error <= limit else FAILS if step.difference > limit else TIED
    return Claim(text, verdict, f"{gap(step)}, limit {limit:+g}")


def by_length(rows: list[Row], lengths: Sequence[int], **what: Any) -> tuple[list[float], list[float]]:
    """A line of a figure: the lengths at which something was measured, and the mean loss there."""
    found = [(float(n), s.mean) for n in lengths if (s := score(rows, "loss", length=n, **what)) is not None]
    return [n for n, _ in found], [mean for _, mean in found]


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def lines(series: Series, *, title: str, x: str, y: str, log: bool = True, log_y: bool = False) -> Callable[[], Any]:
    """A figure to be, with one line a series."""
    return lambda: _lines(series, title, x, y, log, log_y)


def _lines(series: Series, title: str, x: str, y: str, log: bool, log_y: bool) -> Any:
    figure, (ax,) = blank(LIGHT, 8.5, 4.6)
    # beyond six the dashes change, since colours come round
    styles = ("-", "--", ":", "-.")
    for place, (name, (across, up)) in enumerate(series.items()):
        ax.plot(across, up, styles[place // 6 % 4], marker="o", markersize=3.5, color=LIGHT.colour(place), label=name)
    if log:
        ax.set_xscale("log", base=2)
        ticks = sorted({value for across, _ in series.values() for value in across})
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    if log_y:
        ax.set_yscale("log")
    dress(ax, LIGHT, title=title, x=x, y=y)
    legend(ax, LIGHT, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return finish(figure, LIGHT)
