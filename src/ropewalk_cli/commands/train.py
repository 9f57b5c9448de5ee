"""`ropewalk train`: train one model from a preset, in one process or under torchrun; resume from a
checkpoint in its folder.
"""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import typer

from ropewalk.errors import integer
from ropewalk_cli.commands import console
from ropewalk_lab.distributed import launched
from ropewalk_lab.held_out import Measured
from ropewalk_lab.runs import Report, run_preset
from ropewalk_lab.settings import Preset, read_preset

#: more would be a typing error
MOST_THREADS = 1024


def train(
    preset: str,
    folder: Path,
    change: list[str] | None,
    device: str | None,
    parallel: str | None,
    threads: int | None,
    tensorboard: bool,
    json: bool,
) -> None:
    """Train a model from a preset with changed settings, evaluate it on held-out data, and print
    the outcome.
    """
    settings = read_preset(preset, change or ())
    report = run_training(settings, folder, device, parallel, threads, tensorboard, quiet=json)
    if report is None:  # the first rank prints
        return
    if json:
        print(json_format.dumps(as_json(report, folder)))
    else:
        show(report, folder)
        for name, result in report.held_out.items():
            console().print(
                f"{name}: loss {loss_text(result.loss)}, accuracy {percent(result.accuracy)} "
                f"of {result.count:,} targets"
            )
    exit_if_stopped(report)


def run_training(
    preset: Preset,
    folder: Path,
    device: str | None,
    parallel: str | None,
    threads: int | None,
    tensorboard: bool,
    quiet: bool,
) -> Report | None:
    """Train what a preset describes; return the report on the first rank, None on the others.

    `parallel` is how several processes share the work, if torchrun started them; `quiet` shows no
    progress.
    """
    if threads is not None:
        torch.set_num_threads(integer("threads", threads, low=1, high=MOST_THREADS))
    with launched(parallel, device) as group:
        report = run_preset(preset, folder, group, tensorboard=tensorboard, progress=not quiet)
        return report if group.first else None


def as_json(report: Report, folder: Path) -> dict[str, Any]:
    """Return a report as plain data."""
    held_out = {name: result.numbers() for name, result in report.held_out.items()}
    model = None if report.model is None else str(report.model)
    return asdict(report.outcome) | {"folder": str(folder), "held_out": held_out, "model": model}


def show(report: Report, folder: Path) -> None:
    """Print how a run ended and where its files are."""
    outcome, out = report.outcome, console()
    status = "stopped" if outcome.stopped else "done"
    text = (
        f"{status} at step {outcome.step}, loss {loss_text(outcome.loss)}, {outcome.seconds:.0f} "
        f"s; log: {folder}/log.jsonl"
    )
    out.print(text, soft_wrap=True)
    out.print(
        f"model: {report.model}" if report.model else f"no model was written: {report.reason}",
        soft_wrap=True,
    )


def exit_if_stopped(report: Report) -> None:
    """End the command with the exit code of an interrupt if Ctrl-C or SIGTERM stopped the run."""
    if report.outcome.stopped:
        raise typer.Exit(130)


def loss_text(loss: float | None) -> str:
    """Return a loss with four decimals, or "-" if it is not known."""
    return "-" if loss is None else f"{loss:.4f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage, or "-" if it is not known."""
    return "-" if share is None else f"{share:.2%}".replace("%", " %")


def accuracy(result: Measured | None) -> str:
    """Return an accuracy with its standard error and the number of cases."""
    if result is None or result.accuracy is None:
        return "-"
    return f"{percent(result.accuracy)} ± {percent(result.error)} of {result.count:,}"
