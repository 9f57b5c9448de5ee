"""Hugging Face configs to specs and back, and an explanation of where each value came from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ropewalk.config import diffusion
from ropewalk.config import file as config_file
from ropewalk.config.checks import check_values
from ropewalk.config.families import FAMILIES, family_of
from ropewalk.config.layers import (
    gives_rope,
    layer_ropes,
    layer_types,
    refuse_other_encodings,
    stray_keys,
)
from ropewalk.config.read import read_layer
from ropewalk.config.temperatures import WITHOUT_ROPE, read_temperatures
from ropewalk.config.unrotated import layer_names
from ropewalk.config.values import Entry, Layer
from ropewalk.config.write import config_keys
from ropewalk.errors import RopeError
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import Temperature


@dataclass(frozen=True)
class Explanation:
    """Each value that was read from a config and where it came from; print it, or call `as_dict()`."""

    model_type: str | None
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()

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
        """Return a line for each value of each layer type, with its source, and the warnings."""
        lines = [f"model_type {self.model_type or 'not given'}"]
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
    video model in diffusers.

    config     a transformers config, a dict, or the path of a config.json or of its folder
    per_layer  return {layer type: spec} instead; None for layers that are not rotated (NoPE). If
               only some layers of a type are rotated, "no_rope" is the name of the others
    precision  see RopeSpec; "hf" repeats every float32 step of transformers, "exact" none

    Models with latent attention (DeepSeek) rotate a part of the head that their code splits off;
    the spec describes that part, with head_dim = qk_rope_head_dim.
    """
    specs, explanation = read_specs(config, precision)
    for text in explanation.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    if per_layer:
        return specs
    distinct = {spec for spec in specs.values() if spec is not None}
    if not distinct:
        raise RopeError("rope_parameters", "must be given for at least one layer type", list(specs))
    if len(distinct) > 1:
        rule = f"differ between {', '.join(specs)}; call from_hf(config, per_layer=True)"
        raise RopeError("rope_parameters", rule, explanation.model_type)
    return distinct.pop()


def layer_specs(config: Any) -> list[RopeSpec | None]:
    """Return the spec of each layer of the model that a config describes; None for layers that are
    not rotated.
    """
    specs, _ = read_specs(config)
    text = config_file.text_part(config_file.load(config))
    return [specs.get(name) for name in layer_names(text, family_of(text.get("model_type")), specs)]


def temperatures_from_hf(config: Any) -> dict[str, Temperature | None]:
    """Return the temperature of each layer type, as `from_hf(per_layer=True)` names them; None if
    queries have no factor.
    """
    text = config_file.text_part(config_file.load(config))
    if text.get("model_type") in WITHOUT_ROPE:
        return read_temperatures(
            text, dict.fromkeys(layer_types(text) or ("full_attention",), False)
        )
    specs, _ = read_specs(text)
    return read_temperatures(text, {name: spec is not None for name, spec in specs.items()})


def explain(config: Any) -> Explanation:
    """Return each value of the spec that a config describes, and the config key or default it came
    from.
    """
    return read_specs(config)[1]


def to_hf(spec: RopeSpec, *, version: int = 5, model_type: str | None = None) -> dict[str, Any]:
    """Return the config keys that describe `spec`: v5 `rope_parameters`, or v4 `rope_theta` and
    `rope_scaling`.

    A config has no key for the pair layout, which follows from the model's code, so a spec with a
    layout other than "half" needs a `model_type` whose code uses that layout. A RopeError names
    each field that would not read back as the same value; `precision` is not written, because only
    ropewalk has it.
    """
    if not isinstance(spec, RopeSpec):
        raise RopeError(
            "spec", "must be a RopeSpec; rw.from_hf(config) makes one from a config", spec
        )
    if version not in (4, 5):
        raise RopeError("version", "must be 4 (rope_scaling) or 5 (rope_parameters)", version)
    if model_type is not None and model_type not in FAMILIES:
        raise RopeError("model_type", f"must be one of {', '.join(sorted(FAMILIES))}", model_type)
    written = config_keys(spec, version, model_type)
    _check_round_trip(spec, written)
    return written


def read_specs(
    config: Any, precision: str = "hf_frequencies"
) -> tuple[dict[str, RopeSpec | None], Explanation]:
    """Return {layer type: spec, or None if it is not rotated}, and where each value was found;
    warnings are only listed there.
    """
    text = config_file.text_part(config_file.load(config))
    if diffusion.CLASS_KEY in text:
        spec, sources = diffusion.read(text, precision)
        return {diffusion.LAYER_TYPE: spec}, Explanation(text[diffusion.CLASS_KEY], sources)
    model_type = text.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise RopeError("model_type", "must be a name", model_type)
    family, is_known = family_of(model_type), model_type in FAMILIES
    if family.refused is not None:
        raise RopeError("model_type", f"{model_type} {family.refused}", model_type)
    refuse_other_encodings(text, family)
    if not is_known and not gives_rope(text):
        raise RopeError(
            "rope_parameters",
            "or rope_theta must be given for a model_type that is not known",
            model_type,
        )
    if family.must_be_given and not (text.get("rope_parameters") or text.get("rope_scaling")):
        raise RopeError(
            "rope_parameters",
            f"must be given: without it {model_type} falls back to a scaled rope",
            None,
        )
    check_values(text, null_theta=family.rope_is_optional)
    specs: dict[str, RopeSpec | None] = {}
    entries: list[Entry] = []
    messages: list[str] = [
        f"rope_parameters.{key}: not read beside layer types" for key in stray_keys(text)
    ]
    for name, rope in layer_ropes(text, family).items():
        if rope is None:
            specs[name] = None
            entries.append(Entry(name, "rope", None, "this layer type is not rotated"))
            continue
        layer = Layer(text, family, model_type or "this model", is_known, name, rope)
        specs[name] = read_layer(layer, precision)
        entries += layer.entries
        messages += layer.warnings
    for name, temperature in read_temperatures(
        text, {name: spec is not None for name, spec in specs.items()}
    ).items():
        if temperature is not None:
            entries.append(Entry(name, "temperature", temperature, f"code of {model_type}"))
    return specs, Explanation(model_type, tuple(entries), tuple(dict.fromkeys(messages)))


def _check_round_trip(spec: RopeSpec, written: Mapping[str, Any]) -> None:
    """Read a spec from the config keys `written`; raise a RopeError about its first field that
    differs from `spec`.
    """
    for read_spec in filter(None, read_specs(written)[0].values()):
        for field in fields(spec):
            given, read_back = getattr(spec, field.name), getattr(read_spec, field.name)
            if field.name != "precision" and given != read_back:
                rule = (
                    "cannot be written: such a config would be read as "
                    f"{read_back!r}{_layout_hint(field.name, spec)}"
                )
                raise RopeError(field.name, rule, given)


def _layout_hint(field: str, spec: RopeSpec) -> str:
    """Return a hint for an error about the layout: model types whose code has it; empty for other
    fields.
    """
    if field not in ("layout", "layout_out"):
        return ""
    layouts = spec.layout, spec.output_layout
    names = [
        name
        for name, family in FAMILIES.items()
        if (family.layout, family.layout_out or family.layout) == layouts
    ]
    return (
        f"; give a model_type whose code has this layout, such as {', '.join(names[:6])}"
        if names
        else ""
    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 24 else shown[:21] + "..."
