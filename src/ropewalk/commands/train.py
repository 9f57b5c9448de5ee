"""`ropewalk train`: train one model from a preset, in one process or under torchrun; resume from a checkpoint in its folder."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import torch
import typer

from ropewalk.commands import console
from ropewalk.lab.distributed import launched
from ropewalk.lab.runs import make_trainer
from ropewalk.lab.settings import read_preset


def train_command(
    preset: Annotated[str, typer.Argument(help="A preset's name (smoke, cpu, gpu, ...) or the path of a TOML file.")],
    folder: Annotated[Path, typer.Option(help="Folder for the log and checkpoints; an interrupted run in it is resumed.")] = Path(
        "run"
    ),
    change: Annotated[list[str] | None, typer.Option("--set", help='Change one value, as in "train.learning_rate=1e-3".')] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default cuda if there is a GPU.")] = None,
    parallel: Annotated[
        str | None, typer.Option(help="Under torchrun: ddp, fsdp, or context (sequences divided over ranks).")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads of this process.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Train a model: `ropewalk train cpu --folder runs/rope --set model.encoding=rope`."""
    settings = read_preset(preset, change or ())
    if threads is not None:
        torch.set_num_threads(threads)
    with launched(parallel, device) as group:
        trainer = make_trainer(settings, folder, parallel=group, tensorboard=tensorboard, progress=not json)
        outcome = trainer.run()
        if not group.first:
            return
    if json:
        print(json_format.dumps(asdict(outcome) | {"folder": str(folder)}))
        return
    status = "stopped" if outcome.stopped else "done"
    console().print(
        f"{status} at step {outcome.step}, loss {outcome.loss or 0:.4f}, {outcome.seconds:.0f} s; log: {folder}/log.jsonl"
    )
