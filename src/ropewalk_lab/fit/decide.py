"""Choose a method from measured rows: differences are paired and count beyond two standard errors;
a method that no config can express is recommended for a material gain only.

Words of this module:
  row       one measurement, with its method, its metric ("text" or "passkey"), its length in tokens
            and the results: "loss", the mean, and "bands", the mean of each band of positions, of
            which the last ends at the length `to`; or "found", 1 if the model found the pass key
  window    a piece of the text, which every method reads at the lengths `trained` and `to`
  measure   what methods are judged by, a key of MEASURES; lower is better in each
  score     the values of a method in one measure, one for each window or pass key
  noise     a difference that chance explains: at most two standard errors
  rival     another method that a method is compared with
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ropewalk_lab.fit.ledger import Row
from ropewalk_lab.fit.methods import NONE
from ropewalk_lab.scores import SIGMAS, Score, standard_error

#: measure -> its name in sentences; lower is better in all of them, because the values of pass keys
#: are the shares missed
MEASURES = {
    "far_loss": "loss in the last band",
    "far_keys": "pass keys beyond the trained length",
    "near_loss": "loss within the trained length",
    "near_keys": "pass keys within the trained length",
}
#: nats per token: a smaller gain does not pay for a method that no engine serves. 0.02 nats are 2 %
#: of the perplexity, as much as 4-bit weights cost (1.2 to 3.6 % in llama.cpp's table of Llama 2
#: 70B), and people accept that cost for easier serving.
MATERIAL_LOSS = 0.02
#: share of the pass keys: one in ten. With the default of ten keys for each length, a smaller gain
#: is on average less than one more key found at each length.
MATERIAL_KEYS = 0.1
#: nats: `math.exp` of slightly more raises an OverflowError
MOST_NATS = 700.0
#: measure -> score, of one method; methods are compared on the measures that both have
Scores = dict[str, Score]


@dataclass(frozen=True)
class MethodChoice:
    """The chosen method and why it was chosen.

    equal  the methods that differ from it in no measure beyond the noise
    beats  the methods that are worse than it beyond the noise in some measure and better in none
    """

    method: str
    reason: str
    equal: tuple[str, ...]
    beats: tuple[str, ...]


@dataclass(frozen=True)
class Decision:
    """Which method is recommended: `best` or `in_config`, which may be the same method.

    best       the best method of all
    in_config  the best method that a config can express, so that other engines can use it
    gain       how `best` differs from `in_config`, in words; "" if they are the same
    """

    recommended: MethodChoice
    best: MethodChoice
    in_config: MethodChoice
    gain: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the decision as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Gap:
    """The difference of two methods, a and b, in one measure.

    measure     a name of MEASURES; lower is better in all of them
    difference  the mean of a - b, paired: both methods read the same windows or prompts
    error       its standard error; NaN for a single sample, whose noise is unknown
    """

    measure: str
    difference: float
    error: float

    @property
    def material(self) -> float:
        """The smallest difference that is material in this measure."""
        return MATERIAL_KEYS if self.measure.endswith("keys") else MATERIAL_LOSS

    @property
    def sign(self) -> int:
        """-1 if a is better, 1 if b is, 0 if the difference is within the noise.

        The noise is SIGMAS standard errors; for a single sample, which has none, it is `material`.
        """
        noise = self.material if math.isnan(self.error) else SIGMAS * self.error
        if abs(self.difference) <= noise:
            return 0
        return 1 if self.difference > 0 else -1

    @property
    def is_material(self) -> bool:
        """Whether the difference is beyond the noise and large enough to matter."""
        return self.sign != 0 and abs(self.difference) >= self.material

    @property
    def share(self) -> float:
        """The difference as a share of the pass keys, or as the share by which the perplexity
        differs: 0.1 nats are 0.105. So differences in both kinds of measures can be compared.
        """
        if self.measure.endswith("keys"):
            return self.difference
        return math.expm1(min(self.difference, MOST_NATS))

    def __str__(self) -> str:
        """The difference with its error: in nats, or as a share of the pass keys found."""
        # scores are shares of missed keys, so the sign changes
        if self.measure.endswith("keys"):
            # 0.0 - x and not -x, which would print a difference of 0 as -0
            return with_error(0.0 - self.difference, self.error, "+.0%", ".0%")
        return with_error(self.difference, self.error, "+.3f", ".3f")


def with_error(value: float, error: float, form: str, error_form: str) -> str:
    """Return a value with its standard error; of a single sample, whose error is NaN, without."""
    return f"{value:{form}}" + ("" if math.isnan(error) else f" ± {error:{error_form}}")


def scores_of(rows: Sequence[Row], trained: int, to: int) -> dict[str, Scores]:
    """Return {method: {measure: score}} of the methods that were measured in full, all on the same
    windows and pass keys; a measure without any sample is left out.

    Methods with a loss that is not finite are left out. Lengths `trained` and `to` are in tokens.
    """
    # method -> measure -> window or pass key -> value
    measured: dict[str, dict[str, dict[tuple, float]]] = {}
    for row in rows:
        values = measured.setdefault(row["method"], {measure: {} for measure in MEASURES})
        if row["metric"] == "text" and row["length"] == to:
            values["far_loss"][(row["window"],)] = row["bands"][-1]
        elif row["metric"] == "text":
            values["near_loss"][(row["window"],)] = row["loss"]
        elif row["metric"] == "passkey":
            measure = "near_keys" if row["length"] <= trained else "far_keys"
            values[measure][(row["length"], row["depth"])] = 1.0 - row["found"]
    # the full set of samples of a measure is that of the method that has most of them
    samples = {
        name: max((set(values[name]) for values in measured.values()), key=len, default=set())
        for name in MEASURES
    }
    scores = {}
    for method, values in measured.items():
        if all(values[name].keys() == samples[name] for name in MEASURES):
            # in the same order for every method, so that differences are paired
            ordered = {
                name: [values[name][sample] for sample in sorted(samples[name])]
                for name in MEASURES
                if samples[name]
            }
            if not all(np.isfinite(each).all() for each in ordered.values()):
                continue
            # one row of values: a Score may have several, one for each training
            scores[method] = {name: Score(np.array([each])) for name, each in ordered.items()}
    return scores


def gaps(one: Scores, other: Scores) -> dict[str, Gap]:
    """Return {measure: `one` minus `other`} of two methods, in every measure that both have."""
    return {
        name: _gap(name, one[name], other[name])
        for name in MEASURES
        if name in one and name in other
    }


def _gap(measure: str, one: Score, other: Score) -> Gap:
    """Return the paired difference of two scores in one measure."""
    paired = one.values - other.values
    error = standard_error(paired) if paired.size > 1 else math.nan
    return Gap(measure, float(paired.mean()), error)


def beats(one: Scores, other: Scores) -> bool:
    """Return whether the method `one` is better than `other` in some measure and worse in none,
    beyond the noise.
    """
    signs = {gap.sign for gap in gaps(one, other).values()}
    return -1 in signs and 1 not in signs


def _alike(one: Scores, other: Scores) -> bool:
    """Return whether no measure tells two methods apart."""
    return not any(gap.sign for gap in gaps(one, other).values())


def _shortfalls(scores: Scores, rivals: Sequence[Scores]) -> list[float]:
    """Return for each measure the largest `Gap.share` by which a method is worse than one of its
    rivals beyond the noise; 0 if it is worse than none.
    """
    shortfalls = dict.fromkeys(scores, 0.0)
    for rival in rivals:
        for name, gap in gaps(scores, rival).items():
            if gap.sign > 0:
                shortfalls[name] = max(shortfalls[name], gap.share)
    return list(shortfalls.values())


def decide(scores: Mapping[str, Scores], in_config: Sequence[str]) -> Decision:
    """Return the recommended method, the best of all, and the best that a config can express.

    in_config  the methods that a config can express, so that engines serve them; the unchanged
               model is always one

    The best of `in_config` is recommended, unless the best of all is materially better than it in
    some measure and materially worse in none. If none of them was measured, the best of all is.
    """
    served = {name: scores[name] for name in scores if name in (NONE, *in_config)}
    # of equal methods, one that engines serve counts as the best
    best = choose(scores, list(served))
    if not served or best.method in served:
        return Decision(best, best, best)
    best_served = choose(served, others=scores)  # chosen among `served`, compared with all
    between = gaps(scores[best.method], scores[best_served.method])
    # {-1}: better by a material gain in some measure, and worse by one in none
    material = {gap.sign for gap in between.values() if gap.is_material}
    gain = "; ".join(
        f"{MEASURES[name]} {gap}{'' if gap.is_material else ', not material'}"
        for name, gap in between.items()
        if gap.sign
    )
    return Decision(best if material == {-1} else best_served, best, best_served, gain)


def choose(
    scores: Mapping[str, Scores],
    prefer: Sequence[str] = (),
    others: Mapping[str, Scores] | None = None,
) -> MethodChoice:
    """Return the best method of `scores`.

    It is one that no other beats, or any if each is beaten. Of these, it is the one whose largest
    shortfall in any measure is smallest, so that it is nowhere far behind the best. Equal ones are
    ordered by the sum of their shortfalls, then by pass keys beyond the trained length, then by the
    loss there.

    The unchanged model is returned instead if no other method beats it and no measure tells it from
    that best one. Otherwise, unless the best one is in `prefer`, the same holds for those of
    `prefer`: the first of them that no method beats and no measure tells from it is returned.

    prefer  the methods that are easier to serve
    others  the methods that the result compares it with; None: those of `scores`
    """
    unbeaten = [
        name
        for name, each in scores.items()
        if not any(beats(other, each) for other in scores.values())
    ] or list(scores)

    def order(name: str) -> tuple:
        """Return the sort key of a method, the smallest for the best one: its largest shortfall, the
        sum of its shortfalls, and its pass keys and its loss beyond the trained length.
        """
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
    candidates = [NONE] if best in prefer else [NONE, *prefer]
    best = next(
        (name for name in candidates if name in unbeaten and _alike(scores[best], scores[name])),
        best,
    )
    rivals = {name: each for name, each in (others or scores).items() if name != best}
    equal = tuple(name for name, each in rivals.items() if _alike(scores[best], each))
    beaten = tuple(name for name, each in rivals.items() if beats(scores[best], each))
    return MethodChoice(best, _reason(scores[best], rivals), equal, beaten)


def _reason(scores: Scores, others: Mapping[str, Scores]) -> str:
    """Return the reason in words: of each measure the value, and how the best of the other methods
    compares.
    """
    sentences = []
    for measure, words in MEASURES.items():
        if measure not in scores:
            continue
        score = scores[measure]
        # a single value has no error; values of pass keys are shares missed, the text says those found
        error = score.error if score.values.size > 1 else math.nan
        if measure.endswith("keys"):
            value = with_error(1 - score.mean, error, ".0%", ".0%")
        else:
            value = with_error(score.mean, error, ".3f", ".3f")
        rivals = {name: each[measure] for name, each in others.items() if measure in each}
        sentences.append(f"{words} {value}{_comparison_text(measure, score, rivals)}")
    return "; ".join(sentences)


def _comparison_text(measure: str, score: Score, rivals: Mapping[str, Score]) -> str:
    """Return how a score compares with the best of the rivals, in words; "" without rivals."""
    if not rivals:
        return ""
    rival = min(rivals, key=lambda name: rivals[name].mean)
    gap = _gap(measure, score, rivals[rival])
    words = {
        -1: f"better than {rival}, the next",
        1: f"worse than {rival}, the best",
        0: f"no difference to {rival}",
    }
    return f" ({words[gap.sign]}: {gap})"
