"""The config keys that say what a spec says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.errors import RopeError
from ropewalk.frequencies import Default, Dynamic, Linear, Llama3, LongRope, Ntk, Proportional, Scaling, Yarn
from ropewalk.interop.config.families import FAMILIES, Family
from ropewalk.spec import RopeSpec

ORIGINAL = "original_max_position_embeddings"


def config_keys(spec: RopeSpec, version: int, model_type: str | None) -> dict[str, Any]:
    """The keys that describe `spec`, unchecked: `to_hf` reads them back before it gives them away."""
    family = FAMILIES.get(model_type or "", Family(reads_partial=True))
    rope, beside = _scaling_keys(spec, family)
    rope |= _axis_keys(spec)
    written = {**({} if model_type is None else {"model_type": model_type}), **_head_keys(spec, family), **beside}
    partial = {} if isinstance(spec.scaling, Proportional) else _partial_key(spec)
    if version == 5:
        return {**written, "rope_parameters": {"rope_type": rope.pop("rope_type"), "rope_theta": spec.theta, **rope, **partial}}
    outer = {key: rope.pop(key) for key in ("partial_rotary_factor",) if key in rope}
    scaling = old_keys(rope, family) if rope != {"rope_type": "default"} else {"rope_scaling": None}
    return {**written, "rope_theta": spec.theta, **scaling, **partial, **outer}


def old_keys(rope: dict[str, Any], family: Family) -> dict[str, Any]:
    """`rope_scaling` as transformers 4 reads it, and what it looks for beside it."""
    if rope["rope_type"] != "longrope":
        return {"rope_scaling": rope}
    beside = {ORIGINAL: rope[ORIGINAL]}
    if family.yarn_is_longrope:  # the config class of Phi-3 takes these three keys and no other
        rope = {"type": "longrope", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    return {"rope_scaling": rope, **beside}


def _head_keys(spec: RopeSpec, family: Family) -> dict[str, Any]:
    latent = family.layout_out is not None or spec.extra_softmax_factor != 1
    keys = {"qk_rope_head_dim": spec.head_dim} if latent else {"head_dim": spec.head_dim}
    return {**keys, "rope_interleave": spec.layout == "interleaved"} if family.has_interleave_flag else keys


def _partial_key(spec: RopeSpec) -> dict[str, float]:
    if spec.rotary_dim == spec.head_dim:
        return {}
    fraction = 2 * spec.pairs / spec.head_dim
    # readers truncate head_dim * fraction, so a product just below the integer would lose a dimension
    return {"partial_rotary_factor": fraction if int(spec.head_dim * fraction) >= 2 * spec.pairs else math.nextafter(fraction, 2)}


def _axis_keys(spec: RopeSpec) -> dict[str, Any]:
    if not isinstance(spec.axes, AxisMap):
        return {}
    axis_of_pair = spec.axes.axis_of_pair
    counts = [axis_of_pair.count(axis) for axis in range(spec.axes.num_axes)]
    if axis_of_pair == tuple(sorted(axis_of_pair)):
        return {"mrope_section": counts}
    if axis_of_pair[:2] == (1, 2):  # Ernie lists height, width, time
        return {"mrope_section": [*counts[1:], counts[0]]}
    return {"mrope_section": counts, "mrope_interleaved": True}


def _scaling_keys(spec: RopeSpec, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keys of the rope itself, and those that stand beside it."""
    scaling = spec.scaling
    write = WRITERS.get(type(scaling))
    if write is None or (isinstance(scaling, Ntk) and not family.reads_alpha):
        known = ", ".join(found.name for found in WRITERS if found is not Ntk)
        hint = " (static NTK needs model_type='hunyuan_v1_dense')" if isinstance(scaling, Ntk) else ""
        raise RopeError("scaling", f"must be one transformers can express: {known}{hint}", scaling)
    keys, beside = write(scaling)
    return {"rope_type": scaling.name, **{key: value for key, value in keys.items() if value is not None}}, beside


def _banded(scaling: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = {f.name: getattr(scaling, f.name) for f in fields(scaling)}
    keys = {name: list(value) if isinstance(value, tuple) else value for name, value in keys.items()}
    length = keys[ORIGINAL] = keys.pop("original_length")
    return keys, {"max_position_embeddings": max(1, round(length * scaling.factor))}


WRITERS: dict[type[Scaling], Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]] = {
    Default: lambda scaling: ({}, {}),
    Linear: lambda scaling: ({"factor": scaling.factor}, {}),
    Dynamic: lambda scaling: ({"factor": scaling.factor}, {"max_position_embeddings": scaling.original_length}),
    Yarn: _banded,
    LongRope: _banded,
    Llama3: _banded,
    Proportional: lambda scaling: ({"factor": scaling.factor, "partial_rotary_factor": scaling.fraction}, {}),
    Ntk: lambda scaling: ({"rope_type": "dynamic", "alpha": scaling.factor}, {}),
}
