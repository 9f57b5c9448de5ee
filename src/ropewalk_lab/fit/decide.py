"""Choose a method from measured rows by paired differences; a difference within two standard errors
is none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk_lab.fit.ledger import Row
from ropewalk_lab.fit.methods import NONE
from ropewalk_lab.scores import Comparison, Score, compare

#: measure -> its name in sentences; lower is better in all of them
MEASURES = {
    "far_loss": "loss in the last band",
    "far_keys": "pass keys beyond the trained length",
    "near_loss": "loss within the trained length",
    "near_keys": "pass keys within the trained length",
}
#: measure -> score, of one method
Scores = dict[str, Score]


@dataclass(frozen=True)
class Recommendation:
    """The chosen method, why, and the methods that no measurement tells from it.

    beats  the methods that are worse in some measure and better in none
    """

    method: str
    reason: str
    equal: tuple[str, ...]
    beats: tuple[str, ...]


def scores_of(rows: Sequence[Row], trained: int, to: int) -> dict[str, Scores]:
    """Return {method: {measure: score}} of the methods that were measured in full, all on the same
    windows and pass keys.

    Methods with a loss that is not finite are left out.
    """
    measured: dict[
        str, dict[str, dict[tuple, float]]
    ] = {}  # method -> measure -> window or pass key -> value
    for row in rows:
        values = measured.setdefault(row["method"], {measure: {} for measure in MEASURES})
        if row["metric"] == "text" and row["length"] == to:
            values["far_loss"][(row["window"],)] = row["bands"][-1]
        elif row["metric"] == "text":
            values["near_loss"][(row["window"],)] = row["loss"]
        elif row["metric"] == "passkey":
            measure = "near_keys" if row["length"] <= trained else "far_keys"
            values[measure][(row["length"], row["depth"])] = 1.0 - row["found"]
    # the samples of a measure are those of the method that has most of them
    samples = {
        name: max((set(values[name]) for values in measured.values()), key=len, default=set())
        for name in MEASURES
    }
    scores = {}
    for method, values in measured.items():
        if all(values[name].keys() == samples[name] for name in MEASURES):
            ordered = {
                name: [values[name][sample] for sample in sorted(samples[name])]
                for name in MEASURES
                if samples[name]
            }
            if not all(np.isfinite(each).all() for each in ordered.values()):
                continue
            scores[method] = {name: Score(np.array([each])) for name, each in ordered.items()}
    return scores


def better(one: Scores, other: Scores) -> dict[str, Comparison]:
    """Return the measures in which one method is better than another beyond the noise."""
    compared = {
        name: compare(one[name], other[name])
        for name in one
        if name in other and one[name].values.size > 1
    }
    return {
        name: each for name, each in compared.items() if each.verdict == "a"
    }  # "a": the first is better


def beats(one: Scores, other: Scores) -> bool:
    """Return whether a method is better than another in some measure and worse in none."""
    return bool(better(one, other)) and not better(other, one)


def _alike(one: Scores, other: Scores) -> bool:
    """Return whether no measure tells two methods apart."""
    return not better(one, other) and not better(other, one)


def _shortfalls(scores: Scores, rivals: Sequence[Scores]) -> list[float]:
    """Return for each measure how far a method is behind the best of its rivals beyond the noise,
    as a share; 0 if it is not.

    A share of the pass keys, or of the perplexity: a loss of 0.1 nats more is a perplexity 11 %
    higher.
    """
    shortfalls = dict.fromkeys(scores, 0.0)
    for rival in rivals:
        for name in better(rival, scores):
            gap = scores[name].mean - rival[name].mean
            shortfalls[name] = max(
                shortfalls[name], gap if name.endswith("keys") else math.expm1(gap)
            )
    return list(shortfalls.values())


def decide(scores: Mapping[str, Scores], *, prefer: Sequence[str] = ()) -> Recommendation:
    """Return the recommended method.

    First come methods that no other beats. Of these, the one whose largest shortfall in any measure
    is smallest: it is nowhere far behind the best. Then the one with the smallest sum of them, with
    most pass keys beyond the trained length, and with the smallest loss there.

    prefer  methods taken first if no measurement tells them from the best, such as those that a
            config can express
    """
    unbeaten = [
        name
        for name, each in scores.items()
        if not any(beats(other, each) for other in scores.values())
    ] or list(scores)

    def order(name: str) -> tuple:
        """Return the sort key of a method: the best one has the smallest."""
        shortfalls = _shortfalls(
            scores[name], [each for other, each in scores.items() if other != name]
        )
        means = [
            scores[name][measure].mean
            for measure in ("far_keys", "far_loss")
            if measure in scores[name]
        ]
        return (max(shortfalls), sum(shortfalls), *means)

    best = min(unbeaten, key=order)
    # the unchanged model, or else a preferred method, is recommended instead if nothing tells it
    # from the best
    candidates = [NONE] if best in prefer else [NONE, *prefer]
    best = next(
        (name for name in candidates if name in unbeaten and _alike(scores[best], scores[name])),
        best,
    )
    equal = [name for name in scores if name != best and _alike(scores[best], scores[name])]
    beaten = tuple(name for name, each in scores.items() if beats(scores[best], each))
    return Recommendation(best, _reason(best, scores), tuple(equal), beaten)


def _reason(best: str, scores: Mapping[str, Scores]) -> str:
    """Return a sentence for each measure: the value, and how the best of the other methods
    compares.
    """
    sentences = []
    for measure, words in MEASURES.items():
        if measure not in scores[best]:
            continue
        score, is_share = scores[best][measure], measure.endswith("keys")
        value = (
            f"{1 - score.mean:.0%} ± {score.error:.0%}"
            if is_share
            else f"{score.mean:.3f} ± {score.error:.3f}"
        )
        others = {
            name: each[measure] for name, each in scores.items() if name != best and measure in each
        }
        sentences.append(f"{words} {value}{_comparison_text(score, others, is_share)}")
    return "; ".join(sentences)


def _comparison_text(score: Score, others: Mapping[str, Score], is_share: bool) -> str:
    """Return how a score compares with the best of the others, in words; `is_share`: scores are
    shares of missed pass keys.
    """
    if not others or score.values.size < 2:
        return ""
    rival = min(others, key=lambda name: others[name].mean)
    step = compare(score, others[rival])
    # scores are shares of missed keys, and the text states the difference of the shares found
    gap = (
        f"{-step.difference:+.0%} ± {step.error:.0%}"
        if is_share
        else f"{step.difference:+.3f} ± {step.error:.3f}"
    )
    words = {
        "a": f"better than {rival}, the next",
        "b": f"worse than {rival}, the best",
        "tied": f"no difference to {rival}",
    }
    return f" ({words[step.verdict]}: {gap})"
