"""The commands of `ropewalk`, one module each. They call the library and print the results.

`ropewalk_cli` lists the commands, declares their options, and imports a module only when its
command runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


def console() -> Console:
    """Return a rich console: coloured on a terminal; without colours and 120 columns wide if the
    output is piped.
    """
    from rich.console import Console

    # no markup: "[lab]" in a message is text, not a style
    return Console(width=None if sys.stdout.isatty() else 120, markup=False, highlight=False)


def device_of(name: str) -> str:
    """Return the device named by a command-line option; "auto" is cuda if there is a GPU."""
    import torch

    from ropewalk.errors import RopeError, choice

    has_gpu = torch.cuda.is_available()
    if choice("device", name, ("auto", "cpu", "cuda")) == "cuda" and not has_gpu:
        raise RopeError("device", "must be auto or cpu: CUDA is not available here", name)
    return name if name != "auto" else "cuda" if has_gpu else "cpu"


def config_or_example(config: Path | None, name: str | None) -> Any:
    """Return `config`, a path or the name of a fetched model, or the config of the well-known model
    `name`: exactly one of the two must be given.
    """
    from ropewalk.config.examples import example
    from ropewalk.errors import RopeError
    from ropewalk_cli.commands.model_argument import model_path

    if config is None and name is None:
        rule = (
            "must be the path of a config.json or its folder; or give --example with a well-known "
            "model, such as llama-3.1-8b"
        )
        raise RopeError("CONFIG", rule, None)
    if config is not None and name is not None:
        raise RopeError(
            "CONFIG",
            "must not be given together with --example; give one of them",
            [str(config), name],
        )
    if name is not None:
        return example(name)
    assert config is not None  # one of the two is given
    return model_path(config)


def picture_path(path: Path) -> Path:
    """Return the path of a picture to write, given as --plot; refuse a format that cannot be
    written, and a folder.
    """
    from ropewalk.errors import RopeError
    from ropewalk_lab.plots.look import FORMATS

    if path.suffix.lower().lstrip(".") not in FORMATS:
        raise RopeError(
            "--plot", f"must end with {', '.join(f'.{suffix}' for suffix in FORMATS)}", str(path)
        )
    return output_path(path, "--plot")


def output_path(path: Path, option: str = "--out") -> Path:
    """Return the path of a file to write; refuse a folder, and a path below a file."""
    from ropewalk.errors import RopeError

    nearest_existing = next((parent for parent in path.absolute().parents if parent.exists()), None)
    if path.is_dir() or (nearest_existing is not None and not nearest_existing.is_dir()):
        raise RopeError(option, "must be the path of a file in a folder", str(path))
    return path


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], note: str = ""
) -> RenderableType:
    """Return a rich table with `note` below it; columns whose cells are all empty are left out."""
    from rich.console import Group
    from rich.table import Table

    rows = list(rows)
    shown = [column for column in range(len(columns)) if any(row[column] for row in rows)]
    headers = [columns[column] for column in shown]
    rich_table = Table(
        *headers, title=title or None, title_justify="left", show_header=any(headers)
    )
    for row in rows:
        rich_table.add_row(*(row[column] or "-" for column in shown))
    # not rich's caption, which would be wrapped to the width of the table
    return Group(rich_table, note) if note else rich_table
