"""`ropewalk lab`: list studies, run them, and write their report."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Any

from rich.table import Table

from ropewalk.errors import choice, integer
from ropewalk_cli.commands import console, device_of
from ropewalk_lab.published import compared
from ropewalk_lab.report import read_all, write_report
from ropewalk_lab.studies import STUDIES, read_study, run_study
from ropewalk_lab.studies.findings import TOO_SHORT, Findings, concluded

#: more would be a typing error
MOST_SEEDS, MOST_WORKERS = 1000, 1024


def list_studies(json: bool) -> None:
    """Show every study with its question and its presets."""
    if json:
        studies = {
            name: {"about": study.about, "presets": study.presets}
            for name, study in STUDIES.items()
        }
        print(json_format.dumps(studies, indent=2))
        return
    table = Table("study", "question", "presets")
    for study in STUDIES.values():
        table.add_row(study.name, study.about, ", ".join(study.presets))
    console().print(table)


def run(
    names: list[str],
    preset: str,
    seeds: int | None,
    out: Path,
    change: list[str] | None,
    device: str,
    models: Path | None,
    workers: int | None,
    json: bool,
) -> None:
    """Run studies, print their tables and claims, and write the report.

    `change` are texts name=value, settings of the preset to change; `models` is a folder of trained
    models to reuse.
    """
    selected = [choice("NAME", name, [*STUDIES, "all"]) for name in names]
    selected = list(STUDIES) if "all" in selected else selected
    device = device_of(device)
    if seeds is not None:
        integer("seeds", seeds, low=1, high=MOST_SEEDS)
    if workers is not None:
        integer("workers", workers, low=1, high=MOST_WORKERS)
    for name in selected:
        STUDIES[name].settings(
            preset, change or ()
        )  # refuse a wrong setting of any study before the first one runs
    for name in selected:
        study = STUDIES[name]
        folder = run_study(
            study,
            preset,
            out,
            seeds=seeds,
            changes=change or (),
            device=device,
            models=models,
            workers=workers,
            quiet=json,
        )
        if not json:
            rows, facts = read_study(folder)
            if facts["preset"] in TOO_SHORT:
                console().print(
                    f"{name}: {TOO_SHORT[facts['preset']]}", style="yellow", soft_wrap=True
                )
            show(concluded(study.findings(rows, facts), facts), name)
    _write_report(out, json)


def report(folder: Path, json: bool) -> None:
    """Draw the figures of all studies in a folder again, and write one self-contained HTML page
    about them.
    """
    _write_report(folder, json, redraw=True)


def _write_report(folder: Path, json: bool, redraw: bool = False) -> None:
    """Write the report of a folder of studies, and print its path, or the path and all claims as
    JSON.

    redraw  draw the figures again from the rows
    """
    path = write_report(folder, redraw=redraw)
    if json:
        claims = {
            name: [vars(claim) for claim in findings.claims]
            for name, (findings, _) in read_all(folder).items()
        }
        print(json_format.dumps({"report": str(path), "studies": claims}, indent=2))
    else:
        console().print(f"report: {path}", soft_wrap=True)


def show(findings: Findings, name: str) -> None:
    """Print the tables and claims of a study, and the results of others that ours can be compared
    with.
    """
    out = console()
    for table in (*findings.tables, *compared(STUDIES[name].published, findings)):
        rich_table = Table(
            *table.columns,
            title=f"{name}: {table.title}",
            title_justify="left",
            caption=table.note or None,
        )
        for cells in table.rows:
            rich_table.add_row(*cells)
        out.print(rich_table)
    colours: dict[str, Any] = {"holds": "green", "does not hold": "red"}
    for claim in findings.claims:
        out.print(
            f"{claim.verdict}: {claim.text} ({claim.evidence})", style=colours.get(claim.verdict)
        )
