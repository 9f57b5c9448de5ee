"""What an engine computes from a config: it starts as what the config describes, and the engine's
rules change it.

Words of this module:
  case            one layer type of a config, and how it is served
  reading         what one engine computes for a case, an `EngineReading`
  about, does     the topic of a rule, and what the engine does, in words
  source          the file of the engine in which that was read
  trained, served the lengths in tokens that the model was trained with and is used with
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.axes import chunked
from ropewalk.engines.case import ServedLayer
from ropewalk.frequencies import Default, LongRope, Scaling, Yarn
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class EngineRule:
    """One rule that an engine applies: its topic (`about`), what the engine does, and where
    (`reference`, a file of the engine) and when (`read`) that was read.
    """

    about: str
    does: str
    reference: str
    read: str

    def __str__(self) -> str:
        return f"{self.about}: {self.does} ({self.reference}, read {self.read})"


def frequencies_of(spec: RopeSpec, length: int | None = None) -> tuple[tuple[float, ...], float]:
    """Return the radians per step of each pair, pair 0 first, and the magnitude, as floats, for
    sequences of `length` tokens; None: of the trained length.
    """
    found = spec.ladder_frequencies(length)
    radians: Any = found.radians
    numbers = radians.tolist() if hasattr(radians, "tolist") else radians  # a tensor
    return tuple(map(float, numbers)), float(found.magnitude)


def mscale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's magnitude: 0.1 weight ln(factor) + 1, and 1 for a factor of at most 1."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


class EngineReading:
    """What an engine computes: the frequencies of `spec` at `length`, unless there is a `problem`.

    It starts as what the config describes; the rules of an engine change it and are kept.
    """

    def __init__(self, case: ServedLayer, read: str = "") -> None:
        """Start with the spec that the config of `case` describes; `read` is when the rules were
        read.
        """
        self.case, self.spec, self.length, self.read = case, case.spec, case.length, read
        self.rules: list[EngineRule] = []
        #: why there is no result; None: there is one
        self.problem: str | None = None
        #: indices of the pairs that the engine does not rotate
        self.unrotated_pairs: frozenset[int] = frozenset()
        #: the rope object that mlx-lm's model class reads, set by the operation "model arguments"
        #: (operations.py); None: none
        self.keys: Mapping[str, Any] | None = None
        #: whether the engine runs the class of transformers, see registries.py
        self.in_transformers = False
        #: no further rule applies
        self.done = False

    def fail(self, problem: str) -> EngineReading:
        """Record why there is no result, and return the reading; no further rule applies.

        "refused: ..." if the engine raises an error, "not known: ..." if its code was not read for
        this rope.
        """
        self.problem, self.done = problem, True
        return self

    def frequencies(self) -> tuple[tuple[float, ...], float | None]:
        """Return the frequency of each pair in radians per step and the magnitude; () and None if
        there is a problem.
        """
        if self.problem is not None:
            return (), None
        radians, magnitude = frequencies_of(self.spec, self.length)
        still = self.unrotated_pairs
        return tuple(0.0 if i in still else value for i, value in enumerate(radians)), magnitude

    def add_rule(self, about: str, does: str, source: str) -> None:
        """Add a rule: its topic, what the engine does, and where that was read."""
        self.rules.append(EngineRule(about, does, source, self.read))

    def set_fields(self, about: str, does: str, source: str, **fields: Any) -> None:
        """Change fields of the spec; if that changes the axis of a pair, a frequency or the
        magnitude, add a rule, as `add_rule` does.
        """
        before, after, length = self.spec, self.spec.with_(**fields), self.length
        self.spec = after
        same_axes = after.axis_of_pair == before.axis_of_pair
        if not same_axes or frequencies_of(after, length) != frequencies_of(before, length):
            self.add_rule(about, does, source)

    def change_scaling(self, **parameters: Any) -> bool:
        """Change parameters of the scaling, and return whether that made a difference."""
        scaling = replace(self.spec.scaling, **parameters)
        changed = scaling != self.spec.scaling
        if changed:
            self.spec = self.spec.with_(scaling=scaling)
        return changed

    def drop_scaling(self, does: str, source: str) -> None:
        """Record that the engine ignores the config's scaling."""
        about = "dynamic NTK" if self.case.rope_type == "dynamic" else self.case.rope_type
        self.set_fields(about, does, source, scaling=Default())

    def set_rotary_dim(self, width: int, does: str, source: str) -> None:
        """Set how many dimensions of the head the engine rotates, from its start; add the rule if
        that differs from the spec.
        """
        if width == self.spec.rotated_dims:
            return
        does = f"{does}: {width} of {self.spec.head_dim} dimensions rotate"
        # sections of axes are for another number of pairs, so they are dropped
        changed = {"rotary_dim": width, "rotary_start": 0, "axes": None}
        scaling = _for_width(self.spec.scaling, width)
        self.set_fields("partial_rotary_factor", does, source, **changed, scaling=scaling)

    def chunk_axes(self, does: str, source: str) -> None:
        """Set the chunked order of M-RoPE's axes, in which the pairs of one axis are neighbours;
        add the rule if that differs from the spec.
        """
        # `case.sections` may have fewer pairs of height and width than the config says, since in
        # the interleaved order each of them has at most every third pair. So the config's own
        # sections are used if they add up to the number of pairs
        given = self.case.value("rope.mrope_section") or []
        fits = sum(given) == self.spec.pairs
        axes = chunked(given if fits else self.case.sections)
        self.set_fields("mrope_interleaved", does, source, axes=axes)

    def set_yarn_magnitude(self, magnitude: float, does: str, source: str) -> None:
        """Set YaRN's magnitude to that of the engine; if it differs from the config's, add a rule
        that says so.

        does  what the engine does instead, in words; it may contain {key}, the config key that is
              not read
        """
        yarn = self.spec.scaling
        assert isinstance(yarn, Yarn)  # for the type checker
        # the key by which the config gives the magnitude
        key = "mscale" if yarn.attention_factor is None else "attention_factor"
        expected = frequencies_of(self.spec)[1]
        if self.change_scaling(attention_factor=magnitude) and expected != magnitude:
            numbers = f"{magnitude:.6g} instead of {expected:.6g}"
            self.add_rule(key, f"{does.format(key=key)}: {numbers}", source)

    def fix_longrope_factors(
        self, original_length: int, long: bool, does: str, source: str
    ) -> None:
        """Use the long factors of LongRoPE (if `long`) or the short ones for every sequence,
        whatever its length, and add the rule; `original_length` is the trained length.
        """
        # frequencies are computed for `self.length`: a length for which LongRoPE uses these factors
        self.length = original_length + 1 if long else 1
        self.add_rule("length switching", does, source)

    def set_longrope_magnitude(self, magnitude: float | None, source: str) -> None:
        """Set the magnitude of LongRoPE to `magnitude` or, if that is None, sqrt(1 + ln(L / L0) /
        ln L0); add a rule if it changes.

        L is the served length of the config and L0 the trained length: the engine ignores the
        config's own factor and attention_factor. A config without a served length keeps its
        magnitude, and so does any other scaling.
        """
        scaling = self.spec.scaling
        if self.case.max_position is None or not isinstance(scaling, LongRope):
            return
        before = frequencies_of(self.spec)[1]
        # with the factor L / L0 and no attention_factor LongRope computes the formula
        factor = self.case.max_position / scaling.original_length
        self.change_scaling(factor=factor, attention_factor=magnitude)
        if frequencies_of(self.spec)[1] != before:
            of_lengths = "computed from the two lengths"
            does = of_lengths if magnitude is None else f"{magnitude}, from a key of its own"
            self.add_rule("attention_factor", f"not read: the magnitude is {does}", source)

    def freeze_ntk(self, stretch: float, does: str, source: str) -> None:
        """Replace dynamic NTK by one base for every length; `stretch` is how many times longer the
        slowest wavelength becomes. If it is at most 0 the engine raises an error.
        """
        self.add_rule("dynamic NTK", does, source)
        if stretch <= 0:
            self.fail(f"refused: the base is multiplied by a fractional power of {stretch:.4g}")
            return
        dim = 2 * self.spec.pairs
        # a single pair has the frequency 1 with any base
        theta = self.spec.theta * (1.0 if dim == 2 else stretch ** (dim / (dim - 2)))
        self.spec = self.spec.with_(theta=theta, scaling=Default())


def _for_width(scaling: Scaling, width: int) -> Scaling:
    """Return a scaling for `width` rotated dimensions: itself, or none for a LongRoPE that has
    another number of factors than pairs.
    """
    if isinstance(scaling, LongRope) and len(scaling.short_factor) != width // 2:
        return Default()
    return scaling
