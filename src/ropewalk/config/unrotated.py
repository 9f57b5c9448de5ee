"""Layers without positions (NoPE): which layers of a model are rotated, in every spelling that
configs have for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.config.families import Family
from ropewalk.config.keys import LAYER_COUNT_KEYS, LAYER_THETA_KEY
from ropewalk.config.values import Value, find
from ropewalk.errors import RopeError, integer

#: the name of the layers that are not rotated, where layers of one type differ
NO_ROPE = "no_rope"
#: the keys of one layer type's rope; None if layers of this type are not rotated
Rope = dict[str, Value] | None
MOST_LAYERS = 1 << 16


def with_unrotated(
    ropes: dict[str, Rope], config: Mapping[str, Any], family: Family, nested: bool
) -> dict[str, Rope]:
    """Return `ropes`, {layer type: rope}, with None for layer types that are not rotated, and with
    thetas given layer by layer.

    nested  `rope_parameters` holds one rope for each layer type, null for those that are not
            rotated
    """
    if _has_no_rope(config, family):
        return dict.fromkeys(ropes)
    # in some families the layer type decides, but only if the model has a sliding window; a missing
    # key means that it has one
    if (
        family.unrotated
        and not nested
        and ("sliding_window" not in config or config["sliding_window"] is not None)
    ):
        declared = (
            ropes
            if config.get("layer_types")
            else {"sliding_attention": next(iter(ropes.values()))}
        )
        return {**declared, **dict.fromkeys(family.unrotated)}
    # in other families the config says layer by layer which are rotated
    thetas = layer_thetas(config, family)
    rotates = _rotates(config, family) if thetas is None else [theta != 0 for theta in thetas]
    if rotates is None:
        return {**ropes, NO_ROPE: None} if family.skips_layers else ropes
    layers_by_type = _layers_by_type(config, rotates)
    if thetas is not None and family.layer_theta != "flag":
        ropes = {
            name: _with_theta(name, rope, layers_by_type.get(name, []), thetas)
            for name, rope in ropes.items()
        }
    if all(rotates):
        return ropes
    if any(len({rotates[layer] for layer in layers}) != 1 for layers in layers_by_type.values()):
        return {
            **ropes,
            NO_ROPE: None,
        }  # layers of one type differ, so those that are not rotated get a name of their own
    return {
        **ropes,
        **{name: None for name, layers in layers_by_type.items() if not rotates[layers[0]]},
    }


def layer_names(config: Mapping[str, Any], family: Family, names: Mapping[str, Any]) -> list[str]:
    """Return for each layer which of `names`, the layer types that `from_hf(per_layer=True)`
    returns, it belongs to.
    """
    thetas = layer_thetas(config, family)
    rotates = _rotates(config, family) if thetas is None else [theta != 0 for theta in thetas]
    declared = config.get("layer_types")
    count = len(declared) if declared else _layer_count(config)
    if count is None:
        raise RopeError(LAYER_COUNT_KEYS[0], "must be given to tell the layers apart", None)
    if not declared:
        if rotates is None and len(names) > 1:
            raise RopeError(
                "layer_types", f"must be given to tell which layers are {', '.join(names)}", None
            )
        declared = [next(iter(names))] * count
    if rotates is not None and len(rotates) != len(declared):
        key = LAYER_THETA_KEY if thetas is not None else "no_rope_layers"
        raise RopeError(
            key, f"must have one entry for each of the {len(declared)} layers", len(rotates)
        )
    if NO_ROPE in names and rotates is not None:
        return [
            name if rotated else NO_ROPE for name, rotated in zip(declared, rotates, strict=True)
        ]
    return list(declared)


def layer_thetas(config: Mapping[str, Any], family: Family) -> list[float] | None:
    """Return the theta of each layer, 0 for layers that are not rotated; None if the config has no
    theta per layer.

    A family with `layer_theta` "flag" uses only whether a theta is 0; if the config has none, 1
    stands for any other theta.
    """
    given = config.get(LAYER_THETA_KEY)
    if given is not None:
        return [
            float(theta) for theta in given
        ]  # `check_values` has refused all but lists of thetas and zeros
    count = _layer_count(config)
    if family.layer_theta != "flag" or count is None:
        return None
    # every fourth layer, counted from the last, is not rotated
    return [float((count - 1 - layer) % 4 != 0) for layer in range(count)]


def _has_no_rope(config: Mapping[str, Any], family: Family) -> bool:
    """Return whether no layer is rotated because the theta of the rope is null (OLMo Hybrid)."""
    if not family.rope_is_optional:
        return False
    rope = config.get("rope_parameters")
    return isinstance(rope, Mapping) and "rope_theta" in rope and rope["rope_theta"] is None


def _with_theta(name: str, rope: Rope, layers: list[int], thetas: list[float]) -> Rope:
    """Return the rope of the layer type `name` with the theta of its `layers` (indices); those with
    theta 0 are not rotated.
    """
    distinct = sorted({thetas[layer] for layer in layers if thetas[layer]})
    if rope is None or not distinct:
        return rope
    if len(distinct) > 1:
        rule = (
            f"must be one theta, or 0, in all layers of the type {name}, to be described by one "
            "spec"
        )
        raise RopeError(LAYER_THETA_KEY, rule, distinct)
    return {**rope, "rope_theta": Value(distinct[0], LAYER_THETA_KEY)}


def _layers_by_type(config: Mapping[str, Any], rotates: list[bool]) -> dict[str, list[int]]:
    """Return {layer type: indices of its layers}; if `layer_types` and `rotates` differ in length,
    the shorter one counts.
    """
    declared, layers = config.get("layer_types") or ["full_attention"] * len(rotates), {}
    for index, (name, _) in enumerate(zip(declared, rotates, strict=False)):
        layers.setdefault(name, []).append(index)
    return layers


def _layer_count(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers; None if the config does not give it."""
    count = find(config, *LAYER_COUNT_KEYS)
    return None if count is None else integer(count.key, count.value, low=1, high=MOST_LAYERS)


def _rotates(config: Mapping[str, Any], family: Family) -> list[bool] | None:
    """Return for each layer whether it rotates, as `no_rope_layers` says: despite its name, it
    holds 1 for layers that rotate.

    Without this key, a family that skips layers leaves every `no_rope_layer_interval`-th layer
    (default 4) unrotated. None if the family skips no layers, or if the number of layers is not
    known.
    """
    given = config.get("no_rope_layers")
    if given or (
        given is not None and not family.empty_is_absent
    ):  # some families read an empty list as an absent key
        if not isinstance(given, list | tuple) or not given:
            raise RopeError(
                "no_rope_layers",
                "must be a list with 1 for each layer that rotates and 0 for the others",
                given,
            )
        return [
            each if isinstance(each, bool) else bool(integer("no_rope_layers", each, low=0, high=1))
            for each in given
        ]
    count = _layer_count(config)
    if not family.skips_layers or count is None:
        return None
    interval = config.get("no_rope_layer_interval")
    interval = 4 if interval is None else integer("no_rope_layer_interval", interval, low=1)
    return [(layer + 1) % interval != 0 for layer in range(count)]
