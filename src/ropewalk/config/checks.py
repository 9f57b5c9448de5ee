"""Check every rotary value that a config gives, also those that its rope does not use.

A wrong value that is ignored today is used tomorrow, by another release or another engine, so it is
refused by its name.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ropewalk.config import keys
from ropewalk.config.layers import is_layer, is_nested, layer_types
from ropewalk.config.scalings import CLIP_KEYS, inner_keys, rope_types
from ropewalk.config.values import MAX_LENGTH, section_sizes
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

#: two names of the same value
SECTION_KEYS = ("mrope_section", "xdrope_section")
Check = Callable[[str, Any], Any]

_count: Check = partial(integer, low=1)
_length: Check = partial(integer, low=1, high=MAX_LENGTH)
_head: Check = partial(integer, low=1, high=MAX_HEAD_DIM)
_theta: Check = partial(number, **THETA_RANGE)
_fraction: Check = partial(number, above=0, high=1)
_magnitude: Check = partial(number, **MAGNITUDE_RANGE)


def _layer_thetas(key: str, value: object) -> None:
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
        if isinstance(theta, bool) or theta != 0:
            _theta(f"{key}[{index}]", theta)


#: keys of a config
CONFIG_CHECKS: dict[str, Check] = {
    **dict.fromkeys(
        (
            *keys.HIDDEN_SIZE_KEYS,
            *keys.HEAD_COUNT_KEYS,
            *keys.LAYER_COUNT_KEYS,
            "no_rope_layer_interval",
        ),
        _count,
    ),
    **dict.fromkeys((*keys.HEAD_DIM_KEYS, keys.LATENT_KEY, "global_head_dim", "rotary_dim"), _head),
    **dict.fromkeys((*keys.LENGTH_KEYS, TRAINED_LENGTH_KEY), _length),
    **dict.fromkeys((*keys.THETA_KEYS, *keys.LAYER_TYPE_THETA_KEYS), _theta),
    **dict.fromkeys(keys.FRACTION_KEYS, _fraction),
    **dict.fromkeys(("rope_interleave", "inference_rope_scaling", *CLIP_KEYS), flag),
    keys.LAYER_THETA_KEY: _layer_thetas,
}
#: keys of a rope object; those of scalings are checked by their settings
ROPE_CHECKS: dict[str, Check] = {
    "rope_theta": _theta,
    keys.FRACTION_KEYS[0]: _fraction,
    SERVED_LENGTH_KEY: _length,
    TRAINED_LENGTH_KEY: _length,
    **dict.fromkeys(SECTION_KEYS, section_sizes),
    **dict.fromkeys(("mrope_interleaved", "interleaved", "apply_yarn_scaling", "finetuned"), flag),
    **dict.fromkeys(
        ("attn_factor", "extrapolation_factor", "llama_4_scaling_beta"), partial(number, low=0)
    ),
    "alpha": settings_of(Ntk)["factor"].check,
    **dict.fromkeys(("short_mscale", "long_mscale"), _magnitude),
}
#: keys that must not be null: a config without a theta has no such key
NEVER_NULL = frozenset(keys.THETA_KEYS)


def check_values(config: Mapping[str, Any], *, null_theta: bool) -> None:
    """Raise a RopeError about the first rotary key of a text config with an impossible value, or
    the first unknown key of a rope.

    null_theta  the theta may be null: the family's code then rotates no layer
    """
    layer_types(config)  # raises an error if they are not names
    for key, check in CONFIG_CHECKS.items():
        if key in config:
            _check(key, config[key], check)
    settings = _settings()
    for where, rope in _ropes(config).items():
        _refuse_unknown(rope, where, beside_layers=where == "rope_parameters" and is_nested(config))
        if null_theta and rope.get("rope_theta", 0) is None:
            rope = {key: value for key, value in rope.items() if key != "rope_theta"}
        _check_rope(rope, where, settings)


def _ropes(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rope objects of a config by name.

    If `rope_parameters` holds one object per layer type, each becomes an entry
    "rope_parameters.LAYER_TYPE", and the entry "rope_parameters" keeps only the keys beside them.
    """
    ropes = {
        name: config[name]
        for name in ("rope_parameters", "rope_scaling")
        if isinstance(config.get(name), Mapping)
    }
    if is_nested(config):
        given = ropes["rope_parameters"]
        layers = {key: value for key, value in given.items() if is_layer(key, value)}
        ropes["rope_parameters"] = {key: value for key, value in given.items() if key not in layers}
        ropes |= {
            f"rope_parameters.{layer_type}": value or {} for layer_type, value in layers.items()
        }
    return ropes


def _refuse_unknown(rope: Mapping[str, Any], where: str, beside_layers: bool) -> None:
    """Raise an error about the first key of a rope object that is not known, with the nearest known
    key as a hint.

    `where` names the object; with `beside_layers` it has layer types as keys, so an unknown key may
    be meant as one, and the error says so.
    """
    known = sorted(inner_keys())
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
    """Raise an error about the first wrong value of the rope object named `where`; `settings` are
    those that read each key.
    """
    for key, value in rope.items():
        try:
            if key in ROPE_CHECKS:
                _check(key, value, ROPE_CHECKS[key])
            elif key in settings:
                _check(key, value, partial(_check_any, settings[key]))
        except RopeError as error:
            raise RopeError(error.field, f"{error.rule} ({where}.{key})", error.value) from None
    sections = [rope[key] for key in SECTION_KEYS if rope.get(key) is not None]
    if len(sections) == 2 and list(sections[0]) != list(sections[1]):
        raise RopeError(
            SECTION_KEYS[1],
            f"must equal {SECTION_KEYS[0]}; remove one ({where}.{SECTION_KEYS[1]})",
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
    for scaling in rope_types().values():
        for name, setting in settings_of(scaling).items():
            settings.setdefault(setting.key or name, []).append(setting)
    return settings


def _check_any(settings: list[Setting], key: str, value: Any) -> None:
    """Raise the last error if none of `settings`, those of all scalings that read this key, accepts
    the value.
    """
    for index, setting in enumerate(settings, start=1):
        try:
            setting.check(key, value)
            return
        except RopeError:
            if index == len(settings):
                raise
