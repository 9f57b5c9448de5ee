"""Stages of (length, batch, steps), and the learning rate over all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropewalk.errors import integer

#: upper bound for the tokens of one step; catches typos
MOST_TOKENS = 1 << 28


@dataclass(frozen=True)
class Stage:
    """`steps` steps of `batch` rows (over all ranks and micro-batches) of `length` tokens."""

    length: int
    batch: int
    steps: int

    def __post_init__(self) -> None:
        integer("length", self.length, low=1, high=MOST_TOKENS)
        integer("batch", self.batch, low=1, high=MOST_TOKENS // self.length)
        integer("steps", self.steps, low=1)


def total_steps(stages: Sequence[Stage]) -> int:
    """Return the number of steps of all stages."""
    return sum(stage.steps for stage in stages)


def stage_at(stages: Sequence[Stage], step: int) -> tuple[Stage, int]:
    """Return the stage of a step (numbered from 0 through all stages) and the number of the step's
    first sample; samples, too, are numbered through all stages.
    """
    integer("step", step, low=0, high=total_steps(stages) - 1)
    # in the loop `step` becomes the step within the stage, `sample` the stage's first sample
    sample = 0
    for stage in stages:
        if step < stage.steps:
            break
        step, sample = step - stage.steps, sample + stage.steps * stage.batch
    return stage, sample + step * stage.batch


#: the six stages of RoFormer's pre-training, as published
ROFORMER_STAGES = (
    Stage(512, 256, 200_000),
    Stage(1536, 256, 12_500),
    Stage(256, 256, 120_000),
    Stage(128, 512, 80_000),
    Stage(1536, 256, 10_000),
    Stage(512, 512, 30_000),
)


def roformer_stages(factor: int = 1) -> tuple[Stage, ...]:
    """Return RoFormer's six stages with lengths divided by `factor`, batches by its square and
    steps by its fourth power.
    """
    integer("factor", factor, low=1, high=16)  # batches of 256 / 17^2 would have no rows
    return tuple(
        Stage(
            stage.length // factor, stage.batch // factor**2, max(1, round(stage.steps / factor**4))
        )
        for stage in ROFORMER_STAGES
    )


#: progress after the warm-up (0 to 1) -> fraction of the way from the highest (0) to the final (1)
#: learning rate
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda t: 0.0,
    "linear": lambda t: t,
    "cosine": lambda t: (1 - math.cos(math.pi * t)) / 2,
}


def learning_rate(
    step: int, steps: int, *, highest: float, schedule: str, warmup: int, final: float
) -> float:
    """Return the rate of a step (from 0) of `steps`: it rises linearly over `warmup` steps to
    `highest`, then follows the schedule to `final` times `highest` at the last step ("constant"
    stays at `highest`, and so does a single step after the warm-up).
    """
    if step < warmup:
        return highest * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - 1 - warmup)
    descent = SCHEDULES[schedule](min(1.0, progress))  # 0 at the highest rate, 1 at the final one
    return highest * (1 - (1 - final) * descent)
