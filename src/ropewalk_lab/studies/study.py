"""A study: a question, settings by preset, jobs that measure rows, and findings computed from the
rows.

Words of this module:
  row       one measurement: a metric, its values, and fields that say what was measured
  facts     what was run and how: study, preset, seeds, settings, machine, and what `run` returns
  preset    the settings for one size of a run, such as "smoke" or "gpu"
  findings  the tables, figures and claims of a report, computed from rows and facts
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError, choice, integer
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.machine import cores, machine
from ropewalk_lab.settings import toml_value
from ropewalk_lab.studies import extension_methods
from ropewalk_lab.studies.findings import Findings
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.rows import Row, read_rows, write_rows

#: the two files in a study's folder that a report reads
FACTS, ROWS = "study.json", "rows.jsonl"
#: lists that may be empty besides those that a preset leaves empty; without `tuned_factors` no
#: model is fine-tuned
MAY_BE_EMPTY = ("tuned_factors",)
#: settings that list methods, and all settings that list names of what is compared
METHODS = ("methods", "tuned_methods")
NAMES = ("encodings", "norms", "objectives", *METHODS)


@dataclass(frozen=True)
class Study:
    """One question and how it is measured.

    about      the question, in one sentence
    presets    name -> settings, plain data; "seeds" is the number of trainings of each model
    run        runs the jobs; returns facts about the text and the training for the report
    findings   rows and facts -> tables, figures and claims
    published  names of published tables to show beside the rows
    seeded     whether the rows depend on a seed; if not, only one seed is accepted
    """

    name: str
    about: str
    presets: dict[str, dict[str, Any]]
    run: Callable[[JobRunner], dict[str, Any]]
    findings: Callable[[list[Row], dict[str, Any]], Findings]
    published: tuple[str, ...] = ()
    seeded: bool = True

    def settings(self, preset: str, changes: Iterable[str] = ()) -> dict[str, Any]:
        """Return the settings of a preset, with changes such as "windows=8", whose values are TOML.
        An unknown setting or name, a value of another type, multiples that do not ascend from 1 and
        an empty list (where no preset has one) are errors.
        """
        settings = dict(self.presets[choice("preset", preset, self.presets)])
        for change in changes:
            name, equals, text = change.partition("=")
            if not equals or name not in settings:
                raise RopeError(
                    "set",
                    f'must read "name=value" with a setting of {self.name}: {", ".join(settings)}',
                    change,
                )
            value = toml_value(text)
            example = settings[name]
            if isinstance(example, list):
                # with the types of all presets: a list of integers in one may be floats in another
                example = [each for table in self.presets.values() for each in table[name]]
            if not _is_like(value, example):
                raise RopeError(
                    "set", f"must give {name} a value like the preset's, {settings[name]!r}", change
                )
            self._check_names(name, value)
            settings[name] = value
        multiples = settings.get("multiples", [1])
        if multiples[:1] != [1] or multiples != sorted(set(multiples)):
            raise RopeError(
                "set",
                "must give multiples that ascend from 1, the trained length",
                f"multiples={multiples}",
            )
        for name, value in settings.items():
            may_be_empty = name in MAY_BE_EMPTY or any(
                table[name] == [] for table in self.presets.values()
            )
            if value == [] and not may_be_empty:
                raise RopeError("set", f"must give {name} at least one value", f"{name}=[]")
        return settings

    def _check_names(self, setting: str, value: Any) -> None:
        """Raise an error, before anything is trained, if `setting` is a list of names (NAMES) and
        `value` has one that the study does not know.
        """
        if setting not in NAMES:
            return
        # all names in this setting of any preset; the two settings of methods share theirs
        known = {
            name: None
            for preset in self.presets.values()
            for each in (METHODS if setting in METHODS else (setting,))
            for name in preset.get(each, ())
        }
        # a user's own encoding or extension method is known too. Other settings take no further
        # names: norms, objectives, and methods that are not those of `extension_methods`
        registry = ENCODINGS if setting == "encodings" else extension_methods.METHODS
        if setting == "encodings" or known.keys() <= {*registry, *extension_methods.OTHERS}:
            known |= dict.fromkeys(registry)
        for name in value:
            choice(f"set {setting}", name, known)


def _is_like(value: Any, example: Any) -> bool:
    """Return whether a setting, `value`, has the type of the preset's value, `example`; an integer
    may stand for a float.

    Each value of a list must have the type of one of the preset's; a preset's empty list has no
    types to compare with, so it accepts every list. Where the preset has None, any value will do.
    """
    if isinstance(value, list) and isinstance(example, list) and example:
        return all(any(_is_like(each, other) for other in example) for each in value)
    kinds = (int, float) if isinstance(example, float) else type(example)
    # in Python a bool is an int too; as a setting it is not
    return example is None or (
        isinstance(value, kinds) and isinstance(value, bool) == isinstance(example, bool)
    )


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
    """Run the unfinished jobs of a study, write its rows, figures and facts, and return its folder,
    which is in `out` and has the study's name.

    seeds    the number of seeds, from 0 on; None: that of the preset
    changes  of the settings, as in `Study.settings`
    models   folder of trained models, by default `out`/models; models that another study trained
             there are used again
    workers  number of parallel processes; by default one per core on a CPU, and one on a GPU, which
             they would share
    quiet    whether no progress is shown
    """
    settings = study.settings(preset, changes)
    count = integer("seeds", settings["seeds"] if seeds is None else seeds, low=1)
    if count > 1 and not study.seeded:
        raise RopeError(
            "seeds", f"must be 1: the rows of {study.name} do not depend on a seed", count
        )
    device = torch.device(device)
    folder = Path(out) / study.name
    workspace = Workspace(Path(models) if models is not None else Path(out) / "models", device)
    workers = workers or (cores() if device.type == "cpu" else 1)
    runner = JobRunner(folder, workspace, settings, count, workers, quiet)
    facts = {
        "study": study.name,
        "preset": preset,
        "seeds": count,
        "settings": settings,
        "machine": _machine(device),
    }
    facts |= {**study.run(runner), "rows": len(runner.rows)}
    write_rows(folder / ROWS, runner.rows)
    # the facts are written last: a report reads the folders that have them. The figures are drawn
    # from rows and facts as a report reads them, from JSON, which has lists in place of tuples
    text = json.dumps(facts, indent=2) + "\n"
    draw_figures(study.findings(read_rows(folder / ROWS), json.loads(text)), folder)
    write_atomically(folder / FACTS, text)
    return folder


def _machine(device: torch.device) -> dict[str, Any]:
    """Return the device, the versions of Python and torch, and the date, as plain data for the
    facts.
    """
    info = machine(device)
    name = info["machine"] if device.type == "cuda" else f"{info['machine']}, {cores()} cores"
    return {
        "device": name,
        "python": info["python"],
        "torch": info["versions"]["torch"],
        "date": info["date"],
    }


def draw_figures(
    findings: Findings, folder: Path, suffixes: Iterable[str] = ("png", "svg")
) -> list[Path]:
    """Write each figure of a study in the formats `suffixes`, and return the paths; [] if matplotlib
    is not installed.
    """
    try:
        import matplotlib  # noqa: F401 - only to see whether it is installed
    except ImportError:
        return []
    from ropewalk_lab import plots

    figures = findings.figures.items()
    return [
        plots.save(draw(), folder / f"{name}.{suffix}")
        for name, draw in figures
        for suffix in suffixes
    ]


def read_study(folder: Path) -> tuple[list[Row], dict[str, Any]]:
    """Return (rows, facts) of a study's folder; raise an error if one of their files is damaged."""
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RopeError(
            "study", f"must have a complete {FACTS} ({error}); run the study again", str(folder)
        ) from None
    if not isinstance(facts, dict):
        raise RopeError(
            "study", f"must have a JSON object in its {FACTS}; run the study again", str(folder)
        )
    rows = read_rows(folder / ROWS)
    # facts that do not say how many rows there are cannot be checked
    if len(rows) != facts.get("rows", len(rows)):
        raise RopeError(
            "rows",
            f"must be as many as {FACTS} says, {facts['rows']}; run the study again "
            f"({folder / ROWS})",
            len(rows),
        )
    return rows, facts
