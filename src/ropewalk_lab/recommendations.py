"""Recommendations by use case, derived from the rows of studies. An encoding or a method is
recommended over another only if their scores differ by more than the noise. Other advice is a claim
of a study with its verdict, or the models whose loss rises by at most 0.05 from the trained to the
longest length.

Words of this module:
  run     a finished study in a folder; a study may have several
  result  what a run gave, a `StudyResult`: its rows, facts and findings
  row     one measurement of a run: a dict with a metric ("loss", "found"), the values, and fields
          that say what was measured, such as `model`, `method` and `length`. `tuned` is the number
          of fine-tuning steps, 0 for none; `factor` how many times longer the length becomes
  facts   what was run and how: study, preset, seeds, settings, data
  score   the values [seeds, windows] of the rows with given fields; lower is better
  claim   a statement about the rows, with the verdict whether it holds in them

`distinct` returns values in the order of the rows, and lengths ascend there from the trained one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk_lab.scores import Score, compare, rank
from ropewalk_lab.studies.findings import HOLDS, Findings, difference, seed_noise
from ropewalk_lab.studies.rows import Row, distinct, joined_score, score, scores_by, select

#: the advice for a use that was not measured
NOT_RUN = "Not measured here."
#: corpora of source code
CODE = ("code", "stdlib", "torch")


@dataclass(frozen=True)
class StudyResult:
    """A finished study: its rows, facts and findings."""

    rows: list[Row]
    facts: dict[str, Any]
    findings: Findings

    @property
    def corpus(self) -> str:
        """The name of the text that was trained on; "text" if the facts do not name it."""
        return str(self.facts.get("data", {}).get("source", "text"))


@dataclass(frozen=True)
class Recommendation:
    """What to use for a use case, and the measured reason."""

    use: str
    advice: str
    reason: str


def recommend(results: Mapping[str, StudyResult]) -> list[Recommendation]:
    """Return a recommendation, or the reason why there is none, for every entry of USE_CASES and
    every run of its study.

    `results` are runs by the name of their folder. A folder whose name is not that of the study is
    named in brackets after the use.
    """
    recommendations = []
    for use, (study, advise) in USE_CASES.items():
        runs = {name: result for name, result in results.items() if result.facts["study"] == study}
        for name, result in runs.items():
            label = use if name == study else f"{use} ({name})"
            recommendations.append(Recommendation(label, *advise(result)))
        if not runs:
            recommendations.append(Recommendation(use, NOT_RUN, f"run: ropewalk lab run {study}"))
    return recommendations


def lowest(scores: Mapping[str, Score], what: str, *, same_model: bool = False) -> tuple[str, str]:
    """Return (advice, reason) that recommends the lowest score and all scores tied with it; no
    recommendation if all are tied, or there are fewer than two.

    what        what the scores are, for the reason
    same_model  all scores are of one model, so the noise between trainings does not matter
    """
    if len(scores) < 2:
        return (
            "No recommendation: there is nothing to compare with.",
            f"only {', '.join(scores) or 'nothing'} was measured",
        )
    floor = seed_noise(list(scores.values()), same_model=same_model)
    groups = rank(scores, floor=floor)
    best = groups[0]
    if len(best) == len(scores):
        return (
            "No recommendation: all are tied.",
            f"{what}: {', '.join(f'{name} {scores[name].mean:.3f}' for name in best)}",
        )
    first, second = best[0], groups[1][0]
    paired = difference(compare(scores[first], scores[second], floor=floor))
    reason = (
        f"{what}: {first} {scores[first].mean:.3f}, {second} {scores[second].mean:.3f}, paired "
        f"{paired}"
    )
    if len(best) > 1:
        return f"Any of {'; '.join(best)}: they are tied.", reason
    return f"{first}.", reason


def _trained_length(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the encoding with the lowest loss at the trained length."""
    length = distinct(result.rows, "loss", "length")[0]
    # a comma separates an encoding from a change of the model, such as "rope, sliding window"
    names = [name for name in distinct(result.rows, "loss", "model") if "," not in name]
    losses = scores_by(result.rows, "loss", "model", names, length=length)
    return lowest(losses, f"loss at the trained length, {length}, on {result.corpus}")


def _longer_code(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the encoding with the lowest loss on source code, at the longest
    measured length.
    """
    if result.corpus not in CODE:
        return NOT_RUN, f"the text was {result.corpus}; set data.source to code"
    length = distinct(result.rows, "loss", "length")[-1]
    losses = scores_by(
        result.rows, "loss", "model", distinct(result.rows, "loss", "model"), length=length
    )
    return lowest(losses, f"loss at {length} tokens of source code, trained on fewer")


def _stream(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the models whose loss rises by at most 0.05 from the trained length
    to the longest, two standard errors of the rise included.
    """
    lengths = distinct(result.rows, "loss", "length")
    stable = []
    for name in distinct(result.rows, "loss", "model"):
        near, far = (
            score(result.rows, "loss", model=name, length=length)
            for length in (lengths[0], lengths[-1])
        )
        # encodings with a bounded length are measured at the trained length alone
        if near is not None and far is not None:
            rise = compare(far, near)  # of the same models: no noise between trainings
            if rise.difference + 2 * rise.error <= 0.05:  # nats per token
                # the loss comes first, because the list is sorted by it
                stable.append((far.mean, f"{name} ({difference(rise)})"))
    if not stable:
        return (
            "None of those measured.",
            f"every loss may rise by more than 0.05 from {lengths[0]} to {lengths[-1]}",
        )
    # a name may have a comma, such as "rope, sliding window"
    names = "; ".join(text for _, text in sorted(stable))
    return (
        f"One of these, lowest loss first: {names}.",
        f"loss at {lengths[-1]} minus loss at {lengths[0]}, at most +0.05",
    )


def _zero_shot(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the scaling with the lowest loss at the largest factor, without
    training.
    """
    factor = max(distinct(result.rows, "loss", "factor", tuned=0))
    methods = distinct(result.rows, "loss", "method", tuned=0)
    # rows with the factor 1 are those of the trained length
    trained_length = select(result.rows, "loss", tuned=0, factor=1)[0]["length"]
    losses = scores_by(
        result.rows,
        "loss",
        "method",
        methods,
        tuned=0,
        factor=factor,
        length=factor * trained_length,
    )
    return lowest(losses, f"loss at {factor}x, without training", same_model=True)


def _fine_tuned(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the scaling with the lowest loss at the largest factor, after
    fine-tuning for that factor. `tuned` of a row is the number of its fine-tuning steps.
    """
    rows = [row for row in result.rows if row["metric"] == "loss" and row["tuned"]]
    if not rows:
        return NOT_RUN, "no method was fine-tuned; set tuned_factors"
    factor = max(row["factor"] for row in rows)
    rows = select(rows, "loss", factor=factor)
    trained_length = select(result.rows, "loss", tuned=0, factor=1)[0]["length"]
    losses = scores_by(
        rows, "loss", "method", distinct(rows, "loss", "method"), length=factor * trained_length
    )
    return lowest(losses, f"loss at {factor}x after {rows[0]['tuned']} steps at that length")


def _retrieval(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the method that misses the fewest pass keys at the longest length,
    among models with the first base θ of the study.
    """
    claim = result.findings.claims[0]  # that the model finds pass keys at the trained length
    if claim.verdict != HOLDS:
        return (
            "No recommendation: the model did not learn to find pass keys at the trained length.",
            claim.evidence,
        )
    rows = [
        row
        for row in result.rows
        if row["metric"] == "found" and row["base"] == result.rows[0]["base"]
    ]
    longest = max(distinct(rows, "found", "length"))
    missed = {}
    for method in distinct(rows, "found", "method", length=longest):
        found = joined_score(rows, "found", method=method, length=longest)  # over all depths
        assert found is not None
        missed[method] = Score(1 - found.values)
    return lowest(missed, f"share of pass keys missed at {longest}", same_model=True)


def _first_claim(result: StudyResult) -> tuple[str, str]:
    """Return (advice, reason): the study's first claim with its verdict, and the evidence."""
    claim = result.findings.claims[0]
    return f"{claim.text}: {claim.verdict}.", claim.evidence


#: use case -> (the study it needs, a function that returns (advice, reason))
USE_CASES: dict[str, tuple[str, Callable[[StudyResult], tuple[str, str]]]] = {
    "Short text, within the trained length": ("encodings", _trained_length),
    "Code longer than the trained length": ("encodings", _longer_code),
    "Streams of unlimited length": ("encodings", _stream),
    "Long documents, a trained RoPE model, no training": ("extend", _zero_shot),
    "Long documents, a little training": ("extend", _fine_tuned),
    "Finding one fact far away": ("passkey", _retrieval),
    "Images and other grids": ("multimodal", _first_claim),
    "Memory and time linear in the length": ("linear", _first_claim),
    "A model with another encoding": ("migrate", _first_claim),
}
