"""`ropewalk lab fetch`: download pretrained models and long texts, and check them."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from ropewalk.errors import RopeError, choice
from ropewalk_cli.commands import console
from ropewalk_lab.downloads import DOWNLOADS
from ropewalk_lab.downloads import fetch as fetch_one


def fetch(
    names: list[str], folder: Path | None, archive: Path | None, dry_run: bool, json: bool
) -> None:
    """Download each of `names` in turn; with --dry-run only describe them. `archive` is a file that
    was downloaded already.
    """
    for name in names:
        choice("NAME", name, DOWNLOADS)
    if archive is not None and len(names) > 1:
        raise RopeError("--archive", "must be given with one NAME only", names)

    def print_line(text: str) -> None:
        """Print a line of text, or nothing with --json."""
        if not json:
            console().print(text, soft_wrap=True)

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
