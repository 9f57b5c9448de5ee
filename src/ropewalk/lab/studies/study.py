"""A study: a question, settings by preset, jobs that make rows, and a page that reads them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError, choice, integer
from ropewalk.lab.studies.page import Page
from ropewalk.lab.studies.rows import Row, read_rows, write_rows
from ropewalk.lab.studies.workshop import Place, Workshop

FACTS, ROWS = "study.json", "rows.jsonl"


@dataclass(frozen=True)
class Study:
    """One question to measured rows.

    presets  name -> settings, plain data; "seeds" is how many trainings of each model there are
    run      works through jobs; returns what the report should say of text and training, or nothing
    page     rows and facts -> tables, figures and claims
    anchors  names of published figures that belong beside the rows
    """

    name: str
    about: str
    presets: dict[str, dict[str, Any]]
    run: Callable[[Workshop], dict[str, Any]]
    page: Callable[[list[Row], dict[str, Any]], Page]
    anchors: tuple[str, ...] = ()

    def settings(self, preset: str, changes: Iterable[str] = ()) -> dict[str, Any]:
        """The settings of a preset, with changes such as "windows=8"; an unknown one is refused by name."""
        found = dict(self.presets[choice("preset", preset, self.presets)])
        for change in changes:
            name, equals, said = change.partition("=")
            if not equals or name not in found:
                raise RopeError("set", f'must read "name=value" with a setting of {self.name}: {", ".join(found)}', change)
            try:
                found[name] = tomllib.loads(f"value = {said}")["value"]
            except tomllib.TOMLDecodeError:
                found[name] = said
        return found


def run_study(
    study: Study,
    preset: str,
    out: str | Path,
    *,
    seeds: int | None = None,
    changes: Iterable[str] = (),
    device: str | torch.device = "cpu",
    models: str | Path | None = None,
    workers: int | None = None,
    quiet: bool = False,
) -> Path:
    """Measure what is missing of a study, write its rows, figures and facts, and return its folder.

    models   where trained models are kept; a model that another study trained there is taken from there
    workers  processes side by side on a CPU; by default one a core
    """
    settings = study.settings(preset, changes)
    count = integer("seeds", settings["seeds"] if seeds is None else seeds, low=1)
    device = torch.device(device)
    folder = Path(out) / study.name
    place = Place(Path(models) if models is not None else Path(out) / "models", device)
    workshop = Workshop(folder, place, settings, count, workers or cores(), quiet)
    said = study.run(workshop)
    facts = {
        "study": study.name,
        "preset": preset,
        "seeds": count,
        "settings": settings,
        "machine": machine(device),
        **said,
    }
    write_rows(folder / ROWS, workshop.rows)
    (folder / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    write_figures(study, folder)
    return folder


def cores() -> int:
    """How many processes may run at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(device: torch.device) -> dict[str, Any]:
    """What the numbers were measured on."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": gpu or f"{platform.system()} {platform.machine()}, {cores()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
    }


def write_figures(study: Study, folder: Path) -> list[Path]:
    """The figures of a study's rows as PNG and SVG; none where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401 - only asked whether it is there
    except ImportError:
        return []
    from ropewalk import plots

    figures = study.page(*read_study(folder)).figures
    return [plots.save(draw(), folder / f"{name}.{suffix}") for name, draw in figures.items() for suffix in ("png", "svg")]


def read_study(folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """(rows, facts) of a study's folder."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RopeError("study", f"must have a whole {FACTS} ({error}); run the study again", str(folder)) from None
    return read_rows(folder / ROWS), facts
