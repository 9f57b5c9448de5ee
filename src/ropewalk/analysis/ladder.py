"""Properties of a spec's frequencies: wavelengths, turns, coverage, critical dimension, and what a
scaling does to each pair.

In this module `radians` are the frequencies of all pairs, in radians per position; a turn is one
full revolution, 2 pi.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec

Numbers = Sequence[float] | np.ndarray
#: what a scaling does to a pair's frequency: unchanged, reduced in part, reduced by the whole
#: factor, set to 0, increased
BANDS = ("kept", "blended", "interpolated", "still", "faster")
# relative tolerance: two float64 formulas of the same ratio may differ by a few units in the last
# place
_TOLERANCE = 1e-9


def radians(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return the frequency of every pair, float64 [pairs]; `length` is the sequence length, which
    some scalings depend on.
    """
    require_one_series(spec)
    return spec.with_(precision="exact").ladder_frequencies(length).radians.numpy()


def require_one_series(spec: RopeSpec) -> None:
    """Raise an error if the frequencies of the spec are learned for every head, or differ from head
    to head.
    """
    if spec.mixed:
        raise RopeError(
            "axes",
            "must not be MixedAxes: their frequencies are learned parameters of a Rope",
            spec.axes,
        )
    if spec.per_head:
        raise RopeError(
            "axes",
            "must be the same in all heads, to be analysed as one series of frequencies",
            spec.axes,
        )


def plain_radians(spec: RopeSpec) -> np.ndarray:
    """Return the frequency of every pair without the spec's scaling."""
    return radians(spec.with_(scaling=Default()))


def wavelengths(radians: Numbers) -> np.ndarray:
    """Return the wavelength of each pair: how many positions one turn takes; infinite if the
    frequency is 0.
    """
    with np.errstate(divide="ignore"):
        return 2 * np.pi / np.abs(np.asarray(radians, dtype=np.float64))


def turns(radians: Numbers, length: float) -> np.ndarray:
    """Return how many turns each pair completes within `length` positions, as a float."""
    return np.abs(np.asarray(radians, dtype=np.float64)) * length / (2 * np.pi)


def critical_dimension(radians: Numbers, length: float) -> int:
    """Return how many dimensions belong to pairs that complete at least one turn within `length`
    positions.

    Without scaling this is 2 * ceil(d/2 * log_theta(length / (2 pi))), the critical dimension of
    "Scaling Laws of RoPE-based Extrapolation": 92 for Llama 2.
    """
    return 2 * int(np.count_nonzero(turns(radians, length) >= 1))


@dataclass(frozen=True)
class Aliasing:
    """The shortest and longest wavelength in positions, and how many of `pairs` complete a turn
    within the length.
    """

    shortest: float
    longest: float
    repeating: int
    pairs: int


def aliasing(radians: Numbers, length: float) -> Aliasing:
    """Return the shortest and longest wavelength and how many pairs repeat; pairs with frequency 0
    never repeat.
    """
    waves = wavelengths(radians)
    finite = waves[np.isfinite(waves)]
    shortest, longest = (finite.min(), finite.max()) if finite.size else (np.inf, np.inf)
    return Aliasing(
        float(shortest), float(longest), int(np.count_nonzero(waves <= length)), waves.size
    )


@dataclass(frozen=True, eq=False)
class Coverage:
    """How many turns each pair completes, three arrays [pairs].

    trained    within the trained length, without scaling
    unscaled   within the served length, without scaling
    scaled     within the served length, with the spec's scaling
    """

    trained: np.ndarray
    unscaled: np.ndarray
    scaled: np.ndarray

    def new_angles(self, turns: np.ndarray) -> np.ndarray:
        """Return which pairs reach angles unseen in training: in training they made less than one
        turn, and `turns` is more.
        """
        return (self.trained < 1) & (turns > self.trained * (1 + _TOLERANCE))


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """Return how many turns each pair completes over the distances `trained` and `served`, without
    and with scaling.

    `length` is the sequence length for scalings that depend on it; None: `served`. With a sliding
    window the caller passes more: the sequence is longer than the distances within it.
    """
    unscaled, scaled = plain_radians(spec), radians(spec, served if length is None else length)
    return Coverage(turns(unscaled, trained), turns(unscaled, served), turns(scaled, served))


def stretch(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return scaled frequency / unscaled frequency of each pair."""
    return radians(spec, length) / plain_radians(spec)


def bands(spec: RopeSpec, length: int | None = None) -> list[str]:
    """Return what the scaling does to each pair: one of BANDS.

    "interpolated" means divided by the scaling's factor, or, if it has no fixed factor, as slow as
    the most slowed pair.
    """
    ratio = np.abs(stretch(spec, length))  # scaled / unscaled frequency
    factor = None if spec.needs_length else getattr(spec.scaling.innermost, "factor", None)
    min_ratio = 1 / factor if factor else ratio[ratio > 0].min(initial=1.0)
    # the first condition that holds decides, in the order of the names below
    conditions = [
        ratio == 0,
        ratio > 1 + _TOLERANCE,
        ratio >= 1 - _TOLERANCE,
        ratio <= min_ratio * (1 + _TOLERANCE),
    ]
    return np.select(conditions, ["still", "faster", "kept", "interpolated"], "blended").tolist()
