"""Which frequencies: one frozen dataclass per scaling, each a pure function to radians per step.

Every formula is written once over `dtype`; see `scaling.py` for what they share and for the notation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.errors import RopeError, flag, integer, number
from ropewalk.frequencies.scaling import (
    CPU,
    Frequencies,
    Length,
    Scaling,
    as_rows,
    check_log_theta,
    constant,
    device_of,
    magnitude_number,
    mscale,
    ntk_theta,
    number_tuple,
    optional_magnitude,
    optional_weight,
    periods,
    positive_tuple,
    ramp,
    turns_pair,
)


@dataclass(frozen=True)
class Default(Scaling):
    """omega_i = theta^(-2i/d), as RoFormer has it."""

    name: ClassVar[str] = "default"

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, theta, dtype)


@dataclass(frozen=True)
class _Stretched(Scaling):
    """A scaling by a constant `factor` >= 1."""

    factor: float = 1.0
    #: a pair slowed by more stands still, and NTK's power of it would leave a float
    most: ClassVar[float] = 1e30

    def __post_init__(self) -> None:
        self._set(factor=number("factor", self.factor, low=1, high=self.most))


@dataclass(frozen=True)
class Linear(_Stretched):
    """Position interpolation: every pair slows by `factor`."""

    name: ClassVar[str] = "linear"

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, theta, dtype) / self.factor


@dataclass(frozen=True)
class Ntk(_Stretched):
    """NTK-aware: theta grows to theta * s^(d/(d-2)), so the slowest pair slows by s and the fastest keeps its pace."""

    name: ClassVar[str] = "ntk"

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / periods(dim, ntk_theta(theta, self.factor, dim), dtype)


@dataclass(frozen=True)
class NtkByParts(_Stretched):
    """NTK-by-parts as first published: slow pairs interpolate, middle ones follow NTK, fast ones stay.

    `ntk_turns` and `keep_turns` are the (fast, slow) ends of the two ramps, in turns within `original_length`.
    The paper's later by-parts rule is `Yarn(factor, original_length, attention_factor=1.0)`.
    """

    original_length: int = 2048
    ntk_turns: tuple[float, float] = (1.25, 0.75)
    keep_turns: tuple[float, float] = (16.0, 2.0)
    ntk_weight: float = 1.0
    keep_weight: float = 1.0
    name: ClassVar[str] = "ntk_by_parts"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            original_length=integer("original_length", self.original_length, low=1),
            ntk_turns=turns_pair("ntk_turns", self.ntk_turns),
            keep_turns=turns_pair("keep_turns", self.keep_turns),
            ntk_weight=number("ntk_weight", self.ntk_weight, low=0, high=1),
            keep_weight=number("keep_weight", self.keep_weight, low=0, high=1),
        )

    def check(self, dim, theta):
        check_log_theta(theta)

    def _radians(self, dim, theta, length, dtype):
        plain = Default()._radians(dim, theta, length, dtype)
        slowed = Linear(self.factor)._radians(dim, theta, length, dtype)
        ntk = Ntk(self.factor)._radians(dim, theta, length, dtype)
        to_ntk = (1 - ramp(*self.ntk_turns, dim, theta, self.original_length, True, dtype)) * self.ntk_weight
        keep = (1 - ramp(*self.keep_turns, dim, theta, self.original_length, True, dtype)) * self.keep_weight
        return (slowed * (1 - to_ntk) + ntk * to_ntk) * (1 - keep) + plain * keep


@dataclass(frozen=True)
class Dynamic(_Stretched):
    """Dynamic NTK: theta grows with each sequence's own length past `original_length`, and is untouched below it."""

    original_length: int = 2048
    name: ClassVar[str] = "dynamic"
    needs_length: ClassVar[bool] = True
    most: ClassVar[float] = 2.0**20  # beyond it, float32 loses the 1 in factor - (factor - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(original_length=integer("original_length", self.original_length, low=1))

    def _radians(self, dim, theta, length, dtype):
        if length is None:
            return Default()._radians(dim, theta, length, dtype)
        # clamped at the trained length: a shorter sequence would make the base negative
        reached = as_rows(length.clamp(min=self.original_length)).to(dtype)
        stretch = self.factor * reached / self.original_length - (self.factor - 1)
        return 1.0 / periods(dim, ntk_theta(theta, stretch, dim), dtype, length.device)


@dataclass(frozen=True)
class _Banded(Scaling):
    """YaRN's by-parts rule: fast pairs stay, slow pairs interpolate by a stretch, the middle is a linear blend."""

    original_length: int = 2048
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    def __post_init__(self) -> None:
        self._set(
            original_length=integer("original_length", self.original_length, low=1),
            beta_fast=number("beta_fast", self.beta_fast, above=0),
            beta_slow=number("beta_slow", self.beta_slow, above=0),
            truncate=flag("truncate", self.truncate),
            attention_factor=optional_magnitude("attention_factor", self.attention_factor),
            mscale=optional_weight("mscale", self.mscale),
            mscale_all_dim=optional_weight("mscale_all_dim", self.mscale_all_dim),
        )
        if self.beta_fast < self.beta_slow:
            raise RopeError("beta_fast", f"must be at least beta_slow = {self.beta_slow:g}", self.beta_fast)

    def check(self, dim, theta):
        check_log_theta(theta)

    def _blend(self, dim: int, theta: float, stretch: float | Tensor, dtype: torch.dtype) -> Tensor:
        device = device_of(stretch)
        steps = periods(dim, theta, dtype, device)
        keep = 1 - ramp(self.beta_fast, self.beta_slow, dim, theta, self.original_length, self.truncate, dtype, device)
        stretch = as_rows(stretch) if isinstance(stretch, Tensor) else stretch
        return 1.0 / (stretch * steps) * (1 - keep) + 1.0 / steps * keep

    def _temperature(self, stretch: float | Tensor) -> float | Tensor:
        if self.attention_factor is not None:
            return self.attention_factor
        # zero counts as absent, as in the checkpoints that carry these keys
        if self.mscale and self.mscale_all_dim:
            return mscale(stretch, self.mscale) / mscale(stretch, self.mscale_all_dim)
        return mscale(stretch)


@dataclass(frozen=True)
class Yarn(_Banded):
    """YaRN: by-parts interpolation by `factor`, and a magnitude that sharpens attention."""

    factor: float = 1.0
    name: ClassVar[str] = "yarn"

    def __post_init__(self) -> None:
        self._set(factor=number("factor", self.factor, low=1, high=_Stretched.most))
        super().__post_init__()

    def _radians(self, dim, theta, length, dtype):
        return self._blend(dim, theta, self.factor, dtype)

    def _magnitude(self, length, dtype):
        return self._temperature(self.factor)


@dataclass(frozen=True)
class DynamicYarn(_Banded):
    """YaRN whose factor is each sequence's own length over `original_length`, never below 1."""

    name: ClassVar[str] = "dynamic_yarn"
    needs_length: ClassVar[bool] = True

    def _stretch(self, length: Tensor | None, dtype: torch.dtype) -> float | Tensor:
        return 1.0 if length is None else (length.to(dtype) / self.original_length).clamp(min=1)

    def _radians(self, dim, theta, length, dtype):
        return self._blend(dim, theta, self._stretch(length, dtype), dtype)

    def _magnitude(self, length, dtype):
        return self._temperature(self._stretch(length, dtype))


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: one searched factor per pair, `short_factor` up to `original_length` and `long_factor` beyond it.

    `factor` is the stretch of the whole context and decides the magnitude where `attention_factor` is not given.
    """

    short_factor: tuple[float, ...] = (1.0,)
    long_factor: tuple[float, ...] = (1.0,)
    original_length: int = 4096
    factor: float = 1.0
    attention_factor: float | None = None
    name: ClassVar[str] = "longrope"
    needs_length: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self._set(
            short_factor=positive_tuple("short_factor", self.short_factor),
            long_factor=positive_tuple("long_factor", self.long_factor),
            original_length=integer("original_length", self.original_length, low=2),
            # a served context shorter than the trained one gives a ratio below 1; it only means "no magnitude"
            factor=number("factor", self.factor, above=0),
            attention_factor=optional_magnitude("attention_factor", self.attention_factor),
        )

    def check(self, dim, theta):
        for name in ("short_factor", "long_factor"):
            if len(getattr(self, name)) != dim // 2:
                raise RopeError(name, f"must hold one factor for each of the {dim // 2} pairs", len(getattr(self, name)))

    def _radians(self, dim, theta, length, dtype):
        device = device_of(length)
        steps = periods(dim, theta, dtype, device)
        short = 1.0 / (constant(self.short_factor, dtype, device) * steps)
        if length is None:
            return short
        long = 1.0 / (constant(self.long_factor, dtype, device) * steps)
        return torch.where(as_rows(length > self.original_length), long, short)

    def _magnitude(self, length, dtype):
        if self.attention_factor is not None:
            return self.attention_factor
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))


@dataclass(frozen=True)
class Llama3(_Stretched):
    """Llama 3.1: wavelengths above L0/low slow by `factor`, those below L0/high stay, the rest blend."""

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_length: int = 8192
    name: ClassVar[str] = "llama3"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(
            low_freq_factor=number("low_freq_factor", self.low_freq_factor, above=0),
            high_freq_factor=number("high_freq_factor", self.high_freq_factor, above=0),
            original_length=integer("original_length", self.original_length, low=1),
        )
        if self.high_freq_factor < self.low_freq_factor:
            rule = f"must be at least low_freq_factor = {self.low_freq_factor:g}"
            raise RopeError("high_freq_factor", rule, self.high_freq_factor)

    def _radians(self, dim, theta, length, dtype):
        plain = 1.0 / periods(dim, theta, dtype)
        wavelengths = 2 * math.pi / plain
        longest, shortest = self.original_length / self.low_freq_factor, self.original_length / self.high_freq_factor
        banded = torch.where(wavelengths > longest, plain / self.factor, plain)
        # equal ends leave no middle band to blend; the guard keeps 0/0 out of the unused branch
        width = (self.high_freq_factor - self.low_freq_factor) or 1.0
        blend = (self.original_length / wavelengths - self.low_freq_factor) / width
        blended = (1 - blend) * banded / self.factor + blend * banded
        return torch.where(~(wavelengths < shortest) & ~(wavelengths > longest), blended, banded)


@dataclass(frozen=True)
class Proportional(_Stretched):
    """p-RoPE: the fastest `fraction` of the pairs turn, the rest stand still; pairs still span the whole head."""

    fraction: float = 1.0
    name: ClassVar[str] = "proportional"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(fraction=number("fraction", self.fraction, low=0, high=1))

    def _radians(self, dim, theta, length, dtype):
        turning = int(self.fraction * dim // 2)
        plain = 1.0 / periods(dim, theta, dtype)
        return torch.where(torch.arange(dim // 2, device=CPU) < turning, plain, 0.0) / self.factor


@dataclass(frozen=True)
class LinearFrequencies(Scaling):
    """theta_i = 1 / (1 + 2i): a study variant without geometric spacing."""

    name: ClassVar[str] = "linear_frequencies"

    def _radians(self, dim, theta, length, dtype):
        return 1.0 / (1 + torch.arange(0, dim, 2, dtype=dtype, device=CPU))


@dataclass(frozen=True)
class XPos(Scaling):
    """xPos: each pair also decays with distance, zeta_i^((m - n) / scale_base), zeta_i = (2i + 0.4 d) / (1.4 d).

    Queries grow and keys shrink with position; only their product is meaningful, and only for causal attention.
    `center` is a constant of the spec, so a cache stays valid while the sequence grows.
    """

    scale_base: float = 512.0
    center: int = 0
    name: ClassVar[str] = "xpos"

    def __post_init__(self) -> None:
        self._set(scale_base=number("scale_base", self.scale_base, above=0), center=integer("center", self.center, low=-(2**62)))

    def _radians(self, dim, theta, length, dtype):
        return Default()._radians(dim, theta, length, dtype)

    def _growth(self, dim):
        zeta = (torch.arange(0, dim, 2, dtype=torch.float64, device=CPU) + 0.4 * dim) / (1.4 * dim)
        return zeta.log() / self.scale_base, self.center


@dataclass(frozen=True)
class Given(Scaling):
    """Your own radians per step, one for each pair."""

    radians: tuple[float, ...] = (1.0,)
    magnitude: float = 1.0
    name: ClassVar[str] = "given"

    def __post_init__(self) -> None:
        self._set(radians=number_tuple("radians", self.radians), magnitude=magnitude_number("magnitude", self.magnitude))

    def check(self, dim, theta):
        if len(self.radians) != dim // 2:
            raise RopeError("radians", f"must hold one frequency for each of the {dim // 2} pairs", len(self.radians))

    def _radians(self, dim, theta, length, dtype):
        return torch.tensor(self.radians, dtype=dtype, device=CPU)

    def _magnitude(self, length, dtype):
        return self.magnitude


@dataclass(frozen=True)
class Learnable(Scaling):
    """omega_i * exp(alpha_i) with trained alpha, zero at the start; `start` says where omega comes from."""

    start: Scaling = Default()
    name: ClassVar[str] = "learnable"
    learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.start, Scaling) or self.start.learned or self.start.needs_length:
            raise RopeError("start", "must be a scaling that neither learns nor follows the length", self.start)

    def check(self, dim, theta):
        self.start.check(dim, theta)

    def _radians(self, dim, theta, length, dtype):
        return self.start._radians(dim, theta, length, dtype)

    def _magnitude(self, length, dtype):
        return self.start._magnitude(length, dtype)

    def _growth(self, dim):
        return self.start._growth(dim)


#: every scaling by name; HF's `rope_type` where it has one. Add a class here and tests, bench and CLI pick it up.
SCALINGS: dict[str, type[Scaling]] = {
    scaling.name: scaling
    for scaling in (
        Default, Linear, Ntk, NtkByParts, Dynamic, Yarn, DynamicYarn, LongRope, Llama3,
        Proportional, LinearFrequencies, XPos, Given, Learnable,
    )
}  # fmt: skip

__all__ = [
    "SCALINGS",
    "Default",
    "Dynamic",
    "DynamicYarn",
    "Frequencies",
    "Given",
    "Learnable",
    "Length",
    "Linear",
    "LinearFrequencies",
    "Llama3",
    "LongRope",
    "Ntk",
    "NtkByParts",
    "Proportional",
    "Scaling",
    "XPos",
    "Yarn",
]
