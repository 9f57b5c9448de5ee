"""Frequencies have 40 digits: they follow the published formulas in mpmath, pair by pair, and phases
follow them in exact arithmetic. No array library is needed.
"""

import subprocess
import sys
from decimal import Decimal

import mpmath
import pytest
from mpmath import mpf

from frequency_oracle import oracle
from helpers import sample_scaling
from ropewalk import RopeSpec, frequencies
from ropewalk.frequencies import SCALINGS
from ropewalk.frequencies.decimals import DECIMAL, Vector, exactly, pi
from ropewalk.phase import TURN, cos_sin, phase_step, phase_steps

DIM, THETA = 24, 10_000.0


def close(found: Decimal, expected: mpf, digits: int = 36) -> bool:
    size = max(abs(expected), mpf(10) ** -60)
    return abs(mpf(str(found)) - expected) <= size * mpf(10) ** -digits


@pytest.mark.parametrize("name", SCALINGS)
@pytest.mark.parametrize("length", [None, 50, 100_000])
def test_every_digit_follows_the_published_formula(name, length):
    scaling = sample_scaling(name, DIM // 2)
    found = scaling.frequencies(DIM, THETA, length)
    radians, magnitude = oracle(scaling, DIM, THETA, length if scaling.needs_length else None)
    for ours, theirs in zip(found.digits, radians, strict=True):
        assert close(ours, mpf(theirs)), (name, ours, theirs)
    assert found.radians == tuple(map(float, found.digits))
    assert found.magnitude == pytest.approx(float(magnitude), rel=1e-15)


def test_pi_has_all_digits_that_are_asked_for():
    for digits in (10, 40, 400):
        with mpmath.workdps(digits + 20):
            assert abs(mpf(str(pi(digits))) - mpmath.pi) <= mpf(10) ** (1 - digits)


def test_the_operators_of_a_vector_keep_forty_digits():
    values = [0.1, 2.5, 7.25, 1e-9]
    with exactly(), mpmath.workdps(60):
        x = DECIMAL.vector(values)
        for ours, theirs in (
            (1.5 ** (x / 3), lambda v: mpf(1.5) ** (v / 3)),
            ((x * 0.3 - 1) / 7 + 2, lambda v: (v * mpf(0.3) - 1) / 7 + 2),
            (1.0 / (x + 0.1), lambda v: 1 / (v + mpf(0.1))),
            (-DECIMAL.exp(x), lambda v: -mpmath.exp(v)),
            (
                DECIMAL.sin(DECIMAL.clamp(x, 0, 1.5)) ** 2,
                lambda v: mpmath.sin(min(max(v, 0), 1.5)) ** 2,
            ),
        ):
            assert isinstance(ours, Vector)
            for found, value in zip(ours, values, strict=True):
                assert close(found, theirs(mpf(value)), 37)


@pytest.mark.parametrize("radians", [1.0, 0.1, -0.3, 1e-12, 3.0, 1e18, 1e300, 0.0])
def test_a_phase_step_is_the_nearest_64_bit_fraction_of_a_turn(radians):
    with mpmath.workdps(400):
        turns = mpf(radians) / (2 * mpmath.pi) * TURN
        assert phase_step(radians) == int(mpmath.nint(turns)) % TURN


@pytest.mark.parametrize("position", [0, 1, -1, 131_072, 10_000_000, 2**40 + 3, -(2**61)])
def test_the_angle_of_any_position_is_exact(position):
    digits = RopeSpec(64).ladder_frequencies().digits
    for exact, step in zip(digits, phase_steps(digits), strict=True):
        with mpmath.workdps(80):
            angle = mpf(str(exact)) * position
            expected = float(mpmath.cos(angle)), float(mpmath.sin(angle))
        # a step is off by at most half of 2^-64 of a turn
        bound = 2e-15 + abs(position) * 2.0**-64 * 4
        assert cos_sin(position, step) == pytest.approx(expected, rel=0, abs=bound)


BARE = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "numpy", "jaxtyping", "transformers", "typer", "rich"}:
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refused())
import ropewalk as rw
spec = rw.RopeSpec(128, scaling=rw.frequencies.Yarn(factor=4.0, original_length=4096))
print(spec.frequencies().radians[-1], spec.softmax_factor)
"""


def test_the_definition_needs_the_standard_library_alone():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    spec = RopeSpec(128, scaling=frequencies.Yarn(factor=4.0, original_length=4096))
    assert done.stdout.split() == [str(spec.frequencies().radians[-1]), "1.0"]
