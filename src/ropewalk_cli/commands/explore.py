"""`ropewalk explore`: serve the interactive page, reachable from this machine only."""

from __future__ import annotations

from pathlib import Path

from ropewalk_cli.commands import console
from ropewalk_lab.explorer import launch


def explore(port: int, report: Path | None, browser: bool, model: str | None) -> None:
    """Print the address of the page and serve it until interrupted; nothing is printed if it cannot
    be served.
    """
    launch.check(port, report, model)
    console().print(f"http://{launch.HOME}:{port}  (Ctrl-C stops it)", soft_wrap=True)
    launch.launch(port, browser, report, model)
