"""The mathematics that scalings share: the ladder of frequencies, ramps over its pairs, and YaRN's
magnitude.

Formulas are written once over `dtype`. In float64 they are the definition; in `DoubleDouble` they
have 28 digits, for exact phases; in float32 their operations run in the order transformers runs
them, so the same line also reproduces a checkpoint's own table bit for bit.
Notation: d = `dim` rotated dimensions, pair i = 0 ... d/2 - 1, omega_i = theta^(-2i/d), s =
`factor`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.caches import cached
from ropewalk.errors import RopeError
from ropewalk.frequencies import double_double
from ropewalk.frequencies.double_double import DoubleDouble

#: what a formula computes in
Dtype = torch.dtype | type[DoubleDouble]
#: the values of a formula's pairs
Values = Tensor | DoubleDouble

# always passed explicitly: under `torch.device("meta")` the default device would give frequencies
# without values
CPU = torch.device("cpu")


def periods(dim: int, theta: float | Values, dtype: Dtype, device: torch.device = CPU) -> Any:
    """Return theta^(2i/d), the steps per radian of each pair."""
    return theta ** (multiples_from_zero(2, dim // 2, dtype, device) / dim)


def multiples_from_zero(step: int, count: int, dtype: Dtype, device: torch.device = CPU) -> Any:
    """Return 0, step, 2 step, ...: `count` numbers."""
    if isinstance(dtype, torch.dtype):
        return torch.arange(0, step * count, step, device=device).to(dtype)
    return DoubleDouble(step * np.arange(count, dtype=np.float64))


def number(value: float, dtype: Dtype) -> Any:
    """Return a parameter as formulas in `dtype` take it: a float, or a double-double, whose
    arithmetic with floats is exact.
    """
    return value if isinstance(dtype, torch.dtype) else DoubleDouble(value)


def pi(dtype: Dtype) -> Any:
    """Return pi with the digits that `dtype` has."""
    return math.pi if isinstance(dtype, torch.dtype) else double_double.PI


def log(value: float | DoubleDouble) -> Any:
    """Return the natural logarithm of a single number."""
    return value.log() if isinstance(value, DoubleDouble) else math.log(value)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return the pairs of a where `condition` is true, those of b elsewhere; one of them may be a
    number.
    """
    return (
        torch.where(condition, a, b)
        if isinstance(condition, Tensor)
        else double_double.where(condition, a, b)
    )


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of `values` that must not be written to; copies on a GPU are cached."""
    return (
        torch.tensor(values, dtype=dtype, device=device)
        if device == CPU
        else _device_copy(values, dtype, device)
    )


def exponentials(values: tuple[float, ...], dtype: Dtype, device: torch.device) -> Any:
    """Return e to the power of each value."""
    if isinstance(dtype, torch.dtype):
        return constant(values, dtype, device).exp()
    return DoubleDouble(np.array(values, dtype=np.float64)).exp()


@cached("scaling constants", entries=256)
def _device_copy(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of `values` on a GPU.

    It is cached, so the copy from the host is made before a CUDA graph is captured: a capture must
    not wait for the host.
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def device_of(length: Tensor | float | None) -> torch.device:
    """Return the device of a length; the CPU for a number or None."""
    return length.device if isinstance(length, Tensor) else CPU


def mscale(factor: float | Tensor, weight: float = 1.0) -> float | Tensor:
    """Return YaRN's magnitude for a context `factor` times longer: 0.1 * weight * ln(factor) + 1,
    and 1 for factors up to 1.
    """
    if isinstance(factor, Tensor):
        return 0.1 * weight * factor.clamp(min=1).log() + 1.0
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def ntk_theta(theta: float, factor: float | Tensor, dim: int, dtype: Dtype = torch.float64) -> Any:
    """Return the theta that slows the slowest pair by `factor` and leaves the fastest unchanged."""
    if (
        dim == 2
        # a single pair is both the fastest and the slowest: theta stays the same, for each row if
        # there are rows
    ):
        return theta * (factor * 0 + 1)
    return theta * factor ** (number(dim, dtype) / (dim - 2))


def turns_to_pair(
    turns: float, dim: int, theta: float, length: float, dtype: Dtype = torch.float64
) -> Any:
    """Return the index, possibly fractional, of the pair that completes `turns` turns within
    `length` steps.
    """
    return (dim * log(length / (turns * 2 * pi(dtype)))) / (2 * log(number(theta, dtype)))


def ramp(
    fast: float,
    slow: float,
    dim: int,
    theta: float,
    length: float,
    truncate: bool,
    dtype: Dtype,
    device: torch.device = CPU,
) -> Any:
    """Return a ramp over the pairs: 0 up to the pair of `fast` turns in `length` steps, 1 from the
    pair of `slow` turns on.

    It is linear between. Both ends are fractions of a pair; `truncate` moves them outwards to whole
    pairs.
    """
    low, high = (turns_to_pair(turns, dim, theta, length, dtype) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    # dim - 1, although the last pair is dim / 2 - 1, and 0.001 instead of a division by zero: both
    # as in transformers
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high = high + number(1.0, dtype) / 1000
    return ((multiples_from_zero(1, dim // 2, dtype, device) - low) / (high - low)).clamp(0, 1)


def taper(pairs: int, last: int, dtype: Dtype, device: torch.device = CPU) -> Any:
    """Return 1 for each pair but the `last` ones, for which a half cosine falls from 1 to 0; 1 for
    all if `last` is 1.
    """
    steps = multiples_from_zero(1, pairs, dtype, device) - (pairs - last)
    # the half cosine (1 + cos t) / 2, with t from 0 to pi, is sin((pi - t) / 2)^2, which keeps its
    # digits where it is near 0; a DoubleDouble has (1 - cos(pi - t)) / 2, which is the same
    pi_minus_t = pi(dtype) * (1 - (steps / max(1, last - 1)).clamp(0, 1))
    falling = (
        (pi_minus_t / 2).sin() ** 2
        if isinstance(pi_minus_t, Tensor)
        else pi_minus_t.cos_minus_one() / -2.0
    )
    return where(steps < 1, 1.0, falling) if last > 1 else steps * 0 + 1  # all 1


def per_row(value: Tensor) -> Tensor:
    """Return a tensor with one number per batch row with a last dimension of size 1, which
    broadcasts against the pairs.
    """
    return value.unsqueeze(-1)


def check_log_theta(theta: float) -> None:
    """Refuse theta <= 1, for which a number of turns does not determine a pair."""
    if theta <= 1:
        raise RopeError(
            "theta",
            "must be above 1 for a scaling that selects pairs by their number of turns",
            theta,
        )
