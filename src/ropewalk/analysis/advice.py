"""Advice as data: each rule says when it applies, what to do, why, and which figure shows it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ropewalk.analysis import ladder
from ropewalk.analysis.distance import first_negative
from ropewalk.analysis.exactness import BFLOAT16_ROUNDING, error_curves
from ropewalk.errors import integer
from ropewalk.frequencies import Default, Linear, XPos, Yarn
from ropewalk.spec import PRECISIONS, RopeSpec
from ropewalk.table import memory

#: a full table larger than this is worth a word
LARGE_TABLE = 64 << 20
# the jagged cosine sum is searched this far: ten million distances would take seconds
_SEARCHED = 1 << 18


@dataclass(frozen=True)
class Facts:
    """One spec, the length it was trained on and the length it serves; everything else follows when asked.

    With a `window` no key is further than that from its query, so distances end there while positions go on.
    """

    spec: RopeSpec
    trained: int
    served: int
    window: int | None = None
    #: which precision policies are measured, and how many positions below `served`
    ways: tuple[str, ...] = PRECISIONS
    width: int = field(default=8, repr=False)

    def __post_init__(self) -> None:
        integer("trained", self.trained, low=1)
        integer("served", self.served, low=1)
        if self.window is not None:
            integer("window", self.window, low=1)

    @cached_property
    def radians(self) -> np.ndarray:
        """The frequencies in service."""
        return ladder.radians(self.spec, self.served)

    @cached_property
    def coverage(self) -> ladder.Coverage:
        """Turns in training and in service, over the distances that can occur."""
        return ladder.coverage(self.spec, self.seen, self.reach, self.served)

    @cached_property
    def aliasing(self) -> ladder.Aliasing:
        """Which pairs repeat within the distances that can occur."""
        return ladder.aliasing(self.radians, self.reach)

    @property
    def seen(self) -> int:
        """The longest distance of training."""
        return min(self.trained, self.window or self.trained)

    @property
    def reach(self) -> int:
        """The longest distance in service."""
        return min(self.served, self.window or self.served)

    @cached_property
    def bands(self) -> list[str]:
        """What the scaling does to each pair at the served length."""
        return ladder.bands(self.spec, self.served)

    @cached_property
    def errors(self) -> dict[str, float]:
        """The largest error of cos and sin at the end of the served length, by way."""
        found = error_curves(self.spec, [self.served - 1], self.ways, length=self.served, width=self.width)
        return {name: float(curve[0]) for name, curve in found.items()}

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes of cos and sin in each form."""
        return memory(self.spec, self.served)

    @cached_property
    def first_negative(self) -> int | None:
        """Where the cosine sum first falls below zero, searched over the first quarter million distances."""
        return first_negative(self.radians, min(self.reach, _SEARCHED))

    @cached_property
    def new_angles(self) -> int:
        """How many pairs reach angles in service that training never showed."""
        return int(self.coverage.new_angles(self.coverage.scaled).sum())


@dataclass(frozen=True)
class Rule:
    """When it applies, what to do, why; `because` may name any value that `numbers` gives."""

    name: str
    applies: Callable[[Facts], bool]
    advice: str
    because: str
    figure: str
    numbers: Callable[[Facts], dict[str, object]] = lambda facts: {}


@dataclass(frozen=True)
class Advice:
    """A rule that applied, with its numbers filled in."""

    name: str
    advice: str
    because: str
    figure: str


def _times(facts: Facts) -> dict[str, object]:
    return {"factor": math.ceil(facts.served / facts.trained), "new": facts.new_angles, "pairs": facts.spec.pairs}


def _wide_beta(facts: Facts) -> bool:
    scaling = facts.spec.scaling
    return isinstance(scaling, Yarn) and scaling.beta_fast > scaling.original_length / (2 * math.pi)


#: every rule that applies is given, in this order
RULES: tuple[Rule, ...] = (
    Rule(
        "in_range",
        lambda f: f.reach <= f.seen and isinstance(f.spec.scaling, Default),
        "Keep it: no scaling is needed at this length.",
        "every distance up to {reach:,} was seen in training",
        "coverage",
        lambda f: {"reach": f.reach},
    ),
    Rule(
        "unseen_angles",
        lambda f: f.new_angles > 0 and isinstance(f.spec.scaling, Default),
        "Stretch by {factor}: Yarn(factor={factor}, original_length={trained}), or DynamicYarn to leave short text alone.",
        "{new} of {pairs} pairs reach angles beyond token {trained:,} that training never showed",
        "beyond",
        lambda f: _times(f) | {"trained": f.trained},
    ),
    Rule(
        "stretched_too_little",
        lambda f: f.new_angles > 0 and not isinstance(f.spec.scaling, Default),
        "Right if the model was trained further at {served:,} tokens; otherwise serve fewer or stretch by {factor}.",
        "{new} of {pairs} pairs reach angles, scaled by {name}, that {trained:,} tokens of training never showed",
        "coverage",
        lambda f: _times(f) | {"trained": f.trained, "served": f.served, "name": f.spec.scaling.name},
    ),
    Rule(
        "trained_unknown",
        lambda f: f.trained == f.served and getattr(f.spec.scaling, "factor", 1) > 1,
        "Say how many tokens the model saw before it was stretched, to see its coverage: ropewalk inspect --trained.",
        "a config with {name} scaling does not tell, so {trained:,} is taken for both lengths",
        "coverage",
        lambda f: {"name": f.spec.scaling.name, "trained": f.trained},
    ),
    Rule(
        "linear_blurs",
        lambda f: isinstance(f.spec.scaling, Linear) and f.spec.scaling.factor > 1,
        "Without fine-tuning take Yarn or Ntk instead; Linear needs training to recover.",
        "all {pairs} pairs slow down, also the {fast} that had gone round in training, so neighbours look more alike",
        "scalings",
        lambda f: {"pairs": f.spec.pairs, "fast": int((f.coverage.trained >= 1).sum())},
    ),
    Rule(
        "always_on",
        lambda f: isinstance(f.spec.scaling, Yarn) and f.spec.scaling.factor > 1 and f.served > f.trained,
        "If most requests are short, serve with DynamicYarn(original_length={trained}).",
        "{slowed} of {pairs} pairs are slowed at every length, also below token {trained:,}",
        "scalings",
        lambda f: {"trained": f.trained, "pairs": f.spec.pairs, "slowed": f.spec.pairs - f.bands.count("kept")},
    ),
    Rule(
        "beta_too_fast",
        _wide_beta,
        "Lower beta_fast below {limit:.0f}.",
        "no pair turns {beta:g} times within {length:,} tokens, so only the fastest one keeps its pace",
        "coverage",
        lambda f: {
            "limit": f.spec.scaling.original_length / (2 * math.pi),  # type: ignore[attr-defined]  # a Yarn, by the rule
            "beta": f.spec.scaling.beta_fast,  # type: ignore[attr-defined]
            "length": f.spec.scaling.original_length,  # type: ignore[attr-defined]
        },
    ),
    Rule(
        "follows_the_length",
        lambda f: f.spec.needs_length,
        "Bring cached keys up to date with rope.rerotate when the length changes.",
        "the frequencies of {name} follow the length, and keys in a cache keep those of an earlier one",
        "scalings",
        lambda f: {"name": f.spec.scaling.name},
    ),
    Rule(
        "float32_angles",
        lambda f: f.errors.get("hf", 0.0) > BFLOAT16_ROUNDING,
        'Do not form angles in float32 at this length: take precision "{policy}".',
        "float32 angles are off by {hf:.1e} near token {served:,}, more than the {bound:.1e} of a bfloat16 rounding",
        "precision",
        lambda f: {
            "hf": f.errors["hf"],
            "served": f.served,
            "bound": BFLOAT16_ROUNDING,
            "policy": "exact" if f.spec.precision == "exact" else "hf_frequencies",
        },
    ),
    Rule(
        "large_table",
        lambda f: f.memory["full"] > LARGE_TABLE,
        "Do not keep a table of all positions; ropewalk keeps {kept:.1f} MiB and computes the rest.",
        "cos and sin of {served:,} positions take {full:.0f} MiB",
        "precision",
        lambda f: {"full": f.memory["full"] / 2**20, "kept": f.memory["automatic"] / 2**20, "served": f.served},
    ),
    Rule(
        "all_repeat",
        lambda f: f.window is None and f.aliasing.repeating == f.spec.pairs,
        "For long documents take a larger theta: the slowest pair should not repeat within the text.",
        "all {pairs} pairs repeat within {served:,} tokens, the slowest after {longest:,.0f}",
        "spectrum",
        lambda f: {"pairs": f.spec.pairs, "served": f.served, "longest": f.aliasing.longest},
    ),
    Rule(
        "random_keys_win",
        lambda f: f.first_negative is not None,
        "For retrieval over the whole length try a larger theta, and measure: this curve is jagged and no threshold.",
        "at distance {first:,}, the first of many, the sum of cosines is negative: a random key outscores a similar one",
        "base_bound",
        lambda f: {"first": f.first_negative},
    ),
    Rule(
        "axes",
        lambda f: f.spec.num_axes > 1,
        "Give positions as [axes, batch, tokens]; rw.positions builds them for text, images and video.",
        "the pairs listen to {axes} axes",
        "angles",
        lambda f: {"axes": f.spec.num_axes},
    ),
    Rule(
        "causal_only",
        lambda f: isinstance(f.spec.scaling, XPos),
        "Use it for causal attention only.",
        "its magnitudes grow without bound where a key stands after its query",
        "variants",
    ),
)


def advise(facts: Facts) -> list[Advice]:
    """Every rule that applies to these facts, with its numbers."""
    return [_filled(rule, rule.numbers(facts)) for rule in RULES if rule.applies(facts)]


def _filled(rule: Rule, numbers: dict[str, object]) -> Advice:
    return Advice(rule.name, rule.advice.format(**numbers), rule.because.format(**numbers), rule.figure)


@dataclass(frozen=True)
class Use:
    """Which variant for which use, why, and which figure shows it."""

    use: str
    choose: str
    because: str
    figure: str


#: where to start when nothing is decided yet
GUIDE: tuple[Use, ...] = (
    Use("short text", "Default(), theta 10,000", "no token is further than training showed; nothing to stretch", "coverage"),
    Use(
        "long documents, new model",
        "Default() with a larger theta (500,000 or more)",
        "more pairs stay within one turn of the whole text, so far positions stay distinct",
        "base_bound",
    ),
    Use(
        "long documents, trained model, no fine-tuning",
        "DynamicYarn(original_length)",
        "fast pairs keep their pace, slow pairs stay within the angles training showed, short text is untouched",
        "scalings",
    ),
    Use(
        "long documents, trained model, fine-tuning",
        "Yarn(factor, original_length)",
        "one fixed ladder to tune and to export; other engines read it",
        "scalings",
    ),
    Use(
        "code and retrieval",
        'Default() with a larger theta, precision "exact" or the checkpoint\'s "hf_frequencies"',
        "neighbouring tokens are told apart by the fast pairs, whose float32 angles blur first",
        "precision",
    ),
    Use(
        "images, video and text together",
        "axes.chunked or axes.interleaved, positions from rw.positions",
        "each pair listens to one of time, height and width; text turns as in 1-D",
        "angles",
    ),
    Use(
        "any length, no position needed beyond a window",
        "plain RoPE with a sliding window of the trained length",
        "no distance is ever longer than training showed",
        "similarity",
    ),
)
