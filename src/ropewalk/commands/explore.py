"""`ropewalk explore`: the interactive page, served to this machine's own browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropewalk.commands import console
from ropewalk.explorer.launch import HOME, launch


def explore(
    port: Annotated[int, typer.Option(help="The port of the page on this machine.")] = 8501,
    report: Annotated[Path | None, typer.Option(help="A report of the lab to show beside it: .html or .md.")] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Turn the knobs of a rope in your browser and see what they do; in English and Chinese, offline.

    The page is served to this machine alone (127.0.0.1). A dropped config.json is read as data, at most 1 MB. Ctrl-C ends it.
    """
    console().print(f"http://{HOME}:{port}  (Ctrl-C ends it)", soft_wrap=True)
    launch(port, browser, report)
