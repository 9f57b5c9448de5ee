"""Short numbers for labels, so that long ones such as 20,473,564 do not collide."""

from __future__ import annotations

import math


def short(value: float) -> str:
    """Return a number as short text, at most five characters from 0 to 1e15: 6.3, 408, 54.4k,
    20.5M, 1.1T; infinity is ∞. Below 100 it has one decimal, so 0.04 becomes 0.
    """
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    for unit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # from 0.9995 units on: 999.5k would be rounded to 1000k, so it is written as 1M
        if abs(value) >= unit * 0.9995:
            return _digits(value / unit) + sign
    return _digits(value)


def _digits(value: float) -> str:
    """Return one decimal below 100, none above; a zero after the point is left out."""
    text = f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
    return text.removesuffix(".0")
