"""The config keys that give a config a scaling for a longer context, in the spelling that the
config uses already.

Words of this module:
  kind            the name of a scaling, such as "yarn"
  spec            a RopeSpec: theta, scaling and the other settings of a layer type's rotation
  trained length  the longest sequence of the training, from which `factor` counts
  served length   the longest sequence that the config says the model is used with
  nested          said of a config whose `rope_parameters` hold one rope object for each layer type
  notes           remarks for the user
  family          what the code of a `model_type` fixes beside its config, a row of families.toml
  setting         a field of a scaling that a config can give: its `key` is the config key, or None
                  if that is the name of the field
  innermost       the scaling that has a factor and a trained length: the inner one of a clipped
                  scaling, otherwise the scaling itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ropewalk.config.checks import layer_types as layer_types_of
from ropewalk.config.checks import rope_objects
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.config.keys import (
    AXIS_KEYS,
    FRACTION_KEYS,
    LAYER_THETA_KEY,
    OTHER_KEYS,
    THETA_KEYS,
    keys_of,
)
from ropewalk.config.values import Value, find, served_length
from ropewalk.config.write import extended_length, v4_keys, write_scaling
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import SCALINGS, Clipped, Default, Ntk, Scaling
from ropewalk.frequencies.formulas import ntk_theta
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY, settings_of
from ropewalk.spec import RopeSpec

#: scalings that `extend` gives a model to be trained further; without training, the model does not
#: read longer texts with them
FOR_TRAINING: dict[str, type[Scaling]] = {"clipped": Clipped}
#: keys of a rope that do not belong to its scaling
KEPT_KEYS = {THETA_KEYS[0], FRACTION_KEYS[0], *AXIS_KEYS, *OTHER_KEYS}


@dataclass(frozen=True)
class ConfigChange:
    """A change of a text config.

    keys     {config key: its new value}; empty if the change is not written into the config
    specs    {layer type: its new spec} of the layer types that change
    config   the text config with the keys set
    served   the served length after the change; None if the change is not written
    trained  the trained length
    before   {layer type: its spec before the change} of all layer types that rotate
    after    the same with the specs after the change
    shorter  one line about it if the served length falls, else nothing
    """

    keys: dict[str, Any]
    specs: dict[str, RopeSpec]
    notes: tuple[str, ...]
    config: Mapping[str, Any]
    served: int | None
    trained: int
    before: dict[str, RopeSpec]
    after: dict[str, RopeSpec]
    shorter: tuple[str, ...] = ()

    def disagreements(self) -> tuple[str, ...]:
        """Return one line if the change is not written into the config, else none. What engines
        compute from a changed config is for `audit` to say.
        """
        if self.keys:
            return ()
        name = next(iter(self.specs.values())).scaling.name
        return (
            f"{name}: extend writes no config key for it, so it is not saved, and an engine that "
            "loads the model does not have it",
        )


def kinds() -> dict[str, type[Scaling]]:
    """Return the scalings of `extend` that let a model read further without training, by name."""
    return {name: scaling for name, scaling in SCALINGS.items() if scaling.in_extend}


def all_kinds() -> dict[str, type[Scaling]]:
    """Return every scaling that `extend` accepts, by name: `kinds` and FOR_TRAINING."""
    return {**kinds(), **FOR_TRAINING}


def config_change(
    config: Mapping[str, Any],
    kind: str,
    *,
    factor: float | None = None,
    original_length: int | None = None,
    layer_types: Sequence[str] | None = None,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> ConfigChange:
    """Return the change that gives a text config the scaling `kind`; the config itself is not
    modified.

    The arguments are those of `extend`. The changed config is read back: it must describe the new
    specs and no others.
    """
    offered = all_kinds()
    choice("kind", kind, offered)
    all_specs, _ = read_specs(config)
    old_specs = _chosen_layers(config, all_specs, layer_types)
    _refuse_scaled(old_specs, overwrite)
    _refuse_several_thetas(config, old_specs)
    length = _trained_length(config, old_specs, original_length)
    scaling = _make_scaling(offered[kind], factor, length, dict(options or {}))
    new_specs = {name: _scaled(spec, scaling) for name, spec in old_specs.items()}
    before = {name: spec for name, spec in all_specs.items() if spec is not None}
    if not scaling.in_configs and not isinstance(scaling, Ntk):  # `extend` writes no key for it
        after = {**before, **new_specs}
        return ConfigChange(
            {}, new_specs, (), config, served=None, trained=length, before=before, after=after
        )
    if getattr(scaling, "truncate", True) is False and _is_nested(config):
        rule = (
            "must be true if rope_parameters differ per layer type: transformers does not read it "
            "there"
        )
        raise RopeError("truncate", rule, False)
    _refuse_unsupported(config, scaling)
    keys = _keys(config, scaling, new_specs, length)
    changed = {**config, **keys}
    after = _read_back(changed, {**all_specs, **new_specs})
    specs, served = {name: after[name] for name in new_specs}, extended_length(length, scaling)
    return ConfigChange(
        keys,
        specs,
        _notes(scaling),
        changed,
        served=served,
        trained=length,
        before=before,
        after=after,
        shorter=_shorter(config, served, factor, length),
    )


def specs_and_length(
    config: Mapping[str, Any], original_length: int | None
) -> tuple[dict[str, RopeSpec | None], int]:
    """Return the spec of every layer type (None: not rotated), and the trained length, which is
    `original_length` if that is given.
    """
    specs, _ = read_specs(config)
    return specs, _trained_length(
        config, {name: spec for name, spec in specs.items() if spec is not None}, original_length
    )


def _chosen_layers(
    config: Mapping[str, Any], specs: Mapping[str, RopeSpec | None], names: Sequence[str] | None
) -> dict[str, RopeSpec]:
    """Return the specs of the layer types to extend.

    names  the layer types; None: all of them if they share one rope, otherwise those that the
           family scales, or those with full attention if it names none, or all if there are none.
           Types that no layer has are left out, if others remain
    """
    rotated = {name: spec for name, spec in specs.items() if spec is not None}
    # not empty for families whose layer types have different thetas
    thetas = family_of(config.get("model_type")).layer_thetas
    scaled_types = {layer_type for layer_type, theta in thetas.items() if theta.scaled}
    nested = _is_nested(config)
    separate_ropes = nested or bool(thetas)
    if names is None:
        default_types = scaled_types or {"full_attention"}
        names = [name for name in rotated if not separate_ropes or name in default_types] or list(
            rotated
        )
        # a config may have ropes that no layer uses
        names = [name for name in names if name in layer_types_of(config)] or names
    for name in names:
        choice("layer_types", name, rotated)
    if not names:
        raise RopeError("layer_types", f"must name at least one of {', '.join(rotated)}", [])
    if not separate_ropes and len(names) < len(rotated):
        raise RopeError(
            "layer_types",
            f"must be all of {', '.join(rotated)}: this config has one rope for them",
            list(names),
        )
    if separate_ropes and not nested and set(names) != scaled_types:
        rule = (
            f"must be {', '.join(sorted(scaled_types))}: rope_scaling applies to no others, unlike "
            "rope_parameters"
        )
        raise RopeError("layer_types", rule, list(names))
    return {name: rotated[name] for name in names}


def _is_nested(config: Mapping[str, Any]) -> bool:
    """Return whether `rope_parameters` has one object for each layer type."""
    return rope_objects(config).by_layer_type is not None


def _refuse_scaled(old_specs: Mapping[str, RopeSpec], overwrite: bool) -> None:
    """Raise an error if a layer type already has a scaling and `overwrite` is False; clipping alone
    does not count as one, since it stays.
    """
    for name, spec in old_specs.items():
        if not isinstance(spec.scaling.innermost, Default) and not overwrite:
            rule = (
                f"{name} was trained with the scaling it has; pass overwrite=True (CLI: "
                "--overwrite) to replace it"
            )
            raise RopeError("rope", rule, spec.scaling)


def _refuse_several_thetas(config: Mapping[str, Any], old_specs: Mapping[str, RopeSpec]) -> None:
    """Raise an error if the config lists a theta for each layer (0: not rotated) and one differs
    from the theta of the rope, since the change is computed for one theta.
    """
    thetas, rope = config.get(LAYER_THETA_KEY), config.get("rope_parameters") or config
    # the theta of the spec may be one of the list, from which the rope's own then would not differ
    theta = rope.get(THETA_KEYS[0], next(iter(old_specs.values())).theta)
    if thetas is not None and {each for each in thetas if each != 0} != {theta}:
        rule = (
            f"must be the theta of the rope, {theta}, in every layer that rotates, to be extended"
        )
        raise RopeError(LAYER_THETA_KEY, rule, thetas)


def _refuse_unsupported(config: Mapping[str, Any], scaling: Scaling) -> None:
    """Refuse a rope_type that the family's own code refuses to load."""
    model = config.get("model_type")
    if family_of(model).only_default and not isinstance(scaling, Ntk):
        rule = (
            f"must be ntk for {model}: its code loads no rope_type but default, and ntk only "
            "raises rope_theta"
        )
        raise RopeError("kind", rule, scaling.name)


def _trained_length(
    config: Mapping[str, Any], old_specs: Mapping[str, RopeSpec], given: int | None
) -> int:
    """Return the trained length: the given one, that of the config or of its scaling, or the served
    length; raise an error if there is none of them.
    """
    if given is not None:
        return integer("original_length", given, low=1)
    lengths = {
        getattr(spec.scaling.innermost, "original_length", None) for spec in old_specs.values()
    } - {None}
    # layer types with different trained lengths do not tell that of the model
    scaling_length = Value(lengths.pop(), TRAINED_LENGTH_KEY) if len(lengths) == 1 else None
    length = find(config, TRAINED_LENGTH_KEY) or scaling_length or served_length(config)
    if length is None:
        raise RopeError(
            "original_length", f"must be given: the config has no {SERVED_LENGTH_KEY}", None
        )
    return integer(length.key, length.value, low=1)


def _make_scaling(
    scaling_class: type[Scaling], factor: float | None, length: int, options: dict[str, Any]
) -> Scaling:
    """Return a scaling made from the factor, the trained length and options; raise an error about
    an unknown option, and about a factor that is missing or that the scaling does not have.
    """
    names, title = {field.name for field in fields(scaling_class)}, scaling_class.name
    known = names - {"factor", "original_length"}
    for name, value in options.items():
        if name not in known:
            raise RopeError(
                name,
                f"must be an option of {title}: {', '.join(sorted(known)) or 'it has none'}",
                value,
            )
    if "factor" in names:
        if factor is None:
            raise RopeError(
                "factor",
                f"must be given for {title}: how many times longer the context becomes",
                None,
            )
        options["factor"] = number("factor", factor, low=1)
    elif factor is not None:
        raise RopeError("factor", f"must not be given for {title}, which has none", factor)
    if "original_length" in names:
        options["original_length"] = length
    # tuples instead of lists, because a scaling is hashable
    lists = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
    return scaling_class(**options | lists)


def _scaled(spec: RopeSpec, scaling: Scaling) -> RopeSpec:
    """Return `spec` with `scaling` in place of its own; Ntk becomes a larger theta, and clipping
    stays.
    """
    if isinstance(spec.scaling, Clipped) and isinstance(scaling, Clipped):
        return replace(spec, scaling=replace(scaling, inner=spec.scaling.inner))
    if isinstance(spec.scaling, Clipped):
        # CoPE clips the frequencies of the new scaling as it did those of the old one
        scaled = _scaled(replace(spec, scaling=Default()), scaling)
        return replace(scaled, scaling=replace(spec.scaling, inner=scaled.scaling))
    if isinstance(scaling, Ntk):
        # no rope_type names static NTK, but it is the same as a larger theta
        return replace(
            spec,
            scaling=Default(),
            theta=float(ntk_theta(spec.theta, scaling.factor, 2 * spec.pairs)),
        )
    return replace(spec, scaling=scaling)


def _keys(
    config: Mapping[str, Any], scaling: Scaling, new_specs: Mapping[str, RopeSpec], length: int
) -> dict[str, Any]:
    """Return the keys to set in the text config, so that it describes `new_specs`; `length` is the
    trained length.
    """
    keys: dict[str, Any] = {}
    served = served_length(config)
    if scaling.raises_length:
        keys[served.key if served else SERVED_LENGTH_KEY] = extended_length(length, scaling)
    elif served is not None and served.value != length:
        keys[served.key] = length  # a scaling that is replaced may have raised it
    family = family_of(config.get("model_type"))
    length_outside = config.get(TRAINED_LENGTH_KEY) or family.default(TRAINED_LENGTH_KEY)
    if TRAINED_LENGTH_KEY in keys_of(scaling) and length_outside is not None:
        # Phi-3 has it outside the rope object, and reads it there first
        keys[TRAINED_LENGTH_KEY] = length
    rope, spec = config.get("rope_parameters"), next(iter(new_specs.values()))
    if isinstance(scaling, Ntk) and config.get(LAYER_THETA_KEY) is not None:
        # a layer with theta 0 does not rotate
        keys[LAYER_THETA_KEY] = [
            spec.theta if theta else theta for theta in config[LAYER_THETA_KEY]
        ]
    if not rope:
        return keys | _transformers_v4_keys(config, scaling, new_specs)
    if _is_nested(config):
        new_ropes = {
            layer_type: _rope(rope[layer_type], scaling, new)
            for layer_type, new in new_specs.items()
        }
        keys["rope_parameters"] = {**rope, **new_ropes}
    else:
        keys["rope_parameters"] = _rope(rope, scaling, spec)
    # `rope_parameters` has the new scaling; an old one in `rope_scaling` would contradict it
    return keys if config.get("rope_scaling") is None else {**keys, "rope_scaling": None}


def _transformers_v4_keys(
    config: Mapping[str, Any], scaling: Scaling, new_specs: Mapping[str, RopeSpec]
) -> dict[str, Any]:
    """Return the key `rope_scaling` of configs before transformers 5; for Ntk, which only raises
    theta, also those of theta.
    """
    old, family = config.get("rope_scaling") or {}, family_of(config.get("model_type"))
    if not isinstance(scaling, Ntk):
        return v4_keys(_rope(old, scaling, next(iter(new_specs.values()))), family)
    kept = {key: value for key, value in old.items() if key in AXIS_KEYS | OTHER_KEYS}
    keys: dict[str, Any] = {"rope_scaling": {"rope_type": "default", **kept} if kept else None}
    theta_keys = {layer_type: theta.key for layer_type, theta in family.layer_thetas.items()}
    # a known family reads theta under one name, any other model under the name that the config has
    given = None if family.known else find(config, *THETA_KEYS)
    common_key = family.renamed.get(THETA_KEYS[0]) or (given.key if given else THETA_KEYS[0])
    for layer_type, spec in new_specs.items():
        keys[theta_keys.get(layer_type) or common_key] = spec.theta
    return keys


def _rope(old: Mapping[str, Any], scaling: Scaling, spec: RopeSpec) -> dict[str, Any]:
    """Return the rope object of a config with a new scaling.

    old      the config's own rope object; its keys that do not belong to a scaling are kept
    scaling  the new scaling; an optional key whose value is its default is not written. NTK has no
             rope_type in a config: it is written as "default" with the theta of `spec`
    spec     the new spec; that of NTK is unscaled, with the larger theta
    """
    # Ministral 3 also scales its queries, by a key of OTHER_KEYS and the trained length: keep both
    kept_keys = KEPT_KEYS | ({TRAINED_LENGTH_KEY} if OTHER_KEYS & old.keys() else set())
    kept = {key: value for key, value in old.items() if key in kept_keys}
    if isinstance(scaling, Ntk):
        return {**kept, "rope_type": "default", "rope_theta": spec.theta}
    rope, _ = write_scaling(scaling, family_of(None))  # no family: the standard keys
    optional = {
        name: setting for name, setting in settings_of(scaling).items() if not setting.required
    }
    omitted = {
        setting.key or name
        for name, setting in optional.items()
        if getattr(scaling, name) == setting.default
    }
    return {**kept, **{key: value for key, value in rope.items() if key not in omitted}}


def _read_back(
    config: Mapping[str, Any], expected: Mapping[str, RopeSpec | None]
) -> dict[str, RopeSpec]:
    """Read the changed config and return its specs; refuse it if they differ from `expected`."""
    model = config.get("model_type") or "this model"
    try:
        specs, _ = read_specs(config)
    except RopeError as error:
        raise RopeError(
            "kind", f"cannot be expressed in a config of {model} ({error})", None
        ) from None
    stray = rope_objects(config).stray
    if stray:
        raise RopeError("rope_parameters", "must hold only layer types", list(stray))
    # the softmax factor of latent attention may differ: it follows from the scaling
    names = [each.name for each in fields(RopeSpec) if each.name != "extra_softmax_factor"]
    for layer, spec in expected.items():
        read = specs.get(layer)
        different = [
            name for name in names if getattr(read, name, None) != getattr(spec, name, None)
        ]
        if different:
            rule = (
                f"cannot be expressed in a config of {model}: {', '.join(different)} of {layer} "
                "would be read differently"
            )
            raise RopeError("kind", rule, read)
    return {layer: spec for layer, spec in specs.items() if spec is not None}


def _shorter(
    config: Mapping[str, Any], served: int | None, factor: float | None, trained: int
) -> tuple[str, ...]:
    """Return one line if the served length falls, as it may where the config had a scaling before;
    else nothing.

    served   the new served length; None if it is not written
    factor   of the new scaling; None if it has none
    trained  the trained length
    """
    was = served_length(config)
    if served is None or factor is None or was is None or not served < was.value:
        return ()
    return (
        f"the context falls from {was.value:,} tokens ({was.key}) to {served:,}: factor counts from "
        f"the trained length, {trained:,}; {factor:g} times {was.value:,} tokens need factor="
        f"{factor * was.value / trained:g}",
    )


def _notes(scaling: Scaling) -> tuple[str, ...]:
    """Return at most one remark for the user: that ntk is written as a larger theta, or for another
    scaling that the served length stays the trained one.
    """
    if isinstance(scaling, Ntk):
        return ("written as a larger rope_theta: no rope_type is called ntk",)
    if scaling.raises_length:
        return ()
    return (f"{SERVED_LENGTH_KEY} stays the trained length",)
