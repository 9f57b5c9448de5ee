"""Scalings in configs: which ones a `rope_type` can name, and how their fields are read and
written.

The config keys follow from the settings of each class. What only some families do is handled here:
HunYuan's `alpha`, PhiMoE's two mscales, a family's own attention factor of YaRN, and CoPE's flags,
which clip what the other keys give.
"""

from __future__ import annotations

from typing import Any

from ropewalk.config.families import Family
from ropewalk.config.keys import (
    AXIS_KEYS,
    COMMON_KEYS,
    FRACTION_KEYS,
    OTHER_KEYS,
    TEMPERATURE_KEY,
    UNREAD_KEYS,
)
from ropewalk.config.temperatures import WITH_BETA
from ropewalk.config.values import Layer, Value, find, served_length
from ropewalk.errors import RopeError, flag, number
from ropewalk.frequencies import SCALINGS, Clipped, Dynamic, LongRope, Ntk, Scaling, Yarn
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY, Setting, settings_of

#: keys that HunYuan's checkpoints have beside `alpha` and that their code does not read
UNREAD_WITH_ALPHA = {"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"}

#: CoPE's config keys and whether they clip softly; its code clips 20 pairs, which no key says
CLIP_KEYS = {"use_cope": True, "use_hardclip": False}
CLIPPED_PAIRS = 20


def rope_types() -> dict[str, type[Scaling]]:
    """Return the scalings that a config can name, by `rope_type`."""
    return {name: scaling for name, scaling in SCALINGS.items() if scaling.in_configs}


def keys_of(scaling: Scaling | type[Scaling]) -> dict[str, str]:
    """Return {config key: field} of a scaling."""
    return {setting.key or name: name for name, setting in settings_of(scaling).items()}


def inner_keys() -> set[str]:
    """Return every key that a rope may have; another key of `rope_parameters` that holds an object
    is a layer type.
    """
    of_scalings = {key for scaling in rope_types().values() for key in keys_of(scaling)} - {
        SERVED_LENGTH_KEY
    }
    return {
        *COMMON_KEYS,
        *AXIS_KEYS,
        *OTHER_KEYS,
        *UNREAD_KEYS,
        *of_scalings,
        "alpha",
        "short_mscale",
        "long_mscale",
    }


def read_scaling(layer: Layer) -> Scaling:
    """Return the scaling that the rope of a layer type names; warn about keys that this scaling
    does not read.
    """
    scaling_class = SCALINGS[layer.rope_type]
    # keys that give no warning; the keys that the scaling's fields came from follow below, from
    # `layer.sources`
    read_keys = {*COMMON_KEYS, *AXIS_KEYS, *({TRAINED_LENGTH_KEY} & keys_of(scaling_class).keys())}
    if TEMPERATURE_KEY in layer.rope and layer.model in WITH_BETA:
        read_keys |= {*OTHER_KEYS, TRAINED_LENGTH_KEY}  # the temperature reads them
    if (
        scaling_class is Dynamic
        and "alpha" in layer.rope
        and (layer.family.reads_alpha or not layer.is_known)
    ):
        scaling: Scaling = Ntk(layer.check_and_record("factor", layer.rope["alpha"], number))
        read_keys |= UNREAD_WITH_ALPHA
    else:
        scaling = scaling_class(**_fields(layer, scaling_class))
    unread = sorted(layer.rope.keys() - read_keys - {value.key for value in layer.sources.values()})
    if unread:
        layer.warnings.append(
            f"{', '.join(unread)}: not read by rope_type {layer.rope_type!r} of {layer.model}"
        )
    return scaling


def clipped(layer: Layer, scaling: Scaling) -> Scaling:
    """Return `scaling` with its slowest pairs clipped, if the config has one of CoPE's flags;
    `use_cope` comes first.
    """
    for key, soft in CLIP_KEYS.items():
        value = find(layer.config, key)
        if value is not None and flag(key, value.value):
            layer.record("soft", soft, value)
            return Clipped(scaling, CLIPPED_PAIRS, soft)
    return scaling


def _fields(layer: Layer, scaling_class: type[Scaling]) -> dict[str, Any]:
    """Return {field: checked value} of a scaling, for the fields that the config gives or the
    model's code has a default for.
    """
    fields: dict[str, Any] = {}
    for name, setting in settings_of(scaling_class).items():
        value = _value(layer, scaling_class, setting.key or name, setting)
        if value is not None:
            fields[name] = layer.check_and_record(name, value, setting.check)
        elif setting.required:
            raise RopeError(
                setting.key or name, f"must be given for rope_type {layer.rope_type!r}", None
            )
    return fields


def _value(layer: Layer, scaling_class: type[Scaling], key: str, setting: Setting) -> Value | None:
    """Return the value for one setting of a scaling, read from the config key `key` or a default;
    None if there is neither.
    """
    value, family = layer.rope.get(key), layer.family
    if key == SERVED_LENGTH_KEY:
        return served_length(layer.config)
    if key == TRAINED_LENGTH_KEY:
        # as in transformers, the key of the config itself comes before that of its only rope
        # object, and is not read if each layer type has a rope; Phi-3's config class has a default
        # for it
        outside = None if layer.is_by_layer_type else find(layer.config, key)
        if outside is None and family.trained_length is not None:
            outside = layer.default(family.trained_length, key)
        return layer.first_given(outside, value) or served_length(layer.config)
    if key == FRACTION_KEYS[0]:
        return layer.fraction() or layer.default(setting.default, key)
    if key == "attention_factor" and scaling_class is LongRope and family.reads_mscales:
        return _equal_mscales(layer)
    if (
        key == "attention_factor"
        and scaling_class is Yarn
        and value is None
        and family.yarn_attention_factor is not None
    ):
        return layer.default(family.yarn_attention_factor, key)
    return _ratio_of_lengths(layer, key) if value is None and setting.from_lengths else value


def _ratio_of_lengths(layer: Layer, key: str) -> Value | None:
    """Return served length / trained length as the value of `key`; None if the config gives only
    one of the two lengths.
    """
    served, trained = served_length(layer.config), layer.sources["original_length"]
    if (
        served is None or served.key == trained.key
    ):  # equal keys: the served length stands for the trained one, too
        return None
    return Value(served.value / trained.value, key, f"{served.key} / original_length", derived=True)


def _equal_mscales(layer: Layer) -> Value:
    """Return PhiMoE's magnitude: `short_mscale`, which must equal `long_mscale`."""
    for key in ("short_mscale", "long_mscale"):
        if key not in layer.rope:
            raise RopeError(key, f"must be given for rope_type {layer.rope_type!r}", None)
    short, long = (
        layer.check_and_record(key, layer.rope[key], number)
        for key in ("short_mscale", "long_mscale")
    )
    if short != long:
        raise RopeError(
            "long_mscale", f"must equal short_mscale = {short!r}: a spec has one magnitude", long
        )
    return layer.rope["short_mscale"]


def write_scaling(scaling: Scaling, family: Family) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys of the rope object that describe `scaling`, and the config keys outside it."""
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
    if isinstance(scaling, Ntk) and family.reads_alpha:
        return {"rope_type": "dynamic", "alpha": scaling.factor}, {}
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
    outside = {SERVED_LENGTH_KEY: keys.pop(SERVED_LENGTH_KEY)} if SERVED_LENGTH_KEY in keys else {}
    if TRAINED_LENGTH_KEY in keys:
        trained_length = keys.pop(TRAINED_LENGTH_KEY)
        keys[TRAINED_LENGTH_KEY] = trained_length  # moved to the end, where configs have it
        outside[SERVED_LENGTH_KEY] = extended_length(trained_length, scaling)
    return {"rope_type": scaling.name, **keys}, outside


def extended_length(length: int, scaling: Scaling) -> int:
    """Return the served length: the trained length times the scaling's factor."""
    return max(1, round(length * getattr(scaling, "factor", 1.0)))
