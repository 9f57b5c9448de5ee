"""What an engine computes from a config: the case that it is given, and the reading that its rules
make of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ropewalk.axes import AxisMap, chunked
from ropewalk.config.checks import is_layer
from ropewalk.config.families import Family, family_of
from ropewalk.frequencies import Default, Linear, LongRope, Scaling, Yarn
from ropewalk.frequencies.formulas import mscale, ntk_theta
from ropewalk.spec import RopeSpec

TRAINED = "original_max_position_embeddings"


def names(text: str) -> frozenset[str]:
    """Return the model types that a text lists."""
    return frozenset(text.split())


@dataclass(frozen=True)
class EngineRule:
    """One rule that an engine applies: its topic, what the engine does, and where and when that was
    read.
    """

    about: str
    does: str
    reference: str
    read: str = "2026-11"

    def __str__(self) -> str:
        return f"{self.about}: {self.does} ({self.reference}, read {self.read})"


@dataclass(frozen=True)
class Case:
    """One layer type of a config and how it is served.

    spec           the spec that the config describes
    rope           the config keys of its rope
    max_position   the config's served length, or None
    max_model_len  the longest sequence that the engine is started for
    length         tokens of the longest sequence of the batch
    latent         whether attention is latent, with a separate rotated part (DeepSeek)
    by_layer_type  whether the rope is given in `rope_parameters` by layer type
    config         the keys of the text model
    layer_type     the name of this layer type
    limit_is_given       whether the caller gave `max_model_len`; else every engine has a default of
                         its own
    """

    spec: RopeSpec
    rope: Mapping[str, Any]
    model_type: str | None
    max_position: int | None
    max_model_len: int
    length: int
    latent: bool = False
    by_layer_type: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    layer_type: str = "full_attention"
    limit_is_given: bool = False

    @property
    def family(self) -> Family:
        return family_of(self.model_type)

    @property
    def rope_type(self) -> str:
        """The name of the scaling as the config writes it."""
        return str(self.rope.get("rope_type") or self.rope.get("type") or "default")

    @property
    def fraction(self) -> float | None:
        """The `partial_rotary_factor` of the rope or of the config."""
        return self.rope.get("partial_rotary_factor", self.config.get("partial_rotary_factor"))

    @property
    def original_length(self) -> int | None:
        """The trained length that the rope or the config gives."""
        return self.rope.get(TRAINED, self.config.get(TRAINED))

    @property
    def derived_head_dim(self) -> int:
        """hidden_size / num_attention_heads, which some engines use whatever head_dim is; head_dim
        if either is missing.
        """
        hidden, heads = self.config.get("hidden_size"), self.config.get("num_attention_heads")
        return hidden // heads if hidden and heads else self.spec.head_dim

    @property
    def is_named_by_type(self) -> bool:
        """Whether `rope_scaling` is named by the old key `type` alone."""
        scaling = self.config.get("rope_scaling") or {}
        return scaling.get("type") is not None and scaling.get("rope_type") is None

    @property
    def ropes(self) -> list[Mapping[str, Any]]:
        """The rope of every layer type if the config has one for each, else its only one."""
        if not self.by_layer_type:
            return [self.rope]
        return [
            rope or {}
            for name, rope in self.config["rope_parameters"].items()
            if is_layer(name, rope)
        ]

    @property
    def rope_with_nulls(self) -> Mapping[str, Any]:
        """The rope object as the config writes it, with the keys that are null, which `rope` leaves
        out.
        """
        v5 = self.config.get("rope_parameters") or {}
        rope = v5.get(self.layer_type) or {} if self.by_layer_type else v5
        return {**(self.config.get("rope_scaling") or {}), **rope}

    def problem_if_null(self, *keys: str) -> str | None:
        """Return why an engine that computes with these keys fails if the config writes one of them
        as null; else None.
        """
        nulls = [
            key for key in keys if key in self.rope_with_nulls and self.rope_with_nulls[key] is None
        ]
        return f"refused: {nulls[0]} must be a number or absent, not null" if nulls else None

    @property
    def gives_theta(self) -> bool:
        """Whether the config has a `rope_theta`, anywhere; else a default is used."""
        v5 = self.config.get("rope_parameters") or {}
        places = (
            self.config,
            self.config.get("rope_scaling") or {},
            v5,
            v5.get(self.layer_type) or {},
        )
        return any(place.get("rope_theta") is not None for place in places)

    def exceeds_served_length(self, factor: float) -> bool:
        """Return whether the engine is asked to start for more than `factor` times the config's
        served length.
        """
        return (
            self.limit_is_given
            and self.max_position is not None
            and self.max_model_len > factor * self.max_position
        )

    @property
    def mrope(self) -> bool:
        """Whether the pairs rotate by several axes, such as time, height and width (M-RoPE)."""
        return isinstance(self.spec.axes, AxisMap)


class Reading:
    """What an engine computes: the frequencies of `spec` at `length`, unless there is a `problem`.

    It starts as what the config describes; the reader of an engine changes it and adds the rules
    behind the changes.
    """

    def __init__(self, case: Case) -> None:
        """Start with the spec that the config of `case` describes."""
        self.case, self.spec, self.length = case, case.spec, case.length
        self.rules: list[EngineRule] = []
        self.problem: str | None = None
        #: indices of the pairs that the engine does not rotate
        self.unrotated_pairs: frozenset[int] = frozenset()

    def fail(self, problem: str) -> Reading:
        """Record why there is no result, and return the reading.

        "refused: ..." if the engine raises an error, "not known: ..." if its code was not read for
        this rope.
        """
        self.problem = problem
        return self

    def frequencies(self) -> tuple[tuple[float, ...], float | None]:
        """Return radians per step and the magnitude; () and None if there is a problem."""
        if self.problem is not None:
            return (), None
        frequencies = self.spec.ladder_frequencies(self.length)
        radians = (
            0.0 if pair in self.unrotated_pairs else value
            for pair, value in enumerate(frequencies.radians)
        )
        return tuple(radians), float(frequencies.magnitude)

    def set_fields(self, about: str, does: str, reference: str, **fields: Any) -> None:
        """Change fields of the spec; if that changes what is computed, add the rule (its topic,
        what the engine does, where).
        """
        before, self.spec = self.spec, self.spec.with_(**fields)
        if self.spec.axis_of_pair != before.axis_of_pair or not _same_frequencies(
            self.spec, before, self.length
        ):
            self.add_rule(about, does, reference)

    def drop_scaling(self, does: str, reference: str) -> None:
        """Record that the engine ignores the config's scaling."""
        about = "dynamic NTK" if self.case.rope_type == "dynamic" else self.case.rope_type
        self.set_fields(about, does, reference, scaling=Default())

    def set_rotary_dim(self, width: int, does: str, reference: str) -> None:
        """Set how many dimensions of the head the engine rotates, from its start; add the rule if
        that differs from the spec.
        """
        if width == self.spec.rotated_dims:
            return
        does, scaling = (
            f"{does}: {width} of {self.spec.head_dim} dimensions rotate",
            _for_width(self.spec.scaling, width),
        )
        # sections of axes are for another number of pairs, so they are dropped
        self.set_fields(
            "partial_rotary_factor",
            does,
            reference,
            rotary_dim=width,
            rotary_start=0,
            axes=None,
            scaling=scaling,
        )

    def chunk_axes(self, reference: str) -> None:
        """Set the chunked order of M-RoPE's axes for an engine that interleaves them only if the
        config says so.
        """
        family, rope = self.case.family, self.case.rope
        if (
            not isinstance(self.spec.axes, AxisMap)
            or family.axis_order != "interleaved"
            or rope.get("mrope_interleaved")
        ):
            return
        sections = [int(count) for count in rope.get("mrope_section", family.sections)]
        does = "the sections are chunked unless the config says mrope_interleaved"
        self.set_fields("mrope_interleaved", does, reference, axes=chunked(sections))

    def add_rule(self, about: str, does: str, reference: str) -> None:
        """Add a rule."""
        self.rules.append(EngineRule(about, does, reference))

    def change_scaling(self, **parameters: Any) -> bool:
        """Change parameters of the scaling, and return whether that made a difference."""
        scaling = replace(self.spec.scaling, **parameters)
        changed = scaling != self.spec.scaling
        if changed:
            self.spec = self.spec.with_(scaling=scaling)
        return changed

    def round_band(self, does: str, reference: str) -> None:
        """Round the band of YaRN, the pairs between those that stay and those that are
        interpolated, to whole pairs.
        """
        if self.change_scaling(truncate=True):
            self.add_rule("truncate", f"{does}: the band is rounded to whole pairs", reference)

    def set_yarn_magnitude(self, magnitude: float, does: str, reference: str) -> None:
        """Set YaRN's magnitude to that of the engine; if it differs from the config's, add a rule
        that says so.

        does  what the engine does instead, in words; it may contain {key}, the config key that is
              not read
        """
        yarn = self.spec.scaling
        assert isinstance(yarn, Yarn)  # for the type checker
        key = "mscale" if yarn.attention_factor is None else "attention_factor"
        expected = float(
            yarn.frequencies(2, 10.0).magnitude
        )  # the magnitude depends on neither head_dim nor theta
        if self.change_scaling(attention_factor=magnitude) and expected != magnitude:
            self.add_rule(
                key, f"{does.format(key=key)}: {magnitude:.6g} instead of {expected:.6g}", reference
            )

    def fix_longrope_factors(
        self, scaling: LongRope, long: bool, does: str, reference: str
    ) -> None:
        """Use the long or the short factors of LongRoPE for every sequence, whatever its length,
        and add the rule.
        """
        # frequencies are computed for `self.length`: a length for which LongRoPE uses these factors
        self.length = scaling.original_length + 1 if long else 1
        self.add_rule("length switching", does, reference)

    def choose_longrope_factors(
        self, scaling: LongRope, limit_name: str, reference: str, limit: int
    ) -> bool:
        """Choose LongRoPE's factors by the length `limit` an engine is started for; return whether
        they are the long ones.
        """
        long = limit > scaling.original_length
        does = (
            f"{'long' if long else 'short'} factors for every sequence, because {limit_name} is "
            f"{limit}"
        )
        self.fix_longrope_factors(scaling, long, does, reference)
        return long

    def read_as_yarn(self, length: int, where: str) -> None:
        """Replace any scaling by YaRN with the trained length `length` and the keys of the rope, as
        for latent attention.
        """
        rope = self.case.rope
        betas = {
            key: rope.get(key, default)
            for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
        }
        scaling = Yarn(original_length=length, factor=rope.get("factor", 1.0), **betas)
        self.set_fields(self.case.rope_type, "read as yarn", where, scaling=scaling)

    def set_longrope_magnitude(
        self, scaling: LongRope, reference: str, magnitude: float | None = None
    ) -> None:
        """Set the magnitude of LongRoPE to `magnitude` or, by default, sqrt(1 + ln(L / L0) / ln
        L0); add a rule if it changes.

        L is the served length of the config and L0 the trained length: the engine ignores the
        config's own factor and attention_factor. A config without a served length keeps its
        magnitude.
        """
        if self.case.max_position is None:
            return
        before = self.spec.ladder_frequencies().magnitude
        # with the factor L / L0 and no attention_factor LongRope computes the formula
        self.change_scaling(
            factor=self.case.max_position / scaling.original_length, attention_factor=magnitude
        )
        if self.spec.ladder_frequencies().magnitude != before:
            does = (
                "computed from the two lengths"
                if magnitude is None
                else f"{magnitude}, from a key of its own"
            )
            self.add_rule("attention_factor", f"not read: the magnitude is {does}", reference)

    def freeze_ntk(self, stretch: float, does: str, reference: str) -> None:
        """Replace dynamic NTK by one base for every length; `stretch` is how much longer the
        slowest wavelength becomes.
        """
        self.add_rule("dynamic NTK", does, reference)
        if stretch <= 0:
            self.fail(f"refused: the base is multiplied by a fractional power of {stretch:.4g}")
        else:
            theta = float(ntk_theta(self.spec.theta, stretch, 2 * self.spec.pairs))
            self.spec = self.spec.with_(theta=theta, scaling=Default())


@dataclass(frozen=True)
class Engine:
    """An engine: its title, the version that was read and run, and the function that reads a case
    as it does.
    """

    title: str
    tree: str
    read: Callable[[Case], Reading]
    #: the factor by which the engine multiplies max_position_embeddings to get the longest sequence
    #: that it serves
    length_factor: Callable[[Case], float] = lambda case: 1.0


def _same_frequencies(first: RopeSpec, second: RopeSpec, length: int) -> bool:
    """Return whether two specs rotate alike at a length."""
    one, other = (spec.ladder_frequencies(length) for spec in (first, second))
    return one.radians == other.radians and float(one.magnitude) == float(other.magnitude)


def _for_width(scaling: Scaling, width: int) -> Scaling:
    """Return a scaling that fits `width` rotated dimensions: LongRoPE has one factor for each pair."""
    if isinstance(scaling, LongRope) and len(scaling.short_factor) != width // 2:
        return Default()
    return scaling


def factor_type_problem(case: Case) -> str | None:
    """Return why the linear scaling of vLLM and SGLang refuses the factor, if it is an integer;
    else None.
    """
    is_integer = isinstance(case.spec.scaling, Linear) and isinstance(case.rope.get("factor"), int)
    return "refused: linear takes a float as factor; write 2.0, not 2" if is_integer else None


def magnitude_of_mscales(case: Case, yarn: Yarn) -> float:
    """Return the magnitude of YaRN that the keys mscale (default 1) and mscale_all_dim (default 0)
    give, as in DeepSeek.
    """
    numerator, divisor = case.rope.get("mscale", 1.0), case.rope.get("mscale_all_dim", 0.0)
    return float(mscale(yarn.factor, numerator)) / float(mscale(yarn.factor, divisor))
