"""Time the lab's trainer, a minimal training loop over the same model, and the data loading."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ropewalk_lab.bench.rows import run_script
from ropewalk_lab.distributed import Parallel, pick_device
from ropewalk_lab.loader import Loader
from ropewalk_lab.precision import autocast, usable_precision
from ropewalk_lab.runs import make_trainer
from ropewalk_lab.schedule import Stage
from ropewalk_lab.settings import Preset, read_preset
from ropewalk_lab.trainer import Trainer

#: steps of the timed stage: more than any measurement needs
MANY_STEPS = 1_000_000


def measure(
    preset: str = "gpu", steps: int = 60, rounds: int = 5, device: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield tokens per second of a minimal loop and of the trainer (median of alternating rounds),
    and the data loading time.
    """
    parallel = Parallel(device=pick_device(device))
    long_preset = _with_many_steps(read_preset(preset))
    trainer = make_trainer(long_preset, parallel=parallel, progress=False)
    bare = bare_loop(make_trainer(long_preset, parallel=parallel, progress=False))
    loops = {"bare loop": bare, "trainer": lambda count: trainer.run(stop=trainer.step + count)}
    for loop in loops.values():
        loop(steps)  # warm up clocks, kernels and allocators
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            times[name].append(_seconds(loop, steps, parallel.device) / steps)
    yield from _rows(
        long_preset,
        {name: statistics.median(values) for name, values in times.items()},
        _data_seconds(trainer),
    )


def bare_loop(trainer: Trainer) -> Callable[[int], None]:
    """Return a loop of forward, backward and AdamW on one batch on the device, without clipping,
    logging and data loading.
    """
    model, optimizer, device = trainer.model, trainer.optimizer, trainer.parallel.device
    precision = usable_precision(trainer.settings.precision, device)
    (batch,) = (
        Loader(trainer.batches, trainer.settings.stages, 1, trainer.parallel).load(0).micro_batches
    )

    def run(count: int) -> None:
        """Train for `count` steps."""
        for _ in range(count):
            with autocast(precision, device):
                loss = model.loss(batch.inputs, batch.targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run


def _with_many_steps(preset: Preset) -> Preset:
    """Return the preset with its first stage alone, which has more steps than are timed."""
    stage = preset.train.stages[0]
    return replace(
        preset, train=replace(preset.train, stages=(Stage(stage.length, stage.batch, MANY_STEPS),))
    )


def _seconds(loop: Callable[[int], Any], steps: int, device: torch.device) -> float:
    """Return the seconds that `steps` steps of a loop take."""
    start = time.perf_counter()
    loop(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _data_seconds(trainer: Trainer) -> float:
    """Return the mean seconds that loading the data of a step takes, with the copy to the device."""
    rows = [row for row in trainer.log.rows() if "data_seconds" in row]
    steps = rows[-1]["step"] - rows[0]["step"]
    return sum(row["data_seconds"] for row in rows[1:]) / max(1, steps)


def _rows(preset: Preset, times: dict[str, float], data: float) -> Iterator[dict[str, Any]]:
    """Yield a row for each loop from its seconds per step, and one for the seconds `data` that
    loading the data of a step takes.
    """
    stage = preset.train.stages[0]
    tokens = stage.length * stage.batch
    row = {
        "shape": f"train {stage.batch}x{stage.length}",
        "dtype": preset.train.precision,
        "pass": "step",
    }
    for name, seconds in times.items():
        rate = {"us": round(seconds * 1e6, 1), "tokens_per_second": round(tokens / seconds)}
        yield {
            **row,
            "contender": name,
            **rate,
            "percent_of_bare": round(100 * times["bare loop"] / seconds, 1),
        }
    share = round(100 * data / times["trainer"], 1)
    yield {**row, "contender": "data", "us": round(data * 1e6, 1), "percent_of_step": share}


if __name__ == "__main__":
    run_script(
        __doc__, {"cuda": partial(measure, "gpu"), "cpu": partial(measure, "cpu", device="cpu")}
    )
