"""The rope of each layer type: v5 `rope_parameters`, v4 `rope_scaling` and older spellings, all read into one form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError, flag, integer
from ropewalk.interop.config.families import Family, LayerTheta
from ropewalk.interop.config.keys import LAYER_COUNT_KEYS, ROPE_KEYS
from ropewalk.interop.config.scalings import inner_keys
from ropewalk.interop.config.values import Value, find

#: layer types without attention, which have nothing to rotate
WITHOUT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")
#: the name of the layers that `no_rope_layers` leaves unrotated, where layers of one type differ
NO_ROPE = "no_rope"
#: the keys of one layer type's rope; None if layers of this type are not rotated
Rope = dict[str, Value] | None


def layer_ropes(config: Mapping[str, Any], family: Family) -> dict[str, Rope]:
    """Return the rope of each layer type, before its values are read."""
    v5, v4 = _object(config, "rope_parameters"), _object(config, "rope_scaling")
    ropes: dict[str, Rope]
    if is_nested(config):
        if v4:
            raise RopeError("rope_scaling", "must be absent where rope_parameters differ per layer type", dict(v4))
        ropes = {name: _rope(value, f"rope_parameters.{name}") for name, value in v5.items() if is_layer(name, value)}
    elif family.layer_thetas:
        if v5:
            names = ", ".join(layer.layer_type for layer in family.layer_thetas)
            raise RopeError("rope_parameters", f"must hold one object for each of {names} in this family", dict(v5))
        ropes = {layer.layer_type: _theta_rope(config, layer, v4) for layer in family.layer_thetas}
    else:
        rope = _flat(v5, v4)
        ropes = {name: None if name in WITHOUT_ATTENTION else rope for name in layer_types(config) or ("full_attention",)}
    return _with_unrotated(ropes, config, family)


def is_nested(config: Mapping[str, Any]) -> bool:
    """Return whether `rope_parameters` holds one rope per layer type."""
    v5, inner = _object(config, "rope_parameters"), inner_keys()
    objects = any(isinstance(value, Mapping) and key not in inner for key, value in v5.items())
    return objects or bool(v5 and set(v5) <= set(layer_types(config)))


def stray_keys(config: Mapping[str, Any]) -> list[str]:
    """Return the keys of nested `rope_parameters` that are not layer types; no model reads them."""
    if not is_nested(config):
        return []
    return [key for key, value in config["rope_parameters"].items() if not is_layer(key, value)]


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct layer types a config declares, in order."""
    declared = config.get("layer_types")
    if declared is None:
        return ()
    if not isinstance(declared, list | tuple) or not all(isinstance(name, str) for name in declared):
        raise RopeError("layer_types", "must be a list of names", declared)
    return tuple(dict.fromkeys(declared))


def gives_rope(config: Mapping[str, Any]) -> bool:
    """Return whether the config has any key of a rope."""
    return find(config, *ROPE_KEYS) is not None


def refuse_other_encodings(config: Mapping[str, Any]) -> None:
    """Refuse a config of a model that does not rotate, or that requires a scaling but has none."""
    if config.get("alibi") is not None and flag("alibi", config["alibi"]):
        raise RopeError("alibi", "must be false: this model adds a bias to its scores and does not rotate", True)
    kind = config.get("position_embedding_type")
    if kind is not None and kind not in ("rotary", "rope"):
        raise RopeError("position_embedding_type", "must be rotary: this model does not rotate", kind)
    if config.get("inference_rope_scaling") is True and not (config.get("rope_scaling") or config.get("rope_parameters")):
        raise RopeError("rope_scaling", "must be given if inference_rope_scaling is true", None)


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RopeError(key, "must be an object or null", value)
    return value or {}


def is_layer(name: str, value: Any) -> bool:
    """Return whether an entry of nested `rope_parameters` is the rope of a layer type; null: it is not rotated."""
    return name not in inner_keys() and (value is None or isinstance(value, Mapping))


def _rope(given: Mapping[str, Any] | None, where: str) -> Rope:
    return None if given is None else {key: Value(value, key, where) for key, value in given.items() if value is not None}


def _flat(v5: Mapping[str, Any], v4: Mapping[str, Any]) -> dict[str, Value]:
    """Merge the keys of both spellings; a key in both must have the same value."""
    new, old = _rope(v5, "rope_parameters") or {}, _rope(v4, "rope_scaling") or {}
    for key in new.keys() & old.keys():
        if new[key].value != old[key].value:
            rule = f"is {new[key].value!r} in rope_parameters and different in rope_scaling; remove one"
            raise RopeError(key, rule, old[key].value)
    return {**old, **new}


def _theta_rope(config: Mapping[str, Any], layer: LayerTheta, scaling: Mapping[str, Any]) -> dict[str, Value]:
    rope = (_rope(scaling, "rope_scaling") or {}) if layer.scaled else {}
    theta = find(config, layer.theta_key) or Value(layer.theta, layer.theta_key, "default of the family", derived=True)
    return {"rope_theta": theta, **rope}


def _with_unrotated(ropes: dict[str, Rope], config: Mapping[str, Any], family: Family) -> dict[str, Rope]:
    """Return `ropes` with None for the layer types that are not rotated."""
    if family.unrotated and ("sliding_window" not in config or config["sliding_window"] is not None):
        declared = ropes if config.get("layer_types") else {"sliding_attention": next(iter(ropes.values()))}
        return {**declared, **dict.fromkeys(family.unrotated)}
    if not (family.skips_layers or config.get("no_rope_layers")):
        return ropes
    rotates = _rotates(config)
    if rotates is None:
        return {**ropes, NO_ROPE: None}
    if all(rotates):
        return ropes
    declared = config.get("layer_types") or ["full_attention"] * len(rotates)
    by_type = {
        name: {each for each, layer_type in zip(rotates, declared, strict=False) if layer_type == name} for name in declared
    }
    if any(len(flags) != 1 for flags in by_type.values()):
        return {**ropes, NO_ROPE: None}
    return {**ropes, **{name: None for name, flags in by_type.items() if flags == {False}}}


def _rotates(config: Mapping[str, Any]) -> list[bool] | None:
    """Return whether each layer rotates; None if the config has no number of layers.

    `no_rope_layers` holds 1 for layers that rotate, despite its name.
    """
    given = config.get("no_rope_layers")
    if given:
        if not isinstance(given, list | tuple):
            raise RopeError("no_rope_layers", "must be a list with 1 for each layer that rotates and 0 for the others", given)
        return [each if isinstance(each, bool) else bool(integer("no_rope_layers", each, low=0, high=1)) for each in given]
    count = find(config, *LAYER_COUNT_KEYS)
    if count is None:
        return None
    layers = integer(count.key, count.value, low=1, high=1 << 16)
    interval = config.get("no_rope_layer_interval")
    interval = 4 if interval is None else integer("no_rope_layer_interval", interval, low=1)
    return [(layer + 1) % interval != 0 for layer in range(layers)]
