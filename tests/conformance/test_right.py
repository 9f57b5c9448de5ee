"""The runner passes right ropes in many forms, types and conventions, without a false alarm."""

import random

import numpy as np
import pytest

from conformance.right_ropes import Right
from ropewalk_conformance import groups, load, run
from ropewalk_conformance.runner import DIFFERS, RAISED, REFUSED, SAME

ROPES = [
    name for name in groups() if {"inv_freq", "cos_sin", "rotate"} & set(load(name)["functions"])
]
REQUIRED = [name for name in ROPES if load(name)["level"] == "required"]


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_right_ropes_pass(block, full):
    """Twenty ropes in a block, each with two of the required groups; with --full, with all."""
    ran = 0
    for seed in range(20 * block, 20 * block + 20):
        rope = Right(seed)
        chosen = REQUIRED if full else random.Random(seed).sample(REQUIRED, 2)
        functions = {name: getattr(rope, name) for name in ("inv_freq", "cos_sin", "rotate")}
        report = run(**functions, groups=chosen, arrays=rope.library, dtype=rope.dtype)
        wrong = [each for status in (DIFFERS, RAISED, REFUSED) for each in report.of(status)]
        assert wrong == [], f"rope {seed} ({rope}):\n{report}"
        assert report.findings == []
        ran += len(report.of(SAME))
    assert ran > 100


def test_ropes_with_exact_angles_pass_at_far_positions():
    ropes = [rope for rope in map(Right, range(60)) if rope.precision == "float64"]
    ropes = [rope for rope in ropes if rope.dtype in ("float32", "float64")][:6]
    assert len(ropes) == 6
    for rope in ropes:
        options = {"groups": ["far"], "arrays": rope.library, "dtype": rope.dtype}
        report = run(cos_sin=rope.cos_sin, rotate=rope.rotate, **options)
        assert report.passed, f"{rope}:\n{report}"


def test_the_random_ropes_make_every_choice():
    made = [vars(Right(seed)) for seed in range(200)]
    counts = {name: {str(each[name]) for each in made} for name in made[0] if name != "plain"}
    assert min(len(values) for values in counts.values()) >= 2
    assert counts["dtype"] == {"float32", "float64", "bfloat16", "float16"}


def test_a_rope_off_by_a_hundred_thousandth_is_found():
    rope = Right(3)
    wrong = lambda config, length=None: (
        np.asarray(rope.plain.inv_freq(config, None, length)[0]) * 1.00001
    )
    report = run(inv_freq=wrong, groups="default", arrays="numpy")
    assert len(report.of(DIFFERS)) == len(load("default")["cases"])
