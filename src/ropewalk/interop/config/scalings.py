"""The keys each `rope_type` reads, and the scaling they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Default, Dynamic, Linear, Llama3, LongRope, Ntk, Proportional, Scaling, Yarn
from ropewalk.interop.config.values import Layer, Value, find


def _length(layer: Layer) -> dict[str, int]:
    """The trained length that yarn, longrope and llama3 count from."""
    outer, served = find(layer.config, "original_max_position_embeddings"), _served_length(layer)
    # the config's own key comes first, as in transformers: Phi-3 keeps it there
    found = layer.either(outer, layer.rope.get("original_max_position_embeddings")) or served
    if found is None:
        raise RopeError("original_max_position_embeddings", f"must be given for rope_type {layer.rope_type!r}", None)
    return {"original_length": layer.use("original_length", found)}


def _served_length(layer: Layer) -> Value | None:
    return find(layer.config, "max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")


def _stretch(layer: Layer, original_length: int) -> dict[str, Any]:
    """`factor`, or what the two lengths say where it is absent."""
    if "factor" in layer.rope:
        return layer.take("factor")
    served = _served_length(layer)
    if served is None or layer.names["original_length"].key == served.key:
        raise RopeError("factor", f"must be given for rope_type {layer.rope_type!r}", None)
    ratio = integer(served.key, served.value, low=1) / original_length
    return {"factor": layer.use("factor", Value(ratio, served.key, f"{served.key} / original_length", made=True))}


def _read_linear(layer: Layer) -> Scaling:
    return Linear(**layer.require("factor"))


def _read_dynamic(layer: Layer) -> Scaling:
    if "alpha" in layer.rope and (layer.family.reads_alpha or not layer.known):
        return Ntk(**layer.take("alpha", "factor"))
    served = _served_length(layer)
    if served is None:
        raise RopeError("max_position_embeddings", "must be given for rope_type 'dynamic'", None)
    return Dynamic(**layer.require("factor"), original_length=layer.use("original_length", served))


def _read_yarn(layer: Layer) -> Scaling:
    length = _length(layer)
    given = {}
    for key in ("beta_fast", "beta_slow", "truncate", "attention_factor", "mscale", "mscale_all_dim"):
        given |= layer.take(key)
    if "attention_factor" not in given and layer.family.yarn_attention_factor is not None:
        found = layer.default(layer.family.yarn_attention_factor, "attention_factor")
        given["attention_factor"] = layer.use("attention_factor", found)
    return Yarn(**_stretch(layer, **length), **length, **given)


def _read_longrope(layer: Layer) -> Scaling:
    length = _length(layer)
    factors = {**layer.require("short_factor"), **layer.require("long_factor")}
    return LongRope(**factors, **length, **_stretch(layer, **length), **_longrope_magnitude(layer))


def _longrope_magnitude(layer: Layer) -> dict[str, Any]:
    if not layer.family.reads_mscales:
        return layer.take("attention_factor")
    short, long = (layer.require(key)[key] for key in ("short_mscale", "long_mscale"))
    if short != long:
        raise RopeError("long_mscale", f"must equal short_mscale = {short!r}: a spec has one magnitude", long)
    return {"attention_factor": layer.use("attention_factor", layer.rope["short_mscale"])}


def _read_llama3(layer: Layer) -> Scaling:
    bands = {**layer.require("factor"), **layer.require("low_freq_factor"), **layer.require("high_freq_factor")}
    return Llama3(**bands, **_length(layer))


def _read_proportional(layer: Layer) -> Scaling:
    return Proportional(**layer.take("factor"), fraction=layer.names["fraction"].value)


#: one reader per `rope_type`
SCALING_READERS: dict[str, Callable[[Layer], Scaling]] = {
    "default": lambda layer: Default(),
    "linear": _read_linear,
    "dynamic": _read_dynamic,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
    "llama3": _read_llama3,
    "proportional": _read_proportional,
}
