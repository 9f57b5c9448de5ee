"""`ropewalk explore`: serve the interactive page, reachable from this machine only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.commands import console
from ropewalk.explorer.launch import HOME, launch


def explore(
    port: Annotated[int, typer.Option(help="The port of the page on this machine.")] = 8501,
    report: Annotated[Path | None, typer.Option(help="A report of `ropewalk lab` to show on the page: .html or .md.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Open an interactive page on which rope settings can be changed; in English and Chinese, works offline.

    The page is served on 127.0.0.1 only. An uploaded config.json may have at most 1 MB. Ctrl-C stops the server.
    """
    console().print(f"http://{HOME}:{port}  (Ctrl-C stops it)", soft_wrap=True)
    launch(port, browser, report)
