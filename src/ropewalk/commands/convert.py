"""`ropewalk convert`: convert a checkpoint folder from one pair layout to the other, or detect its layout."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from ropewalk.commands import console
from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint import Conversion, convert_checkpoint, which_layout


def convert(
    source: Annotated[Path, typer.Argument(help="The checkpoint folder: safetensors and config.json.")],
    target: Annotated[Path | None, typer.Argument(help="The folder to write; it must not exist.")] = None,
    from_layout: Annotated[str, typer.Option("--from", help="Current layout of the checkpoint: half or interleaved.")] = "",
    to_layout: Annotated[str, typer.Option("--to", help="Layout to convert to: half or interleaved.")] = "",
    config: Annotated[Path | None, typer.Option(help="Path of config.json, if the folder has none.")] = None,
    which: Annotated[
        bool, typer.Option("--which", help="Only detect and print the layout of the folder, with the evidence.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change; write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Convert the q and k rows of a checkpoint between the half and the interleaved pair layout."""
    if which:
        evidence = which_layout(source, config=config)
        print(json_format.dumps(evidence.as_dict(), indent=2) if json else evidence)
        return
    if target is None and not dry_run:
        raise RopeError("target", "must be given unless --dry-run or --which is used", None)
    conversion = convert_checkpoint(source, None, from_layout, to_layout, config=config)
    if target is not None and not dry_run:
        _run(source, target, conversion, config)
    if json:
        print(json_format.dumps({**conversion.as_dict(), "written": None if dry_run else str(target)}, indent=2))
    else:
        _show(conversion, None if dry_run else target)


def _run(source: Path, target: Path, conversion: Conversion, config: Path | None) -> None:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    out = Console(stderr=True)  # stdout has only the result, which may be piped
    layouts = conversion.source_layout, conversion.target_layout
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=conversion.bytes)
        convert_checkpoint(source, target, *layouts, config=config, progress=lambda done: bar.advance(task, done))


def _show(conversion: Conversion, target: Path | None) -> None:
    out = console()
    roles = [*conversion.converted.values()]
    counts = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    layouts = f"{conversion.source_layout} -> {conversion.target_layout}"
    out.print(f"{layouts}: {counts} tensors change, {len(conversion.copied)} stay")
    if conversion.left_out:
        out.print(f"not copied: {', '.join(conversion.left_out)}")
    for text in conversion.warnings:
        out.print(f"warning: {text}")
    out.print("nothing written (--dry-run)" if target is None else f"written to {target}")
