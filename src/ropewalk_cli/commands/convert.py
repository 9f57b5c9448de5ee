"""`ropewalk convert`: convert a checkpoint folder from one pair layout to the other, or detect its
layout.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ropewalk.errors import RopeError, choice
from ropewalk.interop.checkpoint import Conversion, convert_checkpoint, which_layout
from ropewalk.spec import LAYOUTS
from ropewalk_cli.commands import console
from ropewalk_cli.commands.model_argument import model_path


def convert(
    source: Path,
    target: Path | None,
    from_layout: str | None,
    to_layout: str | None,
    config: Path | None,
    which: bool,
    dry_run: bool,
    json: bool,
) -> None:
    """Convert the q and k rows of a checkpoint between the half and the interleaved pair layout.

    With `which` only print the layout that the checkpoint has; with `dry_run` only print what a
    conversion would change.
    """
    source = model_path(source)
    if which:
        evidence = which_layout(source, config=config)
        print(json_format.dumps(evidence.as_dict(), indent=2) if json else evidence)
        return
    if target is None and not dry_run:
        raise RopeError("target", "must be given unless --dry-run or --which is used", None)
    layouts = choice("--from", from_layout, LAYOUTS), choice("--to", to_layout, LAYOUTS)
    if from_layout == to_layout:
        raise RopeError("--to", "must differ from --from", to_layout)
    conversion = convert_checkpoint(
        source, None, *layouts, config=config
    )  # without a target nothing is written
    if target is not None and not dry_run:
        _run(source, target, conversion, config)
    if json:
        print(
            json_format.dumps(
                {**conversion.as_dict(), "written": None if dry_run else str(target)}, indent=2
            )
        )
    else:
        _show(conversion, None if dry_run else target)


def _run(source: Path, target: Path, conversion: Conversion, config: Path | None) -> None:
    """Convert the checkpoint and show a progress bar on stderr."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    out = Console(stderr=True)  # stdout has only the result, which may be piped
    layouts = conversion.source_layout, conversion.target_layout
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=conversion.bytes)
        convert_checkpoint(
            source,
            target,
            *layouts,
            config=config,
            progress=lambda new_bytes: bar.advance(task, new_bytes),
        )


def _show(conversion: Conversion, target: Path | None) -> None:
    """Print how many tensors change, which files are not copied, the warnings, and where the result
    is.
    """
    out = console()
    roles = [*conversion.converted.values()]
    counts = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    layouts = f"{conversion.source_layout} -> {conversion.target_layout}"
    out.print(f"{layouts}: {counts} tensors change, {len(conversion.copied)} stay", soft_wrap=True)
    if conversion.left_out:
        out.print(f"not copied: {', '.join(conversion.left_out)}", soft_wrap=True)
    for text in conversion.warnings:
        out.print(f"warning: {text}", soft_wrap=True)
    out.print(
        "nothing written (--dry-run)" if target is None else f"written to {target}", soft_wrap=True
    )
