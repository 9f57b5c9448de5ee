"""The layer types of a config, the rope of each, and which layers are not rotated (NoPE). The keys
`rope_parameters` (v5, transformers 5), `rope_scaling` (v4) and older ones are read into one form.

Words of this module:
  layer type  a name such as "full_attention"; layers of one type have the same rope
  rope        the values of a layer type's rope by config key, or None if the type is not rotated
  objects     the keys `rope_parameters` and `rope_scaling` as the config has them; `by_layer_type`
              is None unless `rope_parameters` holds one rope for each layer type
  family      what the code of a `model_type` fixes beside its config, a row of families.toml
  thetas      a theta for each layer, 0 for a layer that is not rotated
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.config.checks import RopeObjects, layer_types
from ropewalk.config.families import Family, FullLayers, LayerTheta
from ropewalk.config.keys import LAYER_COUNT_KEYS, LAYER_THETA_KEY
from ropewalk.config.values import Value
from ropewalk.errors import RopeError

#: {config key: its Value} of one layer type's rope; None if layers of this type are not rotated
RopeValues = dict[str, Value] | None
#: layer types without softmax attention, which have nothing to rotate
WITHOUT_ATTENTION = ("linear_attention", "conv", "mamba", "mamba2", "recurrent", "moe", "mlp")
#: the name of the layers that are not rotated, where layers of one type differ
NO_ROPE = "no_rope"
#: in a family that skips layers: the interval of unrotated layers if the config gives neither
#: `no_rope_layer_interval` nor a list
INTERVAL = 4


def layer_ropes(
    config: Mapping[str, Any], objects: RopeObjects, family: Family
) -> dict[str, RopeValues]:
    """Return {layer type: the values of its rope by config key, or None if it is not rotated} of a
    checked config.

    config   the text part of the config, after `checked_rope_objects`
    objects  its rope objects, as `checked_rope_objects` returned them
    family   the facts of its model_type
    """
    v5, v4 = objects.v5, objects.v4
    ropes: dict[str, RopeValues]
    if objects.by_layer_type is not None:
        if v4:
            raise RopeError(
                "rope_scaling",
                "must be absent where rope_parameters holds one rope for each layer type",
                dict(v4),
            )
        ropes = {
            name: _rope_values(rope, f"rope_parameters.{name}")
            for name, rope in objects.by_layer_type.items()
        }
        for name, theta in family.layer_thetas.items():
            rope = ropes.get(name)
            if rope is not None:  # a theta of the rope itself comes first
                ropes[name] = {"rope_theta": _layer_theta(config, theta), **rope}
    elif family.layer_thetas:
        if v5:
            names = ", ".join(family.layer_thetas)
            raise RopeError(
                "rope_parameters",
                f"must hold one object for each of {names} in this family",
                dict(v5),
            )
        scaling = _rope_values(v4, "rope_scaling") or {}
        ropes = {
            name: {"rope_theta": _layer_theta(config, theta), **(scaling if theta.scaled else {})}
            for name, theta in family.layer_thetas.items()
        }
    else:
        rope = _merged(v5, v4)
        # `checked_rope_objects` has refused any `layer_types` but a list of names
        declared = dict.fromkeys(
            config.get("layer_types") or _types_by_theta(config, family) or ("full_attention",)
        )
        ropes = {name: None if name in WITHOUT_ATTENTION else rope for name in declared}
    return _with_unrotated(ropes, config, objects, family)


def layer_names(config: Mapping[str, Any], family: Family, names: Sequence[str]) -> list[str]:
    """Return the layer type of each layer: one of `names`, the layer types that
    `from_hf(per_layer=True)` returns, or one that has no attention.
    """
    thetas = _thetas(config, family)
    rotates = _rotates(config, family, thetas)
    declared = config.get("layer_types")
    count = len(declared) if declared else _layer_count(config)
    if count is None:
        raise RopeError(LAYER_COUNT_KEYS[0], "must be given to tell the layers apart", None)
    if not declared and family.full_layers is not None:
        of_family = types_by_pattern(config, family.full_layers, count) or ()
        # the family's pattern is used only if `names` has all of its types: without a sliding
        # window some families have full attention alone
        declared = of_family if {*of_family} <= {*names, *WITHOUT_ATTENTION} else None
    if not declared:
        if rotates is None and len(names) > 1:
            raise RopeError(
                "layer_types", f"must be given to tell which layers are {', '.join(names)}", None
            )
        declared = [names[0]] * count
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


def types_by_pattern(
    config: Mapping[str, Any], pattern: FullLayers, count: int
) -> list[str] | None:
    """Return the layer type of each of `count` layers by the pattern of a family; None if the
    interval that the config gives is not an integer of at least 1.
    """
    every = pattern.every if pattern.key is None else config.get(pattern.key, pattern.every)
    if type(every) is not int or every < 1:
        return None
    full = {count - 1} if pattern.last else set()
    full.update(range(0 if pattern.first else every - 1, count, every))
    return ["full_attention" if i in full else pattern.others for i in range(count)]


def declared_or_full(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the layer types that a config declares, or "full_attention" alone if it declares
    none.
    """
    return layer_types(config) or ("full_attention",)


def _rope_values(rope: Mapping[str, Any] | None, where: str) -> RopeValues:
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
    for key in new:
        if key in old and new[key].value != old[key].value:
            rule = (
                f"must be the same in rope_parameters, where it is {new[key].value!r}, and in "
                "rope_scaling; remove one"
            )
            raise RopeError(key, rule, old[key].value)
    return {**old, **new}


def _layer_theta(config: Mapping[str, Any], theta: LayerTheta) -> Value:
    """Return the theta that a layer type has unless its rope object gives one: that of its config
    key, or of the family.
    """
    if theta.key is not None and config.get(theta.key) is not None:
        return Value(config[theta.key], theta.key)
    return Value(theta.default, "rope_theta", "default of the family", derived=True)


def _with_unrotated(
    ropes: dict[str, RopeValues], config: Mapping[str, Any], objects: RopeObjects, family: Family
) -> dict[str, RopeValues]:
    """Return `ropes` after the family's rule for layers without rotation: None for a layer type
    that is not rotated, NO_ROPE beside a type of which only some layers rotate, and the thetas
    that the config lists layer by layer.
    """
    # the theta is given as null (0 stands for an absent one), so no layer type is rotated
    if family.unrotated == "null_rope_theta" and objects.v5.get("rope_theta", 0) is None:
        return dict.fromkeys(ropes)
    # two rules by which layers with full attention are not rotated, if the model has a sliding
    # window; a missing key means that it has one
    has_window = "sliding_window" not in config or config["sliding_window"] is not None
    full_rules = ("full_attention", "full_attention_or_no_window")
    if family.unrotated == full_rules[1] and not has_window:
        return dict.fromkeys(ropes)  # by this rule a model without a window does not rotate at all
    # where each layer type has an object, a null says which of them is not rotated
    if family.unrotated in full_rules and objects.by_layer_type is None and has_window:
        if not config.get("layer_types"):
            # `ropes` has a single rope, which is that of the layers with a window
            ropes = {"sliding_attention": next(iter(ropes.values()))}
        return {**ropes, "full_attention": None}
    thetas = _thetas(config, family)
    rotates = _rotates(config, family, thetas)
    if rotates is None and not _skips_layers(family):
        return ropes  # most families: all layers of a rotated type rotate
    if rotates is None:  # some layers do not, but which is not known without the number of layers
        return {**ropes, NO_ROPE: None}
    layers = _layers_by_type(config, family, rotates)
    # by the rule "zero_layer_rope_theta" the thetas of layers tell only which of them rotate
    if thetas is not None and family.unrotated != "zero_layer_rope_theta":
        ropes = {
            name: _with_theta(name, rope, layers.get(name, []), thetas)
            for name, rope in ropes.items()
        }
    if all(rotates):
        return ropes
    if any(len({rotates[layer] for layer in indices}) != 1 for indices in layers.values()):
        # layers of one type differ, so those that are not rotated get a name of their own
        return {**ropes, NO_ROPE: None}
    unrotated = {name: None for name, indices in layers.items() if not rotates[indices[0]]}
    return {**ropes, **unrotated}


def _skips_layers(family: Family) -> bool:
    """Return whether the family reads `no_rope_layers`, so that some of its layers may not
    rotate.
    """
    return family.unrotated in ("no_rope_layers", "no_rope_layers_if_not_empty")


def _thetas(config: Mapping[str, Any], family: Family) -> list[float] | None:
    """Return the theta of each layer, 0 for layers that are not rotated; None if the config has no
    theta per layer.

    With the rule "zero_layer_rope_theta" a theta is read only as zero or not zero. If such a config
    has a number of layers and no list, the last layer and every fourth layer before it have 0, and
    the others 1.
    """
    given = config.get(LAYER_THETA_KEY)
    if given is not None:
        return [float(theta) for theta in given]
    count = _layer_count(config)
    if family.unrotated != "zero_layer_rope_theta" or count is None:
        return None
    return [float((count - 1 - layer) % INTERVAL != 0) for layer in range(count)]


def _rotates(
    config: Mapping[str, Any], family: Family, thetas: list[float] | None
) -> list[bool] | None:
    """Return for each layer whether it rotates: by its theta, or as `no_rope_layers` says, which
    despite its name holds 1 for layers that rotate.

    Without this key, a family that skips layers leaves every `no_rope_layer_interval`-th layer
    unrotated, and the result is None if the family skips no layers or the number of layers is not
    known.
    """
    if thetas is not None:
        return [theta != 0 for theta in thetas]
    given = config.get("no_rope_layers")
    if given:
        return [bool(each) for each in given]
    # an empty list counts as absent only by the rule "no_rope_layers_if_not_empty"
    if given is not None and family.unrotated != "no_rope_layers_if_not_empty":
        raise RopeError(
            "no_rope_layers",
            "must be a list with 1 for each layer that rotates and 0 for the others",
            given,
        )
    count = _layer_count(config)
    if not _skips_layers(family) or count is None:
        return None
    interval = config.get("no_rope_layer_interval") or INTERVAL
    return [(layer + 1) % interval != 0 for layer in range(count)]


def _layer_count(config: Mapping[str, Any]) -> int | None:
    """Return the number of layers; None if the config does not give it."""
    return next((config[key] for key in LAYER_COUNT_KEYS if config.get(key) is not None), None)


def _types_by_theta(config: Mapping[str, Any], family: Family) -> list[str] | None:
    """Return the layer type of each layer, by the family's pattern, of a config without
    `layer_types` that lists the theta of each layer; None for any other config.
    """
    thetas = config.get(LAYER_THETA_KEY)
    if config.get("layer_types") or family.full_layers is None or not thetas:
        return None
    return types_by_pattern(config, family.full_layers, len(thetas))


def _layers_by_type(
    config: Mapping[str, Any], family: Family, rotates: list[bool]
) -> dict[str, list[int]]:
    """Return {layer type: indices of its layers}. If `layer_types` and `rotates` differ in length,
    which `layer_names` refuses later, layers beyond the shorter one are left out.
    """
    declared = config.get("layer_types") or _types_by_theta(config, family)
    declared, layers = declared or ["full_attention"] * len(rotates), {}
    for index, name in enumerate(declared[: len(rotates)]):
        layers.setdefault(name, []).append(index)
    return layers


def _with_theta(name: str, rope: RopeValues, layers: list[int], thetas: list[float]) -> RopeValues:
    """Return the rope of the layer type `name` with the theta of its `layers` (indices into
    `thetas`), of which those with theta 0 are left out. Raise an error if the others differ.
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
