"""Write a spec as the keys and tensors of a GGUF file, and as a Hugging Face config.

Words of this module:
  name       the file's general.architecture, such as "llama", with which its keys begin
  facts      what the code of llama.cpp does for this architecture, a GgufArchitecture
  magnitude  the factor on cos and sin
  family     what the code of a Hugging Face `model_type` fixes beside its config
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.config.families import family_of
from ropewalk.config.hf import to_hf
from ropewalk.config.layers import NO_ROPE
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Default, Linear, LongRope, Yarn
from ropewalk.frequencies.formulas import mscale
from ropewalk.gguf.architectures import GgufArchitecture, architecture_of
from ropewalk.gguf.factors import all_close, divisors_for
from ropewalk.gguf.read import (
    FREQS,
    FULL,
    LONG,
    SHORT,
    SLIDING,
    GgufSource,
    has_sliding,
    read_ropes,
    rotated_layers,
)
from ropewalk.spec import RopeSpec

#: relative difference that rounding to float32 explains
SAME = 1e-6
#: config key of a size -> metadata key, without the architecture before it
SIZE_KEYS = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length",
    "sliding_window": "attention.sliding_window",
}


@dataclass(frozen=True)
class GgufMetadata:
    """The part of a GGUF file that describes a rope.

    keys     key -> int, float, text or list; write integers as uint32, floats as float32, texts as
             strings, lists as arrays of int32
    tensors  name -> float32 [pairs], an array of the standard library; numpy.asarray takes it
    layout   the pair layout in which this architecture stores q and k: convert the weights if the
             spec has the other one
    """

    keys: dict[str, Any]
    tensors: dict[str, array[float]]
    layout: str


@dataclass
class InMemory:
    """Keys and tensors in memory, which `read_ropes` reads as if they were in a file; see
    GgufSource.
    """

    architecture: str
    metadata: dict[str, Any]
    tensors: dict[str, array[float]] = field(default_factory=dict)

    def array(self, key: str) -> list[Any]:
        entries = self.metadata.get(key)
        if isinstance(entries, str) or not isinstance(entries, Iterable):
            raise RopeError(key, "must be an array", entries)
        return list(entries)

    def floats(self, name: str) -> Sequence[float]:
        return self.tensors[name]


def to_gguf_metadata(
    spec: RopeSpec, architecture: str = "llama", *, context_length: int | None = None
) -> GgufMetadata:
    """Return the keys and tensors from which llama.cpp computes `spec`.

    architecture    the general.architecture of the file: llama for Llama, Mistral and SmolLM2,
                    qwen2, qwen3, phi3, ...
    context_length  the longest sequence; None: written only if the scaling gives it

    Default, linear and LongRoPE have keys of their own, and so has YaRN if llama.cpp reads its
    settings for this architecture. Every other scaling whose frequencies are fixed becomes the
    tensor rope_freqs, one divisor for each pair. What was written is read back and compared. A
    RopeError names what llama.cpp cannot compute for this architecture.
    """
    facts = architecture_of(architecture)
    _refuse_unwritable(spec, architecture, facts)
    keys: dict[str, Any] = {
        "attention.key_length": spec.head_dim,
        "rope.dimension_count": 2 * spec.pairs,
    }
    keys["rope.freq_base"] = spec.theta
    scaling_keys, tensors = _scaling_keys(spec, architecture, facts)
    keys |= scaling_keys
    if spec.axes is not None:
        counts = [spec.axis_of_pair.count(axis) for axis in range(spec.num_axes)]
        keys["rope.dimension_sections"] = [*counts, 0, 0, 0][:4]  # always four numbers
    if context_length is not None:
        keys["context_length"] = integer("context_length", context_length, low=1, high=2**32 - 1)
    if facts.latent:
        # the spec describes only the part of the head that rotates, not the whole head
        del keys["attention.key_length"]
    named = {f"{architecture}.{key}": value for key, value in keys.items()}
    _check_round_trip(spec, InMemory(architecture, named, tensors))
    return GgufMetadata(named, tensors, facts.layout)


def _refuse_unwritable(spec: RopeSpec, name: str, facts: GgufArchitecture) -> None:
    """Raise an error if a field of the spec has a value that no key of the architecture `name`
    describes.
    """
    if (
        spec.learned
        or spec.scaling.name == "xpos"
        or (spec.needs_length and not isinstance(spec.scaling, LongRope))
    ):
        raise RopeError(
            "scaling",
            "must have fixed frequencies, or be LongRope, to be written to a GGUF file",
            spec.scaling,
        )
    if spec.rotary_start:
        raise RopeError(
            "rotary_start", "must be 0: llama.cpp rotates the first dimensions", spec.rotary_start
        )
    has_sections = isinstance(spec.axes, AxisMap) and spec.axes.ladder == "shared"
    if spec.axes is not None and (facts.axis_order is None or not has_sections):
        rule = (
            "must be None, or axes that share one ladder for an architecture that reads sections "
            f"(qwen2vl, qwen3vl); this one is {name}"
        )
        raise RopeError("axes", rule, spec.axes)
    # the length is 1, since no magnitude that is written depends on it
    if spec.magnitude_on != "qk" and spec.frequencies(1).magnitude != 1:
        raise RopeError(
            "magnitude_on", "must be 'qk': llama.cpp multiplies q and k", spec.magnitude_on
        )
    if spec.extra_softmax_factor != 1:
        raise RopeError(
            "extra_softmax_factor",
            "must be 1: no key of the rope describes it",
            spec.extra_softmax_factor,
        )


def _scaling_keys(
    spec: RopeSpec, name: str, facts: GgufArchitecture
) -> tuple[dict[str, Any], dict[str, array[float]]]:
    """Return the keys and tensors of the scaling; `name` and `facts` are those of the architecture."""
    scaling, prefix = spec.scaling, "rope.scaling."
    # at any length, here 1: no magnitude that is written depends on it
    magnitude = float(spec.ladder_frequencies(1).magnitude)
    if isinstance(scaling, LongRope):
        return _longrope_keys(scaling, magnitude, name, facts)
    if isinstance(scaling, Default):
        return {prefix + "type": "none"}, {}
    if isinstance(scaling, Linear):
        return {prefix + "type": "linear", prefix + "factor": scaling.factor}, {}
    if isinstance(scaling, Yarn) and _keys_describe(scaling, facts):
        keys = {
            "type": "yarn",
            "factor": scaling.factor,
            "original_context_length": scaling.original_length,
        }
        if facts.has_betas:
            keys |= {"yarn_beta_fast": scaling.beta_fast, "yarn_beta_slow": scaling.beta_slow}
        # llama.cpp multiplies YaRN's usual magnitude by attn_factor
        extra_magnitude = magnitude / mscale(scaling.factor)
        if abs(extra_magnitude - 1) > SAME:
            keys["attn_factor"] = extra_magnitude
        return {prefix + key: value for key, value in keys.items()}, {}
    if not facts.has_freqs:
        rule = (
            f"must be {_scalings_with_keys(facts)} for {name}, for which llama.cpp reads no "
            "rope_freqs"
        )
        raise RopeError("scaling", rule, scaling)
    # every other scaling is written as one divisor for each pair
    unscaled = Default().frequencies(2 * spec.pairs, spec.theta).radians
    scaled = spec.with_(precision="exact").ladder_frequencies().radians
    values = array("f", divisors_for(scaled, unscaled))
    keys = {prefix + "type": "none"} | (
        {} if magnitude == 1 else {prefix + "attn_factor": magnitude}
    )
    return keys, {FREQS: values}


def _keys_describe(scaling: Yarn, facts: GgufArchitecture) -> bool:
    """Return whether llama.cpp computes the frequencies of this YaRN from the keys that it reads
    for the architecture.
    """
    # the betas that llama.cpp takes if the file gives none
    usual = scaling.beta_fast == facts.beta_fast and scaling.beta_slow == 1
    # llama.cpp always truncates: it rounds the ends of YaRN's blend outwards to whole pairs. An
    # architecture with `has_yarn_factors` needs two more keys, which are not written here
    return scaling.truncate and (usual or facts.has_betas) and not facts.has_yarn_factors


def _scalings_with_keys(facts: GgufArchitecture) -> str:
    """Return in words which scalings are written as keys for the architecture; see `_keys_describe`
    for YaRN.
    """
    if facts.has_yarn_factors:
        return "default or linear"
    betas = "" if facts.has_betas else f", beta_fast {facts.beta_fast:g} and beta_slow 1"
    return f"default, linear or YaRN with truncate true{betas}"


def _longrope_keys(
    scaling: LongRope, magnitude: float, name: str, facts: GgufArchitecture
) -> tuple[dict[str, Any], dict[str, array[float]]]:
    """Return the metadata keys and the tensors of a LongRoPE scaling; refuse an architecture whose
    factors llama.cpp does not read.

    magnitude    the factor on cos and sin, which the file gives as a number
    name, facts  the architecture
    """
    if not facts.has_long_factors:
        raise RopeError(
            "scaling",
            f"must not be LongRope for {name}: llama.cpp reads no factors for it",
            scaling,
        )
    keys = {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": scaling.original_length,
        "rope.scaling.attn_factor": magnitude,
        "context_length": round(scaling.original_length * scaling.factor),
    }
    factors = {LONG: scaling.long_factor, SHORT: scaling.short_factor}
    return keys, {tensor: array("f", values) for tensor, values in factors.items()}


def _check_round_trip(spec: RopeSpec, written: GgufSource) -> None:
    """Raise a RopeError if the keys and tensors `written` read back as another rope than `spec`:
    other frequencies or magnitude at the trained length or beyond it, or other axes.
    """
    read = read_ropes(written, "exact")[0][FULL]
    # full layers have no rope only in files that describe sliding layers or layers without
    # rotation; `written` has neither
    assert read is not None
    exact = spec.with_(precision="exact")
    trained = getattr(spec.scaling, "original_length", 1)
    for length in (trained, trained + 1):  # LongRoPE has other factors beyond the trained length
        given, read_back = exact.ladder_frequencies(length), read.ladder_frequencies(length)
        # a pair that does not rotate is written with the divisor 1e30, so it reads back as a
        # frequency below atol
        same = all_close(given.radians, read_back.radians, rtol=SAME, atol=1e-25)
        if not same or abs(float(given.magnitude) / float(read_back.magnitude) - 1) > SAME:
            raise RopeError(
                "scaling", "cannot be written: other frequencies would be read back", spec.scaling
            )
    if read.axis_of_pair != spec.axis_of_pair:
        raise RopeError("axes", f"must have the order of {written.architecture}", spec.axes)


def hf_config(source: GgufSource) -> dict[str, Any]:
    """Return a Hugging Face config of the same model: its rope and the sizes in SIZE_KEYS.

    One rope for all layers is written as the v4 keys `rope_theta` and `rope_scaling`, which every
    engine reads, if they describe it; any other, and a rope for each layer type, needs the v5 key
    `rope_parameters`.
    """
    name = source.architecture
    facts = architecture_of(name)
    model_type = (
        facts.sliding_model_type if has_sliding(source, name) else None
    ) or facts.model_type
    if model_type is None:
        rule = (
            "must be one with a Hugging Face model_type that is known here, to be compared with "
            "other engines"
        )
        raise RopeError("general.architecture", rule, name)
    family = family_of(model_type)
    # q and k of a file may be stored in the other layout; a config describes the original weights
    layouts = {"layout": family.layout, "layout_out": family.layout_out}
    specs = read_ropes(source)[0]
    rotated = {
        layer_type: spec.with_(**layouts) for layer_type, spec in specs.items() if spec is not None
    }
    if not rotated:
        raise RopeError("path", "must have layers that rotate", name)
    if SLIDING in specs:
        keys = {
            layer_type: to_hf(spec, model_type=model_type) for layer_type, spec in rotated.items()
        }
        ropes = {layer_type: each["rope_parameters"] for layer_type, each in keys.items()}
        # for a family with a theta for each layer type, to_hf itself returns a rope for each type
        by_type = {layer_type: rope.get(layer_type, rope) for layer_type, rope in ropes.items()}
        config = next(iter(keys.values())) | {"rope_parameters": by_type}
    else:
        config = _keys_of_one_rope(rotated[FULL], model_type)
    config["model_type"] = model_type
    if NO_ROPE in specs:
        # despite its name, this key has 1 for layers that rotate
        config["no_rope_layers"] = [int(each) for each in rotated_layers(source, name)]
    return config | sizes_of(source)


def _keys_of_one_rope(spec: RopeSpec, model_type: str) -> dict[str, Any]:
    """Return the config keys of the one rope of all layers: those of transformers 4 or, if they
    cannot describe it, those of transformers 5.
    """
    try:
        return to_hf(spec, version=4, model_type=model_type)
    except RopeError:
        return to_hf(spec, version=5, model_type=model_type)


def sizes_of(source: GgufSource) -> dict[str, int]:
    """Return the sizes of a model as config keys; those that the file does not give, or gives as an
    array with a number for each layer, are left out.
    """
    sizes = {
        key: source.metadata.get(f"{source.architecture}.{suffix}")
        for key, suffix in SIZE_KEYS.items()
    }
    return {key: size for key, size in sizes.items() if isinstance(size, int)}
