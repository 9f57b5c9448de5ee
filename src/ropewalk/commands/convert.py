"""`ropewalk convert`: a checkpoint folder from one pair layout to the other, or which layout it is in."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from ropewalk.commands import console
from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.convert import Conversion, convert_checkpoint
from ropewalk.interop.checkpoint.which_layout import which_layout


def convert(
    source: Annotated[Path, typer.Argument(help="The checkpoint folder: safetensors and config.json.")],
    target: Annotated[Path | None, typer.Argument(help="The folder to write; it must not exist.")] = None,
    from_layout: Annotated[str, typer.Option("--from", help="The layout it is in: half or interleaved.")] = "",
    to_layout: Annotated[str, typer.Option("--to", help="The layout it should be in.")] = "",
    config: Annotated[Path | None, typer.Option(help="The config.json that gives the sizes, for a folder without one.")] = None,
    which: Annotated[bool, typer.Option("--which", help="Only tell which layout the folder is in, with evidence.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; write nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Convert the q and k rows of a checkpoint between the half-split and the interleaved pair layout."""
    if which:
        found = which_layout(source, config=config)
        print(json_format.dumps(found.as_dict(), indent=2) if json else found)
        return
    if target is None and not dry_run:
        raise RopeError("target", "must be given, or --dry-run, or --which", None)
    plan = convert_checkpoint(source, None, from_layout, to_layout, config=config)
    if not dry_run:
        _run(source, target, plan, config)
    if json:
        print(json_format.dumps({**plan.as_dict(), "written": None if dry_run else str(target)}, indent=2))
    else:
        _show(plan, None if dry_run else target)


def _run(source: Path, target: Any, plan: Conversion, config: Path | None) -> None:
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    out = Console(stderr=True)  # stdout is for the result, and may be piped
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=plan.bytes)
        convert_checkpoint(
            source, target, plan.source_layout, plan.target_layout, config=config, progress=lambda done: bar.advance(task, done)
        )


def _show(plan: Conversion, target: Path | None) -> None:
    out = console()
    roles = [*plan.converted.values()]
    counts = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    out.print(f"{plan.source_layout} -> {plan.target_layout}: {counts} tensors change, {len(plan.copied)} stay")
    if plan.left_out:
        out.print(f"not copied: {', '.join(plan.left_out)}")
    for text in plan.warnings:
        out.print(f"warning: {text}")
    out.print("nothing written (--dry-run)" if target is None else f"written to {target}")
