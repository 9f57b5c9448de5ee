"""`ropewalk lab`: studies to list and run, their report, and single trainings."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from ropewalk.commands import console
from ropewalk.commands.train import train_command
from ropewalk.errors import choice
from ropewalk.lab.report import read_all, write_report
from ropewalk.lab.studies import STUDIES, read_study, run_study
from ropewalk.lab.studies.page import Page

app = typer.Typer(no_args_is_help=True, help="Train, extend and compare: studies that write rows, figures and one report.")
app.command("train")(train_command)


def device_of(name: str) -> str:
    """The device a command was asked to use."""
    here = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return here[-1] if name == "auto" else choice("device", name, here)


@app.command("list")
def list_studies(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Every study, what it asks, and its presets."""
    if json:
        print(json_format.dumps({s.name: {"about": s.about, "presets": s.presets} for s in STUDIES.values()}, indent=2))
        return
    table = Table("study", "question", "presets")
    for study in STUDIES.values():
        table.add_row(study.name, study.about, ", ".join(study.presets))
    console().print(table)


@app.command("run")
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Studies by name, or all.")],
    preset: Annotated[str, typer.Option(help="smoke (seconds), cpu (minutes), gpu (minutes on one large GPU), cluster.")] = "cpu",
    seeds: Annotated[int | None, typer.Option(help="Trainings of each model; by default as the preset has it.")] = None,
    out: Annotated[Path, typer.Option(help="Where rows, figures and the report go; what is there is not measured again.")] = Path(
        "lab"
    ),
    change: Annotated[
        list[str] | None, typer.Option("--set", help='Change one setting, as in "windows=8"; see lab list.')
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    models: Annotated[Path | None, typer.Option(help="Where trained models are kept; by default OUT/models.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes side by side on a CPU; by default one a core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run studies and write the report: `ropewalk lab run encodings extend --preset cpu --out lab`."""
    wanted = list(STUDIES) if names == ["all"] else [choice("study", name, STUDIES) for name in names]
    where = device_of(device)
    for name in wanted:
        study = STUDIES[name]
        folder = run_study(
            study, preset, out, seeds=seeds, changes=change or (), device=where, models=models, workers=workers, quiet=json
        )
        if not json:
            show(study.page(*read_study(folder)), name)
    _written(out, json)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `lab run` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one self-contained page of every study found in a folder."""
    _written(folder, json)


def _written(folder: Path, json: bool) -> None:
    path = write_report(folder)
    if json:
        claims = {name: [vars(claim) for claim in page.claims] for name, (page, _) in read_all(folder).items()}
        print(json_format.dumps({"report": str(path), "studies": claims}, indent=2))
    else:
        console().print(f"report: {path}", soft_wrap=True)


def show(page: Page, name: str) -> None:
    """A study's tables and claims on the screen."""
    out = console()
    for found in page.tables:
        table = Table(*found.columns, title=f"{name}: {found.title}", title_justify="left", caption=found.note or None)
        for cells in found.rows:
            table.add_row(*cells)
        out.print(table)
    marks: dict[str, Any] = {"holds": "green", "does not hold": "red"}
    for claim in page.claims:
        out.print(f"{claim.verdict}: {claim.text} ({claim.evidence})", style=marks.get(claim.verdict))
