"""Scalings with a value for each pair: a searched factor, a given or trained frequency, a decay."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from ropewalk.errors import RopeError
from ropewalk.frequencies.basic import Default
from ropewalk.frequencies.formulas import CPU, constant, device_of, per_row, periods
from ropewalk.frequencies.scaling import MAGNITUDE_RANGE, TRAINED_LENGTH_KEY, Scaling, setting


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: one searched factor per pair, `short_factor` up to `original_length` and `long_factor` beyond it.

    `factor` is how many times longer the whole context is; it determines the magnitude unless `attention_factor` is given.
    """

    short_factor: tuple[float, ...] = setting((1.0,), above=0, required=True)
    long_factor: tuple[float, ...] = setting((1.0,), above=0, required=True)
    original_length: int = setting(4096, low=2, key=TRAINED_LENGTH_KEY, required=True)
    # a ratio below 1, from a served length shorter than the trained one, gives magnitude 1
    factor: float = setting(1.0, above=0, required=True, from_lengths=True)
    attention_factor: float | None = setting(None, **MAGNITUDE_RANGE)
    name: ClassVar[str] = "longrope"
    needs_length: ClassVar[bool] = True
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def check(self, dim, theta):
        self._check_pairs("short_factor", dim, "factor")
        self._check_pairs("long_factor", dim, "factor")

    def _radians(self, dim, theta, length, dtype):
        device = device_of(length)
        steps = periods(dim, theta, dtype, device)
        short = 1.0 / (constant(self.short_factor, dtype, device) * steps)
        if length is None:
            return short
        long = 1.0 / (constant(self.long_factor, dtype, device) * steps)
        return torch.where(per_row(length > self.original_length), long, short)

    def _magnitude(self, length, dtype):
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))


@dataclass(frozen=True)
class XPos(Scaling):
    """xPos: each pair also decays with distance, zeta_i^((m - n) / scale_base), zeta_i = (2i + 0.4 d) / (1.4 d).

    Queries grow and keys shrink with position; only their product is meaningful, and only for causal attention.
    `center` is a constant of the spec, so a cache stays valid while the sequence grows.
    """

    scale_base: float = setting(512.0, above=0)
    center: int = setting(0, low=-(2**62))
    name: ClassVar[str] = "xpos"

    def _radians(self, dim, theta, length, dtype):
        return Default()._radians(dim, theta, length, dtype)

    def _growth(self, dim):
        zeta = (torch.arange(0, dim, 2, dtype=torch.float64, device=CPU) + 0.4 * dim) / (1.4 * dim)
        return zeta.log() / self.scale_base, self.center


@dataclass(frozen=True)
class Given(Scaling):
    """Your own radians per step, one for each pair."""

    radians: tuple[float, ...] = setting((1.0,))
    magnitude: float = setting(1.0, **MAGNITUDE_RANGE)
    name: ClassVar[str] = "given"

    def check(self, dim, theta):
        self._check_pairs("radians", dim, "frequency")

    def _radians(self, dim, theta, length, dtype):
        return torch.tensor(self.radians, dtype=dtype, device=CPU)

    def _magnitude(self, length, dtype):
        return self.magnitude


@dataclass(frozen=True)
class Learnable(Scaling):
    """omega_i * exp(alpha_i) with trained alpha, zero at the start; omega is that of the scaling `start`."""

    start: Scaling = Default()  # noqa: RUF009 - frozen and without fields
    name: ClassVar[str] = "learnable"
    learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.start, Scaling) or self.start.learned or self.start.needs_length:
            raise RopeError("start", "must be a scaling whose frequencies are not trained and do not follow a length", self.start)

    def check(self, dim, theta):
        self.start.check(dim, theta)

    def _radians(self, dim, theta, length, dtype):
        return self.start._radians(dim, theta, length, dtype)

    def _magnitude(self, length, dtype):
        return self.start._magnitude(length, dtype)

    def _growth(self, dim):
        return self.start._growth(dim)
