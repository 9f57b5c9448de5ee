"""The tensor rope_freqs, which has one divisor for each frequency, and the Llama 3 scaling from
which most of these tensors were computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropewalk.errors import RopeError
from ropewalk.frequencies import Default, Llama3

#: relative tolerance: the tensor holds float32
SAME = 2e-6
#: the divisor of a pair that does not rotate, as llama.cpp's converter writes it
STANDS_STILL = 1e30


def all_close(a: Sequence[float], b: Sequence[float], rtol: float, atol: float = 0.0) -> bool:
    """Return whether each x of `a` differs from the y beside it in `b` by at most `rtol` |y| +
    `atol`.
    """
    return all(abs(x - y) <= atol + rtol * abs(y) for x, y in zip(a, b, strict=True))


def divisors(field: str, values: Sequence[float], pairs: int) -> tuple[float, ...]:
    """Return the divisors after a check: one for each pair, finite and positive; `field` is the
    name of their tensor, for the error.
    """
    if len(values) != pairs:
        raise RopeError(field, f"must hold one factor for each of the {pairs} pairs", len(values))
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise RopeError(field, "must hold finite numbers > 0", list(values))
    return tuple(values)


def divisors_for(radians: Sequence[float], unscaled: Sequence[float]) -> list[float]:
    """Return the divisors by which `unscaled` frequencies become `radians`; 1e30 for a pair that
    does not rotate. Raise an error for a frequency below 0.
    """
    if any(value < 0 for value in radians):
        raise RopeError(
            "scaling",
            "must not rotate backwards: rope_freqs holds positive factors",
            list(radians),
        )
    return [
        STANDS_STILL if scaled == 0 else plain / scaled
        for scaled, plain in zip(radians, unscaled, strict=True)
    ]


def llama3(values: Sequence[float], theta: float) -> Llama3 | None:
    """Return the Llama 3 scaling that divides frequencies by these values; None if none is found.

    Frequencies do not change if `original_length` and both frequency factors of the scaling are
    multiplied by one number, so low_freq_factor is taken to be 1. The factor is the largest
    divisor. The other two fields are those of Llama 3.1, or follow from the blended pairs, if there
    are two or more: the share of the unscaled frequency in them is (original_length * turns per
    step - 1) / (high_freq_factor - 1).
    """
    factor, dim = max(values), 2 * len(values)
    # a larger divisor, such as the 1e30 of a pair that does not rotate, is of no Llama 3 scaling
    if not 1 <= factor <= 1e6:
        return None
    unscaled = Default().frequencies(dim, theta).radians
    # (turns per step, share of the unscaled frequency) of the pairs that are divided by more than 1
    # and less than the whole factor
    blended = [
        (plain / (2 * math.pi), (1 / value - 1 / factor) / (1 - 1 / factor))
        for plain, value in zip(unscaled, values, strict=True)
        if 1 + SAME < value < factor * (1 - SAME)
    ]
    candidates = [(8192, 4.0)]  # original_length and high_freq_factor of Llama 3.1
    if len(blended) >= 2:
        # these points lie on a line with slope original_length / (high_freq_factor - 1) and
        # intercept -1 / (high_freq_factor - 1)
        slope, intercept = _line(blended)
        # within these bounds high_freq_factor is above 1 and not absurdly large
        if slope > 0 and -1e6 < intercept < -1e-6:
            # original_length is -slope / intercept, high_freq_factor is 1 - 1 / intercept
            candidates.append((round(-slope / intercept), round(1 - 1 / intercept, 4)))
    scaled = [plain / value for plain, value in zip(unscaled, values, strict=True)]
    for original_length, high_freq_factor in candidates:
        # divisors of another origin may give a line with any numbers
        if not 1 <= original_length < 2**40:
            continue
        scaling = Llama3(factor, 1.0, high_freq_factor, original_length)
        if all_close(scaled, scaling.frequencies(dim, theta).radians, rtol=SAME):
            return scaling
    return None


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return slope and intercept of the line with the least squared distance from the points."""
    middle_x = math.fsum(x for x, _ in points) / len(points)
    middle_y = math.fsum(y for _, y in points) / len(points)
    spread = math.fsum((x - middle_x) ** 2 for x, _ in points)
    joint = math.fsum((x - middle_x) * (y - middle_y) for x, y in points)
    slope = joint / spread if spread > 0 else 0.0
    return slope, middle_y - slope * middle_x
