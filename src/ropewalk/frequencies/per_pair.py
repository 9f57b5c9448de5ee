"""Scalings with one value per pair: a LongRoPE factor, a given or learned frequency, an xPos decay.

Words of this module:
  dim           how many dimensions of a head rotate, two for each pair; `theta` is the base
  setting       a field's default and its bounds. Where a Hugging Face config can name the scaling
                (`in_configs`), `key` is the config key, if it is not the field's name, a `required`
                key must be given, and one with `from_lengths` may be left out if the config has the
                served and the trained length, whose ratio is then the value
  in_extend     `extend`, which prepares a config for longer sequences, offers the scaling
  learned       `Rope` has a parameter for the frequencies
  periods       theta^(2i/d) of each pair, the inverse of its unscaled frequency
  length        that of the sequence, or of each batch row, used if `needs_length`; None: the
                trained length
  ops           the operations of a formula on Decimals, floats or tensors; `vector` makes a list
                of one number for each pair an operand
  _growth       (xPos's log-magnitude of each pair per position, the position where it is 0), or
                (None, 0) for a scaling without growth
  _check_pairs  refuses a field whose list does not have one entry for each pair
  innermost     the scaling with the trained length and the factor, inside all that contain it
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import RopeError, integer, number
from ropewalk.frequencies.basic import Default
from ropewalk.frequencies.formulas import periods
from ropewalk.frequencies.scaling import (
    FACTOR_RANGE,
    MAGNITUDE_RANGE,
    TRAINED_LENGTH_KEY,
    Scaling,
    setting,
)


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: each pair slows by its own factor, taken from `short_factor` in sequences of up to
    `original_length` tokens and from `long_factor` in longer ones.

    `factor` is the served length over the trained length; it determines the magnitude unless
    `attention_factor` is given.
    """

    short_factor: tuple[float, ...] = setting((1.0,), **FACTOR_RANGE, required=True)
    long_factor: tuple[float, ...] = setting((1.0,), **FACTOR_RANGE, required=True)
    # at least 2: the magnitude divides by its logarithm
    original_length: int = setting(4096, low=2, key=TRAINED_LENGTH_KEY, required=True)
    # below 1 if the served length is shorter than the trained length; the magnitude is then 1
    factor: float = setting(1.0, above=0, required=True, from_lengths=True)
    attention_factor: float | None = setting(None, **MAGNITUDE_RANGE)
    name: ClassVar[str] = "longrope"
    needs_length: ClassVar[bool] = True
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def check(self, dim, theta):
        self._check_pairs("short_factor", dim, "factor")
        self._check_pairs("long_factor", dim, "factor")

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies, with the short factors for sequences up to `original_length` and
        the long ones beyond.
        """
        unscaled_periods = periods(dim, theta, ops)
        short = 1.0 / (ops.vector(self.short_factor) * unscaled_periods)
        if length is None:
            return short
        long = 1.0 / (ops.vector(self.long_factor) * unscaled_periods)
        return ops.where(ops.exceeds(length, self.original_length), long, short)

    def _magnitude(self, length, ops):
        """Return `attention_factor` if it is given, else sqrt(1 + ln(factor) /
        ln(original_length)), or 1 for factors up to 1.
        """
        if self.attention_factor is not None:
            return self.attention_factor
        return (
            1.0
            if self.factor <= 1
            else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))
        )


@dataclass(frozen=True)
class XPos(Scaling):
    """xPos: scores also decay with distance: those of a query at m and a key at n, in pair i, by
    zeta_i^((m - n) / scale_base), zeta_i = (2i + 0.4 d) / (1.4 d).

    Queries shrink and keys grow with position; only their product is meaningful, and only for
    causal attention. `center`, the position where both factors are 1, is constant, so cached keys
    stay valid while the sequence grows.
    """

    scale_base: float = setting(512.0, **FACTOR_RANGE)
    center: int = setting(0, low=-(2**62))
    name: ClassVar[str] = "xpos"

    def _radians(self, dim, theta, length, ops):
        return Default()._radians(dim, theta, length, ops)

    def _growth(self, dim):
        zetas = [(2 * i + 0.4 * dim) / (1.4 * dim) for i in range(dim // 2)]
        return tuple(math.log(zeta) / self.scale_base for zeta in zetas), self.center


@dataclass(frozen=True)
class Given(Scaling):
    """Frequencies given by the caller, in radians per step, one for each pair."""

    radians: tuple[float, ...] = setting((1.0,))
    magnitude: float = setting(1.0, **MAGNITUDE_RANGE)
    name: ClassVar[str] = "given"

    def check(self, dim, theta):
        self._check_pairs("radians", dim, "frequency")

    def _radians(self, dim, theta, length, ops):
        return ops.vector(self.radians)

    def _magnitude(self, length, ops):
        return self.magnitude


def geometric(pairs: int, slowest: float, fastest: float, zeros: int = 0) -> Given:
    """Return a scaling for `pairs` pairs: the first `zeros` pairs do not rotate, the others have
    frequencies from `slowest` to `fastest`, in radians per step, with equal ratios.

    Golden gate RoPE uses these frequencies, in this order from slow to fast, together with
    `axes.GoldenAxes`.
    """
    # at least two pairs rotate, so that there is a ratio between them
    zeros = integer("zeros", zeros, low=0, high=integer("pairs", pairs, low=2) - 2)
    slowest, fastest = number("slowest", slowest, above=0), number("fastest", fastest, above=0)
    steps = pairs - zeros - 1
    return Given(
        (0.0,) * zeros
        + tuple(slowest * (fastest / slowest) ** (i / steps) for i in range(steps + 1))
    )


@dataclass(frozen=True)
class Learnable(Scaling):
    """omega_i * exp(alpha_i) with learned alpha_i, initially 0; omega_i are the frequencies of the
    scaling `start`. alpha is a parameter of `Rope`, so this class computes omega alone.
    """

    start: Scaling = Default()  # noqa: RUF009 - frozen and without fields
    name: ClassVar[str] = "learnable"
    learned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.start, Scaling) or self.start.learned or self.start.needs_length:
            raise RopeError(
                "start",
                "must be a scaling whose frequencies are neither learned nor length-dependent",
                self.start,
            )

    @property
    def innermost(self) -> Scaling:
        return self.start.innermost

    def check(self, dim, theta):
        self.start.check(dim, theta)

    def _radians(self, dim, theta, length, ops):
        return self.start._radians(dim, theta, length, ops)

    def _magnitude(self, length, ops):
        return self.start._magnitude(length, ops)

    @property
    def magnitude_needs_length(self) -> bool:
        return self.start.magnitude_needs_length

    def _growth(self, dim):
        return self.start._growth(dim)
