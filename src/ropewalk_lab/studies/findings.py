"""The findings of a study: tables, figures, and claims whose differences are compared with the
noise.

Words of this module:
  row        one measurement of a study: a metric, a value for each window, and fields that say what
             was measured
  score      the values [seeds, windows] of the rows with given fields
  noise      the random error of a score: between windows, and between trainings that differ in
             the seed alone
  facts      what was run and how, among them the preset
  published  from a table of others in PUBLISHED
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ropewalk_lab.plots import LIGHT, blank, finish, label_axes, legend
from ropewalk_lab.scores import Comparison, Score, compare
from ropewalk_lab.studies.rows import Row, score, scores_by

#: deviation of the loss between seeds, as published for tiny language models; used if only one seed
#: was run
SEED_NOISE = 0.015
HOLDS, TIED, FAILS, UNKNOWN = "holds", "within noise", "does not hold", "not measured"


@dataclass(frozen=True)
class Table:
    """Text cells under column titles; `note` explains how to read them."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement, whether it holds in these measurements (`verdict`: HOLDS, TIED, FAILS or
    UNKNOWN), and the numbers (`evidence`).
    """

    text: str
    verdict: str
    evidence: str


@dataclass(frozen=True)
class Ours:
    """Our values beside a table of PUBLISHED.

    columns  titles of the columns that are added to the table
    cells    the first cell of a row of the table -> our cells in that row
    """

    columns: tuple[str, ...]
    cells: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Findings:
    """The part of a report about one study.

    figures  name -> a function that draws the figure, so that tables do not need matplotlib
    ours     names of tables in PUBLISHED -> our values for the same rows
    """

    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    ours: dict[str, Ours] = field(default_factory=dict)


#: the presets that only show that a study runs, and what a page or table of one says first
TOO_SHORT = {
    "smoke": (
        "Too short to conclude: the preset smoke only shows that the study runs, so there are no "
        "verdicts."
    )
}


def concluded(findings: Findings, facts: Mapping[str, Any]) -> Findings:
    """Return the findings without claims that were not measured, and without any claim if the run
    was too short to conclude anything.
    """
    too_short = facts.get("preset") in TOO_SHORT
    claims = [claim for claim in findings.claims if claim.verdict != UNKNOWN]
    return replace(findings, claims=[] if too_short else claims)


def seed_noise(scores: Sequence[Score | None], *, same_model: bool = False) -> float:
    """Return the noise between trainings, which `compare` adds to the error of a difference of two
    scores.

    It is sqrt(2) SEED_NOISE if models were trained with a single seed: the difference has the noise
    of two trainings. It is 0 for scores of the same model, and with several seeds, whose deviation
    is part of the error already.
    """
    single_seed = any(each is not None and each.seeds == 1 for each in scores)
    return SEED_NOISE * 2**0.5 if single_seed and not same_model else 0.0


def cell(value: Score | None, form: str = ".3f") -> str:
    """Return the mean and its standard error as text, both in the format `form`. A score of one
    value (one seed and one window) has no error, and None gives "-".
    """
    if value is None:
        return "-"
    return (
        f"{value.mean:{form}} ± {value.error:{form}}"
        if value.values.size > 1
        else f"{value.mean:{form}}"
    )


def percent(value: Score | None) -> str:
    """Return the mean and standard error of a share as text."""
    return cell(value, ".1%")


def ours_by_name(
    rows: list[Row], names: Mapping[str, str], field: str, lengths: Sequence[int], **fields: Any
) -> Ours:
    """Return the loss of each model or method at each length, by its published name.

    names   published name -> our value of `field`, which is "model" or "method"
    fields  further fields that rows must have
    """
    columns = tuple(f"loss at {length}" for length in lengths)
    cells = {}
    for published, name in names.items():
        losses = [
            score(rows, "loss", **{field: name, "length": length}, **fields) for length in lengths
        ]
        cells[published] = tuple(cell(loss) for loss in losses)
    return Ours(columns, cells)


def difference(comparison: Comparison) -> str:
    """Return a paired difference and its error as text."""
    return f"{comparison.difference:+.3f} ± {comparison.error:.3f}"


def claim_order(
    text: str, scores: Mapping[str, Score | None], order: Sequence[str], *, same_model: bool = False
) -> Claim:
    """Return the claim that scores increase in the given order; lower is better.

    It holds if each score is lower than the next by more than the noise, does not hold if one is
    higher by more than the noise, and is within noise otherwise.

    text        the claim in words
    scores      {name: its score}; a missing one, or None, makes the claim "not measured"
    order       names of `scores`, the lowest score first
    same_model  the scores are of one model, so they have no noise between trainings
    """
    absent = [name for name in order if scores.get(name) is None]
    if absent:
        return Claim(text, UNKNOWN, f"no rows for {', '.join(absent)}")
    floor = seed_noise(list(scores.values()), same_model=same_model)
    comparisons = {
        f"{a} minus {b}": compare(scores[a], scores[b], floor=floor)  # type: ignore[arg-type]
        for a, b in pairwise(order)
    }
    # the verdict of a comparison is "a" if the first is lower, as claimed, "b" if the second is
    verdicts = [comparison.verdict for comparison in comparisons.values()]
    verdict = FAILS if "b" in verdicts else TIED if "tied" in verdicts else HOLDS
    return Claim(
        text,
        verdict,
        "; ".join(f"{names}: {difference(each)}" for names, each in comparisons.items()),
    )


def claim_within(text: str, one: Score | None, other: Score | None, limit: float) -> Claim:
    """Return the claim `text` that two scores differ by at most `limit`.

    It holds or fails if the difference is more than two standard errors from the limit, otherwise
    it is "within noise"; "not measured" if a score is None. Both scores are of one training, so no
    noise between trainings is added.
    """
    if one is None or other is None:
        return Claim(text, UNKNOWN, "no rows")
    comparison = compare(one, other)
    size, margin = abs(comparison.difference), 2 * comparison.error
    verdict = HOLDS if size + margin <= limit else FAILS if size - margin > limit else TIED
    return Claim(text, verdict, f"difference {difference(comparison)}, limit {limit:g}")


def claim_not_higher(text: str, one: Score | None, other: Score | None, limit: float) -> Claim:
    """Return the claim `text` that the score `one` exceeds `other` by at most `limit`.

    It holds or fails if the excess is more than two standard errors from the limit, otherwise it
    is "within noise"; "not measured" if a score is None. Both scores are of one training, so no
    noise between trainings is added.
    """
    if one is None or other is None:
        return Claim(text, UNKNOWN, "no rows")
    comparison = compare(one, other)
    excess, margin = comparison.difference, 2 * comparison.error
    verdict = HOLDS if excess + margin <= limit else FAILS if excess - margin > limit else TIED
    return Claim(text, verdict, f"difference {difference(comparison)}, limit {limit:+g}")


def claim_threshold(text: str, value: float, threshold: float, *, above: bool) -> Claim:
    """Return the claim that a value is at least the threshold if `above`, otherwise that it is
    less; NaN: not measured.
    """
    if math.isnan(value):
        return Claim(text, UNKNOWN, "no rows")
    return Claim(
        text,
        HOLDS if (value >= threshold) == above else FAILS,
        f"{value:.1e}, threshold {threshold:g}",
    )


def score_rows(
    rows: list[Row],
    metric: str,
    field: str,
    names: Sequence[Any],
    column: str,
    columns: Sequence[Any],
    **fields: Any,
) -> list[tuple[str, ...]]:
    """Return table rows with the mean and standard error of a metric.

    field, names     each line is for one of the values `names` of the field, such as "model"
    column, columns  each column is for one of the values `columns` of the field `column`, such as
                     "length"
    fields           further fields that rows must have
    """
    return [
        (
            str(name),
            *(
                cell(score(rows, metric, **{field: name, column: value}, **fields))
                for value in columns
            ),
        )
        for name in names
    ]


def by_length(
    rows: list[Row], lengths: Sequence[int], **fields: Any
) -> tuple[list[float], list[float]]:
    """Return a line of a figure as (x, y), for rows with these fields: x are those of `lengths`
    that were measured, y the mean loss at each.
    """
    means = {
        float(length): each.mean
        for length, each in scores_by(rows, "loss", "length", lengths, **fields).items()
    }
    return list(means), list(means.values())


Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def line_figure(
    series: Series,
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = True,
    log_y: bool = False,
    errors: Mapping[str, Sequence[float]] | None = None,
) -> Callable[[], Any]:
    """Return a function that draws a figure with one line per series.

    series        {name of the line: (x values, y values)}
    title, x, y   the titles of the figure and of its axes
    log_x, log_y  whether an axis is logarithmic
    errors        {name of a line: the half lengths of its error bars}
    """

    def draw() -> Any:
        """Return the figure; it is drawn only when it is needed."""
        figure, (ax,) = blank(LIGHT, 8.5, 4.6)
        styles = ("-", "--", ":", "-.")  # colours repeat after six lines, so the dashes change
        for place, (name, (xs, ys)) in enumerate(series.items()):
            ax.plot(
                xs,
                ys,
                styles[place // 6 % 4],
                marker="o",
                markersize=3.5,
                color=LIGHT.colour(place),
                label=name,
            )
            if errors and name in errors:
                ax.errorbar(
                    xs,
                    ys,
                    errors[name],
                    fmt="none",
                    elinewidth=0.9,
                    capsize=2,
                    color=LIGHT.colour(place),
                )
        if log_x:
            ax.set_xscale("log", base=2)
            ticks = sorted({value for xs, _ in series.values() for value in xs})
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        if log_y:
            ax.set_yscale("log")
        label_axes(ax, LIGHT, title=title, x=x, y=y)
        legend(ax, LIGHT, loc="center left", bbox_to_anchor=(1.0, 0.5))
        return finish(figure, LIGHT)

    return draw
