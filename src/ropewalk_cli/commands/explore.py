"""`ropewalk explore`: serve the page, reachable from this machine only."""

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
            "A model that reads texts on the page: a .gguf file, a Hugging Face folder, or smollm2 "
            "once fetched."
        ),
    ] = None,
    share: Annotated[
        str | None,
        Option(
            "The address of the static page, for the links that the page copies; by default they "
            "open the local page."
        ),
    ] = None,
) -> None:
    """Open the page: doctor, the story of a rope, what engines compute, methods, and your own model
    that reads a text; in English and Chinese, works offline.

    The page is served on 127.0.0.1 only. Ctrl-C stops the server.
    """
    from ropewalk_lab.page import server

    server.check(port, report, model, share)  # nothing is printed if the page cannot be served
    say(f"http://{server.HOME}:{port}  (Ctrl-C stops it)")
    server.serve(port, browser, report, model, share)
