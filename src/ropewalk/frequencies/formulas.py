"""The mathematics that scalings share: the ladder of frequencies (their geometric series), ramps
over its pairs, and YaRN's magnitude.

Every formula is written once, over a set of operations `ops`. Over Decimals (`decimals.DECIMAL`) it
is the definition, with 40 digits. Over torch in float32 its operations run in the order in which
transformers runs them, so the same line reproduces a checkpoint's own frequencies bit for bit. Over
torch a length may be a tensor on a GPU.
Notation: d = `dim` rotated dimensions, pair i = 0 ... d/2 - 1, omega_i = theta^(-2i/d), s =
`factor`.
"""

from __future__ import annotations

import math
from typing import Any

from ropewalk.errors import RopeError


class FloatNumbers:
    """The operations of formulas over floats, for formulas with a single result. Classes for
    float32 arrays and for tensors inherit them and add the others.
    """

    pi = math.pi

    def number(self, value: Any) -> Any:
        """Return a parameter as it is."""
        return value

    def log(self, value: float) -> float:
        """Return the natural logarithm of a number."""
        return math.log(value)


FLOAT = FloatNumbers()


def periods(dim: int, theta: Any, ops: Any) -> Any:
    """Return theta^(2i/d), the steps per radian of each pair."""
    return ops.number(theta) ** (ops.multiples(2, dim // 2) / dim)


def mscale(factor: Any, weight: float = 1.0) -> Any:
    """Return YaRN's magnitude for a context `factor` times longer: 0.1 * weight * ln(factor) + 1,
    and 1 for factors up to 1.

    factor  a float, or a tensor with one factor for each row
    """
    if isinstance(factor, float | int):
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
    return 0.1 * weight * factor.clamp(min=1).log() + 1.0


def ntk_theta(theta: float, factor: Any, dim: int, ops: Any = FLOAT) -> Any:
    """Return the theta that slows the slowest pair by `factor` and leaves the fastest unchanged;
    `theta` itself if there is only one pair.
    """
    if dim == 2:
        # a single pair is both the fastest and the slowest, so theta stays; factor * 0 + 1 is 1,
        # for each row if `factor` has rows
        return ops.number(theta) * (factor * 0 + 1)
    return ops.number(theta) * factor ** (ops.number(dim) / (dim - 2))


def turns_to_pair(turns: float, dim: int, theta: float, length: float, ops: Any = FLOAT) -> Any:
    """Return the index, possibly fractional, of the pair that completes `turns` turns within
    `length` steps.
    """
    number = ops.number
    return (dim * ops.log(number(length) / (number(turns) * 2 * ops.pi))) / (
        2 * ops.log(number(theta))
    )


def ramp(
    fast: float, slow: float, dim: int, theta: float, length: float, truncate: bool, ops: Any
) -> Any:
    """Return a ramp over the pairs: 0 up to the pair that completes `fast` turns in `length` steps,
    1 from the pair that completes `slow` turns on.

    It is linear between. Both ends are pair indices that may be fractional; `truncate` moves them
    outwards to whole pairs. If the first is above dim - 1, as with a small theta, the ramp is 1 for
    all pairs.
    """
    low, high = (turns_to_pair(turns, dim, theta, length, ops) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # as in transformers: dim - 1, although the last pair is dim / 2 - 1, with which `low` may be
    # above `high`; and 0.001 instead of a division by zero
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high = high + ops.number(1) / 1000
    return ops.clamp((ops.multiples(1, dim // 2) - low) / (high - low), 0, 1)


def taper(pairs: int, last: int, ops: Any) -> Any:
    """Return one factor for each of `pairs` pairs: 1, but over the last `last` pairs a half cosine
    falls from 1 to 0. It is 1 for all if `last` is 0 or 1.
    """
    steps = ops.multiples(1, pairs) - (pairs - last)
    if last <= 1:
        return steps * 0 + 1  # 1 for every pair
    # the half cosine (1 + cos t) / 2, with t from 0 to pi, is sin((pi - t) / 2)^2, which keeps its
    # digits where it is near 0
    pi_minus_t = ops.pi * (1 - ops.clamp(steps / (last - 1), 0, 1))
    # exactly 1 before the taper and on its first pair
    return ops.where(steps < 1, 1.0, ops.sin(pi_minus_t / 2) ** 2)


def check_log_theta(theta: float) -> None:
    """Refuse theta <= 1, for which a number of turns does not determine a pair."""
    if theta <= 1:
        raise RopeError(
            "theta",
            "must be above 1 for a scaling that selects pairs by their number of turns",
            theta,
        )
