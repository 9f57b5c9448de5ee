"""The mathematics that scalings share: the ladder of frequencies, ramps over its pairs, and YaRN's magnitude.

Formulas are written once over `dtype`. In float64 they are the definition; in float32 their operations run in the order
transformers runs them, so the same line also reproduces a checkpoint's own table bit for bit.
Notation: d = `dim` rotated dimensions, pair i = 0 ... d/2 - 1, omega_i = theta^(-2i/d), s = `factor`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.caches import cached
from ropewalk.errors import RopeError

# always passed explicitly: under `torch.device("meta")` the default device would give frequencies without values
CPU = torch.device("cpu")


def periods(dim: int, theta: float | Tensor, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """Return theta^(2i/d), the steps per radian of each pair."""
    return theta ** (torch.arange(0, dim, 2, device=device).to(dtype) / dim)


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of `values` that must not be written to; copies on a GPU are cached."""
    return torch.tensor(values, dtype=dtype, device=device) if device == CPU else _device_copy(values, dtype, device)


@cached("scaling constants", entries=256)
def _device_copy(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # copied from the host once, before a CUDA graph is captured, because a capture must not wait for the host
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def device_of(length: Tensor | float | None) -> torch.device:
    """Return the device of a length; the CPU for a number or None."""
    return length.device if isinstance(length, Tensor) else CPU


def mscale(factor: float | Tensor, weight: float = 1.0) -> float | Tensor:
    """Return YaRN's magnitude for a context `factor` times longer: 0.1 * weight * ln(factor) + 1, and 1 for factors up to 1."""
    if isinstance(factor, Tensor):
        return 0.1 * weight * factor.clamp(min=1).log() + 1.0
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def ntk_theta(theta: float, factor: float | Tensor, dim: int) -> float | Tensor:
    """Return the theta that slows the slowest pair by `factor` and leaves the fastest unchanged."""
    # a single pair is both the fastest and the slowest: theta stays the same, and dim - 2 would divide by zero
    return theta * (factor ** (dim / (dim - 2)) if dim > 2 else factor * 0 + 1)


def turns_to_pair(turns: float, dim: int, theta: float, length: float) -> float:
    """Return the index, possibly fractional, of the pair that completes `turns` turns within `length` steps."""
    return (dim * math.log(length / (turns * 2 * math.pi))) / (2 * math.log(theta))


def ramp(
    fast: float,
    slow: float,
    dim: int,
    theta: float,
    length: float,
    truncate: bool,
    dtype: torch.dtype,
    device: torch.device = CPU,
) -> Tensor:
    """Return 0 for pairs that complete at least `fast` turns in `length` steps, 1 for at most `slow`, linear between."""
    low, high = turns_to_pair(fast, dim, theta, length), turns_to_pair(slow, dim, theta, length)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(dim // 2, dtype=dtype, device=device) - low) / (high - low)).clamp(0, 1)


def per_row(value: Tensor) -> Tensor:
    """Add a last dimension to a tensor with one number per batch row, to broadcast it against the pairs."""
    return value.unsqueeze(-1)


def check_log_theta(theta: float) -> None:
    """Refuse theta <= 1, for which a number of turns does not determine a pair."""
    if theta <= 1:
        raise RopeError("theta", "must be above 1 for a scaling that selects pairs by their number of turns", theta)
