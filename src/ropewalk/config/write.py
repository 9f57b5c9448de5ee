"""Write a spec as config keys."""

from __future__ import annotations

import math
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.config.families import Family, family_of
from ropewalk.config.keys import FRACTION_KEYS, LATENT_KEY, THETA_KEYS
from ropewalk.config.scalings import write_scaling
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.spec import RopeSpec

FRACTION_KEY = FRACTION_KEYS[0]


def config_keys(spec: RopeSpec, version: int, model_type: str | None) -> dict[str, Any]:
    """Return the keys that describe `spec`, not yet checked: `to_hf` reads them back before it
    returns them.
    """
    family = family_of(model_type)
    rope, outside = write_scaling(
        spec.scaling, family
    )  # keys of the rope object, and keys of the config itself
    rope |= _axis_keys(spec)
    if FRACTION_KEY not in rope:
        rope |= _fraction_key(spec)
    written = {} if model_type is None else {"model_type": model_type}
    written |= {**_head_keys(spec, family), **outside}
    if family.trained_length is not None and TRAINED_LENGTH_KEY in rope:
        written[TRAINED_LENGTH_KEY] = rope[TRAINED_LENGTH_KEY]
    if version == 5:
        rope = {"rope_type": rope.pop("rope_type"), "rope_theta": spec.theta, **rope}
        by_type = {
            layer.layer_type: dict(rope) for layer in family.layer_thetas
        }  # for families with one rope for each type
        return {**written, "rope_parameters": by_type or rope}
    fraction = (
        {family.fraction_key or FRACTION_KEY: rope.pop(FRACTION_KEY)}
        if FRACTION_KEY in rope
        else {}
    )
    scaling = v4_keys(rope, family) if rope != {"rope_type": "default"} else {"rope_scaling": None}
    return {**written, family.theta_key or THETA_KEYS[0]: spec.theta, **scaling, **fraction}


def v4_keys(rope: dict[str, Any], family: Family) -> dict[str, Any]:
    """Return `rope_scaling` as transformers 4 reads it; for longrope also the trained length, which
    is read outside it.
    """
    if rope["rope_type"] != "longrope":
        return {"rope_scaling": rope}
    outside = {TRAINED_LENGTH_KEY: rope[TRAINED_LENGTH_KEY]}
    if family.yarn_is_longrope:  # the config class of Phi-3 accepts these three keys and no other
        rope = {
            "type": "longrope",
            "short_factor": rope["short_factor"],
            "long_factor": rope["long_factor"],
        }
    return {"rope_scaling": rope, **outside}


def _head_keys(spec: RopeSpec, family: Family) -> dict[str, Any]:
    """Return the config keys of the head's width and, where the config has keys for them, of the
    pair layout and of rotating.
    """
    # the extra factor of the softmax belongs to latent attention, whatever the family
    latent = family.latent or spec.extra_softmax_factor != 1
    keys: dict[str, Any] = {LATENT_KEY if latent else "head_dim": spec.head_dim}
    if family.rotates_if is not None and None not in family.rotates_if[1]:
        keys[family.rotates_if[0]] = family.rotates_if[1][0]
    if family.has_interleave_flag:
        keys["rope_interleave"] = spec.layout == "interleaved"
    return keys


def _fraction_key(spec: RopeSpec) -> dict[str, float]:
    """Return the config key for heads that rotate in part; {} if the whole head rotates."""
    rotated = 2 * spec.pairs
    if rotated == spec.head_dim:
        return {}
    fraction = rotated / spec.head_dim
    # readers truncate head_dim * fraction, so a product just below the integer would lose a
    # dimension
    return {
        FRACTION_KEY: fraction
        if int(spec.head_dim * fraction) >= rotated
        else math.nextafter(fraction, 2)
    }


def _axis_keys(spec: RopeSpec) -> dict[str, Any]:
    """Return the config keys for several axes; {} for one."""
    if not isinstance(spec.axes, AxisMap):
        return {}
    axis_of_pair = spec.axes.axis_of_pair
    counts = [
        axis_of_pair.count(axis) for axis in range(spec.axes.num_axes)
    ]  # the number of pairs of each axis
    if axis_of_pair == tuple(
        sorted(axis_of_pair)
    ):  # chunked: all pairs of the first axis, then those of the second, ...
        return {"mrope_section": counts}
    if axis_of_pair[:2] == (1, 2):  # Ernie lists height, width, time
        return {"mrope_section": [*counts[1:], counts[0]]}
    return {"mrope_section": counts, "mrope_interleaved": True}
