"""What Python answers to the page, as JSON: `doctor` with the ropes of the config, `audit`, and the
frequencies and the cost of a rope chosen on the page.

The standard library and the definition alone: the same file runs in the browser and behind
`ropewalk explore`.

A request is a JSON object; `asked` is that object, whose keys the page sets.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ropewalk.analysis import plain_radians, read_checkpoint
from ropewalk.analysis.exactness import error_curves
from ropewalk.config.families import family_of
from ropewalk.diagnosis import doctor
from ropewalk.diagnosis.published import models
from ropewalk.diagnosis.report import Diagnosis
from ropewalk.engines import ENGINES, audit
from ropewalk.errors import RopeError, choice, integer
from ropewalk.frequencies import SCALINGS
from ropewalk.gguf import InMemory, hf_config
from ropewalk.spec import RopeSpec
from ropewalk.strategies import memory

#: the most characters of a config, and the longest length in tokens that may be asked for
MAX_TEXT = 1 << 18
MAX_LENGTH = 1 << 40
#: the keys under which the page passes the metadata of a GGUF file, and its small tensors
GGUF, TENSORS = "gguf", "tensors"


def answer(request: str) -> str:
    """Return the answer to a request, both JSON: {"ok": what a function of _ANSWERS returns}, or
    {"error": {field, rule, value}} if it is refused. The key "ask" of a request names the function,
    which gets all keys.
    """
    try:
        asked = _object(request)
        given = _ANSWERS[choice("ask", asked.get("ask"), _ANSWERS)](asked)
        return json.dumps({"ok": given}, allow_nan=False, default=str)
    except RopeError as error:
        parts = {"field": error.field, "rule": error.rule, "value": repr(error.value)[:200]}
        return json.dumps({"error": parts})


def _object(text: str) -> dict[str, Any]:
    """Return the dict that a JSON text holds; raise an error if it is no JSON object."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RopeError("config", f"must be JSON ({error})", text[:40]) from None
    if not isinstance(found, dict):
        raise RopeError("config", "must be a JSON object", type(found).__name__)
    return found


def _length(asked: Mapping[str, Any]) -> int | None:
    """Return the length in tokens that a request asks for; None: that of the config."""
    length = asked.get("length")
    return None if length is None else integer("length", length, low=1, high=MAX_LENGTH)


def _text(asked: Mapping[str, Any]) -> str:
    """Return the config in a request, as text."""
    text = asked.get("text")
    rule = f"must be a text of at most {MAX_TEXT:,} characters"
    if not isinstance(text, str):
        raise RopeError("config", rule, type(text))
    if len(text) > MAX_TEXT:
        raise RopeError("config", rule, f"{len(text):,} characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        rule = f"must be text, and has half a surrogate pair at character {error.start + 1:,}"
        raise RopeError("config", rule, text[error.start]) from None
    return text


def _gguf(text: str) -> InMemory | None:
    """Return the metadata and the small tensors of a GGUF file if the text is a JSON object that
    holds them under GGUF and TENSORS, else None; raise an error if it has no architecture name.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # the caller's own parse reports it
        return None
    if not isinstance(found, dict) or not isinstance(found.get(GGUF), dict):
        return None
    metadata, tensors = found[GGUF], found.get(TENSORS) or {}
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise RopeError("general.architecture", "must be a name", name)
    if not isinstance(tensors, dict):
        raise RopeError(TENSORS, "must be an object with the numbers of each tensor", tensors)
    return InMemory(name, metadata, tensors)


def _doctor(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the diagnosis of a config, and its ropes before and after the repair."""
    text, engine, length = _text(asked), asked.get("engine"), _length(asked)
    source, language = _gguf(text), asked.get("language", "en")
    if source is not None:
        found = doctor(source, engine, length, language=language)
        # a GGUF file is not rewritten: only the flags of an engine can correct it
        return _diagnosis(found) | {"before": _ropes(source, length), "after": None}
    # `doctor` gets a file, not a dict: only in a text can it find a key that is given twice, and
    # the patch is then one of that text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(text, encoding="utf-8")
        try:
            found = doctor(path, engine, length, language=language)
        except RopeError as error:
            # the visitor has no such file: the error shows the beginning of the text instead
            if error.value == str(path):
                raise RopeError(error.field, error.rule, text[:40]) from None
            raise
        before = _ropes(path, length)
    after = None if found.corrected is None else _ropes(found.corrected, length)
    return _diagnosis(found) | {"before": before, "after": after}


def _diagnosis(found: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis, and its configs as texts: JavaScript would write 4.0 as 4."""
    written = {"corrected": found.corrected, "draft": found.draft}
    texts = {name: as_text(each) for name, each in written.items() if each is not None}
    return {"diagnosis": found.as_dict(), "texts": texts}


def as_text(config: Mapping[str, Any]) -> str:
    """Return a config as the text of a config.json."""
    return json.dumps(config, indent=2, default=str)


def _ropes(config: Any, length: int | None) -> list[dict[str, Any]] | None:
    """Return the rope of each layer type that rotates, with its frequencies (`radians`; `plain`
    without the scaling) in radians per token; None if the config cannot be read.

    config  a dict, a path, or the metadata of a GGUF file
    length  the length to serve, in tokens; None: that of the config

    `trained`, `served` and `window` (of sliding attention, or None) are lengths in tokens;
    `new_angles` is the number of pairs that reach angles that did not occur in training.
    """
    try:
        layers = read_checkpoint(config, served=length).layers
        return [
            {
                "layer_type": name,
                "scaling": facts.spec.scaling.name,
                "theta": facts.spec.theta,
                "pairs": facts.spec.pairs,
                "trained": facts.trained,
                "served": facts.served,
                "window": facts.window,
                "radians": facts.radians,
                "plain": plain_radians(facts.spec),
                "magnitude": facts.spec.magnitude(facts.served),
                "new_angles": facts.new_angles,
            }
            for name, facts in layers.items()
            if facts is not None
        ]
    except RopeError:
        return None


def _audit(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return what each engine computes from a config, without the frequencies.

    A config that cannot be read is compared as `doctor` corrects it, if it can.
    """
    text, length = _text(asked), _length(asked)
    source = _gguf(text)
    config = _object(text) if source is None else hf_config(source)
    corrected = False
    try:
        found = audit(config, length=length)
    except RopeError:
        repaired = doctor(config, length=length).corrected
        if repaired is None:
            raise
        found, corrected = audit(repaired, length=length), True
    rows = []
    for finding in found.findings:
        row = asdict(finding)
        for name in ("radians", "axis_of_pair"):
            del row[name]
        row["title"] = ENGINES[finding.engine].title
        row["reference"] = finding.engine == "hf"  # transformers
        rows.append(row)
    return {"model_type": found.model_type, "findings": rows, "corrected": corrected}


def _spec(asked: Mapping[str, Any]) -> tuple[RopeSpec, int]:
    """Return the rope chosen in the page's view "The story", and the length at which it is read."""
    name, served = asked.get("scaling"), integer("served", asked.get("served"), low=1)
    given = {field: asked[field] for field in SCALING_FIELDS.get(str(name), ()) if field in asked}
    scaling = SCALINGS[choice("scaling", name, SCALINGS)](**given)
    # RopeSpec checks both
    head_dim, theta = asked.get("head_dim"), asked.get("theta")
    return RopeSpec(head_dim, theta=theta, scaling=scaling), served  # type: ignore[arg-type]


def _rope(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the exact frequencies and the magnitude of the rope that is chosen in the view "The
    story".
    """
    spec, served = _spec(asked)
    return {"radians": spec.frequencies(served).radians, "magnitude": spec.magnitude(served)}


def _cost(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the largest error of cos and sin at each power of 2 from 64 to 2^24 and the position
    before it, and the bytes that each table strategy of ropewalk keeps.
    """
    spec, served = _spec(asked)
    positions = [1 << bits for bits in range(6, 25)]
    # 2 positions: bfloat16 holds a power of 2 exactly, and, above 256, not the position before it
    curves = error_curves(spec, positions, COST_METHODS, length=served, width=2)
    return {"positions": positions, "errors": curves, "memory": memory(spec, served)}


#: the fields of a scaling that the view "The story" sets
SCALING_FIELDS = {
    "linear": ("factor",),
    "ntk": ("factor",),
    "dynamic": ("factor", "original_length"),
    "yarn": ("factor", "original_length"),
    "llama3": ("factor", "original_length"),
}
#: the precisions whose errors the view "The story" compares
COST_METHODS = ("exact", "hf", "bfloat16 positions")
_ANSWERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "doctor": _doctor,
    "audit": _audit,
    "rope": _rope,
    "cost": _cost,
}


def known_models() -> dict[str, str]:
    """Return {name: text of its config.json} of well-known models as published, with the keys that
    a rope depends on. Models without RoPE, or whose rope is not known in full, are left out.
    """
    # a row is incomplete if its scaling lacks keys ("left_out": LongRoPE's lists) that "lists" does
    # not have, if only the model's own code reads its config ("keys" of an unknown family), or if
    # its class needs a rope object and the row has no scaling to make one of
    whole = [
        row
        for row in models()
        if ("lists" in row or "left_out" not in row.get("scaling", {}))
        and ("scaling" in row or not family_of(row["model_types"][0]).rope_required)
        and ("keys" not in row or family_of(row["model_types"][0]).known)
    ]
    return {row["name"]: as_text(_published(row)) for row in whole if not row.get("unrotated")}


def _published(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a row of published models, with the first of its model types, lengths
    and thetas.
    """
    model_type = row["model_types"][0]
    family = family_of(model_type)
    # the key of theta is another in some families, and in some a layer type has one of its own
    full = family.layer_thetas.get("full_attention")
    theta = family.renamed.get("rope_theta", "rope_theta") if full is None else full.key
    scaling = {**row.get("scaling", {}), **row.get("lists", [{}])[0]} or None
    if scaling is not None:
        scaling.pop("left_out", None)
    config = {
        "model_type": model_type,
        "hidden_size": row["hidden_size"],
        "num_attention_heads": row["heads"],
        "num_key_value_heads": row.get("kv_heads"),
        "num_hidden_layers": row["layers"],
        "vocab_size": row["vocab_size"],
        "max_position_embeddings": row["lengths"][0],
        theta or "rope_theta": row["theta"][0],
        "rope_scaling": scaling,
        "intermediate_size": row.get("intermediate_size"),
        "use_parallel_residual": row.get("use_parallel_residual"),
    }
    if model_type == "granitemoehybrid":  # without the key its code does not rotate
        config["position_embedding_type"] = "rope"
    for layer in [*family.layer_thetas.values()][1:]:
        if layer.key is not None:
            config[layer.key] = row.get("local_theta")
    if row.get("only_named"):
        config["_name_or_path"] = row["name"]
    if not family.known:  # code that comes with the weights reads the config
        config["auto_map"] = {"AutoConfig": "configuration.Config"}
        if scaling is not None:  # and knows only the older name of its type
            config["rope_scaling"] = {"type": scaling.pop("rope_type"), **scaling}
    # a family with several axes needs to be told how many pairs each has
    if family.sections and "scaling" not in row:
        config["rope_scaling"] = {"rope_type": "default", "mrope_section": list(family.sections)}
        if family.axis_order == "interleaved":
            config["rope_scaling"]["mrope_interleaved"] = True
    if family.latent:
        config["qk_rope_head_dim"] = row.get("head_dim", 64)
    else:
        config["head_dim"] = row.get("head_dim")
    # GPT-J's config has `rotary_dim` for this, whose default is right
    if "rotated" in row and model_type != "gptj":
        name = "rotary_pct" if model_type == "gpt_neox" else "partial_rotary_factor"
        head = row.get("head_dim") or row["hidden_size"] // row["heads"]
        config[name] = row["rotated"] / head
    config |= row.get("keys", {})
    return {key: value for key, value in config.items() if value is not None}
