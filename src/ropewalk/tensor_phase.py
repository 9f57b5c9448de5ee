"""Exact phases of tensors: frequencies as 64-bit fixed-point fractions of a turn, as
`ropewalk.phase` has them, on any device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# 1 / (2 pi) as the sum of two float64 numbers, good to 107 bits
_INVERSE_TWO_PI = 0.15915494309189535
_INVERSE_TWO_PI_LOW = -9.839338337591243e-18


def phase_steps(radians: Tensor) -> Tensor:
    """Return round(radians / (2 pi) * 2^64) modulo 2^64 as int64, computed on the tensor's own
    device.

    For frequencies that follow a length on the device; those that are fixed have all their digits
    in `ropewalk.phase`. The result is right to 107 bits of `radians`: to 1e-14 of a turn for 1e18
    radians.
    """
    # the number of turns is high + rest
    high, rest = _product_with_inverse_two_pi(radians.to(torch.float64))
    # exact for either sign, unlike high - high.floor() just below an integer
    fraction = high - high.trunc()
    rest = rest - rest.trunc()  # whole turns again, from 1e16 radians on
    # the upper and the lower 32 bits by themselves: a float64 holds 53 bits
    upper, upper_rest = (fraction * 2.0**32).floor(), (rest * 2.0**32).round()
    lower = (fraction * 2.0**32 - upper) * 2.0**32 + (rest * 2.0**32 - upper_rest) * 2.0**32
    return ((upper + upper_rest).to(torch.int64) << 32) + lower.round().to(torch.int64)


def cos_sin_of_phase(steps: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return float64 cos and sin of integer positions of any size and sign, given the phase step of
    each pair.
    """
    return cos_sin_of_turns(positions * steps)


def cos_sin_of_turns(phase: Tensor) -> tuple[Tensor, Tensor]:
    """Return float64 cos and sin of phases, which are int64 fractions of a turn; the sum of phases
    is the phase of the sum.
    """
    angles = phase.to(torch.float64) * 2.0**-64 * (2 * math.pi)
    return angles.cos(), angles.sin()


def _product_with_inverse_two_pi(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return x / (2 pi) as high + low. Both factors are split into a top of 26 bits and a rest of
    27, so every partial product is exact, but for the last bit of rest times rest.
    """
    x_top = _top_half(x)
    x_bottom = x - x_top
    high = x * _INVERSE_TWO_PI
    # the rounding error of `high`: the exact product, as the sum of four products of halves, minus
    # `high`
    low = (
        (x_top * _FACTOR_TOP - high) + x_top * _FACTOR_BOTTOM + x_bottom * _FACTOR_TOP
    ) + x_bottom * _FACTOR_BOTTOM
    return high, low + x * _INVERSE_TWO_PI_LOW


def _top_half(x: Tensor) -> Tensor:
    """Return float64 x with its last 27 bits set to 0."""
    # bit masks instead of Veltkamp's products: a compiler that contracts to fma cannot change the
    # result
    return (x.view(torch.int64) & -(1 << 27)).view(torch.float64)


# the halves of the factor 1 / (2 pi)
_FACTOR_TOP = float(_top_half(torch.tensor(_INVERSE_TWO_PI, dtype=torch.float64, device="cpu")))
_FACTOR_BOTTOM = _INVERSE_TWO_PI - _FACTOR_TOP
