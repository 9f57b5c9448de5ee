"""What every scaling is made of: the ladder of frequencies, the ramps over it, the base class and its checks.

Formulas are written once over `dtype`. In float64 they are the definition; in float32 their operations run in the order
transformers runs them, so the same line also reproduces a checkpoint's own table bit for bit.
Notation: d = `dim` rotated dimensions, pair i = 0 ... d/2 - 1, omega_i = theta^(-2i/d), s = `factor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from ropewalk.errors import RopeError, number

Length = int | Tensor | None


@dataclass(frozen=True, eq=False)
class Frequencies:
    """What a scaling decides: how fast each pair turns, and by how much its vectors grow.

    `radians` is [pairs], or [rows, pairs] where the length is given per row; `magnitude` multiplies cos and sin.
    `growth` (xPos) is the log-magnitude per step from `center` of each pair: added on queries, taken off on keys.
    """

    radians: Tensor
    magnitude: float | Tensor = 1.0
    growth: Tensor | None = None
    center: int = 0


# said everywhere: a model built under `torch.device("meta")` would make frequencies without values
CPU = torch.device("cpu")


def periods(dim: int, theta: float | Tensor, dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """theta^(2i/d): steps per radian of every pair."""
    return theta ** (torch.arange(0, dim, 2, device=device).to(dtype) / dim)


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Given numbers as a tensor; on a GPU copied once."""
    return torch.tensor(values, dtype=dtype, device=device) if device == CPU else _copied(values, dtype, device)


@lru_cache(maxsize=256)
def _copied(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    # copied to a GPU once, so that a captured graph never waits for the host; read only
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def device_of(length: Tensor | float | None) -> torch.device:
    """Where a length lives; plain numbers live on the CPU."""
    return length.device if isinstance(length, Tensor) else CPU


def mscale(factor: float | Tensor, weight: float = 1.0) -> float | Tensor:
    """YaRN's magnitude for a stretch by `factor`: 0.1 * weight * ln(factor) + 1, and 1 where nothing is stretched."""
    if isinstance(factor, Tensor):
        return 0.1 * weight * factor.clamp(min=1).log() + 1.0
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def ntk_theta(theta: float, stretch: float | Tensor, dim: int) -> float | Tensor:
    """The base that slows the slowest pair by `stretch` and leaves the fastest alone."""
    # with one pair there is no slowest but the fastest: nothing to change, and d - 2 would divide by zero
    return theta * (stretch ** (dim / (dim - 2)) if dim > 2 else stretch * 0 + 1)


def turns_to_pair(turns: float, dim: int, theta: float, length: float) -> float:
    """The (fractional) pair that completes `turns` turns within `length` steps."""
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
    """0 for pairs with at least `fast` turns in `length` steps, 1 for those with at most `slow`, linear between."""
    low, high = turns_to_pair(fast, dim, theta, length), turns_to_pair(slow, dim, theta, length)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(dim // 2, dtype=dtype, device=device) - low) / (high - low)).clamp(0, 1)


def as_rows(value: Tensor) -> Tensor:
    """A per-row number, ready to broadcast against the pairs."""
    return value.unsqueeze(-1)


@dataclass(frozen=True)
class Scaling:
    """Base of all scalings: fields are checked once; subclasses give `_radians` and, if they grow, `_magnitude`."""

    #: HF's `rope_type` where it has one
    name: ClassVar[str] = ""
    #: frequencies follow the length of each sequence
    needs_length: ClassVar[bool] = False
    #: frequencies are trained: `Rope` owns a parameter
    learned: ClassVar[bool] = False

    def frequencies(self, dim: int, theta: float, length: Length = None, dtype: torch.dtype = torch.float64) -> Frequencies:
        """Radians per step of the dim/2 pairs; `length` is read only where `needs_length`."""
        reached = torch.tensor(length, device=CPU) if isinstance(length, int) else length
        radians, magnitude = self._radians(dim, theta, reached, dtype), self._magnitude(reached, dtype)
        return Frequencies(radians, magnitude, *self._growth(dim))

    def check(self, dim: int, theta: float) -> None:
        """Refuse a combination with `dim` or `theta` that has no meaning; nothing to refuse in general."""

    def _radians(self, dim: int, theta: float, length: Tensor | None, dtype: torch.dtype) -> Tensor:
        raise TypeError(f"{type(self).__name__} must define _radians(dim, theta, length, dtype)")

    def _magnitude(self, length: Tensor | None, dtype: torch.dtype) -> float | Tensor:
        return 1.0

    def _growth(self, dim: int) -> tuple[Tensor | None, int]:
        return None, 0

    def _set(self, **checked: object) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def as_dict(self) -> dict[str, Any]:
        """The fields that differ from nothing, by name, with the scaling's own name first."""
        return {"rope_type": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}


def magnitude_number(field: str, value: object) -> float:
    """A magnitude: its square and the inverse of its square still fit in a float32."""
    return number(field, value, low=1e-18, high=1e18)


def optional_magnitude(field: str, value: object) -> float | None:
    """A magnitude, or None where the formula decides."""
    return None if value is None else magnitude_number(field, value)


def optional_weight(field: str, value: object) -> float | None:
    """A weight of YaRN's magnitude, or None; at most what still makes a magnitude."""
    return None if value is None else number(field, value, low=0, high=1e17)


def turns_pair(field: str, value: object) -> tuple[float, float]:
    """(fast, slow) turns with fast >= slow."""
    fast, slow = (number(field, x, above=0) for x in _pair(field, value))
    if fast < slow:
        raise RopeError(field, "must be (fast, slow) with fast >= slow", value)
    return fast, slow


def _pair(field: str, value: object) -> tuple[object, object]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise RopeError(field, "must be a pair of numbers", value)
    return value[0], value[1]


def number_tuple(field: str, value: object, above: float = -math.inf) -> tuple[float, ...]:
    """Numbers from a list, tuple or tensor, each above `above`."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not value:
        raise RopeError(field, "must be a list of numbers", value)
    return tuple(number(f"{field}[{i}]", x, above=above) for i, x in enumerate(value))


def positive_tuple(field: str, value: object) -> tuple[float, ...]:
    """Positive numbers from a list, tuple or tensor."""
    return number_tuple(field, value, above=0)


def check_log_theta(theta: float) -> None:
    """Refuse a base whose logarithm has no meaning here."""
    if theta <= 1:
        raise RopeError("theta", "must be above 1 where pairs are counted by their turns", theta)
