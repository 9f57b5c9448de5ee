"""Scalings that slow every pair by one rule: none, interpolation, a larger theta, or no geometric series at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ropewalk.frequencies.formulas import CPU, ntk_theta, per_row, periods
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, Scaling, setting

#: the largest factor: a pair slowed by more does not rotate at all, and NTK's power of it would overflow a float
MAX_FACTOR = 1e30


@dataclass(frozen=True)
class Default(Scaling):
    """omega_i = theta^(-2i/d), as RoFormer has it."""

    name: ClassVar[str] = "default"
    in_configs: ClassVar[bool] = True

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, theta, dtype)


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every pair slows by `factor`."""

    factor: float = setting(1.0, low=1, high=MAX_FACTOR, required=True)
    name: ClassVar[str] = "linear"
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True
    raises_length: ClassVar[bool] = False

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, theta, dtype) / self.factor


@dataclass(frozen=True)
class Ntk(Scaling):
    """NTK-aware: theta grows to theta * s^(d/(d-2)), so the slowest pair slows by s and the fastest stays as it is."""

    factor: float = setting(1.0, low=1, high=MAX_FACTOR)
    name: ClassVar[str] = "ntk"
    in_extend: ClassVar[bool] = True

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, ntk_theta(theta, self.factor, dim), dtype)


@dataclass(frozen=True)
class Dynamic(Scaling):
    """Dynamic NTK: theta grows with each sequence's own length beyond `original_length`, and stays as it is up to it."""

    # above 2^20, float32 loses the 1 in factor - (factor - 1)
    factor: float = setting(1.0, low=1, high=2.0**20, required=True)
    original_length: int = setting(2048, low=1, key=SERVED_LENGTH_KEY, required=True)
    name: ClassVar[str] = "dynamic"
    needs_length: ClassVar[bool] = True
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True
    raises_length: ClassVar[bool] = False

    def _radians(self, dim, theta, length, dtype):
        if length is None:
            return Default()._radians(dim, theta, length, dtype)
        # clamped to the trained length: a shorter sequence would make theta negative
        reached = per_row(length.clamp(min=self.original_length)).to(dtype)
        stretch = self.factor * reached / self.original_length - (self.factor - 1)
        return 1.0 / periods(dim, ntk_theta(theta, stretch, dim), dtype, length.device)


@dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: only the fastest `fraction` of the pairs rotate; pairs still span the whole head."""

    factor: float = setting(1.0, low=1, high=MAX_FACTOR)
    fraction: float = setting(1.0, low=0, high=1, key="partial_rotary_factor")
    name: ClassVar[str] = "proportional"
    in_configs: ClassVar[bool] = True

    def _radians(self, dim, theta, length, dtype):
        rotated = int(self.fraction * dim // 2)
        plain = 1.0 / periods(dim, theta, dtype)
        return torch.where(torch.arange(dim // 2, device=CPU) < rotated, plain, 0.0) / self.factor


@dataclass(frozen=True)
class LinearFrequencies(Scaling):
    """theta_i = 1 / (1 + 2i): a study variant without geometric spacing."""

    name: ClassVar[str] = "linear_frequencies"

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / (1 + torch.arange(0, dim, 2, dtype=dtype, device=CPU))
