"""Stages and rates: which samples a step sees, and how fast it learns."""

import math
from itertools import pairwise

import pytest

from ropewalk.errors import RopeError
from ropewalk_lab.schedule import (
    SCHEDULES,
    Stage,
    learning_rate,
    roformer_stages,
    stage_at,
    total_steps,
)

STAGES = (Stage(8, 4, 3), Stage(16, 2, 2), Stage(8, 6, 2))


def test_samples_are_counted_through_all_stages():
    seen = []
    for step in range(total_steps(STAGES)):
        stage, first = stage_at(STAGES, step)
        seen += range(first, first + stage.batch)
    assert seen == list(range(4 * 3 + 2 * 2 + 6 * 2))
    assert [stage_at(STAGES, step)[0].length for step in range(7)] == [8, 8, 8, 16, 16, 8, 8]


@pytest.mark.parametrize("step", [-1, 7])
def test_a_step_outside_the_stages_is_refused(step):
    with pytest.raises(RopeError, match="step"):
        stage_at(STAGES, step)


def rates(schedule, steps=101, warmup=10, final=0.1):
    given = {"highest": 2.0, "schedule": schedule, "warmup": warmup, "final": final}
    return [learning_rate(step, steps, **given) for step in range(steps)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_warms_up_and_then_never_rises_until_its_final_rate(schedule):
    found = rates(schedule)
    assert found[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert found[10] == 2.0
    assert found[-1] == pytest.approx(2.0 if schedule == "constant" else 0.2)
    assert all(a >= b for a, b in pairwise(found[10:]))


def test_learning_rates_half_way_through_the_schedule():
    assert rates("linear")[55] == pytest.approx(1.1)
    assert rates("cosine")[55] == pytest.approx(1.1)
    quarter = 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2
    assert rates("cosine", 91, 10)[30] == pytest.approx(2 * quarter)


def test_one_step_without_warm_up_has_the_highest_rate():
    assert rates("cosine", steps=1, warmup=0) == [2.0]


#: the paper's stages: maximum length, batch and steps
ROFORMER = [
    (512, 256, 200_000),
    (1536, 256, 12_500),
    (256, 256, 120_000),
    (128, 512, 80_000),
    (1536, 256, 10_000),
    (512, 512, 30_000),
]


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
def test_roformer_stages_divide_lengths_batches_and_steps_by_powers_of_the_factor(factor):
    expected = [
        (n // factor, batch // factor**2, round(steps / factor**4)) for n, batch, steps in ROFORMER
    ]
    assert [(s.length, s.batch, s.steps) for s in roformer_stages(factor)] == expected
    assert (
        expected[3]
        == {1: (128, 512, 80_000), 2: (64, 128, 5000), 4: (32, 32, 312), 8: (16, 8, 20)}[factor]
    )


@pytest.mark.parametrize("factor", [0, 1.5, 32])
def test_roformer_stages_refuse_a_factor_that_is_no_integer_from_1_to_16(factor):
    with pytest.raises((RopeError, Exception), match="factor"):
        roformer_stages(factor)


@pytest.mark.parametrize(
    "bad", [{"length": 0}, {"batch": 1.5}, {"steps": -1}, {"length": 2**40}, {"batch": 2**40}]
)
def test_bad_stages_are_refused(bad):
    with pytest.raises((RopeError, Exception), match=next(iter(bad))):
        Stage(**({"length": 8, "batch": 2, "steps": 3} | bad))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_the_rate_stays_at_its_end_after_the_last_step(schedule):
    rates = [
        learning_rate(step, 10, highest=2.0, schedule=schedule, warmup=2, final=0.1)
        for step in (9, 10, 25)
    ]
    assert rates == pytest.approx([2.0 if schedule == "constant" else 0.2] * 3)
