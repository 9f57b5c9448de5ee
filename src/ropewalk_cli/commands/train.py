"""`ropewalk train`: train one model from a preset, in one process or under torchrun; resume from a
checkpoint in its folder.
"""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ropewalk.errors import integer
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say

if TYPE_CHECKING:
    from ropewalk_lab.held_out import Measured
    from ropewalk_lab.runs import RunReport
    from ropewalk_lab.settings import Preset

Folder = Annotated[
    Path, Option("Folder for the log and checkpoints; an interrupted run in it is resumed.")
]
Change = Annotated[
    list[str] | None, Option('Change one value, as in "train.learning_rate=1e-3".', "--set")
]
TrainingDevice = Annotated[str | None, Option("cpu or cuda; by default cuda if there is a GPU.")]
Parallel = Annotated[
    str | None, Option("Under torchrun: ddp, fsdp, or context (sequences divided over ranks).")
]
Threads = Annotated[int | None, Option("Number of CPU threads of this process.")]
Tensorboard = Annotated[bool, Option("Also write TensorBoard files.")]
#: upper bound; catches typos
MOST_THREADS = 1024


def train(
    preset: Annotated[
        str, Argument("A preset's name (smoke, cpu, gpu, ...) or the path of a TOML file.")
    ],
    folder: Folder = Path("run"),
    change: Change = None,
    device: TrainingDevice = None,
    parallel: Parallel = None,
    threads: Threads = None,
    tensorboard: Tensorboard = False,
    json: Annotated[bool, Option("Print one JSON object at the end.")] = False,
) -> None:
    """Train a model from a preset with changed settings, and evaluate it on held-out data."""
    from ropewalk_lab.settings import read_preset

    settings = read_preset(preset, change or ())
    report = run_training(settings, folder, device, parallel, threads, tensorboard, quiet=json)
    if report is None:  # the first rank prints
        return
    if json:
        print(json_format.dumps(as_json(report, folder)))
    else:
        show(report, folder)
        for name, result in report.held_out.items():
            say(
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
) -> RunReport | None:
    """Train what a preset describes; return the report on the first rank, None on the others.

    `parallel` is how several processes share the work, if torchrun started them; `quiet` shows no
    progress.
    """
    import torch

    from ropewalk_lab.distributed import launched
    from ropewalk_lab.runs import run_preset

    if threads is not None:
        torch.set_num_threads(integer("threads", threads, low=1, high=MOST_THREADS))
    with launched(parallel, device) as group:
        report = run_preset(preset, folder, group, tensorboard=tensorboard, progress=not quiet)
        return report if group.first else None


def as_json(report: RunReport, folder: Path) -> dict[str, Any]:
    """Return a report as plain data."""
    held_out = {name: result.numbers() for name, result in report.held_out.items()}
    model = None if report.model is None else str(report.model)
    return asdict(report.outcome) | {"folder": str(folder), "held_out": held_out, "model": model}


def show(report: RunReport, folder: Path) -> None:
    """Print how a run ended and where its files are."""
    outcome = report.outcome
    status = "stopped" if outcome.stopped else "done"
    text = (
        f"{status} at step {outcome.step}, loss {loss_text(outcome.loss)}, {outcome.seconds:.0f} "
        f"s; log: {folder}/log.jsonl"
    )
    model = f"model: {report.model}" if report.model else f"no model was written: {report.reason}"
    say(text, model)


def exit_if_stopped(report: RunReport) -> None:
    """End the command with the exit code of an interrupt if Ctrl-C or SIGTERM stopped the run."""
    if report.outcome.stopped:
        raise SystemExit(130)


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
