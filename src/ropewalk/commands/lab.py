"""`ropewalk lab`: list studies, run them, write their report, or train one model."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ropewalk.commands import console, device_of
from ropewalk.commands.train import train_command
from ropewalk.errors import choice
from ropewalk.lab.report import read_all, write_report
from ropewalk.lab.studies import STUDIES, read_study, run_study
from ropewalk.lab.studies.findings import Findings

app = typer.Typer(
    no_args_is_help=True, help="Train, extend and compare small models; studies write rows, figures and one report."
)
app.command("train")(train_command)


@app.command("list")
def list_studies(json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False) -> None:
    """Show every study with its question and its presets."""
    if json:
        print(json_format.dumps({s.name: {"about": s.about, "presets": s.presets} for s in STUDIES.values()}, indent=2))
        return
    table = Table("study", "question", "presets")
    for study in STUDIES.values():
        table.add_row(study.name, study.about, ", ".join(study.presets))
    console().print(table)


@app.command("run")
def run(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of studies, or 'all'.")],
    preset: Annotated[str, typer.Option(help="smoke (seconds), cpu (minutes), gpu (minutes on one large GPU), cluster.")] = "cpu",
    seeds: Annotated[
        int | None, typer.Option(help="How often each model is trained, with different seeds; by default from the preset.")
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for rows, figures and the report; existing rows are not measured again.")
    ] = Path("lab"),
    change: Annotated[list[str] | None, typer.Option("--set", help='Change one setting of the study, as in "windows=8".')] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda if there is a GPU.")] = "auto",
    models: Annotated[Path | None, typer.Option(help="Folder for trained models; by default OUT/models.")] = None,
    workers: Annotated[int | None, typer.Option(help="Parallel processes on a CPU; by default one per core.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Run studies and write the report: `ropewalk lab run encodings extend --preset cpu --out lab`."""
    selected = list(STUDIES) if names == ["all"] else [choice("study", name, STUDIES) for name in names]
    device = device_of(device)
    for name in selected:
        study = STUDIES[name]
        folder = run_study(
            study, preset, out, seeds=seeds, changes=change or (), device=device, models=models, workers=workers, quiet=json
        )
        if not json:
            show(study.findings(*read_study(folder)), name)
    _write_report(out, json)


@app.command("report")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder that `lab run` wrote.")],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Write one self-contained HTML page about all studies in a folder."""
    _write_report(folder, json)


def _write_report(folder: Path, json: bool) -> None:
    path = write_report(folder)
    if json:
        claims = {name: [vars(claim) for claim in findings.claims] for name, (findings, _) in read_all(folder).items()}
        print(json_format.dumps({"report": str(path), "studies": claims}, indent=2))
    else:
        console().print(f"report: {path}", soft_wrap=True)


def show(findings: Findings, name: str) -> None:
    """Print the tables and claims of a study."""
    out = console()
    for each in findings.tables:
        table = Table(*each.columns, title=f"{name}: {each.title}", title_justify="left", caption=each.note or None)
        for cells in each.rows:
            table.add_row(*cells)
        out.print(table)
    colours: dict[str, Any] = {"holds": "green", "does not hold": "red"}
    for claim in findings.claims:
        out.print(f"{claim.verdict}: {claim.text} ({claim.evidence})", style=colours.get(claim.verdict))
