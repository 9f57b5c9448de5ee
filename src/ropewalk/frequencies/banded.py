"""Scalings by bands of pairs: how much a pair slows depends on the number of its turns within the
trained length.

Words of this module:
  dim           how many dimensions of a head rotate, two for each pair; `theta` is the base
  setting       a field's default and its bounds. Where a Hugging Face config can name the scaling
                (`in_configs`), `key` is the config key, if it is not the field's name, a `required`
                key must be given, and one with `from_lengths` may be left out if the config has the
                served and the trained length, whose ratio is then the value
  in_extend     `extend`, which prepares a config for longer sequences, offers the scaling
  ramp          a number for each pair that rises from 0 for fast pairs to 1 for slow pairs;
                `truncate` rounds its ends outwards to whole pairs
  share         the weight, 0 to 1, of one kind of frequencies in the blend of a pair
  periods       theta^(2i/d) of each pair, the inverse of its unscaled frequency
  length        that of the sequence, or of each batch row, used if `needs_length`; None: the
                trained length
  ops           the operations of a formula on Decimals, floats or tensors; `number` and `real`
                convert a field and a length, and `per_row` lets one number for each row combine
                with one for each pair
  _check_order  refuses a first field that is below the second
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ropewalk.errors import RopeError
from ropewalk.frequencies.basic import MAX_FACTOR, Default, Linear, Ntk
from ropewalk.frequencies.formulas import check_log_theta, mscale, periods, ramp
from ropewalk.frequencies.scaling import (
    FACTOR_RANGE,
    MAGNITUDE_RANGE,
    TRAINED_LENGTH_KEY,
    Scaling,
    setting,
)


@dataclass(frozen=True)
class NtkByParts(Scaling):
    """NTK-by-parts as first published: slow pairs are interpolated, middle pairs follow NTK, fast
    pairs are unchanged.

    `ntk_turns` and `keep_turns` are the (fast, slow) ends of the two ramps, in turns within
    `original_length`; `ntk_weight` and `keep_weight` are the largest shares of NTK and of the
    unchanged frequencies. The paper's later by-parts rule is
    `Yarn(original_length, factor=s, attention_factor=1.0)`.
    """

    factor: float = setting(1.0, low=1, high=MAX_FACTOR)
    original_length: int = setting(2048, low=1)
    ntk_turns: tuple[float, float] = setting((1.25, 0.75), **FACTOR_RANGE)
    keep_turns: tuple[float, float] = setting((16.0, 2.0), **FACTOR_RANGE)
    ntk_weight: float = setting(1.0, low=0, high=1)
    keep_weight: float = setting(1.0, low=0, high=1)
    name: ClassVar[str] = "ntk_by_parts"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ntk_turns", "keep_turns"):
            turns = getattr(self, name)  # both are fields, and tuples after the check above
            if len(turns) != 2 or turns[0] < turns[1]:
                raise RopeError(name, "must be (fast, slow) with fast >= slow", turns)

    def check(self, dim, theta):
        """Refuse theta <= 1: the ramps find a pair by its number of turns, with a division by
        ln(theta).
        """
        check_log_theta(theta)

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies: unscaled, interpolated and NTK ones, blended by two ramps."""
        unscaled = Default()._radians(dim, theta, length, ops)
        interpolated = Linear(self.factor)._radians(dim, theta, length, ops)
        ntk = Ntk(self.factor)._radians(dim, theta, length, ops)
        # a ramp is 0 for fast pairs and 1 for slow pairs. A share is 1 minus a ramp: the part of
        # NTK, or of no scaling, in a pair
        ntk_share = (
            1 - ramp(*self.ntk_turns, dim, theta, self.original_length, truncate=True, ops=ops)
        ) * self.ntk_weight
        unscaled_share = 1 - ramp(
            *self.keep_turns, dim, theta, self.original_length, truncate=True, ops=ops
        )
        unscaled_share = unscaled_share * self.keep_weight
        slowed = interpolated * (1 - ntk_share) + ntk * ntk_share
        return slowed * (1 - unscaled_share) + unscaled * unscaled_share


@dataclass(frozen=True)
class _YarnBands(Scaling):
    """YaRN's by-parts rule: fast pairs are unchanged, slow pairs slow by `_stretch`, the pairs
    between are blended linearly.

    Fast pairs complete at least `beta_fast` turns within `original_length`, slow pairs at most
    `beta_slow`; `truncate` rounds the ends of the blend outwards to whole pairs. The magnitude is
    `attention_factor` if that is given; m(mscale) / m(mscale_all_dim) if both of these weights are
    given and not 0, with m(w) = 0.1 w ln(stretch) + 1; otherwise YaRN's own, m(1).
    """

    original_length: int = setting(2048, low=1, key=TRAINED_LENGTH_KEY, required=True)
    beta_fast: float = setting(32.0, **FACTOR_RANGE)
    beta_slow: float = setting(1.0, **FACTOR_RANGE)
    truncate: bool = setting(True)
    attention_factor: float | None = setting(None, **MAGNITUDE_RANGE)
    # with a weight above 1e17 the magnitude could be outside MAGNITUDE_RANGE
    mscale: float | None = setting(None, low=0, high=1e17)
    mscale_all_dim: float | None = setting(None, low=0, high=1e17)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("beta_fast", "beta_slow")

    def check(self, dim, theta):
        """Refuse theta <= 1: the ramp finds a pair by its number of turns, with a division by
        ln(theta).
        """
        check_log_theta(theta)

    def _stretch(self, length: Any, ops: Any) -> Any:
        """Return how many times longer the context becomes: one number, or one for each batch row."""
        raise TypeError(f"{type(self).__name__} must define _stretch(length, ops)")

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies: a blend of the unscaled ones and of those divided by `_stretch`."""
        stretch = ops.per_row(self._stretch(length, ops))
        unscaled_periods = periods(dim, theta, ops)
        unscaled, slowed = 1.0 / unscaled_periods, 1.0 / (stretch * unscaled_periods)
        turns = self.beta_fast, self.beta_slow
        # 1 for fast pairs, 0 for slow pairs. `1 - unscaled_share` below is kept although it is the
        # ramp itself: transformers subtracts twice, and its float32 rounding is reproduced bit for
        # bit
        unscaled_share = 1 - ramp(*turns, dim, theta, self.original_length, self.truncate, ops)
        return slowed * (1 - unscaled_share) + unscaled * unscaled_share

    def _magnitude(self, length, ops):
        """Return `attention_factor` if it is given, otherwise YaRN's magnitude. The field `mscale`
        is a weight in the function `mscale`, 0.1 weight ln(stretch) + 1.
        """
        if self.attention_factor is not None:
            return self.attention_factor
        stretch = ops.as_float(self._stretch(length, ops))
        # a value of 0 means that the key is not set: transformers reads configs so
        if self.mscale and self.mscale_all_dim:
            return mscale(stretch, self.mscale) / mscale(stretch, self.mscale_all_dim)
        return mscale(stretch)


@dataclass(frozen=True)
class Yarn(_YarnBands):
    """YaRN: by-parts interpolation by `factor`, and a magnitude that sharpens attention."""

    factor: float = setting(1.0, low=1, high=MAX_FACTOR, required=True, from_lengths=True)
    name: ClassVar[str] = "yarn"
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def _stretch(self, length, ops):
        return self.factor


@dataclass(frozen=True)
class DynamicYarn(_YarnBands):
    """YaRN whose factor is each sequence's own length over `original_length`, never below 1."""

    name: ClassVar[str] = "dynamic_yarn"
    needs_length: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def _stretch(self, length, ops):
        if length is None:  # the trained length
            return 1.0
        return ops.at_least(ops.real(length) / self.original_length, 1)

    @property
    def magnitude_needs_length(self) -> bool:
        return self.attention_factor is None


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1: pairs with a wavelength above L0/low slow by `factor`, those below L0/high do not,
    those between are blended.

    L0 is `original_length`, low and high are the two frequency factors.
    """

    factor: float = setting(1.0, low=1, high=MAX_FACTOR, required=True)
    low_freq_factor: float = setting(1.0, **FACTOR_RANGE, required=True)
    high_freq_factor: float = setting(4.0, **FACTOR_RANGE, required=True)
    original_length: int = setting(8192, low=1, key=TRAINED_LENGTH_KEY, required=True)
    name: ClassVar[str] = "llama3"
    in_configs: ClassVar[bool] = True
    in_extend: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_order("high_freq_factor", "low_freq_factor")

    def _radians(self, dim, theta, length, ops):
        """Return the frequencies: unscaled, divided by `factor`, or blended, depending on the
        wavelength.
        """
        low, high = ops.number(self.low_freq_factor), ops.number(self.high_freq_factor)
        unscaled = 1.0 / periods(dim, theta, ops)
        slowed, wavelengths = unscaled / self.factor, 2 * ops.pi / unscaled
        # wavelengths above `longest` slow by the whole factor, those below `shortest` not at all
        longest, shortest = self.original_length / low, self.original_length / high
        # with equal factors `blended` is used only for a wavelength equal to both limits; a width
        # of 1 avoids 0/0 there
        width = high - low if self.high_freq_factor > self.low_freq_factor else 1.0
        unscaled_share = (self.original_length / wavelengths - low) / width
        blended = (1 - unscaled_share) * unscaled / self.factor + unscaled_share * unscaled
        return ops.where(
            wavelengths > longest, slowed, ops.where(wavelengths < shortest, unscaled, blended)
        )
