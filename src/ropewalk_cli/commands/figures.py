"""`ropewalk figures`: write every figure, a moving one, and a contact sheet."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from ropewalk.errors import RopeError, choice
from ropewalk_cli.commands import MODEL, Json, model_path
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say

if TYPE_CHECKING:
    from ropewalk_lab.plots import Look, View

NO_FONT = (
    "labels are in English, because no font with Chinese glyphs was found; install one, such as "
    "Noto Sans CJK"
)


def figures(
    folder: Annotated[Path, Argument("The folder to write to.")],
    format: Annotated[
        Literal["png", "svg", "pdf"],
        Option("Format of the figures; the contact sheet is always PNG."),
    ] = "png",
    dark: Annotated[bool, Option("Use a dark background.")] = False,
    language: Annotated[
        Literal["en", "zh"], Option("Language of the labels; zh needs a font with Chinese glyphs.")
    ] = "en",
    only: Annotated[list[str] | None, Option("Write only this figure.")] = None,
    config: Annotated[Path | None, Option(f"Draw the rope of this config. {MODEL}.")] = None,
    json: Json = False,
) -> None:
    """Write every figure about rotary encodings, and a contact sheet: one picture that shows all of
    them.
    """
    from ropewalk_lab.plots import FIGURES, MOTION, Look, View, write_all

    every = [*FIGURES, MOTION]
    names = [choice("only", name, every) for name in only or every]
    look = Look(dark, language)
    view = View(look=look) if config is None else _view_of(config, look)
    paths = write_all(folder, view, names, format)
    note = NO_FONT if language == "zh" and not look.font else None
    if json:
        by_name = {path.stem: str(path) for path in paths}
        print(
            json_format.dumps(
                {"sheet": by_name.pop("contact-sheet", None), "figures": by_name, "note": note}
            )
        )
        return
    say(*paths, *filter(None, [note]))


def _view_of(config: Path, look: Look) -> View:
    """Return what the figures show of a config: the spec, trained and served length of its first
    layer type with a rope. Raise an error if there is none.
    """
    from ropewalk_lab.analysis import read_checkpoint
    from ropewalk_lab.plots import View

    layers = read_checkpoint(model_path(config)).layers
    facts = next((facts for facts in layers.values() if facts is not None), None)
    if facts is None:
        raise RopeError("config", "must have a rope in at least one layer type", str(config))
    return View(facts.spec, facts.trained, facts.served, look)
