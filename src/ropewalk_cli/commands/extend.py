"""`ropewalk extend`: write a config.json for a longer context, without changing the weights."""

from __future__ import annotations

import json as json_format
import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.errors import RopeError, choice
from ropewalk.frequencies import Ntk
from ropewalk.interop.extend import extend as extend_config
from ropewalk.interop.extend.keys import kinds
from ropewalk_cli.commands import console, output_path
from ropewalk_cli.commands.model_argument import model_path

#: settings that have an option of their own
OWN_OPTIONS = {
    "factor": "--factor",
    "original_length": "--original-length",
    "overwrite": "--overwrite",
    "layer_types": "--layer-type",
}


def extend(
    config: Path,
    kind: str,
    factor: float,
    option: list[str] | None,
    original_length: int | None,
    layer_type: list[str] | None,
    overwrite: bool,
    out: Path | None,
    json: bool,
) -> None:
    """Write a config for a longer context; print the changes and which engines interpret the config
    differently.

    `kind` is the scaling, such as "yarn"; `option` are texts name=JSON, the fields of the scaling
    that --set gives.
    """
    if out is not None:
        output_path(out)
    settings = _settings(kind, option or [])
    new_config = config_file.read(model_path(config))
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
        notes = {"disagreements": list(report.disagreements), "notes": list(report.notes)}
        print(
            json_format.dumps(
                {"kind": kind, "factor": factor, "changes": changes, **notes, "config": new_config},
                indent=2,
            )
        )
    else:
        console().print(
            f"{report}\n{'nothing written; give --out' if out is None else f'written to {out}'}",
            soft_wrap=True,
        )


def _settings(kind: str, texts: list[str]) -> dict[str, Any]:
    """Return the values of --set by name; a name must be a field of the scaling that has no option
    of its own.
    """
    # configs have no name for NTK: it is written as a larger theta
    choice(
        "kind",
        kind,
        [name for name, scaling in kinds().items() if scaling.in_configs or scaling is Ntk],
    )
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
        (parsed,) = config_file.parse(f'{{"value": {value}}}'.encode()).values()
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
