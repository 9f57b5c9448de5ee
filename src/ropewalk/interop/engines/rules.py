"""What each engine makes of one config: its habits as data, each with the place and the month it was read.

An engine is a pure function from what transformers computes to what it computes itself, said as a spec and the length its
frequencies are of. Where a habit was not read, the answer is "not known" and never a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.frequencies import Default, Dynamic, LongRope, Ntk, Proportional, Yarn
from ropewalk.frequencies.scaling import mscale, ntk_theta
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class Rule:
    """One habit that sets an engine apart: what it is about, what the engine does, where and when that was read."""

    about: str
    does: str
    reference: str
    read: str = "2026-09"


@dataclass(frozen=True)
class Case:
    """One layer type of a config and how it is served.

    spec           what the config asks for
    rope           its keys as written
    max_position   the config's own longest position; None where it has none
    max_model_len  the longest sequence the engine is started for
    length         tokens of the longest sequence of the batch
    latent         attention with a part split off for the rotation (DeepSeek)
    nested         the rope stands in `rope_parameters` by layer type
    """

    spec: RopeSpec
    rope: Mapping[str, Any]
    model_type: str | None
    max_position: int | None
    max_model_len: int
    length: int
    latent: bool = False
    nested: bool = False

    @property
    def mrope(self) -> bool:
        return isinstance(self.spec.axes, AxisMap)

    @property
    def ernie(self) -> bool:
        return isinstance(self.spec.axes, AxisMap) and self.spec.axis_of_pair[:2] == (1, 2)


@dataclass(frozen=True)
class Reading:
    """What an engine computes: frequencies of `spec` at `length`; a spec of None is not known, or no table at all."""

    spec: RopeSpec | None
    length: int
    rules: tuple[Rule, ...] = ()
    problem: str | None = None


@dataclass
class _Draft:
    """A reading while it is made."""

    case: Case
    spec: RopeSpec = field(init=False)
    length: int = field(init=False)
    rules: list[Rule] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spec, self.length = self.case.spec, self.case.length

    def scaled(self, *rules: Rule, **changes: Any) -> None:
        """Take other parameters into the scaling, and say why where that makes another scaling."""
        changed = replace(self.spec.scaling, **changes)
        if changed != self.spec.scaling:
            self.spec = self.spec.with_(scaling=changed)
            self.rules += rules

    def at(self, length: int, *rules: Rule) -> None:
        self.length = length
        self.rules += rules

    def done(self) -> Reading:
        return Reading(self.spec, self.length, tuple(self.rules))


@dataclass(frozen=True)
class Engine:
    """An engine by name: what it is called, which tree was read, and what it makes of a case."""

    title: str
    tree: str
    read: Callable[[Case], Reading]


def _unknown(case: Case, what: str) -> Reading:
    return Reading(None, case.length, problem=f"not known: {what}")


def _own_magnitude(case: Case, yarn: Yarn) -> float:
    """Two keys, each with a default of its own: m(s, mscale or 1) / m(s, mscale_all_dim or 0)."""
    weights = (case.rope.get("mscale", 1.0), case.rope.get("mscale_all_dim", 0.0))
    return float(mscale(yarn.factor, weights[0])) / float(mscale(yarn.factor, weights[1]))


def _other_magnitude(about: str, does: str, reference: str, yarn: Yarn, magnitude: float) -> tuple[Rule, ...]:
    """The rule, where it makes a difference to this config."""
    asked = float(yarn.frequencies(2, 10.0).magnitude)
    return (Rule(about, f"{does}: {magnitude:.6g} where {asked:.6g} is asked", reference),) if asked != magnitude else ()


def _frozen_ntk(draft: _Draft, inner: float, rule: Rule) -> Reading:
    """Dynamic NTK as one base for every length; `inner` is how far the slowest pair is slowed."""
    if inner <= 0:
        return Reading(None, draft.length, (rule,), f"no table: the base is multiplied by a power of {inner:.4g}")
    spec = draft.spec
    theta = float(ntk_theta(spec.theta, inner, 2 * spec.pairs))
    return Reading(spec.with_(theta=theta, scaling=Default()), draft.length, (rule,))


def _switch(draft: _Draft, scaling: LongRope, long: bool, *rules: Rule) -> None:
    """LongRoPE by the engine's own switch instead of this sequence's length."""
    draft.at(scaling.original_length + 1 if long else 1, *rules)


def _by_served_length(draft: _Draft, scaling: LongRope, name: str, reference: str, magnitude_keys: tuple[str, ...]) -> None:
    """LongRoPE switched once by how the engine was started, its magnitude by the two lengths alone."""
    case = draft.case
    long = case.max_model_len > scaling.original_length
    does = f"{'long' if long else 'short'} factors for every sequence, because {name} is {case.max_model_len}"
    _switch(draft, scaling, long, Rule("length switching", does, reference))
    _sqrt_magnitude(draft, scaling, reference, case.rope.get(magnitude_keys[long]) if magnitude_keys else None)


def _sqrt_magnitude(draft: _Draft, scaling: LongRope, reference: str, given: float | None = None) -> None:
    """sqrt(1 + ln(L / L0) / ln L0) from the lengths, whatever `factor` and `attention_factor` say."""
    if draft.case.max_position is None:
        return
    factor = draft.case.max_position / scaling.original_length
    rule = Rule("attention_factor", "not read: the magnitude follows from the two lengths", reference)
    before = draft.spec.ladder_frequencies().magnitude
    draft.scaled(factor=factor, attention_factor=given)
    if draft.spec.ladder_frequencies().magnitude != before:
        draft.rules.append(rule)


def read_hf(case: Case) -> Reading:
    """transformers: the reference; frequencies follow the longest sequence of the batch at every forward."""
    draft = _Draft(case)
    scaling = case.spec.scaling
    if isinstance(scaling, Dynamic):
        does = "base of the longest sequence of the batch; a later shorter one keeps it until it is below the trained length"
        draft.at(case.length, Rule("dynamic NTK", does, "transformers#25104, modeling_rope_utils.py"))
    if isinstance(scaling, LongRope):
        does = "long factors for the whole batch once its longest sequence is past the trained length, at every forward"
        draft.at(case.length, Rule("length switching", does, "transformers#33129, modeling_rope_utils.py"))
    if isinstance(scaling, Yarn) and case.nested:
        does = "not read in a rope that stands by layer type: the band is rounded to whole pairs"
        draft.scaled(Rule("truncate", does, "modeling_rope_utils.py 5.22"), truncate=True)
    return draft.done()


def read_vllm(case: Case) -> Reading:
    """vLLM: everything that follows a length is decided once, by max_model_len."""
    draft, scaling = _Draft(case), case.spec.scaling
    if isinstance(scaling, Yarn):
        magnitude = float(mscale(scaling.factor)) * case.rope.get("attn_factor", 1.0)
        about = "attention_factor" if scaling.attention_factor is not None else "mscale"
        does, reference = f"{about} not read, 0.1 ln(factor) + 1 instead", "vllm#48351 (open), vllm#48621"
        if case.latent:
            magnitude = _own_magnitude(case, scaling)
            does, reference = "attention_factor not read, the two mscale keys are", "deepseek_scaling_rope.py"
        draft.scaled(*_other_magnitude(about, does, reference, scaling, magnitude), attention_factor=magnitude)
        if case.mrope:
            does = "the band is that of four times the trained length"
            draft.scaled(
                Rule("M-RoPE", does, "mrope.py: the table's length is passed on"), original_length=4 * scaling.original_length
            )
    if isinstance(scaling, LongRope):
        _by_served_length(draft, scaling, "max_model_len", "vllm#27431", ("short_mscale", "long_mscale"))
    if isinstance(scaling, Dynamic):
        inner = scaling.factor * case.max_model_len / scaling.original_length - (scaling.factor - 1)
        does = f"one base for every sequence, that of max_model_len = {case.max_model_len}"
        return _frozen_ntk(draft, inner, Rule("dynamic NTK", does, "vllm#41236, vllm#41277, vllm#52665 (open)"))
    return draft.done()


def read_sglang(case: Case) -> Reading:
    """SGLang: vLLM's classes with other switches."""
    draft, scaling = _Draft(case), case.spec.scaling
    if case.ernie or case.spec.rotary_start:
        return _unknown(case, "this order of axes" if case.ernie else "a slice at the end of the head")
    if isinstance(scaling, Yarn):
        both = case.rope.get("mscale") is not None and case.rope.get("mscale_all_dim") is not None
        magnitude = _own_magnitude(case, scaling) if both or case.latent else float(mscale(scaling.factor))
        magnitude *= case.rope.get("attn_factor", 1.0)
        about = "attention_factor" if scaling.attention_factor is not None else "mscale"
        does = "attention_factor read for one model only, 0.1 ln(factor) + 1 instead"
        draft.scaled(*_other_magnitude(about, does, "yarn.py", scaling, magnitude), attention_factor=magnitude)
    if isinstance(scaling, LongRope):
        # a position past L0, not a length: one token later than transformers
        long = case.length - 1 > scaling.original_length
        does = "one token past the trained length, in any sequence, gives every sequence of the batch the long factors"
        _switch(draft, scaling, long, Rule("length switching", does, "rope_variant.py"))
        _sqrt_magnitude(draft, scaling, "rope_variant.py", case.rope.get("long_mscale" if long else "short_mscale"))
    if isinstance(scaling, Dynamic):
        inner = scaling.factor * scaling.factor - (scaling.factor - 1)
        does = "one base for every sequence, that of factor times the trained length"
        return _frozen_ntk(draft, inner, Rule("dynamic NTK", does, "rope_variant.py"))
    if isinstance(scaling, Proportional):
        draft.scaled(Rule("factor", "not read by rope_type proportional", "factory.py"), factor=1.0)
    return draft.done()


def read_mlx(case: Case) -> Reading:
    """mlx-lm: one axis, whole pairs, long factors."""
    draft, scaling = _Draft(case), case.spec.scaling
    if isinstance(scaling, Ntk) or case.spec.rotary_start:
        return _unknown(case, "static NTK" if isinstance(scaling, Ntk) else "a slice at the end of the head")
    if case.mrope:
        draft.spec = draft.spec.with_(axes=None)
        does = "sections accepted and not used: every pair follows the text position"
        draft.rules.append(Rule("M-RoPE", does, "rope_utils.py"))
    if isinstance(scaling, Yarn):
        magnitude = _own_magnitude(case, scaling)
        about = "attention_factor" if scaling.attention_factor is not None else "mscale"
        reference = "mlx-lm#1507: read in trees that have it"
        rules = _other_magnitude(about, "attention_factor not read", reference, scaling, magnitude)
        draft.scaled(*rules, attention_factor=magnitude)
        draft.scaled(Rule("truncate", "not read: the band is rounded to whole pairs", "rope_utils.py"), truncate=True)
    if isinstance(scaling, LongRope):
        _switch(
            draft, scaling, True, Rule("length switching", "long factors for every sequence, short ones never", "rope_utils.py")
        )
        _sqrt_magnitude(draft, scaling, "rope_utils.py")
    if isinstance(scaling, Dynamic):
        does = "refused by the common code; where a model has its own, the base of each call's length, nothing remembered"
        draft.rules.append(Rule("dynamic NTK", does, "rope_utils.py, internlm2.py"))
    return draft.done()


#: model types whose converter writes `mscale_all_dim` beside the latent ones
WRITES_LOG_MULTIPLIER = ("mistral3", "ministral3", "mistral4")


def read_llama_cpp(case: Case) -> Reading:
    """llama.cpp: what its converter writes, then its own algebra of magnitudes."""
    draft, scaling = _Draft(case), case.spec.scaling
    if isinstance(scaling, Ntk) or case.ernie:
        return _unknown(case, "static NTK" if isinstance(scaling, Ntk) else "this order of axes")
    if isinstance(scaling, Yarn):
        _llama_cpp_yarn(draft, scaling)
    if isinstance(scaling, LongRope):
        _by_served_length(draft, scaling, "the context", "llama.cpp#24875, llama-model.cpp", ())
    if isinstance(scaling, Dynamic):
        draft.spec = draft.spec.with_(scaling=Default())
        draft.rules.append(Rule("dynamic NTK", "not written by the converter: unscaled at every length", "convert_hf_to_gguf.py"))
    return draft.done()


def _llama_cpp_yarn(draft: _Draft, yarn: Yarn) -> None:
    case = draft.case
    weight = yarn.mscale_all_dim or 0.0
    if not (case.latent or case.model_type in WRITES_LOG_MULTIPLIER):
        weight = 0.0
    # the runtime takes mscale for 1, for DeepSeek-V2's architecture for the other key
    own = weight if case.latent and weight not in (0.0, 1.0) else 1.0
    magnitude = float(mscale(yarn.factor, own)) / (float(mscale(yarn.factor, weight)) if weight else 1.0)
    about = "attention_factor" if yarn.attention_factor is not None else "mscale"
    does = "attn_factor is made anew from the factor, mscale taken for 1"
    draft.scaled(
        *_other_magnitude(about, does, "llama.cpp#17945, llama-context.cpp", yarn, magnitude), attention_factor=magnitude
    )
    draft.scaled(Rule("truncate", "not written: the band is rounded to whole pairs", "ggml rope_yarn_corr_dims"), truncate=True)
    if magnitude != 1:
        does = "shifting a cache multiplies its keys by the magnitude once more"
        draft.rules.append(Rule("K-shift", does, "llama-kv-cache.cpp"))


#: every engine by name, the reference first. Add an entry and audit, its command and its tests pick it up.
ENGINES: dict[str, Engine] = {
    "hf": Engine("transformers", "5.22", read_hf),
    "vllm": Engine("vLLM", "2026-09", read_vllm),
    "sglang": Engine("SGLang", "2026-09", read_sglang),
    "mlx-lm": Engine("mlx-lm", "2026-08", read_mlx),
    "llama.cpp": Engine("llama.cpp", "2026-09", read_llama_cpp),
}
REFERENCE = "hf"
