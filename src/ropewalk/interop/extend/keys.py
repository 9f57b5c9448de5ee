"""A longer context as a change of config keys: which keys, in the spelling the config has, and who reads them otherwise."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import Default, Dynamic, DynamicYarn, Linear, Llama3, LongRope, Ntk, Scaling, Yarn
from ropewalk.frequencies.scaling import ntk_theta
from ropewalk.interop.config.families import FAMILIES, Family
from ropewalk.interop.config.hf import from_hf
from ropewalk.interop.config.layers import stray_keys
from ropewalk.interop.config.read import AXIS_KEYS
from ropewalk.interop.config.values import Value, find
from ropewalk.interop.config.write import ORIGINAL, WRITERS, old_keys
from ropewalk.interop.engines.audit import Finding, audit, in_one_line
from ropewalk.spec import RopeSpec

KINDS: dict[str, type[Scaling]] = {kind.name: kind for kind in (Linear, Ntk, Dynamic, Yarn, DynamicYarn, LongRope, Llama3)}
#: kinds whose served length stands in the config; engines multiply it themselves for linear and dynamic
RAISES_LENGTH = (Ntk, Yarn, LongRope, Llama3)
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "model_max_length")
KEPT_KEYS = {"rope_theta", "partial_rotary_factor", *AXIS_KEYS}


@dataclass(frozen=True)
class Plan:
    """The keys to set in a text config, the specs they mean per layer type that changes, and what to know of them.

    config   the text config with the keys set
    served   the length it is made for; None if it follows each sequence
    """

    keys: dict[str, Any]
    specs: dict[str, RopeSpec]
    notes: tuple[str, ...]
    config: Mapping[str, Any]
    served: int | None

    def disagreements(self) -> tuple[str, ...]:
        """Who computes something else from the same keys, each engine at the shortest length where it does."""
        if not self.keys:
            return ("dynamic_yarn: no config can say it, so it is not saved and no other engine has it",)
        first: dict[str, Finding] = {}
        for finding in audit(self.config, max_model_len=self.served).disagreements:
            if finding.layer_type in self.specs:
                first.setdefault(finding.engine, finding)
        return tuple(in_one_line(finding) for finding in first.values())


def make_plan(
    config: Mapping[str, Any],
    kind: str,
    *,
    factor: float | None = None,
    original_length: int | None = None,
    layer_types: Sequence[str] | None = None,
    overwrite: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """What to change in a text config so that it says `kind`; the config itself is not touched."""
    choice("kind", kind, KINDS)
    before = _specs(config)
    chosen = _chosen_layers(config, before, layer_types)
    _refuse_scaled(chosen, overwrite)
    length = _trained_length(config, chosen, original_length)
    scaling = _scaling(KINDS[kind], factor, length, dict(options or {}))
    after = {name: _scaled(spec, scaling) for name, spec in chosen.items()}
    if isinstance(scaling, DynamicYarn):
        return Plan({}, after, (), config, None)
    if getattr(scaling, "truncate", True) is False and _is_nested(config):
        raise RopeError(
            "truncate", "must be true where layer types have ropes of their own: transformers does not read it there", False
        )
    keys = _keys(config, scaling, after, length)
    changed = {**config, **keys}
    read = _read_back(changed, {**before, **after})
    return Plan(keys, {name: read[name] for name in after}, _notes(scaling), changed, _served_length(length, scaling))


def _is_nested(config: Mapping[str, Any]) -> bool:
    rope = config.get("rope_parameters") or {}
    return any(isinstance(value, Mapping) for value in rope.values())


def _chosen_layers(
    config: Mapping[str, Any], specs: Mapping[str, RopeSpec | None], asked: Sequence[str] | None
) -> dict[str, RopeSpec]:
    """The layer types that get longer: all of them where they share one rope, else the ones that see far."""
    turning = {name: spec for name, spec in specs.items() if spec is not None}
    family = FAMILIES.get(str(config.get("model_type")), Family())
    separate = _is_nested(config) or bool(family.bases)
    if asked is None:
        far = {base.layer_type for base in family.bases if base.scaled} or {"full_attention"}
        chosen = {name: spec for name, spec in turning.items() if not separate or name in far}
        asked = tuple(chosen or turning)
    for name in asked:
        choice("layer_types", name, turning)
    if not asked or (not separate and len(asked) < len(turning)):
        raise RopeError("layer_types", f"must be all of {', '.join(turning)}: this config has one rope for them", list(asked))
    if separate and not _is_nested(config) and set(asked) != {base.layer_type for base in family.bases if base.scaled}:
        raise RopeError("layer_types", "must be those that rope_scaling reaches; rope_parameters can say others", list(asked))
    return {name: turning[name] for name in asked}


def _refuse_scaled(chosen: Mapping[str, RopeSpec], overwrite: bool) -> None:
    for name, spec in chosen.items():
        if not isinstance(spec.scaling, Default) and not overwrite:
            rule = f"of {name} must be unscaled: it was trained with what it has; overwrite=True puts another in its place"
            raise RopeError("rope", rule, spec.scaling)


def _trained_length(config: Mapping[str, Any], chosen: Mapping[str, RopeSpec], given: int | None) -> int:
    if given is not None:
        return integer("original_length", given, low=1)
    had = {getattr(spec.scaling, "original_length", None) for spec in chosen.values()} - {None}
    found = find(config, ORIGINAL) or (Value(had.pop(), ORIGINAL) if len(had) == 1 else None) or find(config, *LENGTH_KEYS)
    if found is None:
        raise RopeError("original_length", "must be given: the config has no max_position_embeddings", None)
    return integer(found.key, found.value, low=1)


def _scaling(kind: type[Scaling], factor: float | None, length: int, options: dict[str, Any]) -> Scaling:
    known = {field.name for field in fields(kind)} - {"factor", "original_length"}
    for name in options:
        if name not in known:
            raise RopeError(name, f"must be an option of {kind.name}: {', '.join(sorted(known)) or 'it has none'}", options[name])
    names = {field.name for field in fields(kind)}
    if "factor" in names:
        if factor is None:
            raise RopeError("factor", f"must be given for {kind.name}: how much longer the context shall be", None)
        options["factor"] = number("factor", factor, low=1)
    elif factor is not None:
        raise RopeError("factor", f"must not be given for {kind.name}: it follows each sequence's own length", factor)
    if "original_length" in names:
        options["original_length"] = length
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in options.items()})


def _served_length(trained: int, scaling: Any) -> int:
    return max(1, round(trained * scaling.factor))


def _scaled(spec: RopeSpec, scaling: Scaling) -> RopeSpec:
    if isinstance(scaling, Ntk):
        # no config spells it, and it is nothing but another base
        return replace(spec, scaling=Default(), theta=float(ntk_theta(spec.theta, scaling.factor, 2 * spec.pairs)))
    return replace(spec, scaling=scaling)


def _keys(config: Mapping[str, Any], scaling: Scaling, after: Mapping[str, RopeSpec], length: int) -> dict[str, Any]:
    """The root keys to set."""
    keys: dict[str, Any] = {}
    if isinstance(scaling, RAISES_LENGTH):
        served = find(config, *LENGTH_KEYS)
        keys[served.key if served else LENGTH_KEYS[0]] = _served_length(length, scaling)
    if isinstance(scaling, Yarn | LongRope | Llama3) and config.get(ORIGINAL) is not None:
        keys[ORIGINAL] = length  # Phi-3 keeps it here, and reads it here first
    rope = config.get("rope_parameters")
    if rope:
        ropes = {name: _rope(rope[name], scaling, spec) for name, spec in after.items()} if _is_nested(config) else None
        keys["rope_parameters"] = {**rope, **ropes} if ropes else _rope(rope, scaling, next(iter(after.values())))
        if config.get("rope_scaling") is not None:
            keys["rope_scaling"] = None
        return keys
    return keys | _old_keys(config, scaling, after)


def _old_keys(config: Mapping[str, Any], scaling: Scaling, after: Mapping[str, RopeSpec]) -> dict[str, Any]:
    """`rope_scaling`, and the base beside it, as configs before v5 have them."""
    old, family = config.get("rope_scaling") or {}, FAMILIES.get(str(config.get("model_type")), Family())
    if not isinstance(scaling, Ntk):
        return old_keys(_rope(old, scaling, next(iter(after.values()))), family)
    kept = {key: value for key, value in old.items() if key in AXIS_KEYS}
    keys: dict[str, Any] = {"rope_scaling": {"rope_type": "default", **kept} if kept else None}
    names = {base.layer_type: base.theta_key for base in family.bases}
    plain = find(config, "rope_theta", "rotary_emb_base")
    for layer, spec in after.items():
        keys[names.get(layer) or (plain.key if plain else "rope_theta")] = spec.theta
    return keys


def _rope(old: Mapping[str, Any], scaling: Scaling, spec: RopeSpec) -> dict[str, Any]:
    """One rope's object: what does not belong to a scaling is kept."""
    kept = {key: value for key, value in old.items() if key in KEPT_KEYS}
    if isinstance(scaling, Ntk):
        return {**kept, "rope_type": "default", "rope_theta": spec.theta}
    defaults = {field.name: field.default for field in fields(scaling) if field.name != "factor"}
    written, _ = WRITERS[type(scaling)](scaling)
    needed = {"low_freq_factor", "high_freq_factor"}  # llama3 has no defaults in transformers
    said = {key: value for key, value in written.items() if key in needed or value != defaults.get(key, ...)}
    return {**kept, "rope_type": scaling.name, **said}


def _read_back(config: Mapping[str, Any], wanted: Mapping[str, RopeSpec | None]) -> dict[str, RopeSpec]:
    """The specs a changed config is read as: what was meant, with every other layer and field left alone."""
    model = config.get("model_type") or "this model"
    try:
        found = _specs(config)
    except RopeError as error:
        raise RopeError("kind", f"cannot be said in a config of {model} ({error})", None) from None
    if stray_keys(config):
        raise RopeError("rope_parameters", "must hold layer types alone", stray_keys(config))
    # the softmax factor of latent attention follows from the scaling
    names = [each.name for each in fields(RopeSpec) if each.name != "extra_softmax_factor"]
    for layer, spec in wanted.items():
        theirs = found.get(layer)
        differ = [name for name in names if getattr(theirs, name, None) != getattr(spec, name, None)]
        if differ:
            rule = f"cannot be said in a config of {model}: {', '.join(differ)} of {layer} would be read otherwise"
            raise RopeError("kind", rule, theirs)
    return {layer: spec for layer, spec in found.items() if spec is not None}


def _specs(config: Mapping[str, Any]) -> dict[str, RopeSpec | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what a config says in vain is told by `explain`
        return from_hf(config, per_layer=True)  # type: ignore[return-value]  # per_layer gives a dict


def _notes(scaling: Scaling) -> tuple[str, ...]:
    if isinstance(scaling, Linear | Dynamic):
        return ("max_position_embeddings stays the trained length: vLLM and SGLang multiply it by factor",)
    return ("written as a larger rope_theta: no rope_type is called ntk",) if isinstance(scaling, Ntk) else ()
