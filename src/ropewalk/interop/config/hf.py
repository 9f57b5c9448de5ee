"""Hugging Face configs to specs and back, and an account of where each value came from."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.families import FAMILIES, Family
from ropewalk.interop.config.layers import gives_rope, layer_ropes, refuse_other_encodings, stray_keys
from ropewalk.interop.config.read import read_layer
from ropewalk.interop.config.values import Entry, Layer
from ropewalk.interop.config.write import config_keys
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class Explanation:
    """Each resolved value of a config and where it came from; print it, or take `as_dict()`."""

    model_type: str | None
    entries: tuple[Entry, ...]
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """{layer type: {name: {"value": ..., "source": ...}}}."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for entry in self.entries:
            found.setdefault(entry.layer_type, {})[entry.name] = {"value": entry.value, "source": entry.source}
        return found

    def __str__(self) -> str:
        lines = [f"model_type {self.model_type or 'not given'}"]
        for layer_type, values in self.as_dict().items():
            lines += ["", layer_type]
            shown = {name: _short(value["value"]) for name, value in values.items()}
            lines += [f"  {name:<20} {shown[name]:<24} {value['source']}" for name, value in values.items()]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def from_hf(config: Any, per_layer: bool = False, *, precision: str = "hf_frequencies") -> RopeSpec | dict[str, RopeSpec | None]:
    """The spec a Hugging Face config describes.

    config     a transformers config, a dict, or the path of a config.json or of its folder
    per_layer  {layer type: spec} instead; None is a layer that stands still (NoPE). Where layers of one type differ,
               "no_rope" stands for those that `no_rope_layers` leaves out
    precision  see RopeSpec; "hf" repeats every float32 step of transformers, "exact" none

    Models with latent attention (DeepSeek) rotate a part that their code splits off; the spec is of that part, with
    head_dim = qk_rope_head_dim.
    """
    specs, explanation = _read(config, precision)
    for text in explanation.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    if per_layer:
        return specs
    distinct = {spec for spec in specs.values() if spec is not None}
    if not distinct:
        raise RopeError("rope_parameters", "must rotate at least one layer type", list(specs))
    if len(distinct) > 1:
        rule = f"differ between {', '.join(specs)}; call from_hf(config, per_layer=True)"
        raise RopeError("rope_parameters", rule, explanation.model_type)
    return distinct.pop()


def explain(config: Any) -> Explanation:
    """Each value of a config's rope, resolved, and where it came from."""
    return _read(config)[1]


def to_hf(spec: RopeSpec, *, version: int = 5, model_type: str | None = None) -> dict[str, Any]:
    """The keys of a config that describe `spec`: v5 `rope_parameters`, or v4 `rope_theta` and `rope_scaling`.

    A config has no key for the pair layout: it follows from the model's code, so a spec that is not plain half-split
    needs the `model_type` whose code agrees. What would not read back as the same spec is refused by the field's name;
    precision is ours alone and is not written.
    """
    if version not in (4, 5):
        raise RopeError("version", "must be 4 (rope_scaling) or 5 (rope_parameters)", version)
    if model_type is not None and model_type not in FAMILIES:
        raise RopeError("model_type", f"must be one of {', '.join(sorted(FAMILIES))}", model_type)
    written = config_keys(spec, version, model_type)
    _refuse_what_would_change(spec, written)
    return written


def _read(config: Any, precision: str = "hf_frequencies") -> tuple[dict[str, RopeSpec | None], Explanation]:
    text = config_file.text_part(config_file.load(config))
    model_type = text.get("model_type")
    if model_type is not None and not isinstance(model_type, str):
        raise RopeError("model_type", "must be a name", model_type)
    family, known = FAMILIES.get(model_type or "", Family(reads_partial=True)), model_type in FAMILIES
    if family.refused is not None:
        raise RopeError("model_type", f"{model_type} {family.refused}", model_type)
    refuse_other_encodings(text)
    if not known and not gives_rope(text):
        raise RopeError("rope_parameters", "must be given, or rope_theta, where the model_type is not a known one", model_type)
    if family.must_be_given and not (text.get("rope_parameters") or text.get("rope_scaling")):
        raise RopeError("rope_parameters", f"must be given: without it {model_type} falls back to a scaled rope", None)
    specs: dict[str, RopeSpec | None] = {}
    entries: list[Entry] = []
    told: list[str] = [f"rope_parameters.{key}: not read beside layer types" for key in stray_keys(text)]
    for name, rope in layer_ropes(text, family).items():
        if rope is None:
            specs[name] = None
            entries.append(Entry(name, "rope", None, "this layer stands still"))
            continue
        layer = Layer(text, family, model_type or "this model", known, name, rope)
        specs[name] = read_layer(layer, precision)
        entries += layer.entries
        told += layer.warnings
    return specs, Explanation(model_type, tuple(entries), tuple(dict.fromkeys(told)))


def _refuse_what_would_change(spec: RopeSpec, written: Mapping[str, Any]) -> None:
    for read in filter(None, _read(written)[0].values()):
        for field in fields(spec):
            if field.name == "precision":
                continue
            theirs = getattr(read, field.name)
            if getattr(spec, field.name) != theirs:
                rule = f"cannot be written so that it reads back: a config like this means {theirs!r}"
                raise RopeError(field.name, rule + _advice(field.name, spec), getattr(spec, field.name))


def _advice(name: str, spec: RopeSpec) -> str:
    if name not in ("layout", "layout_out"):
        return ""
    pairs = spec.layout, spec.layout_out
    some = [known for known, family in FAMILIES.items() if (family.layout, family.layout_out or family.layout) == pairs]
    return f"; give a model_type whose code pairs so, such as {', '.join(some[:6])}" if some else ""


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 24 else shown[:21] + "..."
