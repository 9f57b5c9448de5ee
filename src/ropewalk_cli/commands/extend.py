"""`ropewalk extend`: write a config.json for a longer context, or the metadata keys of a GGUF file,
without changing the weights.
"""

from __future__ import annotations

import json as json_format
import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk_cli.commands import Config, Json, model_path, output_path
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say

#: settings that have an option of their own
OWN_OPTIONS = {
    "factor": "--factor",
    "original_length": "--original-length",
    "overwrite": "--overwrite",
    "layer_types": "--layer-type",
}


def extend(
    config: Config,
    kind: Annotated[
        Literal["linear", "ntk", "dynamic", "yarn", "longrope", "llama3"],
        Argument("The scaling."),
    ],
    factor: Annotated[float, Option("How many times longer the context becomes.")],
    option: Annotated[
        list[str] | None,
        Option("Option of the scaling as name=JSON, such as beta_fast=16.", "--set"),
    ] = None,
    original_length: Annotated[
        int | None, Option("Context length in training, in tokens; by default from the config.")
    ] = None,
    layer_type: Annotated[
        list[str] | None,
        Option(
            "Layer type to extend, if each has a rope of its own; by default those that the family "
            "scales, mostly full_attention."
        ),
    ] = None,
    overwrite: Annotated[bool, Option("Replace the existing scaling of the config.")] = False,
    out: Annotated[
        Path | None,
        Option("The config.json to write, which must not exist; without it nothing is written."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a config for a longer context; print the changes and which engines interpret the config
    differently.

    Of a GGUF file it prints the metadata keys to change and llama.cpp's flags, and writes them to
    --out as JSON.
    """
    from ropewalk.interop.extend import extend as extend_config

    if out is not None:
        output_path(out)
    settings = _settings(kind, option or [])
    path = model_path(config)
    if rw.gguf.is_gguf(path):
        settings |= {"original_length": original_length, "layer_types": layer_type or None}
        return _extend_gguf(path, kind, out, json, factor=factor, overwrite=overwrite, **settings)
    new_config = rw.config.file.read(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report below contains them
        report = extend_config(
            new_config,
            kind,
            factor=factor,
            original_length=original_length,
            layer_types=layer_type or None,
            overwrite=overwrite,
            **settings,
        )
    assert report is not None  # None is only returned without a kind
    if out is not None:
        _write(out, new_config)
    if json:
        changes = {
            name: {"before": before, "after": after}
            for name, (before, after) in report.changes.items()
        }
        lines = [*report.disagreements, *_engines(new_config, report)]
        notes = {"disagreements": lines, "notes": list(report.notes)}
        print(
            json_format.dumps(
                {"kind": kind, "factor": factor, "changes": changes, **notes, "config": new_config},
                indent=2,
            )
        )
    else:
        lines = [f"  note: {text}" for text in _engines(new_config, report)]
        say(report, *lines, "nothing written; give --out" if out is None else f"written to {out}")


def _engines(config: dict[str, Any], report: Any) -> tuple[str, ...]:
    """Return a line for each engine that computes another rope than the extended config says, and
    lines on whether vLLM and SGLang start for the longer context.
    """
    from ropewalk.config import file as config_file
    from ropewalk.engines.extended import disagreements, length_notes

    text = config_file.text_part(config)
    served = text.get("max_position_embeddings")
    if served is not None and "max_position_embeddings" not in report.changes:
        # the extended config keeps the trained length in max_position_embeddings, because vLLM and
        # SGLang multiply it by the factor themselves
        served = round(served * (report.factor or 1.0))
    notes = () if served is None else length_notes(text, served)
    lines = disagreements(text, layer_types=report.specs, max_model_len=served)
    return (*lines, *notes)


def _extend_gguf(path: Path, kind: str, out: Path | None, json: bool, **options: Any) -> None:
    """Print the metadata keys of a GGUF file with a longer context, and the flags of llama.cpp;
    `out` is a JSON file.
    """
    from ropewalk.interop.gguf.extend import extend_gguf

    if out is not None and rw.gguf.is_gguf(out):
        rule = "must be a .json file: ropewalk changes no GGUF file, it gives the keys to change"
        raise RopeError("--out", rule, str(out))
    extension = extend_gguf(path, kind, **options)
    if out is not None:
        _write(out, extension.as_dict())
    if json:
        print(json_format.dumps({"kind": kind, **extension.as_dict()}, indent=2))
    else:
        say(extension, "the file is not changed" if out is None else f"written to {out}")


def _settings(kind: str, texts: list[str]) -> dict[str, Any]:
    """Return the values of --set by name; a name must be a field of the scaling that has no option
    of its own.
    """
    from ropewalk.interop.extend.keys import kinds

    known = sorted({field.name for field in fields(kinds()[kind])} - OWN_OPTIONS.keys())
    settings = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in known:
            instead = f"; use {OWN_OPTIONS[name]}" if name in OWN_OPTIONS else ""
            rule = (
                f"must be name=JSON with a name that {kind} has "
                f"({', '.join(known) or 'it has none'}){instead}"
            )
            raise RopeError("--set", rule, text)
        settings[name] = _value(text, value)
    if kind == "longrope" and "long_factor" not in settings:
        raise RopeError(
            "--set",
            "must give longrope its factors, one per pair: --set long_factor=[1.0,...]",
            texts,
        )
    return settings


def _value(text: str, value: str) -> Any:
    """Return `value`, parsed as JSON; `text` is the whole option name=value, for the error message."""
    try:
        # as a JSON object it is read by the strict parser of config.json
        (parsed,) = rw.config.file.parse(f'{{"value": {value}}}'.encode()).values()
    except ValueError:  # not JSON, more than one value, or not UTF-8
        raise RopeError(
            "--set", "must be name=JSON with finite numbers, such as beta_fast=16", text
        ) from None
    return parsed


def _write(path: Path, config: dict[str, Any]) -> None:
    """Write the file atomically; an existing file is an error."""
    text = json_format.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike os.replace, this raises FileExistsError if the file exists
    except FileExistsError:
        raise RopeError("--out", "must be a file that does not exist yet", str(path)) from None
    finally:
        draft.unlink(missing_ok=True)
