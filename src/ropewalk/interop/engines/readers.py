"""How each engine reads a config: one function per engine, which describes what that engine computes.

Every rule names the source file or issue it comes from, and the month.
If an engine's code was not read, the result is "not known".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.frequencies import Default, Dynamic, LongRope, Ntk, Proportional, Yarn
from ropewalk.frequencies.formulas import mscale, ntk_theta
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class EngineRule:
    """One rule that an engine applies: its topic, what the engine does, and where and when that was read."""

    about: str
    does: str
    reference: str
    read: str = "2026-09"

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
    nested         whether the rope is given in `rope_parameters` by layer type
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
        return self.mrope and self.spec.axis_of_pair[:2] == (1, 2)


class Reading:
    """What an engine computes: the frequencies of `spec` at `length`, unless there is a `problem`.

    It starts as what the config describes; the reader of an engine changes it and adds the rules behind the changes.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.spec, self.length = case, case.spec, case.length
        self.rules: list[EngineRule] = []
        self.problem: str | None = None

    def fail(self, problem: str) -> Reading:
        """Set the problem."""
        self.problem = problem
        return self

    def frequencies(self) -> tuple[tuple[float, ...], float | None]:
        """Return radians per step and the magnitude; () and None if there is a problem."""
        if self.problem is not None:
            return (), None
        frequencies = self.spec.ladder_frequencies(self.length)
        return tuple(frequencies.radians.tolist()), float(frequencies.magnitude)

    def add(self, about: str, does: str, reference: str) -> None:
        """Add a rule."""
        self.rules.append(EngineRule(about, does, reference))

    def change(self, **parameters: Any) -> bool:
        """Change parameters of the scaling; returns whether that made a difference."""
        scaling = replace(self.spec.scaling, **parameters)
        changed = scaling != self.spec.scaling
        if changed:
            self.spec = self.spec.with_(scaling=scaling)
        return changed

    def round_band(self, does: str, reference: str) -> None:
        """Round the band of YaRN to whole pairs."""
        if self.change(truncate=True):
            self.add("truncate", f"{does}: the band is rounded to whole pairs", reference)

    def set_yarn_magnitude(self, magnitude: float, does: str, reference: str) -> None:
        """Set the magnitude of YaRN; `does` may contain {key}, the config key that is not read."""
        yarn = self.spec.scaling
        assert isinstance(yarn, Yarn)  # for the type checker
        key = "mscale" if yarn.attention_factor is None else "attention_factor"
        expected = float(yarn.frequencies(2, 10.0).magnitude)
        if self.change(attention_factor=magnitude) and expected != magnitude:
            self.add(key, f"{does.format(key=key)}: {magnitude:.6g} instead of {expected:.6g}", reference)

    def switch(self, scaling: LongRope, long: bool, does: str, reference: str) -> None:
        """Use the long or the short factors of LongRoPE, whatever the length of this sequence."""
        self.length = scaling.original_length + 1 if long else 1
        self.add("length switching", does, reference)

    def switch_once(self, scaling: LongRope, name: str, reference: str) -> bool:
        """Switch LongRoPE by the length that the engine is started for; returns whether that gives the long factors."""
        limit = self.case.max_model_len
        long = limit > scaling.original_length
        does = f"{'long' if long else 'short'} factors for every sequence, because {name} is {limit}"
        self.switch(scaling, long, does, reference)
        return long

    def set_longrope_magnitude(self, scaling: LongRope, reference: str, magnitude: float | None = None) -> None:
        """Set the magnitude of LongRoPE to `magnitude` or sqrt(1 + ln(L / L0) / ln L0), without factor and attention_factor."""
        if self.case.max_position is None:
            return
        before = self.spec.ladder_frequencies().magnitude
        self.change(factor=self.case.max_position / scaling.original_length, attention_factor=magnitude)
        if self.spec.ladder_frequencies().magnitude != before:
            self.add("attention_factor", "not read: the magnitude is computed from the two lengths", reference)

    def freeze_ntk(self, stretch: float, does: str, reference: str) -> None:
        """Replace dynamic NTK by one base for every length; `stretch` is the factor on the slowest wavelength."""
        self.add("dynamic NTK", does, reference)
        if stretch <= 0:
            self.fail(f"no table: the base is multiplied by a fractional power of {stretch:.4g}")
        else:
            theta = float(ntk_theta(self.spec.theta, stretch, 2 * self.spec.pairs))
            self.spec = self.spec.with_(theta=theta, scaling=Default())


@dataclass(frozen=True)
class Engine:
    """An engine: its title, the version that was read, and the function that reads a case as it does."""

    title: str
    tree: str
    read: Callable[[Case], Reading]


def _magnitude_of_mscales(case: Case, yarn: Yarn) -> float:
    """Return m(s, mscale or 1) / m(s, mscale_all_dim or 0)."""
    upper, lower = case.rope.get("mscale", 1.0), case.rope.get("mscale_all_dim", 0.0)
    return float(mscale(yarn.factor, upper)) / float(mscale(yarn.factor, lower))


def read_hf(case: Case) -> Reading:
    """Read a case as transformers does: the reference, with frequencies for the longest sequence of each batch."""
    reading, scaling = Reading(case), case.spec.scaling
    if isinstance(scaling, Dynamic):
        does = "base of the longest sequence of the batch; a later, shorter batch keeps it until below the trained length"
        reading.add("dynamic NTK", does, "transformers#25104, modeling_rope_utils.py")
    if isinstance(scaling, LongRope):
        does = "long factors for the whole batch if its longest sequence exceeds the trained length, decided at every forward"
        reading.add("length switching", does, "transformers#33129, modeling_rope_utils.py")
    if isinstance(scaling, Yarn) and case.nested:
        reading.round_band("not read in a rope given by layer type", "modeling_rope_utils.py 5.22")
    return reading


def read_vllm(case: Case) -> Reading:
    """Read a case as vLLM does: max_model_len alone decides everything that depends on a length."""
    reading, scaling = Reading(case), case.spec.scaling
    if isinstance(scaling, Yarn):
        if case.latent:
            magnitude = _magnitude_of_mscales(case, scaling)
            reading.set_yarn_magnitude(magnitude, "mscale keys read, attention_factor not read", "deepseek_scaling_rope.py")
        else:
            magnitude = float(mscale(scaling.factor)) * case.rope.get("attn_factor", 1.0)
            reading.set_yarn_magnitude(magnitude, "{key} not read, 0.1 ln(factor) + 1 used", "vllm#48351 (open), vllm#48621")
        if case.mrope and reading.change(original_length=4 * scaling.original_length):
            reading.add(
                "M-RoPE", "the band is computed for four times the trained length", "mrope.py: the table's length is passed on"
            )
    if isinstance(scaling, LongRope):
        long = reading.switch_once(scaling, "max_model_len", "vllm#27431")
        reading.set_longrope_magnitude(scaling, "vllm#27431", case.rope.get("long_mscale" if long else "short_mscale"))
    if isinstance(scaling, Dynamic):
        stretch = scaling.factor * case.max_model_len / scaling.original_length - (scaling.factor - 1)
        does = f"one base for every sequence, computed for max_model_len = {case.max_model_len}"
        reading.freeze_ntk(stretch, does, "vllm#41236, vllm#41277, vllm#52665 (open)")
    return reading


def read_sglang(case: Case) -> Reading:
    """Read a case as SGLang does: the classes of vLLM with other switches."""
    reading, scaling = Reading(case), case.spec.scaling
    if case.ernie or case.spec.rotary_start:
        return reading.fail("not known: this order of axes" if case.ernie else "not known: a slice at the end of the head")
    if isinstance(scaling, Yarn):
        has_both = case.rope.get("mscale") is not None and case.rope.get("mscale_all_dim") is not None
        magnitude = _magnitude_of_mscales(case, scaling) if has_both or case.latent else float(mscale(scaling.factor))
        does = "attention_factor read for one model only, 0.1 ln(factor) + 1 used"
        reading.set_yarn_magnitude(magnitude * case.rope.get("attn_factor", 1.0), does, "yarn.py")
    if isinstance(scaling, LongRope):
        # compares a position with the trained length, not a length: one token later than transformers
        long = case.length - 1 > scaling.original_length
        does = "long factors for the whole batch if any sequence has a position above the trained length"
        reading.switch(scaling, long, does, "rope_variant.py")
        reading.set_longrope_magnitude(scaling, "rope_variant.py", case.rope.get("long_mscale" if long else "short_mscale"))
    if isinstance(scaling, Dynamic):
        stretch = scaling.factor * scaling.factor - (scaling.factor - 1)
        does = "one base for every sequence, computed for factor times the trained length"
        reading.freeze_ntk(stretch, does, "rope_variant.py")
    if isinstance(scaling, Proportional) and reading.change(factor=1.0):
        reading.add("factor", "not read for rope_type proportional", "factory.py")
    return reading


def read_mlx(case: Case) -> Reading:
    """Read a case as mlx-lm does: one axis, a band of whole pairs, long factors only."""
    reading, scaling = Reading(case), case.spec.scaling
    if isinstance(scaling, Ntk) or case.spec.rotary_start:
        return reading.fail("not known: static NTK" if isinstance(scaling, Ntk) else "not known: a slice at the end of the head")
    if case.mrope:
        reading.spec = reading.spec.with_(axes=None)
        reading.add("M-RoPE", "sections accepted but ignored: every pair uses the text position", "rope_utils.py")
    if isinstance(scaling, Yarn):
        magnitude = _magnitude_of_mscales(case, scaling)
        reading.set_yarn_magnitude(magnitude, "attention_factor not read", "mlx-lm#1507: read in versions that include it")
        reading.round_band("not read", "rope_utils.py")
    if isinstance(scaling, LongRope):
        reading.switch(scaling, True, "long factors for every sequence, short factors never", "rope_utils.py")
        reading.set_longrope_magnitude(scaling, "rope_utils.py")
    if isinstance(scaling, Dynamic):
        does = "an error in the shared code; models with their own code compute the base from the length of each call"
        reading.add("dynamic NTK", does, "rope_utils.py, internlm2.py")
    return reading


#: model types besides those with latent attention for which the converter writes `mscale_all_dim`
WRITES_LOG_MULTIPLIER = ("mistral3", "ministral3", "mistral4")


def read_llama_cpp(case: Case) -> Reading:
    """Read a case as llama.cpp does: what its converter writes, with its own formula for the magnitude."""
    reading, scaling = Reading(case), case.spec.scaling
    if isinstance(scaling, Ntk) or case.ernie:
        return reading.fail("not known: static NTK" if isinstance(scaling, Ntk) else "not known: this order of axes")
    if isinstance(scaling, Yarn):
        _llama_cpp_yarn(reading, scaling)
    if isinstance(scaling, LongRope):
        reading.switch_once(scaling, "the context", "llama.cpp#24875, llama-model.cpp")
        reading.set_longrope_magnitude(scaling, "llama.cpp#24875, llama-model.cpp")
    if isinstance(scaling, Dynamic):
        reading.spec = reading.spec.with_(scaling=Default())
        reading.add("dynamic NTK", "not written by the converter: unscaled at every length", "convert_hf_to_gguf.py")
    return reading


def _llama_cpp_yarn(reading: Reading, yarn: Yarn) -> None:
    case = reading.case
    is_written = case.latent or case.model_type in WRITES_LOG_MULTIPLIER
    weight = (yarn.mscale_all_dim or 0.0) if is_written else 0.0
    # the runtime assumes mscale = 1, except in DeepSeek-V2's architecture, where it assumes mscale = mscale_all_dim
    assumed_mscale = weight if case.latent and weight not in (0.0, 1.0) else 1.0
    magnitude = float(mscale(yarn.factor, assumed_mscale)) / (float(mscale(yarn.factor, weight)) if weight else 1.0)
    does = "attn_factor computed from factor with mscale = 1"
    reading.set_yarn_magnitude(magnitude, does, "llama.cpp#17945, llama-context.cpp")
    reading.round_band("not written", "ggml rope_yarn_corr_dims")
    if magnitude != 1:
        reading.add("K-shift", "shifting a KV cache multiplies its keys by the magnitude again", "llama-kv-cache.cpp")


#: every engine by name, the reference first. A new entry is picked up by audit, its command and its tests.
ENGINES: dict[str, Engine] = {
    "hf": Engine("transformers", "5.22", read_hf),
    "vllm": Engine("vLLM", "2026-09", read_vllm),
    "sglang": Engine("SGLang", "2026-09", read_sglang),
    "mlx-lm": Engine("mlx-lm", "2026-08", read_mlx),
    "llama.cpp": Engine("llama.cpp", "2026-09", read_llama_cpp),
}
REFERENCE = "hf"
