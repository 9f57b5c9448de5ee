"""Choose a method from measured rows by paired differences; a difference within two standard errors is none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.analysis.statistics import Comparison, Score, compare
from ropewalk.interop.fit.ledger import Row
from ropewalk.interop.fit.methods import NONE

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
    """Return method -> measure -> values of the same windows or pass keys for every method that was measured in full."""
    found: dict[str, dict[str, dict[tuple, float]]] = {}
    for row in rows:
        own = found.setdefault(row["method"], {name: {} for name in MEASURES})
        if row["metric"] == "text" and row["length"] == to:
            own["far_loss"][(row["window"],)] = row["bands"][-1]
        elif row["metric"] == "text":
            own["near_loss"][(row["window"],)] = row["loss"]
        elif row["metric"] == "passkey":
            measure = "near_keys" if row["length"] <= trained else "far_keys"
            own[measure][(row["length"], row["depth"])] = 1.0 - row["found"]
    samples = {name: max((own[name].keys() for own in found.values()), key=len, default={}.keys()) for name in MEASURES}
    return {
        method: {name: Score(np.array([[own[name][key] for key in sorted(samples[name])]])) for name in MEASURES if samples[name]}
        for method, own in found.items()
        if all(own[name].keys() == samples[name] for name in MEASURES)
    }


def better(one: Scores, other: Scores) -> dict[str, Comparison]:
    """Return the measures in which one method is better than another beyond the noise."""
    compared = {name: compare(one[name], other[name]) for name in one if name in other and one[name].values.size > 1}
    return {name: each for name, each in compared.items() if each.verdict == "a"}


def beats(one: Scores, other: Scores) -> bool:
    """Return whether a method is better than another in some measure and worse in none."""
    return bool(better(one, other)) and not better(other, one)


def _alike(one: Scores, other: Scores) -> bool:
    """Return whether no measure tells two methods apart."""
    return not better(one, other) and not better(other, one)


def _shortfalls(own: Scores, rivals: Sequence[Scores]) -> list[float]:
    """Return for each measure how far a method is behind the best of its rivals beyond the noise, as a share.

    A share of the pass keys, or of the perplexity: a loss of 0.1 nats more is a perplexity 11 % higher.
    """
    behind = [(name, own[name].mean - each[name].mean) for each in rivals for name in better(each, own)]
    shares = [(name, gap if name.endswith("keys") else math.expm1(gap)) for name, gap in behind]
    return [max((share for measure, share in shares if measure == name), default=0.0) for name in own]


def decide(scores: Mapping[str, Scores], *, prefer: Sequence[str] = ()) -> Recommendation:
    """Return the recommended method.

    First come methods that no other beats. Of these, the one whose largest shortfall in any measure is smallest: it is nowhere
    far behind the best. Then the one with the smallest sum of them, with most pass keys beyond the trained length, and with the
    smallest loss there.

    prefer  methods taken first if no measurement tells them from the best, such as those that a config can express
    """
    unbeaten = [name for name, own in scores.items() if not any(beats(other, own) for other in scores.values())] or list(scores)

    def order(name: str) -> tuple:
        """Return the sort key of a method: the best one has the smallest."""
        own = scores[name]
        behind = _shortfalls(own, [each for each in scores.values() if each is not own])
        means = [own[measure].mean for measure in ("far_keys", "far_loss") if measure in own]
        return (max(behind), sum(behind), *means)

    best = min(unbeaten, key=order)
    equal = [name for name in scores if name != best and _alike(scores[best], scores[name])]
    # the unchanged model, or else a preferred method, is recommended instead if nothing tells it from the best
    instead = next((name for name in (NONE, *(() if best in prefer else prefer)) if name in equal), None)
    if instead is not None:
        best, equal = instead, [best if name == instead else name for name in equal]
    beaten = tuple(name for name, own in scores.items() if beats(scores[best], own))
    return Recommendation(best, _reason(best, scores), tuple(equal), beaten)


def _reason(best: str, scores: Mapping[str, Scores]) -> str:
    """Return a sentence for each measure: the value, and how the next method compares."""
    own, sentences = scores[best], []
    for measure, words in MEASURES.items():
        if measure not in own:
            continue
        keys = measure.endswith("keys")
        mean, error = own[measure].mean, own[measure].error
        value = f"{1 - mean:.0%} ± {error:.0%}" if keys else f"{mean:.3f} ± {error:.3f}"
        others = {name: each[measure] for name, each in scores.items() if name != best and measure in each}
        sentences.append(f"{words} {value}{_beside(own[measure], others, keys)}")
    return "; ".join(sentences)


def _beside(own: Score, others: Mapping[str, Score], keys: bool) -> str:
    """Return how a score compares with the best of the others, in words; `keys`: scores are shares of missed pass keys."""
    if not others or own.values.size < 2:
        return ""
    rival = min(others, key=lambda name: others[name].mean)
    step = compare(own, others[rival])
    # scores are shares of missed keys, and the text states the difference of the shares found
    gap = f"{-step.difference:+.0%} ± {step.error:.0%}" if keys else f"{step.difference:+.3f} ± {step.error:.3f}"
    words = {"a": f"better than {rival}, the next", "b": f"worse than {rival}, the best", "tied": f"no difference to {rival}"}
    return f" ({words[step.verdict]}: {gap})"
