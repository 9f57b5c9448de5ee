"""What a mistake does, in numbers: how many pairs have another frequency, from which distance that
shows, and the factor on attention logits.

`wrong` is the rope that the config gives, `meant` the one that it should give. `Specs` are {layer
type: its spec, which defines its rope, or None if it does not rotate}.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ropewalk.diagnosis.case import Specs
from ropewalk.spec import RopeSpec

#: frequencies with at most this relative difference count as equal: float32 hardly tells them apart
SAME = 1e-6
#: the angle, in radians, from which a pair counts as off
OFF = 0.1


@dataclass(frozen=True)
class Effect:
    """How a rope differs from the one that was meant, in one layer type.

    layer_type   as in the config, such as "full_attention"
    length       the length of the sequence, for scalings that depend on it; None: not given
    pairs        how many pairs have another frequency; `of`: how many pairs there are
    first_pair   the first pair with another frequency; None if there is none
    from_token   the first distance at which some pair is off by more than 0.1 rad; None: never
    logits       every attention logit is the one that was meant, times this
    """

    layer_type: str
    length: int | None
    pairs: int
    of: int
    first_pair: int | None
    from_token: int | None
    logits: float

    def in_words(self, words: Mapping[str, str]) -> str:
        """Return the effect as text; `words` are those of a language in report.toml."""
        parts = []
        if self.pairs:
            numbers = {"pairs": self.pairs, "of": self.of, "first": self.first_pair}
            # "from" is no name that Python takes for an argument
            parts.append(words["pairs"].format(**numbers, **{"from": f"{self.from_token:,}"}))
        if abs(self.logits - 1) > SAME:
            parts.append(words["logits"].format(times=f"{self.logits:.4g}"))
        return f"{self.layer_type}: {words['comma'].join(parts)}"


def effects(wrong: Specs | None, meant: Specs | None, length: int | None) -> tuple[Effect, ...]:
    """Return how the ropes of a config differ from those that were meant, for the layer types that
    rotate in both and differ; () if there are none, or if one of the two cannot be read.
    """
    found = []
    for name, spec in (meant or {}).items():
        other = (wrong or {}).get(name)
        if spec is not None and other is not None:
            effect = _effect(name, other, spec, length)
            if effect.pairs or abs(effect.logits - 1) > SAME:
                found.append(effect)
    return tuple(found)


def _effect(name: str, wrong: RopeSpec, meant: RopeSpec, length: int | None) -> Effect:
    """Return how one rope differs from the one that was meant in sequences of this length."""
    right, found = (list(spec.ladder_frequencies(length).radians) for spec in (meant, wrong))
    count = max(len(right), len(found))
    # a pair that only one of the two ropes rotates has the frequency 0 in the other
    right += [0.0] * (count - len(right))
    found += [0.0] * (count - len(found))
    gaps = [abs(a - b) for a, b in zip(right, found, strict=True)]
    different = [i for i, gap in enumerate(gaps) if gap > SAME * max(right[i], found[i])]
    largest = max((gaps[i] for i in different), default=0.0)
    # a logit has the magnitude twice: once by its query and once by its key
    magnitudes = [spec.magnitude(length) ** 2 for spec in (wrong, meant)]
    softmax = wrong.extra_softmax_factor / meant.extra_softmax_factor
    return Effect(
        name,
        length,
        len(different),
        count,
        different[0] if different else None,
        math.floor(OFF / largest) + 1 if largest else None,
        magnitudes[0] / magnitudes[1] * softmax,
    )
