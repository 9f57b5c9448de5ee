"""`ropewalk lab`: list studies, run them, and write their report."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ropewalk.errors import choice, integer
from ropewalk_cli.commands import Device, Json, device_of, output_folder
from ropewalk_cli.declare import Argument, Command, Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.studies.findings import Findings

STUDY, MODEL = "Studies", "Models and data"
#: the commands of `ropewalk lab` by name
LAB = {
    "list": Command(
        "ropewalk_cli.commands.lab:list_studies",
        STUDY,
        "Show every study with its question and its presets.",
        "ropewalk lab list",
    ),
    "run": Command(
        "ropewalk_cli.commands.lab:run",
        STUDY,
        "Run studies and write the report.",
        "ropewalk lab run encodings extend --preset cpu --out lab",
    ),
    "report": Command(
        "ropewalk_cli.commands.lab:report",
        STUDY,
        "Write one page about all studies in a folder.",
        "ropewalk lab report lab",
    ),
    "train": Command(
        "ropewalk_cli.commands.train:train",
        MODEL,
        "Train a model from a preset, or continue a training.",
        "ropewalk lab train cpu --folder runs/rope --set model.encoding=rope",
    ),
    "finetune": Command(
        "ropewalk_cli.commands.finetune:finetune",
        MODEL,
        "Fine-tune a checkpoint on labelled files.",
        "ropewalk lab finetune roformer --train train.json --valid valid.json --test test.json",
    ),
    "evaluate": Command(
        "ropewalk_cli.commands.finetune:evaluate",
        MODEL,
        "Evaluate a fine-tuned model on a file.",
        "ropewalk lab evaluate run test.json --predictions labels.txt",
    ),
    "sample": Command(
        "ropewalk_cli.commands.finetune:sample",
        MODEL,
        "Write a small generated sample of labelled files.",
        "ropewalk lab sample data --format cail",
    ),
    "fetch": Command(
        "ropewalk_cli.commands.fetch:fetch",
        MODEL,
        "Download a pretrained model or a long text, and check its hash.",
        "ropewalk lab fetch smollm2",
    ),
}
#: upper bounds; they catch typos
MOST_SEEDS, MOST_WORKERS = 1000, 1024


def list_studies(json: Json = False) -> None:
    """Show every study with its question and its presets."""
    from ropewalk_lab.studies.presets import ABOUT, PRESETS, presets_of

    if json:
        studies = {
            name: {"about": about, "presets": presets_of(name)} for name, about in ABOUT.items()
        }
        print(json_format.dumps(studies, indent=2))
        return
    rows = [(name, about, ", ".join(PRESETS)) for name, about in ABOUT.items()]
    table("", ("study", "question", "presets"), rows)


def run(
    names: Annotated[list[str], Argument("Names of studies, or 'all'.", "NAME")],
    preset: Annotated[
        str, Option("smoke (seconds), cpu (minutes), gpu (minutes on one large GPU), cluster.")
    ] = "cpu",
    seeds: Annotated[
        int | None,
        Option(
            "How often each model is trained, with different seeds; by default from the preset."
        ),
    ] = None,
    out: Annotated[
        Path,
        Option("Folder for rows, figures and the report; existing rows are not measured again."),
    ] = Path("lab"),
    change: Annotated[
        list[str] | None,
        Option('Change one setting of each of the studies, as in "windows=8".', "--set"),
    ] = None,
    device: Device = "auto",
    models: Annotated[
        Path | None, Option("Folder for trained models; by default OUT/models.")
    ] = None,
    workers: Annotated[
        int | None, Option("Parallel processes; by default one per core, on a GPU one.")
    ] = None,
    json: Json = False,
) -> None:
    """Run studies, print their tables and claims, and write the report."""
    from ropewalk_lab.studies import STUDIES, read_study, run_study
    from ropewalk_lab.studies.findings import TOO_SHORT, concluded

    selected = [choice("NAME", name, [*STUDIES, "all"]) for name in names]
    selected = list(STUDIES) if "all" in selected else selected
    output_folder(out)
    on = device_of(device)
    if seeds is not None:
        integer("seeds", seeds, low=1, high=MOST_SEEDS)
    if workers is not None:
        integer("workers", workers, low=1, high=MOST_WORKERS)
    for name in selected:
        # refuse a wrong setting of any study before the first one runs
        STUDIES[name].settings(preset, change or ())
    for name in selected:
        study = STUDIES[name]
        folder = run_study(
            study,
            preset,
            out,
            seeds=seeds,
            changes=change or (),
            device=on,
            models=models,
            workers=workers,
            quiet=json,
        )
        if not json:
            rows, facts = read_study(folder)
            if facts["preset"] in TOO_SHORT:
                say(f"{name}: {TOO_SHORT[facts['preset']]}", style="yellow")
            show(concluded(study.findings(rows, facts), facts), name)
    _write_report(out, json)


def report(
    folder: Annotated[Path, Argument("A folder that `lab run` wrote.")], json: Json = False
) -> None:
    """Draw the figures of all studies in a folder again, and write one self-contained HTML page
    about them.
    """
    _write_report(folder, json, redraw=True)


def _write_report(folder: Path, json: bool, redraw: bool = False) -> None:
    """Write the report of a folder of studies, and print its path, or the path and all claims as
    JSON.

    redraw  draw the figures again from the rows
    """
    from ropewalk_lab.report import read_all, write_report

    path = write_report(folder, redraw=redraw)
    if json:
        claims = {
            name: [vars(claim) for claim in findings.claims]
            for name, (findings, _) in read_all(folder).items()
        }
        print(json_format.dumps({"report": str(path), "studies": claims}, indent=2))
    else:
        say(f"report: {path}")


def show(findings: Findings, name: str) -> None:
    """Print the tables and claims of a study, and the results of others that ours can be compared
    with.
    """
    from ropewalk_lab.published import compared
    from ropewalk_lab.studies import STUDIES

    for each in (*findings.tables, *compared(STUDIES[name].published, findings)):
        table(f"{name}: {each.title}", each.columns, each.rows, each.note)
    colours = {"holds": "green", "does not hold": "red"}
    for claim in findings.claims:
        text = f"{claim.verdict}: {claim.text} ({claim.evidence})"
        say(text, style=colours.get(claim.verdict, ""))
