"""Check the structure and every rotary value of a config, also values that its rope does not use.

This is the first of three checks. It looks at each value alone, before the code that merges and
converts values can meet a wrong type. The normal form (normal.py) then checks values against each
other, and a scaling or RopeSpec checks the result, as for a spec that was not read from a config.

A wrong value that is ignored today is used tomorrow, by another release or another engine, so it is
refused by its name.

Words of this module:
  text config  the part of a config that describes the language model, or the whole config
  rope object  an object with the keys of one rope: `rope_scaling`, `rope_parameters`, or an entry
               of `rope_parameters` that is the rope of one layer type
  layer type   a name such as "full_attention"; layers of one type have the same rope
  family       what the code of a `model_type` fixes beside its config, a row of families.toml
  check        a function (key, value) that raises a RopeError about the key if the value is wrong
  setting      a field of a scaling that a config can give: `key` is its config key, or None if that
               is the name of the field
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import Family
from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.frequencies import Ntk
from ropewalk.frequencies.scaling import (
    MAGNITUDE_RANGE,
    SERVED_LENGTH_KEY,
    TRAINED_LENGTH_KEY,
    Setting,
    settings_of,
)
from ropewalk.spec import MAX_HEAD_DIM, THETA_RANGE

#: (key, value) -> anything; raises a RopeError about the key if the value is wrong
Check = Callable[[str, Any], Any]
#: the longest length that a config may give, far beyond that of any model
MAX_LENGTH = 2**40
#: the largest number of layers that a config may give
MAX_LAYERS = 1 << 16


@dataclass(frozen=True)
class RopeObjects:
    """The rope objects of a config as it writes them.

    v5             `rope_parameters`, as transformers 5 writes ropes; {} if absent
    v4             `rope_scaling`, as transformers 4 writes them; {} if absent
    by_layer_type  {layer type: its object, or None if it is not rotated} if `rope_parameters` holds
                   one for each layer type, else None
    stray          keys of `rope_parameters` beside layer types; no model reads them
    """

    v5: Mapping[str, Any]
    v4: Mapping[str, Any]
    by_layer_type: Mapping[str, Mapping[str, Any] | None] | None
    stray: tuple[str, ...]


def rope_objects(config: Mapping[str, Any]) -> RopeObjects:
    """Return the rope objects of a text config; raise an error if one is not an object or null."""
    for key in ("rope_parameters", "rope_scaling"):
        if config.get(key) is not None and not isinstance(config[key], Mapping):
            raise RopeError(key, "must be an object or null", config[key])
    v5, v4 = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    layers = {key: value for key, value in v5.items() if is_layer(key, value)}
    # nulls alone do not show that the keys are layer types: one entry must be an object, or every
    # key a layer type that the config declares
    is_nested = any(isinstance(value, Mapping) for value in layers.values()) or (
        bool(v5) and v5.keys() <= set(layer_types(config))
    )
    if not is_nested:
        return RopeObjects(v5, v4, by_layer_type=None, stray=())
    return RopeObjects(v5, v4, layers, tuple(key for key in v5 if key not in layers))


def is_layer(name: str, value: Any) -> bool:
    """Return whether an entry of `rope_parameters` can be the rope of a layer type: its name is no
    key of a rope, and its value an object or null. A null means that the type is not rotated.
    """
    return name not in keys.inner_keys() and (value is None or isinstance(value, Mapping))


def layer_types(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the distinct layer types that a config declares, in order; () if it declares none."""
    declared = config.get("layer_types")
    if declared is None:
        return ()
    if not isinstance(declared, list | tuple) or not all(
        isinstance(name, str) for name in declared
    ):
        raise RopeError("layer_types", "must be a list of names", declared)
    return tuple(dict.fromkeys(declared))


def checked_rope_objects(config: Mapping[str, Any], family: Family) -> RopeObjects:
    """Return the rope objects of a text config, after a check of every rotary value.

    Raise a RopeError about a model that does not rotate, the first rotary key with an impossible
    value, or the first unknown key of a rope.
    """
    _refuse_without_rotation(config, family)
    layer_types(config)  # raises an error if they are not names
    objects = rope_objects(config)
    for key, check in CONFIG_CHECKS.items():
        if key in config:
            _check(key, config[key], check)
    by_type = objects.by_layer_type
    # every rope object by the place where it is
    ropes = {"rope_parameters": objects.v5, "rope_scaling": objects.v4}
    if by_type is not None:
        # each layer type is a rope of its own, and beside them only the stray keys are left
        ropes["rope_parameters"] = {key: objects.v5[key] for key in objects.stray}
        ropes |= {f"rope_parameters.{name}": value or {} for name, value in by_type.items()}
    settings = _settings()
    for where, rope in ropes.items():
        _refuse_unknown(rope, where, beside_layers=where == "rope_parameters" and bool(by_type))
        # the theta is given as null (0 stands for an absent one): in such a family nothing rotates
        # then, in others it is an error
        if family.unrotated == "null_rope_theta" and rope.get("rope_theta", 0) is None:
            rope = {key: value for key, value in rope.items() if key != "rope_theta"}
        _check_rope(rope, where, settings)
    return objects


def _refuse_without_rotation(config: Mapping[str, Any], family: Family) -> None:
    """Refuse a model that does not rotate or that no spec describes, and a config without the rope
    that its model needs.
    """
    model_type = config.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise RopeError("model_type", "must be a name", model_type)
    if family.refused is not None:
        raise RopeError("model_type", f"{model_type} {family.refused}", model_type)
    if config.get("alibi") is True:
        raise RopeError(
            "alibi", "must be false: this model adds a bias to its scores and does not rotate", True
        )
    for key, values in family.rotates_if.items():
        given = config.get(key)
        if given not in values and not (given is None and family.rotates_if_absent):
            rule = (
                f"must be {' or '.join(map(repr, values))}: with another value this model does not "
                "rotate"
            )
            raise RopeError(key, rule, given)
    has_rope = bool(config.get("rope_scaling") or config.get("rope_parameters"))
    # with this flag MiniMind's code scales its rope by numbers that are in no config key
    if config.get("inference_rope_scaling") is True and not has_rope:
        raise RopeError("rope_scaling", "must be given if inference_rope_scaling is true", None)
    if not family.known and all(config.get(key) is None for key in keys.ROPE_KEYS):
        raise RopeError(
            "rope_parameters or rope_theta",
            "must be given for an unknown model_type, whose code may not rotate",
            model_type,
        )
    if family.rope_required and not has_rope:
        raise RopeError(
            "rope_parameters",
            f"must be given: without it {model_type} falls back to a scaled rope",
            None,
        )


def section_sizes(key: str, sections: Any) -> list[int]:
    """Return the number of pairs of each axis as integers; an axis may have none."""
    if not isinstance(sections, list | tuple) or not sections:
        raise RopeError(key, "must be a list with the number of pairs of each axis", sections)
    # HunYuan's sections were written as floats
    counts = (
        int(count) if isinstance(count, float) and count.is_integer() else count
        for count in sections
    )
    sizes = [
        integer(f"{key}[{axis}]", count, low=0, high=MAX_HEAD_DIM)
        for axis, count in enumerate(counts)
    ]
    if not any(sizes):
        raise RopeError(key, "must give at least one axis a pair", sections)
    return sizes


def _check_layer_thetas(key: str, value: object) -> None:
    """Raise an error if the value is not a list of thetas, one per layer, where 0 means no
    rotation.
    """
    if not isinstance(value, list | tuple):
        raise RopeError(
            key,
            "must be a list with the theta of each layer, 0 for layers that are not rotated",
            value,
        )
    for index, theta in enumerate(value):
        # false equals 0, but is no theta
        if isinstance(theta, bool) or theta != 0:
            _theta(f"{key}[{index}]", theta)


def _check_no_rope_layers(key: str, value: object) -> None:
    """Raise an error if the value is not a list of 0 and 1, or of false and true."""
    if not isinstance(value, list | tuple):
        raise RopeError(
            key, "must be a list with 1 for each layer that rotates and 0 for the others", value
        )
    for each in value:
        if not isinstance(each, bool):
            integer(key, each, low=0, high=1)


def _check_per_layer_config(key: str, value: object) -> None:
    """Raise an error about the first wrong head_dim in {index of a layer: {config key: its value in
    this layer}}. Nothing else is read from such a value, so nothing else is checked.
    """
    if isinstance(value, Mapping):
        for index, each in value.items():
            if isinstance(each, Mapping) and each.get("head_dim") is not None:
                try:
                    _head("head_dim", each["head_dim"])
                except RopeError as error:
                    rule = f"{error.rule} ({key}.{index}.head_dim)"
                    raise RopeError("head_dim", rule, error.value) from None


_count: Check = partial(integer, low=1)
_length: Check = partial(integer, low=1, high=MAX_LENGTH)
_head: Check = partial(integer, low=1, high=MAX_HEAD_DIM)
_theta: Check = partial(number, **THETA_RANGE)
_fraction: Check = partial(number, above=0, high=1)
_magnitude: Check = partial(number, **MAGNITUDE_RANGE)

#: how each key of a config is checked
CONFIG_CHECKS: dict[str, Check] = {
    **dict.fromkeys(
        (*keys.HIDDEN_SIZE_KEYS, *keys.HEAD_COUNT_KEYS, "no_rope_layer_interval"), _count
    ),
    **dict.fromkeys(keys.LAYER_COUNT_KEYS, partial(integer, low=1, high=MAX_LAYERS)),
    **dict.fromkeys((*keys.HEAD_DIM_KEYS, keys.LATENT_KEY, "global_head_dim", "rotary_dim"), _head),
    **dict.fromkeys((*keys.LENGTH_KEYS, TRAINED_LENGTH_KEY), _length),
    **dict.fromkeys((*keys.THETA_KEYS, *keys.LAYER_TYPE_THETA_KEYS), _theta),
    **dict.fromkeys(keys.FRACTION_KEYS, _fraction),
    **dict.fromkeys(("alibi", "rope_interleave", "inference_rope_scaling", *keys.CLIP_KEYS), flag),
    keys.LAYER_THETA_KEY: _check_layer_thetas,
    "no_rope_layers": _check_no_rope_layers,
    "per_layer_config": _check_per_layer_config,
}
#: how each key of a rope object is checked; keys of scalings are checked by their settings
ROPE_CHECKS: dict[str, Check] = {
    "rope_theta": _theta,
    keys.FRACTION_KEYS[0]: _fraction,
    SERVED_LENGTH_KEY: _length,
    TRAINED_LENGTH_KEY: _length,
    **dict.fromkeys(keys.SECTION_KEYS, section_sizes),
    **dict.fromkeys(("mrope_interleaved", "interleaved", "apply_yarn_scaling", "finetuned"), flag),
    **dict.fromkeys(
        ("attn_factor", "extrapolation_factor", "llama_4_scaling_beta"), partial(number, low=0)
    ),
    "alpha": settings_of(Ntk)["factor"].check,
    **dict.fromkeys(keys.MSCALE_KEYS, _magnitude),
}
#: keys that must not be null: a config without a theta has no such key
NEVER_NULL = frozenset(keys.THETA_KEYS)


def _refuse_unknown(rope: Mapping[str, Any], where: str, beside_layers: bool) -> None:
    """Raise an error about the first key of a rope object that is not known, with the nearest known
    key as a hint.

    `where` names the object; with `beside_layers` it has layer types as keys, so an unknown key may
    be meant as one, and the error says so.
    """
    known = sorted(keys.inner_keys())
    for key in rope:
        if key in known:
            continue
        rule = (
            "must be the rope of a layer type, an object or null"
            if beside_layers
            else "must not be in a rope: nothing reads it"
        )
        nearest = difflib.get_close_matches(str(key), known, n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise RopeError(str(key), f"{rule}{hint} ({where}.{key})", rope[key])


def _check_rope(rope: Mapping[str, Any], where: str, settings: Mapping[str, list[Setting]]) -> None:
    """Raise an error about the first wrong value of a rope object.

    rope      the object
    where     its name in the error, such as rope_parameters.full_attention
    settings  {config key: the fields of scalings that are read from it}, of `_settings`; a value is
              accepted if one of them accepts it
    """
    for key, value in rope.items():
        try:
            if key in ROPE_CHECKS:
                _check(key, value, ROPE_CHECKS[key])
            elif key in settings:
                _check(key, value, partial(_check_any, settings[key]))
        except RopeError as error:
            raise RopeError(error.field, f"{error.rule} ({where}.{key})", error.value) from None
    # the two keys are names of the same value
    sections = [rope[key] for key in keys.SECTION_KEYS if rope.get(key) is not None]
    if len(sections) == 2 and list(sections[0]) != list(sections[1]):
        raise RopeError(
            keys.SECTION_KEYS[1],
            f"must equal {keys.SECTION_KEYS[0]}; remove one ({where}.{keys.SECTION_KEYS[1]})",
            sections[1],
        )


def _check(key: str, value: Any, check: Check) -> None:
    """Check the value of a key; null is the same as an absent key, except for NEVER_NULL."""
    if value is not None or key in NEVER_NULL:
        check(key, value)


def _settings() -> dict[str, list[Setting]]:
    """Return {config key: the settings that are read from it}; several scalings may read the same
    key.
    """
    settings: dict[str, list[Setting]] = {}
    for scaling in keys.rope_types().values():
        for name, setting in settings_of(scaling).items():
            settings.setdefault(setting.key or name, []).append(setting)
    return settings


def _check_any(settings: list[Setting], key: str, value: Any) -> None:
    """Raise an error if none of `settings`, those of all scalings that read this key, accepts the
    value: the error of the last of them.
    """
    for index, setting in enumerate(settings, start=1):
        try:
            setting.check(key, value)
            return
        except RopeError:
            if index == len(settings):
                raise
