"""`ropewalk train`: train one model from a preset, in one process or under torchrun; resume from a checkpoint in its folder."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path

import torch

from ropewalk.commands import console
from ropewalk.errors import integer
from ropewalk.lab.distributed import launched
from ropewalk.lab.runs import make_trainer
from ropewalk.lab.settings import read_preset

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
    """Train a model from a preset with changed settings, and print how it ended."""
    settings = read_preset(preset, change or ())
    if threads is not None:
        torch.set_num_threads(integer("threads", threads, low=1, high=MOST_THREADS))
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
