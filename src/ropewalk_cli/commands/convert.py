"""`ropewalk convert`: convert a checkpoint folder from one pair layout to the other, or detect its
layout.
"""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from ropewalk.errors import RopeError, choice
from ropewalk_cli.commands import Json, model_path
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say

if TYPE_CHECKING:
    from ropewalk.interop.checkpoint import Conversion

LAYOUT = Literal["half", "interleaved"]


def convert(
    source: Annotated[
        Path,
        Argument(
            "The checkpoint folder with safetensors and config.json, or the name of a model in "
            "the Hugging Face cache."
        ),
    ],
    target: Annotated[
        Path | None, Argument("The folder to write, which must be new or empty.")
    ] = None,
    from_layout: Annotated[
        LAYOUT | None, Option("Current layout of the checkpoint.", "--from")
    ] = None,
    to_layout: Annotated[LAYOUT | None, Option("Layout to convert to.", "--to")] = None,
    config: Annotated[
        Path | None,
        Option("A config.json to read in place of the folder's; of an adapter, its base model's."),
    ] = None,
    which: Annotated[
        bool, Option("Only detect and print the layout of the folder, with the evidence.")
    ] = False,
    dry_run: Annotated[bool, Option("Print what would change; write nothing.")] = False,
    json: Json = False,
) -> None:
    """Convert a checkpoint between the half and the interleaved pair layout: reorder the rows of its
    q and k projections.
    """
    from ropewalk.interop.checkpoint import convert_checkpoint, which_layout

    source = model_path(source)
    if which:
        evidence = which_layout(source, config=config)
        say(json_format.dumps(evidence.as_dict(), indent=2) if json else evidence)
        return
    if target is None and not dry_run:
        raise RopeError("target", "must be given unless --dry-run or --which is used", None)
    layouts = [
        choice(option, layout, get_args(LAYOUT))
        for option, layout in {"--from": from_layout, "--to": to_layout}.items()
    ]
    if from_layout == to_layout:
        raise RopeError("--to", "must differ from --from", to_layout)
    # without a target nothing is written
    conversion = convert_checkpoint(source, None, *layouts, config=config)
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
    """Convert the checkpoint, with progress on stderr, because stdout has only the result."""
    from ropewalk.interop.checkpoint import convert_checkpoint
    from ropewalk_lab.progress import Progress

    layouts = conversion.source_layout, conversion.target_layout
    progress, done = Progress("convert", conversion.bytes, 0, enabled=True), 0

    def count(new_bytes: int) -> None:
        """Show that more bytes were written."""
        nonlocal done
        done += new_bytes
        progress.show(done, f"{done / 1e6:,.0f} MB")

    try:
        convert_checkpoint(source, target, *layouts, config=config, progress=count)
    finally:
        progress.close()


def _show(conversion: Conversion, target: Path | None) -> None:
    """Print how many tensors change, which files are not copied, the warnings, and where the result
    is.
    """
    roles = [*conversion.converted.values()]
    counts = ", ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    layouts = f"{conversion.source_layout} -> {conversion.target_layout}"
    say(f"{layouts}: {counts} tensors change, {len(conversion.copied)} stay")
    if conversion.left_out:
        say(f"not copied: {', '.join(conversion.left_out)}")
    for text in conversion.warnings:
        say(f"warning: {text}")
    say("nothing written (--dry-run)" if target is None else f"written to {target}")
