"""Exact phases: a frequency as a 64-bit fixed-point fraction of a turn, in Python's integers.

`position * step` wraps modulo 2^64, and the wrap is the range reduction: the phase of any integer
position is exact, however large the position is. `ropewalk.tensor_phase` has the same over tensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Context, Decimal

from ropewalk.frequencies.decimals import DIGITS, pi

#: one whole turn, as a phase
TURN = 1 << 64


def phase_step(radians: Decimal | float) -> int:
    """Return round(radians / (2 pi) * 2^64) modulo 2^64: the phase of one step. It is 0 for a
    frequency that is not finite, which only a scaling of the user's own can give.
    """
    exact = Decimal(radians)
    if not exact.is_finite():
        return 0
    # whole turns are dropped at the end, so a large frequency needs more digits before the point
    digits = DIGITS + max(0, exact.adjusted())
    context = Context(prec=digits)
    turns = context.divide(exact, context.multiply(2, pi(digits)))
    return int(context.multiply(turns, TURN).to_integral_value(context=context)) % TURN


def phase_steps(radians: Iterable[Decimal | float]) -> list[int]:
    """Return the phase of one step of each pair."""
    return [phase_step(value) for value in radians]


def angle(position: int, step: int) -> float:
    """Return the angle at an integer position, in radians from -pi to pi, given the phase of one
    step.
    """
    phase = position * step % TURN
    return (phase - TURN if phase >= TURN // 2 else phase) / TURN * (2 * math.pi)


def cos_sin(position: int, step: int) -> tuple[float, float]:
    """Return cos and sin at an integer position of any size and sign; `step` is the phase of one
    step.
    """
    radians = angle(position, step)
    return math.cos(radians), math.sin(radians)
