"""Write a spec as config keys.

A key is written in the rope object (`rope_parameters` of transformers 5, `rope_scaling` of
transformers 4) or outside it, in the config itself. A family is what the code of a model_type fixes
beside its config, a row of families.toml. The trained length is the longest sequence of the
training, the served length the longest with which the config says the model is used.
"""

from __future__ import annotations

import math
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.config.families import Family, family_of
from ropewalk.config.keys import (
    CLIP_KEYS,
    CLIPPED_PAIRS,
    FRACTION_KEYS,
    LATENT_KEY,
    THETA_KEYS,
    keys_of,
    rope_types,
)
from ropewalk.errors import RopeError
from ropewalk.frequencies import Clipped, Ntk, Scaling
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY
from ropewalk.spec import RopeSpec

FRACTION_KEY = FRACTION_KEYS[0]


def config_keys(spec: RopeSpec, version: int, model_type: str | None) -> dict[str, Any]:
    """Return the config keys that describe `spec`, not yet checked: `to_hf` reads them back before
    it returns them.

    version     of transformers: 4 for `rope_scaling`, 5 for `rope_parameters`
    model_type  that of the config; None: the config gets none
    """
    family = family_of(model_type)
    # keys of the rope object, and keys of the config itself
    rope, outside = write_scaling(spec.scaling, family)
    rope |= _axis_keys(spec)
    if FRACTION_KEY not in rope:
        rope |= _fraction_key(spec)
    written = {} if model_type is None else {"model_type": model_type}
    written |= {**_head_keys(spec, family), **outside}
    if TRAINED_LENGTH_KEY in family.defaults and TRAINED_LENGTH_KEY in rope:
        # the family's default would otherwise come before the key of the rope object
        written[TRAINED_LENGTH_KEY] = rope[TRAINED_LENGTH_KEY]
    if version == 5:
        rope = {"rope_type": rope.pop("rope_type"), "rope_theta": spec.theta, **rope}
        # families with a theta for each layer type have one rope for each
        by_type = {layer_type: dict(rope) for layer_type in family.layer_thetas}
        return {**written, "rope_parameters": by_type or rope}
    fraction = {}
    if FRACTION_KEY in rope:  # in version 4 it is outside the rope object
        fraction[family.renamed.get(FRACTION_KEY, FRACTION_KEY)] = rope.pop(FRACTION_KEY)
    theta_key = family.renamed.get(THETA_KEYS[0], THETA_KEYS[0])
    scaling = v4_keys(rope, family) if rope != {"rope_type": "default"} else {"rope_scaling": None}
    return {**written, theta_key: spec.theta, **scaling, **fraction}


def write_scaling(scaling: Scaling, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys that describe `scaling`: those of the rope object, and those beside it in the
    config, such as max_position_embeddings.
    """
    if isinstance(scaling, Clipped):
        if scaling.pairs != CLIPPED_PAIRS:
            raise RopeError(
                "scaling",
                f"must clip {CLIPPED_PAIRS} pairs: the config keys of CoPE say no other number",
                scaling,
            )
        rope, outside = write_scaling(scaling.inner, family)
        clip_key = next(key for key, soft in CLIP_KEYS.items() if soft == scaling.soft)
        return rope, {**outside, clip_key: True}
    # in such a family "dynamic" with the key alpha is NTK with a fixed factor
    if isinstance(scaling, Ntk) and "alpha" in family.reads:
        return {"rope_type": "dynamic", "alpha": scaling.factor}, {}
    # `is not`, because a class of the user's own may have the name of one of ours
    if rope_types().get(scaling.name) is not type(scaling):
        hint = (
            " (static NTK needs model_type='hunyuan_v1_dense')" if isinstance(scaling, Ntk) else ""
        )
        raise RopeError(
            "scaling",
            f"must be one that a config can name: {', '.join(rope_types())}{hint}",
            scaling,
        )
    keys: dict[str, Any] = {}
    for key, name in keys_of(scaling).items():
        value = getattr(scaling, name)
        if value is not None:
            keys[key] = list(value) if isinstance(value, tuple) else value
    # the served length is a key of the config itself
    outside = {SERVED_LENGTH_KEY: keys.pop(SERVED_LENGTH_KEY)} if SERVED_LENGTH_KEY in keys else {}
    if TRAINED_LENGTH_KEY in keys:
        trained_length = keys.pop(TRAINED_LENGTH_KEY)
        keys[TRAINED_LENGTH_KEY] = trained_length  # moved to the end, where configs have it
        outside[SERVED_LENGTH_KEY] = extended_length(trained_length, scaling)
    return {"rope_type": scaling.name, **keys}, outside


def extended_length(length: int, scaling: Scaling) -> int:
    """Return the served length: the trained length times the scaling's factor, rounded, at least
    1.
    """
    return max(1, round(length * getattr(scaling, "factor", 1.0)))


def v4_keys(rope: dict[str, Any], family: Family) -> dict[str, Any]:
    """Return {"rope_scaling": ...} as transformers 4 reads it; for longrope also the trained
    length, which transformers reads outside `rope_scaling`.
    """
    if rope["rope_type"] != "longrope":
        return {"rope_scaling": rope}
    outside = {TRAINED_LENGTH_KEY: rope[TRAINED_LENGTH_KEY]}
    # this is the family of Phi-3, the only one whose code reads the name "yarn" as longrope
    if family.renamed.get("yarn") == "longrope":
        # its config class accepts these three keys and no other
        rope = {
            "type": "longrope",
            "short_factor": rope["short_factor"],
            "long_factor": rope["long_factor"],
        }
    return {"rope_scaling": rope, **outside}


def _head_keys(spec: RopeSpec, family: Family) -> dict[str, Any]:
    """Return the config keys of the head's width and of the pair layout, and those that make the
    family rotate.
    """
    # the extra factor of the softmax belongs to latent attention, whatever the family
    latent = family.latent or spec.extra_softmax_factor != 1
    keys: dict[str, Any] = {LATENT_KEY if latent else "head_dim": spec.head_dim}
    if not family.rotates_if_absent:
        keys |= {key: values[0] for key, values in family.rotates_if.items()}
    if "rope_interleave" in family.reads:
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
    """Return the config keys of an axis map; {} for one axis, and for other axes, which no config
    key describes.
    """
    if not isinstance(spec.axes, AxisMap):
        return {}
    axis_of_pair = spec.axes.axis_of_pair
    # the number of pairs of each axis
    counts = [axis_of_pair.count(axis) for axis in range(spec.axes.num_axes)]
    if axis_of_pair == tuple(sorted(axis_of_pair)):
        # chunked: all pairs of the first axis, then those of the second, ...
        return {"mrope_section": counts}
    # only Ernie's pairs begin with height (1) and width (2); its sections are height, width, time
    if axis_of_pair[:2] == (1, 2):
        return {"mrope_section": [*counts[1:], counts[0]]}
    return {"mrope_section": counts, "mrope_interleaved": True}
