"""Scalings with one formula for all pairs: unscaled, interpolated, with a larger theta, with some
pairs stopped or one pair slowed, or without a geometric series.

Words of this module:
  setting        a field's default and its bounds, low <= value <= high and above < value. Where a
                 Hugging Face config can name the scaling, `key` is the config key, if it is not
                 the field's name, and a `required` key must be given
  name           the key in SCALINGS, and the `rope_type` of configs if `in_configs` is True
  in_extend      `extend`, which prepares a config for longer sequences, offers the scaling
  raises_length  `extend` then also writes the longer length as the served length; False where
                 vLLM and SGLang multiply that length by `factor` themselves
  _radians       the frequencies of dim/2 pairs in radians per position. `length` is that of the
                 sequence, or of each batch row, used if `needs_length`; None: the trained length
  ops            the operations of a formula on Decimals, floats or tensors; `number` and `real`
                 convert a field and a length, `multiples(s, n)` is 0, s, ..., (n - 1) s, and
                 `per_row` lets one number for each row combine with one for each pair
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.frequencies.formulas import ntk_theta, periods
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, Scaling, setting

#: the largest factor: a pair slowed by it rotates by less than 1e-11 radians up to position 2^63,
#: and the largest power of it in NTK, its square, fits in a float64
MAX_FACTOR = 1e30


@dataclass(frozen=True)
class Default(Scaling):
    """Unscaled: omega_i = theta^(-2i/d), as in RoFormer."""

    name: ClassVar[str] = "default"
    in_configs: ClassVar[bool] = True

    def _radians(self, dim, theta, length, ops):
        return 1.0 / periods(dim, theta, ops)


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every pair slows by `factor`."""

    factor: float = setting(1.0, low=1, high=MAX_FACTOR, required=True)
    name: ClassVar[str] = "linear"
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True
    raises_length: ClassVar[bool] = False

    def _radians(self, dim, theta, length, ops):
        return 1.0 / periods(dim, theta, ops) / self.factor


@dataclass(frozen=True)
class Ntk(Scaling):
    """NTK-aware: theta grows to theta * s^(d/(d-2)), s = `factor`, so the slowest pair slows by s
    and the fastest is unchanged. A single pair is both, and is unchanged.
    """

    factor: float = setting(1.0, low=1, high=MAX_FACTOR)
    name: ClassVar[str] = "ntk"
    in_extend: ClassVar[bool] = True

    def _radians(self, dim, theta, length, ops):
        return 1.0 / periods(dim, ntk_theta(theta, ops.number(self.factor), dim, ops), ops)


@dataclass(frozen=True)
class Riflex(Scaling):
    """RIFLEx: one pair rotates so that `frames` steps are `share` of its turn, and a longer video
    does not repeat itself.

    It is the pair whose wavelength is nearest to `repeat`, the number of latent frames after which
    videos of the model begin to repeat. Apply this scaling to the time axis alone:
    `axes.axial(8, 28, 28, scaled=[0])`.
    """

    frames: int = setting(128, low=1)
    repeat: int = setting(48, low=1)
    share: float = setting(0.9, above=0, high=1)
    name: ClassVar[str] = "riflex"

    def pair(self, dim: int, theta: float) -> int:
        """Return the index of the pair whose frequency is replaced: the one whose wavelength is
        nearest to `repeat`, both in frames.
        """
        wavelengths = [2 * math.pi * theta ** (2 * i / dim) for i in range(dim // 2)]
        return min(range(dim // 2), key=lambda i: abs(wavelengths[i] - self.repeat))

    def _radians(self, dim, theta, length, ops):
        """Return the unscaled frequencies; that of the chosen pair is the one that makes `share` of
        a turn in `frames` steps.
        """
        pair_indices = ops.multiples(1, dim // 2)
        chosen = pair_indices == self.pair(dim, theta)
        return ops.where(
            chosen,
            2 * ops.pi * ops.number(self.share) / self.frames,
            1.0 / periods(dim, theta, ops),
        )


@dataclass(frozen=True)
class Dynamic(Scaling):
    """Dynamic NTK: theta is unchanged up to `original_length`; beyond it, theta grows with the
    length of each sequence.
    """

    # above 2^20, float32 rounding makes factor - (factor - 1) inaccurate
    factor: float = setting(1.0, low=1, high=2.0**20, required=True)
    # transformers reads the trained length of this scaling from the key of the served length
    original_length: int = setting(2048, low=1, key=SERVED_LENGTH_KEY, required=True)
    name: ClassVar[str] = "dynamic"
    needs_length: ClassVar[bool] = True
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True
    raises_length: ClassVar[bool] = False

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies of NTK with a theta for each sequence; the unscaled ones if
        `length` is None.
        """
        if length is None:
            return Default()._radians(dim, theta, length, ops)
        # at least the trained length: for a shorter sequence `stretch` could become negative
        effective_length = ops.per_row(ops.real(ops.at_least(length, self.original_length)))
        factor = ops.number(self.factor)
        stretch = factor * effective_length / self.original_length - (factor - 1)
        return 1.0 / periods(dim, ntk_theta(theta, stretch, dim, ops), ops)


@dataclass(frozen=True)
class Proportional(Scaling):
    """p-RoPE: the fastest `fraction` of the pairs, rounded down, rotate, slowed by `factor`; the
    others have frequency 0. All are pairs of the whole head, so the number of pairs and
    theta^(-2i/d) do not depend on `fraction`.
    """

    factor: float = setting(1.0, low=1, high=MAX_FACTOR)
    fraction: float = setting(1.0, low=0, high=1, key="partial_rotary_factor")
    name: ClassVar[str] = "proportional"
    in_configs: ClassVar[bool] = True

    def _radians(self, dim, theta, length, ops):
        """Return the unscaled frequencies divided by `factor`, and 0 for the pairs after the
        fastest `fraction`.
        """
        rotated_pairs = int(self.fraction * dim // 2)
        unscaled = 1.0 / periods(dim, theta, ops)
        pair = ops.multiples(1, dim // 2)
        return ops.where(pair < rotated_pairs, unscaled, 0.0) / self.factor


@dataclass(frozen=True)
class LinearFrequencies(Scaling):
    """omega_i = 1 / (1 + 2i): frequencies without geometric spacing, for studies."""

    name: ClassVar[str] = "linear_frequencies"

    def _radians(self, dim, theta, length, ops):
        return 1.0 / (1 + ops.multiples(2, dim // 2))
