"""Choose a method from measured rows by paired differences; a difference within two standard errors is none."""

from __future__ import annotations

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
FAR, NEAR = ("far_loss", "far_keys"), ("near_loss", "near_keys")
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


def decide(scores: Mapping[str, Scores], *, prefer: Sequence[str] = ()) -> Recommendation:
    """Return the recommended method.

    First come methods that no other beats. Of these, the one that is among the best in most measures beyond the trained
    length, then within it; then the one that finds most pass keys there, and the one with the smallest loss.

    prefer  methods taken first if no measurement tells them from the best, such as those that a config can express
    """
    unbeaten = [name for name, own in scores.items() if not any(beats(other, own) for other in scores.values())] or list(scores)

    def among_the_best(name: str, measures: Sequence[str]) -> int:
        """Return in how many of the measures no other method is better."""
        own = scores[name]
        rivals = [each for each in scores.values() if each is not own]
        return sum(not any(measure in better(each, own) for each in rivals) for measure in measures if measure in own)

    def order(name: str) -> tuple:
        """Return the sort key of a method: the best one has the smallest."""
        own = scores[name]
        means = [own[measure].mean for measure in ("far_keys", "far_loss") if measure in own]
        return (-among_the_best(name, FAR), -among_the_best(name, NEAR), *means)

    best = min(unbeaten, key=order)
    equal = [name for name in scores if name != best and _alike(scores[best], scores[name])]
    # the unchanged model, or else a preferred method, is recommended instead if nothing tells it from the best
    instead = next((name for name in (NONE, *(() if best in prefer else prefer)) if name in equal), None)
    if instead is not None:
        best, equal = instead, [best if name == instead else name for name in equal]
    beaten = tuple(name for name in scores if name != best and beats(scores[best], scores[name]))
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
