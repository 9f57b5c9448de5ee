"""Double-doubles compute as mpmath does with 60 digits, to 28 digits."""

import math

import mpmath
import numpy as np
import pytest
import torch

from ropewalk.frequencies.double_double import PI, DoubleDouble, where

OPERATORS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def parts(x: DoubleDouble) -> tuple[list, list]:
    return np.ravel(x.high).tolist(), np.ravel(x.low).tolist()


def exactly(x: DoubleDouble) -> list:
    """Each number as the exact sum of its parts."""
    with mpmath.workdps(60):
        return [mpmath.mpf(high) + mpmath.mpf(low) for high, low in zip(*parts(x), strict=True)]


def sample(seed: int, count: int = 100) -> DoubleDouble:
    """Numbers of either sign and many sizes, with bits beyond float64."""
    random = np.random.default_rng(seed)
    high = random.normal(size=count) * 10.0 ** random.uniform(-8, 8, count)
    return DoubleDouble(high, high * random.uniform(-(2.0**-54), 2.0**-54, count))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name):
    apply, a, b = OPERATORS[name], sample(0), sample(1)
    with mpmath.workdps(60):
        for found, x, y in zip(exactly(apply(a, b)), exactly(a), exactly(b), strict=True):
            size = abs(x) + abs(y) if name in "+-" else abs(apply(x, y))
            assert abs(found - apply(x, y)) <= 1e-28 * size
        # Python numbers are exact operands, on either side
        for number in (3, 0.1):
            for x, right, left in zip(
                exactly(a), exactly(apply(a, number)), exactly(apply(number, a)), strict=True
            ):
                assert abs(right - apply(x, mpmath.mpf(number))) <= 1e-28 * (
                    abs(x) + number if name in "+-" else abs(right)
                )
                assert abs(left - apply(mpmath.mpf(number), x)) <= 1e-28 * (
                    abs(x) + number if name in "+-" else abs(left)
                )


def test_the_high_part_is_the_nearest_float():
    for apply in OPERATORS.values():
        found = apply(sample(2), sample(3))
        assert np.array_equal(found.high + found.low, found.high)


def test_exp_log_and_powers():
    x = sample(4)
    x = DoubleDouble(x.high % 300 - 150, x.low * 0)
    with mpmath.workdps(60):
        for found, exact in zip(exactly(x.exp()), exactly(x), strict=True):
            assert abs(found / mpmath.exp(exact) - 1) <= 1e-27
        for base in (1.0001, 2.0, 10_000.0, 1e-5, 1e300):
            assert abs(exactly(DoubleDouble(base).log())[0] / mpmath.log(base) - 1) <= 1e-31
            exponents = DoubleDouble(np.arange(0, 128, 2.0)) / 128
            for powers in (base**exponents, DoubleDouble(base) ** exponents):
                for i, found in enumerate(exactly(powers)):
                    assert abs(found / mpmath.mpf(base) ** (mpmath.mpf(i) / 64) - 1) <= 1e-27
        assert abs(exactly(PI)[0] / mpmath.pi - 1) <= 1e-31


def test_cos_minus_one_keeps_its_digits_near_zero():
    high = np.array([-3.1, -1.0, -0.2, 1e-9, 0.03, 0.7, 2.0, 3.14])
    x = DoubleDouble(high, high * 2.0**-55)
    with mpmath.workdps(60):
        for found, exact in zip(exactly(x.cos_minus_one()), exactly(x), strict=True):
            assert abs(found / (mpmath.cos(exact) - 1) - 1) <= 1e-27


def test_comparisons_see_the_low_part():
    tiny = 2.0**-60
    above, below, one = DoubleDouble(1.0, tiny), DoubleDouble(1.0, -tiny), DoubleDouble(1.0)
    assert all((above > 1, below < 1, below < above, one == 1))
    assert not any((above < 1, below > 1, above == 1, one > 1, one < 1))
    assert (math.floor(above), math.floor(below), math.floor(one)) == (1, 0, 1)
    assert (math.ceil(above), math.ceil(below), math.ceil(one)) == (2, 1, 1)
    assert max(below, 0) is below
    assert min(above, 1) == 1


def test_choices_keep_both_parts():
    a, b = (
        DoubleDouble(np.array(high), 1e-20 * np.array(high)) for high in ([1.0, 2.0], [3.0, 4.0])
    )
    assert parts(where(np.array([True, False]), a, b)) == ([1.0, 4.0], [1e-20, 4e-20])
    clamped = DoubleDouble(np.array([-0.5, 0.25, 1.0]), np.array([0.0, 1e-20, 1e-20])).clamp(0, 1)
    assert parts(clamped) == ([0.0, 0.25, 1.0], [0.0, 1e-20, 0.0])


def test_tensors_are_the_two_parts():
    high, low = sample(5).tensors()
    assert high.dtype == low.dtype == torch.float64
    assert torch.equal(high + low, high)
    assert sample(5).is_finite
    with np.errstate(all="ignore"):
        assert not (1.0 / DoubleDouble(np.array([0.0, 1.0]))).is_finite
