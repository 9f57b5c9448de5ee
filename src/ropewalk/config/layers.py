"""The rope of each layer type: v5 `rope_parameters`, v4 `rope_scaling` and older spellings, all
read into one form.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.config.families import Family, LayerTheta
from ropewalk.config.keys import ROPE_KEYS
from ropewalk.config.scalings import inner_keys
from ropewalk.config.unrotated import Rope, with_unrotated
from ropewalk.config.values import Value, find
from ropewalk.errors import RopeError, flag

#: layer types without attention, which have nothing to rotate
WITHOUT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")


def layer_ropes(config: Mapping[str, Any], family: Family) -> dict[str, Rope]:
    """Return {layer type: the keys of its rope, not yet checked, or None if it is not rotated}."""
    v5, v4 = (
        _object(config, "rope_parameters"),
        _object(config, "rope_scaling"),
    )  # as transformers 5 and 4 write ropes
    ropes: dict[str, Rope]
    if is_nested(config):
        if v4:
            raise RopeError(
                "rope_scaling",
                "must be absent where rope_parameters differ per layer type",
                dict(v4),
            )
        ropes = {
            name: _rope_values(value, f"rope_parameters.{name}")
            for name, value in v5.items()
            if is_layer(name, value)
        }
        for layer in family.layer_thetas:
            rope = ropes.get(layer.layer_type)
            if rope is not None:  # a theta of the rope itself comes first
                ropes[layer.layer_type] = {**_default_theta(config, layer), **rope}
    elif family.layer_thetas:
        if v5:
            names = ", ".join(layer.layer_type for layer in family.layer_thetas)
            raise RopeError(
                "rope_parameters",
                f"must hold one object for each of {names} in this family",
                dict(v5),
            )
        ropes = {
            layer.layer_type: _rope_with_theta(config, layer, v4) for layer in family.layer_thetas
        }
    else:
        rope = _merged(v5, v4)
        ropes = {
            name: None if name in WITHOUT_ATTENTION else rope
            for name in layer_types(config) or ("full_attention",)
        }
    return with_unrotated(ropes, config, family, is_nested(config))


def is_nested(config: Mapping[str, Any]) -> bool:
    """Return whether `rope_parameters` holds one rope per layer type: an object, or null for a type
    that is not rotated.
    """
    v5, inner = _object(config, "rope_parameters"), inner_keys()
    has_objects = any(isinstance(value, Mapping) and key not in inner for key, value in v5.items())
    has_only_layer_types = bool(v5) and set(v5) <= set(
        layer_types(config)
    )  # so also if all of them are null
    return has_objects or has_only_layer_types


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
    if not isinstance(declared, list | tuple) or not all(
        isinstance(name, str) for name in declared
    ):
        raise RopeError("layer_types", "must be a list of names", declared)
    return tuple(dict.fromkeys(declared))


def gives_rope(config: Mapping[str, Any]) -> bool:
    """Return whether the config has any key of a rope."""
    return find(config, *ROPE_KEYS) is not None


def refuse_other_encodings(config: Mapping[str, Any], family: Family) -> None:
    """Refuse a config of a model that does not rotate, or that requires a scaling but has none."""
    if config.get("alibi") is not None and flag("alibi", config["alibi"]):
        raise RopeError(
            "alibi", "must be false: this model adds a bias to its scores and does not rotate", True
        )
    if family.rotates_if is not None:
        key, values = family.rotates_if
        if config.get(key) not in values:
            rule = (
                f"must be {' or '.join(repr(value) for value in values if value is not None)}: "
                "this model does not rotate"
            )
            raise RopeError(key, rule, config.get(key))
    if config.get("inference_rope_scaling") is True and not (
        config.get("rope_scaling") or config.get("rope_parameters")
    ):
        raise RopeError("rope_scaling", "must be given if inference_rope_scaling is true", None)


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a config object, {} if it is absent or null."""
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RopeError(key, "must be an object or null", value)
    return value or {}


def is_layer(name: str, value: Any) -> bool:
    """Return whether an entry of nested `rope_parameters` is the rope of a layer type; null: it is
    not rotated.
    """
    return name not in inner_keys() and (value is None or isinstance(value, Mapping))


def _rope_values(rope: Mapping[str, Any] | None, where: str) -> Rope:
    """Return the values of a rope object by key, without those that are null; `where` names the
    object in messages.

    A null `truncate` becomes false, as transformers reads it.
    """
    if rope is None:
        return None
    values = {**rope, "truncate": False} if rope.get("truncate", True) is None else rope
    return {key: Value(value, key, where) for key, value in values.items() if value is not None}


def _merged(v5: Mapping[str, Any], v4: Mapping[str, Any]) -> dict[str, Value]:
    """Return the values of `rope_parameters` and `rope_scaling` in one dict; a key in both must
    have the same value.
    """
    new, old = _rope_values(v5, "rope_parameters") or {}, _rope_values(v4, "rope_scaling") or {}
    for key in new.keys() & old.keys():
        if new[key].value != old[key].value:
            rule = (
                f"is {new[key].value!r} in rope_parameters and different in rope_scaling; remove "
                "one"
            )
            raise RopeError(key, rule, old[key].value)
    return {**old, **new}


def _rope_with_theta(
    config: Mapping[str, Any], layer: LayerTheta, scaling: Mapping[str, Any]
) -> dict[str, Value]:
    """Return the rope of a layer type with a theta of its own, and with `scaling`, the
    `rope_scaling`, if that applies to it.
    """
    rope = (_rope_values(scaling, "rope_scaling") or {}) if layer.scaled else {}
    return {**_default_theta(config, layer), **rope}


def _default_theta(config: Mapping[str, Any], layer: LayerTheta) -> dict[str, Value]:
    """Return the theta that a layer type has unless its rope object gives one: that of its config
    key, or of the family.
    """
    given = None if layer.theta_key is None else find(config, layer.theta_key)
    return {
        "rope_theta": given
        or Value(layer.theta, "rope_theta", "default of the family", derived=True)
    }
