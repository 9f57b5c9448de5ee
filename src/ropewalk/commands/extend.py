"""`ropewalk extend`: write a config.json for a longer context, without changing the weights."""

from __future__ import annotations

import json as json_format
import os
import tempfile
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ropewalk.commands import console
from ropewalk.errors import RopeError
from ropewalk.interop.config import file as config_file
from ropewalk.interop.extend import extend as extend_config


def extend(
    config: Annotated[Path, typer.Argument(help="A config.json, or the folder that contains one.")],
    kind: Annotated[str, typer.Argument(help="linear, ntk, dynamic, yarn, longrope or llama3.")],
    factor: Annotated[float, typer.Option(help="How many times longer the context becomes.")],
    option: Annotated[
        list[str] | None, typer.Option("--set", help="Option of the scaling as name=JSON, such as beta_fast=16; may be repeated.")
    ] = None,
    original_length: Annotated[
        int | None, typer.Option(help="Context length in training, in tokens; by default from the config.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing scaling of the config.")] = False,
    out: Annotated[Path | None, typer.Option(help="The config.json to write; it must not exist.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object: the changes and the whole new config.")] = False,
) -> None:
    """Write a config for a longer context; print the changes and which engines interpret the config differently."""
    new_config = config_file.read(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report below contains them
        report = extend_config(
            new_config, kind, factor=factor, original_length=original_length, overwrite=overwrite, **_options(option or [])
        )
    assert report is not None  # None is only returned without a kind
    if not report.saved:
        raise RopeError("kind", "must be a scaling that config.json can store", kind)
    if out is not None:
        _write(out, new_config)
    if json:
        changes = {name: {"before": before, "after": after} for name, (before, after) in report.changes.items()}
        notes = {"disagreements": list(report.disagreements), "notes": list(report.notes)}
        print(json_format.dumps({"kind": kind, "factor": factor, "changes": changes, **notes, "config": new_config}, indent=2))
    else:
        console().print(f"{report}\n{'nothing written; give --out' if out is None else f'written to {out}'}")


def _options(texts: list[str]) -> dict[str, Any]:
    """Return the values of --set by name."""
    options = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            options[name] = json_format.loads(value)
        except ValueError:
            equals = ""
        if not equals or not name.isidentifier():
            raise RopeError("--set", "must be name=JSON, such as beta_fast=16", text)
    return options


def _write(path: Path, config: dict[str, Any]) -> None:
    """Write the file atomically; an existing file is an error."""
    text = json_format.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.link(file.name, path)
        except FileExistsError:
            raise RopeError("--out", "must be a file that does not exist yet", str(path)) from None
        finally:
            os.unlink(file.name)
