"""Which rope each layer type has: v5 `rope_parameters`, v4 `rope_scaling` and the older spellings, as one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError, flag, integer
from ropewalk.interop.config.families import Base, Family
from ropewalk.interop.config.values import Value, find

#: layer types without attention; nothing turns there
WITHOUT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")
NO_ROPE = "no_rope"
#: any of these says that a model rotates
ROPE_KEYS = (
    "rope_parameters", "rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "rotary_emb_fraction", "rotary_dim",
    "rope_local_base_freq", "global_rope_theta", "partial_rotary_factor",
)  # fmt: skip
#: the keys of one rope; any other key of `rope_parameters` that holds an object is a layer type
INNER_KEYS = frozenset((
    "rope_type", "type", "rope_theta", "partial_rotary_factor", "factor", "alpha", "original_max_position_embeddings",
    "attention_factor", "truncate", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "short_factor", "long_factor",
    "short_mscale", "long_mscale", "low_freq_factor", "high_freq_factor", "mrope_section", "xdrope_section",
    "mrope_interleaved", "interleaved",
))  # fmt: skip
#: one layer type's rope as the config gives it, by key; None: the layer stands still
Rope = dict[str, Value] | None


def layer_ropes(config: Mapping[str, Any], family: Family) -> dict[str, Rope]:
    """The rope of each layer type, before any value is read."""
    v5, v4 = _object(config, "rope_parameters"), _object(config, "rope_scaling")
    ropes: dict[str, Rope]
    if _is_nested(config, v5):
        if v4:
            raise RopeError("rope_scaling", "must not stand beside rope_parameters that differ per layer type", dict(v4))
        ropes = {name: _rope(value, f"rope_parameters.{name}") for name, value in v5.items() if _is_layer(name, value)}
    elif family.bases:
        if v5:
            names = ", ".join(base.layer_type for base in family.bases)
            raise RopeError("rope_parameters", f"must hold one object for each of {names} in this family", dict(v5))
        ropes = {base.layer_type: _base_rope(config, base, v4) for base in family.bases}
    else:
        rope = _flat(v5, v4)
        ropes = {name: None if name in WITHOUT_ATTENTION else rope for name in layer_types(config) or ("full_attention",)}
    return _with_still_layers(ropes, config, family)


def stray_keys(config: Mapping[str, Any]) -> list[str]:
    """Keys that stand beside the layer types of nested `rope_parameters`, where nobody reads them."""
    v5 = _object(config, "rope_parameters")
    return [key for key, value in v5.items() if not _is_layer(key, value)] if _is_nested(config, v5) else []


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The distinct layer types a config declares, in order."""
    declared = config.get("layer_types")
    if declared is None:
        return ()
    if not isinstance(declared, list | tuple) or not all(isinstance(name, str) for name in declared):
        raise RopeError("layer_types", "must be a list of names", declared)
    return tuple(dict.fromkeys(declared))


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RopeError(key, "must be an object or null", value)
    return value or {}


def _is_nested(config: Mapping[str, Any], v5: Mapping[str, Any]) -> bool:
    objects = any(isinstance(value, Mapping) and key not in INNER_KEYS for key, value in v5.items())
    return objects or bool(v5 and set(v5) <= set(layer_types(config)))


def _is_layer(name: str, value: Any) -> bool:
    return name not in INNER_KEYS and (value is None or isinstance(value, Mapping))


def _rope(given: Mapping[str, Any] | None, where: str) -> Rope:
    return None if given is None else {key: Value(value, key, where) for key, value in given.items() if value is not None}


def _flat(v5: Mapping[str, Any], v4: Mapping[str, Any]) -> dict[str, Value]:
    """Both spellings as one; where both are given they must agree."""
    new, old = _rope(v5, "rope_parameters") or {}, _rope(v4, "rope_scaling") or {}
    for key in new.keys() & old.keys():
        if new[key].value != old[key].value:
            raise RopeError(
                key, f"is {new[key].value!r} in rope_parameters and another in rope_scaling; keep one", old[key].value
            )
    return {**old, **new}


def _base_rope(config: Mapping[str, Any], base: Base, scaling: Mapping[str, Any]) -> dict[str, Value]:
    rope = (_rope(scaling, "rope_scaling") or {}) if base.scaled else {}
    theta = find(config, base.theta_key) or Value(base.theta, base.theta_key, "default of the family", made=True)
    return {"rope_theta": theta, **rope}


def _with_still_layers(ropes: dict[str, Rope], config: Mapping[str, Any], family: Family) -> dict[str, Rope]:
    if family.nope and ("sliding_window" not in config or config["sliding_window"] is not None):
        declared = ropes if config.get("layer_types") else {"sliding_attention": next(iter(ropes.values()))}
        return {**declared, **dict.fromkeys(family.nope)}
    if not (family.skips_layers or config.get("no_rope_layers")):
        return ropes
    turns = _rotating_layers(config)
    if turns is None:
        return {**ropes, NO_ROPE: None}
    declared = config.get("layer_types") or ["full_attention"] * len(turns)
    by_type = {name: {bool(turn) for turn, kind in zip(turns, declared, strict=False) if kind == name} for name in declared}
    uniform = all(len(found) == 1 for found in by_type.values())
    still = {name: None for name, found in by_type.items() if found == {False}} if uniform else {NO_ROPE: None}
    return ropes if all(turns) else {**ropes, **still}


def _rotating_layers(config: Mapping[str, Any]) -> list[bool] | None:
    """Per layer, whether it turns: `no_rope_layers` holds 1 for layers that do, despite its name. None: no count given."""
    given = config.get("no_rope_layers")
    if given:
        if not isinstance(given, list | tuple):
            raise RopeError("no_rope_layers", "must be a list with 1 for each layer that turns and 0 for the others", given)
        return [turn if isinstance(turn, bool) else bool(integer("no_rope_layers", turn, low=0, high=1)) for turn in given]
    count = find(config, "num_hidden_layers", "n_layer", "n_layers")
    if count is None:
        return None
    layers = integer(count.key, count.value, low=1, high=1 << 16)
    interval = config.get("no_rope_layer_interval")
    every = 4 if interval is None else integer("no_rope_layer_interval", interval, low=1)
    return [(layer + 1) % every != 0 for layer in range(layers)]


def gives_rope(config: Mapping[str, Any]) -> bool:
    """Whether the config speaks of a rope at all, in any spelling."""
    return any(config.get(name) is not None for name in ROPE_KEYS)


def refuse_other_encodings(config: Mapping[str, Any]) -> None:
    """Refuse a model whose config says that its positions enter another way, or does not say which."""
    if config.get("alibi") is not None and flag("alibi", config["alibi"]):
        raise RopeError("alibi", "must be false: this model adds a bias to its scores and rotates nothing", True)
    kind = config.get("position_embedding_type")
    if kind is not None and kind not in ("rotary", "rope"):
        raise RopeError("position_embedding_type", "must be rotary: this model rotates nothing", kind)
    if config.get("inference_rope_scaling") is True and not (config.get("rope_scaling") or config.get("rope_parameters")):
        raise RopeError("rope_scaling", "must be given where inference_rope_scaling is true", None)
