"""Stages of (length, batch, steps), and the learning rate over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropewalk.errors import integer


@dataclass(frozen=True)
class Stage:
    """`steps` steps of `batch` rows (over all ranks and micro-batches) of `length` tokens."""

    length: int
    batch: int
    steps: int

    def __post_init__(self) -> None:
        for name in ("length", "batch", "steps"):
            integer(name, getattr(self, name), low=1)


def total_steps(stages: Sequence[Stage]) -> int:
    """Return the number of steps of all stages."""
    return sum(stage.steps for stage in stages)


def stage_at(stages: Sequence[Stage], step: int) -> tuple[Stage, int]:
    """Return the stage of a step (from 0) and the number of its first sample; samples are numbered through all stages."""
    integer("step", step, low=0, high=total_steps(stages) - 1)
    sample = 0
    for stage in stages:
        if step < stage.steps:
            break
        step, sample = step - stage.steps, sample + stage.steps * stage.batch
    return stage, sample + step * stage.batch


def roformer_stages(shrink: int, lengths: Sequence[int] = (512, 1536, 256, 128, 1536, 512), narrow: int = 4) -> tuple[Stage, ...]:
    """Return RoFormer's six stages with 1/`shrink` of the steps, 1/`narrow` of the lengths, and 1/16 of the batches."""
    batches, steps = (256, 256, 256, 512, 256, 512), (200_000, 12_500, 120_000, 80_000, 10_000, 30_000)
    smallest = min(batches)
    return tuple(
        Stage(length // narrow, 16 * batch // smallest, max(1, round(count / shrink)))
        for length, batch, count in zip(lengths, batches, steps, strict=True)
    )


#: progress after the warm-up (0 to 1) -> fraction of the way from the highest (0) to the final (1) learning rate
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 0.0,
    "linear": lambda t: t,
    "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
}


def learning_rate(step: int, steps: int, *, highest: float, schedule: str, warmup: int, final: float) -> float:
    """Return the rate of a step (from 0): linear over `warmup` steps, then the schedule down to `final` times the highest."""
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    return highest * (1 - (1 - final) * SCHEDULES[schedule](min(1.0, progress)))
