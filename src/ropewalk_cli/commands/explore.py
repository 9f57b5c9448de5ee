"""`ropewalk explore`: serve the interactive page, reachable from this machine only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ropewalk_cli.declare import Option
from ropewalk_cli.output import say


def explore(
    port: Annotated[int, Option("The port of the page on this machine.")] = 8501,
    report: Annotated[
        Path | None, Option("A report of `ropewalk lab` to show on the page: .html or .md.")
    ] = None,
    browser: Annotated[bool, Option("Open the page in a browser.")] = True,
    model: Annotated[
        str | None,
        Option(
            "A model to read with: a .gguf file, a Hugging Face folder, or smollm2 once fetched."
        ),
    ] = None,
) -> None:
    """Open an interactive page on which rope settings can be changed; in English and Chinese, works
    offline.

    The page is served on 127.0.0.1 only. An uploaded config.json may have at most 1 MB. Ctrl-C
    stops the server.
    """
    from ropewalk_lab.explorer import launch

    launch.check(port, report, model)  # nothing is printed if the page cannot be served
    say(f"http://{launch.HOME}:{port}  (Ctrl-C stops it)")
    launch.launch(port, browser, report, model)
