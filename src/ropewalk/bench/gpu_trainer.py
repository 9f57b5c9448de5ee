"""What the trainer adds to a bare loop over the same model: steps of both in turn, and the time its data take to make."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from ropewalk.lab.distributed import Parallel, pick_device
from ropewalk.lab.feed import Feed
from ropewalk.lab.precision import autocast, usable
from ropewalk.lab.runs import make_trainer
from ropewalk.lab.schedule import Stage
from ropewalk.lab.settings import Preset, read_preset
from ropewalk.lab.trainer import Trainer

#: far more than any measurement takes
PLENTY = 1_000_000


def measure(preset: str = "gpu", steps: int = 60, rounds: int = 5, device: str | None = None) -> list[dict[str, Any]]:
    """Tokens a second of a bare loop and of the trainer on a preset, medians of rounds taken in turn; how long data take."""
    parallel = Parallel(device=pick_device(device))
    wanted = _without_end(read_preset(preset))
    trainer = make_trainer(wanted, parallel=parallel, progress=False)
    bare = bare_loop(make_trainer(wanted, parallel=parallel, progress=False))
    ways = {"bare loop": bare, "trainer": lambda count: trainer.run(stop=trainer.step + count)}
    for way in ways.values():
        way(steps)  # warm clocks, kernels and allocators
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            taken[name].append(_seconds(way, steps, parallel.device) / steps)
    return list(_rows(wanted, {name: statistics.median(values) for name, values in taken.items()}, _data_seconds(trainer)))


def bare_loop(trainer: Trainer) -> Callable[[int], None]:
    """Forward, backward and AdamW over one batch that lies on the device already; no clip, no log, no data."""
    model, optimizer, device = trainer.model, trainer.optimizer, trainer.parallel.device
    precision = usable(trainer.settings.precision, device)
    (batch,) = Feed(trainer.batches, trainer.settings.plan, 1, trainer.parallel).portion(0).parts

    def run(count: int) -> None:
        for _ in range(count):
            with autocast(precision, device):
                loss = model.loss(batch.inputs, batch.targets)  # type: ignore[operator]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def _without_end(preset: Preset) -> Preset:
    stage = preset.train.stages[0]
    return replace(preset, train=replace(preset.train, stages=(Stage(stage.length, stage.batch, PLENTY),)))


def _seconds(way: Callable[[int], Any], steps: int, device: torch.device) -> float:
    began = time.perf_counter()
    way(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _data_seconds(trainer: Trainer) -> float:
    """What a batch costs the thread that makes it, copies included."""
    rows = [row for row in trainer.log.rows() if "data_seconds" in row]
    steps = rows[-1]["step"] - rows[0]["step"]
    return sum(row["data_seconds"] for row in rows[1:]) / max(1, steps)


def _rows(preset: Preset, taken: dict[str, float], data: float) -> Iterator[dict[str, Any]]:
    stage = preset.train.stages[0]
    tokens = stage.length * stage.batch
    row = {"shape": f"train {stage.batch}x{stage.length}", "dtype": preset.train.precision, "pass": "step"}
    for name, seconds in taken.items():
        rate = {"us": round(seconds * 1e6, 1), "tokens_per_second": round(tokens / seconds)}
        yield {**row, "contender": name, **rate, "percent_of_bare": round(100 * taken["bare loop"] / seconds, 1)}
    share = round(100 * data / taken["trainer"], 1)
    yield {**row, "contender": "data", "us": round(data * 1e6, 1), "percent_of_step": share}
