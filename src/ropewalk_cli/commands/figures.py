"""`ropewalk figures`: write every figure, a moving one, and a contact sheet."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from ropewalk.errors import RopeError, choice
from ropewalk_cli.commands import console
from ropewalk_cli.commands.model_argument import model_path
from ropewalk_lab.plots import FIGURES, FORMATS, MOTION, Look, View, write_all

NO_FONT = (
    "labels are in English, because no font with Chinese glyphs was found; install one, such as "
    "Noto Sans CJK"
)


def figures(
    folder: Path,
    format: str,
    dark: bool,
    language: str,
    only: list[str] | None,
    config: Path | None,
    json: bool,
) -> None:
    """Write every figure about rotary encodings (or `only` those) and a contact sheet into a
    folder, and print their paths.
    """
    choice("format", format, FORMATS)
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
    out = console()
    out.print(*map(str, paths), sep="\n", soft_wrap=True)
    if note:
        out.print(note)


def _view_of(config: Path, look: Look) -> View:
    """Return what the figures show of a config: the spec, trained and served length of its first
    layer type with a rope.
    """
    from ropewalk_lab.analysis import read_checkpoint

    facts = next(
        (
            facts
            for facts in read_checkpoint(model_path(config)).layers.values()
            if facts is not None
        ),
        None,
    )
    if facts is None:
        raise RopeError("config", "must have a rope in at least one layer type", str(config))
    return View(facts.spec, facts.trained, facts.served, look)
