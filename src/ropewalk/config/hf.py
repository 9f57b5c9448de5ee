"""Hugging Face configs to specs and back, and an explanation of where each value came from.

Reading a config has five steps (`_read_config`): 1. load the file; 2. check every rotary value;
3. find the rope of each layer type; 4. bring its values into normal form; 5. make a RopeSpec of
them. No step computes frequencies: a spec computes them when they are asked for.

Words of this module:
  layer type   a name such as "full_attention"; layers of one type have the same rope
  family       what the code of a `model_type` fixes beside its config, a row of families.toml
  temperature  a factor on the queries that depends on their position
  reading      all that a config says, a `_Reading`
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ropewalk.config import diffusion
from ropewalk.config.checks import checked_rope_objects
from ropewalk.config.families import families, family_of
from ropewalk.config.file import text_config
from ropewalk.config.layers import declared_or_full, layer_names, layer_ropes
from ropewalk.config.normal import normal_form
from ropewalk.config.read import read_layer
from ropewalk.config.temperatures import WITHOUT_ROPE, read_temperatures
from ropewalk.config.values import Entry, Value
from ropewalk.config.write import config_keys
from ropewalk.errors import RopeError
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import Temperature


@dataclass(frozen=True)
class Explanation:
    """Each value that was read from a config, and where it came from; print the object, or call
    `as_dict()`.
    """

    model_type: str | None
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    #: False if no family has the model_type, so that what most models do was assumed; True for
    #: configs of diffusers
    known: bool = True

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return {layer type: {name: {"value": ..., "source": ...}}}."""
        layers: dict[str, dict[str, dict[str, Any]]] = {}
        for entry in self.entries:
            layers.setdefault(entry.layer_type, {})[entry.name] = {
                "value": entry.value,
                "source": entry.source,
            }
        return layers

    def __str__(self) -> str:
        """Return the model_type, each value of each layer type with its source, and the warnings,
        one per line.
        """
        known = "" if self.known or self.model_type is None else " (not known)"
        lines = [f"model_type {self.model_type or 'not given'}{known}"]
        for layer_type, values in self.as_dict().items():
            lines += ["", layer_type]
            shown = {name: _short(value["value"]) for name, value in values.items()}
            lines += [
                f"  {name:<20} {shown[name]:<24} {value['source']}"
                for name, value in values.items()
            ]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def from_hf(
    config: Any, per_layer: bool = False, *, precision: str = "hf_frequencies"
) -> RopeSpec | dict[str, RopeSpec | None]:
    """Return the spec that a Hugging Face config describes: of transformers, or of an image or
    video model in diffusers. A spec holds settings; reading it computes no frequencies.

    config     a transformers config, a dict, or the path of a config.json or of its folder
    per_layer  return {layer type: spec} instead; None for a layer type that is not rotated (NoPE).
               If only some layers of a type are rotated, the others are the layer type "no_rope".
               Without it, raise an error if the rotated layer types differ, or if there is none
    precision  see RopeSpec; "hf" repeats every float32 step of transformers, "hf_frequencies" only
               those of the frequencies, "exact" none

    Models with latent attention (DeepSeek) rotate a part of the head that their code splits off;
    the spec describes that part, with head_dim = qk_rope_head_dim.
    """
    reading = _read_config(config, precision)
    for text in reading.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    specs = reading.specs
    if per_layer:
        return specs
    distinct = {spec for spec in specs.values() if spec is not None}
    if not distinct:
        raise RopeError("rope_parameters", "must be given for at least one layer type", list(specs))
    if len(distinct) > 1:
        rule = (
            f"must be the same in all layer types, but differ between {', '.join(specs)}; call "
            "from_hf(config, per_layer=True)"
        )
        raise RopeError("rope_parameters", rule, reading.model_type)
    return distinct.pop()


def layer_specs(config: Any) -> list[RopeSpec | None]:
    """Return the spec of each layer of the model that a config describes; None for layers that are
    not rotated.
    """
    text = text_config(config)
    specs, _ = read_specs(text)
    names = layer_names(text, family_of(text.get("model_type")), list(specs))
    return [specs.get(name) for name in names]


def temperatures_from_hf(config: Any) -> dict[str, Temperature | None]:
    """Return the temperature of each layer type, as `from_hf(per_layer=True)` names them; None if
    queries have no factor.
    """
    text = text_config(config)
    model_type = text.get("model_type")
    # `_read_config` refuses a model without a rope, so its values are read here
    if model_type not in WITHOUT_ROPE:
        # a precision, which has no effect on temperatures, must be given
        return _temperatures(_read_config(text, "exact"))
    values = {key: Value(value, key) for key, value in text.items()}
    rotated = dict.fromkeys(declared_or_full(text), False)
    return read_temperatures(model_type, values, {}, rotated)


def explain(config: Any) -> Explanation:
    """Return each value of the spec that a config describes, and the config key or default it came
    from.
    """
    return read_specs(config)[1]


def to_hf(spec: RopeSpec, *, version: int = 5, model_type: str | None = None) -> dict[str, Any]:
    """Return the config keys that describe `spec`.

    version     of transformers: 5 for the key `rope_parameters`, 4 for `rope_theta` and
                `rope_scaling`
    model_type  that of the config; None: the keys of most families, without a model_type

    In most families no config key gives the pair layout, which follows from the model's code. So a
    spec with a layout other than "half" needs a `model_type` whose code uses that layout, or reads
    it from the key `rope_interleave`. What was written is read back: a RopeError names the first
    field that has another value then. `precision` is not written, because only ropewalk has it.
    """
    if not isinstance(spec, RopeSpec):
        raise RopeError(
            "spec", "must be a RopeSpec; rw.from_hf(config) makes one from a config", spec
        )
    if version not in (4, 5):
        raise RopeError("version", "must be 4 (rope_scaling) or 5 (rope_parameters)", version)
    if model_type is not None and model_type not in families():
        raise RopeError("model_type", f"must be one of {', '.join(sorted(families()))}", model_type)
    written = config_keys(spec, version, model_type)
    _check_round_trip(spec, written)
    return written


def read_specs(
    config: Any, precision: str = "hf_frequencies"
) -> tuple[dict[str, RopeSpec | None], Explanation]:
    """Return {layer type: spec, or None if it is not rotated}, and an Explanation of where each
    value was found; warnings are listed in the Explanation and not emitted.
    """
    reading = _read_config(config, precision)
    temperatures = _temperatures(reading)
    entries = [
        Entry(name, "temperature", temperature, f"code of {reading.model_type}")
        for name, temperature in temperatures.items()
        if temperature is not None
    ]
    return reading.specs, Explanation(
        reading.model_type, (*reading.entries, *entries), reading.warnings, reading.known
    )


@dataclass(frozen=True)
class _Reading:
    """What a config says.

    model_type  the config's `model_type`, or the class name of a diffusers config
    specs       {layer type: its spec, or None if it is not rotated}
    entries     each value of each spec with its source
    warnings    keys that are ignored and values that were assumed
    known       False if no family has the model_type; True for a diffusers config
    outside     the values of the config's own keys, those outside any rope object
    rope        the values of the rope of the first rotated layer type; a temperature is read from
                these and from `outside`
    """

    model_type: str | None
    specs: dict[str, RopeSpec | None]
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()
    known: bool = True
    outside: Mapping[str, Value] = field(default_factory=dict)
    rope: Mapping[str, Value] = field(default_factory=dict)


def _read_config(config: Any, precision: str) -> _Reading:
    """Return what a config says. `config` and `precision` are those of `from_hf`; the five
    steps are those of the module's docstring.
    """
    text = text_config(config)  # 1. load
    # a config of diffusers has one rope and no other spellings, so it needs none of these steps
    if diffusion.CLASS_KEY in text:
        spec, found = diffusion.read(text, precision)
        return _Reading(text[diffusion.CLASS_KEY], {diffusion.LAYER_TYPE: spec}, found)
    family = family_of(text.get("model_type"))
    objects = checked_rope_objects(text, family)  # 2. check
    ropes = layer_ropes(text, objects, family)  # 3. the rope of each layer type
    normal = normal_form(text, ropes, family)  # 4. normal form

    specs: dict[str, RopeSpec | None] = {}  # 5. specs
    entries: list[Entry] = []
    for name, values in normal.layers.items():
        if values is None:
            specs[name] = None
            entries.append(Entry(name, "rope", None, "this layer type is not rotated"))
        else:
            specs[name], found = read_layer(name, values, precision)
            entries += found
    stray = [f"rope_parameters.{key}: not read beside layer types" for key in objects.stray]
    return _Reading(
        model_type=text.get("model_type"),
        specs=specs,
        entries=tuple(entries),
        warnings=tuple(dict.fromkeys([*stray, *normal.warnings])),
        known=family.known,
        outside=normal.outside,
        rope=next((rope for rope in ropes.values() if rope is not None), {}),
    )


def _temperatures(reading: _Reading) -> dict[str, Temperature | None]:
    """Return the temperature of each layer type of a config that was read; None for a layer type
    whose queries have no such factor.
    """
    rotated = {name: spec is not None for name, spec in reading.specs.items()}
    return read_temperatures(reading.model_type, reading.outside, reading.rope, rotated)


def _check_round_trip(spec: RopeSpec, written: Mapping[str, Any]) -> None:
    """Read a spec from the config keys `written`; raise a RopeError about its first field that
    differs from `spec`. `precision` may differ, because no config key gives it.
    """
    # the spec of each layer type; filter leaves out None, for layer types that are not rotated
    for read_spec in filter(None, read_specs(written)[0].values()):
        for name in (each.name for each in fields(spec)):
            given, read_back = getattr(spec, name), getattr(read_spec, name)
            if name != "precision" and given != read_back:
                rule = (
                    "cannot be written: such a config would be read as "
                    f"{read_back!r}{_layout_hint(name, spec)}"
                )
                raise RopeError(name, rule, given)


def _layout_hint(field: str, spec: RopeSpec) -> str:
    """Return a hint for an error about `field`: for a layout, model types whose code has that of
    `spec`; "" for any other field, or if no model type has that layout.
    """
    if field not in ("layout", "layout_out"):
        return ""
    layouts = spec.layout, spec.output_layout
    names = [
        name
        for name, family in families().items()
        if (family.layout, family.layout_out or family.layout) == layouts
    ]
    return (
        f"; give a model_type whose code has this layout, such as {', '.join(names[:6])}"
        if names
        else ""
    )


def _short(value: Any) -> str:
    """Return the repr of a value, cut to 24 characters."""
    shown = repr(value)
    return shown if len(shown) <= 24 else shown[:21] + "..."
