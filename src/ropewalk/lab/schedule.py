"""How long, how wide and how fast: stages of (length, batch, steps), and the learning rate over all of them."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ropewalk.errors import RopeError, integer


@dataclass(frozen=True)
class Stage:
    """`steps` steps of `batch` rows (of all ranks and accumulated parts together) of `length` tokens."""

    length: int
    batch: int
    steps: int

    def __post_init__(self) -> None:
        for name in ("length", "batch", "steps"):
            integer(name, getattr(self, name), low=1)


@dataclass(frozen=True)
class Plan:
    """Stages one after the other, as RoFormer was trained: which stage a step is in, and which samples it sees."""

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not self.stages:
            raise RopeError("stages", "must have at least one stage", self.stages)

    @property
    def steps(self) -> int:
        """All steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def at(self, step: int) -> tuple[Stage, int]:
        """The stage of a step (from 0) and the number of the first sample it sees; samples are counted through all stages."""
        ends = list(accumulate(stage.steps for stage in self.stages))
        number = bisect_right(ends, integer("step", step, low=0, high=self.steps - 1))
        before = sum(stage.steps * stage.batch for stage in self.stages[:number])
        began = ends[number] - self.stages[number].steps
        return self.stages[number], before + (step - began) * self.stages[number].batch


def roformer_stages(shrink: int, lengths: Sequence[int] = (512, 1536, 256, 128, 1536, 512), narrow: int = 4) -> tuple[Stage, ...]:
    """RoFormer's six stages with 1/`shrink` of the steps, 1/`narrow` of the lengths and their batches in the same proportion."""
    batches, steps = (256, 256, 256, 512, 256, 512), (200_000, 12_500, 120_000, 80_000, 10_000, 30_000)
    least = min(batches)
    return tuple(
        Stage(length // narrow, 16 * batch // least, max(1, round(count / shrink)))
        for length, batch, count in zip(lengths, batches, steps, strict=True)
    )


#: share of the way after the warm-up (0 to 1) -> share of the way down from the highest rate to the lowest
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 0.0,
    "linear": lambda t: t,
    "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
}


def learning_rate(step: int, steps: int, *, highest: float, schedule: str, warmup: int, final: float) -> float:
    """The rate of a step (from 0): up in `warmup` steps, then along the schedule to `final` of the highest."""
    if step < warmup:
        return highest * (step + 1) / warmup
    way = (step - warmup) / max(1, steps - 1 - warmup)
    return highest * (1 - (1 - final) * SCHEDULES[schedule](min(1.0, way)))
