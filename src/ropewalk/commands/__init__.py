"""The commands of `ropewalk`, one module each. They call the library and print the results.

`ropewalk_cli` lists the commands, declares their options, and imports a module only when its command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console() -> Console:
    """Return a rich console: coloured on a terminal; without colours and 120 columns wide if the output is piped."""
    from rich.console import Console

    # no markup: "[lab]" in a message is text, not a style
    return Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)


def device_of(name: str) -> str:
    """Return the device named by a command-line option; "auto" is cuda if there is a GPU."""
    import torch

    from ropewalk.errors import choice

    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return devices[-1] if name == "auto" else choice("device", name, devices)


def config_or_example(config: Path | None, name: str | None) -> Any:
    """Return the path of a config, or the config of a well-known model: exactly one of the two must be given."""
    from ropewalk.errors import RopeError
    from ropewalk.examples import example

    if (config is None) == (name is None):
        raise RopeError("CONFIG", "must be given, or else --example with the name of a well-known model", str(config))
    return config if name is None else example(name)


def picture_path(path: Path, option: str = "--plot") -> Path:
    """Return the path of a picture to write; refuse a format that cannot be written, and a folder."""
    from ropewalk.errors import RopeError
    from ropewalk.plots.look import FORMATS

    if path.suffix.lower().lstrip(".") not in FORMATS:
        raise RopeError(option, f"must end with {', '.join(f'.{each}' for each in FORMATS)}", str(path))
    return output_path(path, option)


def output_path(path: Path, option: str = "--out") -> Path:
    """Return the path of a file to write; refuse a folder, and a path below a file."""
    from ropewalk.errors import RopeError

    existing = next((each for each in path.absolute().parents if each.exists()), None)
    if path.is_dir() or (existing is not None and not existing.is_dir()):
        raise RopeError(option, "must be the path of a file in a folder", str(path))
    return path


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = "") -> RenderableType:
    """Return a rich table with a legend below it; columns without any value are left out."""
    from rich.console import Group
    from rich.table import Table

    rows = list(rows)
    kept = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    headers = [columns[place] for place in kept]
    made = Table(*headers, title=title or None, title_justify="left", show_header=any(headers))
    for row in rows:
        made.add_row(*(row[place] or "-" for place in kept))
    # not a caption, which would be as narrow as the table
    return Group(made, note) if note else made
