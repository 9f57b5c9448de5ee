"""Numbers about the ladder of frequencies: wavelengths, turns, coverage, critical dimension, bands of a scaling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec

Numbers = Sequence[float] | np.ndarray
#: what a scaling can do to a pair
BANDS = ("kept", "blended", "interpolated", "still", "faster")
# a ratio computed by two float64 formulas may differ by a few units in the last place
_CLOSE = 1e-9


def radians(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return radians per step of every pair along its own axis, float64 [pairs]; some scalings depend on `length`."""
    if spec.mixed:
        raise RopeError("axes", "must not be MixedAxes, whose frequencies are trained and belong to a Rope", spec.axes)
    return spec.with_(precision="exact").ladder_frequencies(length).radians.numpy()


def plain_radians(spec: RopeSpec) -> np.ndarray:
    """Return the ladder before any scaling."""
    return radians(spec.with_(scaling=Default()))


def wavelengths(radians: Numbers) -> np.ndarray:
    """Return the steps in which each pair completes one turn; infinite if its frequency is 0."""
    with np.errstate(divide="ignore"):
        return 2 * np.pi / np.abs(np.asarray(radians, dtype=np.float64))


def turns(radians: Numbers, length: float) -> np.ndarray:
    """Return how many turns each pair completes within `length` steps."""
    return np.abs(np.asarray(radians, dtype=np.float64)) * length / (2 * np.pi)


def critical_dimension(radians: Numbers, length: float) -> int:
    """Return how many dimensions belong to pairs that complete a turn within `length` steps.

    On the plain ladder this is 2 * ceil(d/2 * log_theta(length / (2 pi))) of the scaling-laws paper: 92 for Llama 2.
    """
    return 2 * int(np.count_nonzero(turns(radians, length) >= 1))


@dataclass(frozen=True)
class Aliasing:
    """The shortest and longest wavelength in steps, and how many pairs repeat within the length."""

    shortest: float
    longest: float
    repeating: int
    pairs: int


def aliasing(radians: Numbers, length: float) -> Aliasing:
    """Return the extreme wavelengths and the number of repeating pairs; pairs with frequency 0 never repeat."""
    steps = wavelengths(radians)
    finite = steps[np.isfinite(steps)]
    shortest, longest = (finite.min(), finite.max()) if finite.size else (np.inf, np.inf)
    return Aliasing(float(shortest), float(longest), int(np.count_nonzero(steps <= length)), steps.size)


@dataclass(frozen=True, eq=False)
class Coverage:
    """Turns of each pair: unscaled within the trained length, unscaled and scaled within the served length."""

    trained: np.ndarray
    unscaled: np.ndarray
    scaled: np.ndarray

    def new_angles(self, turns: np.ndarray) -> np.ndarray:
        """Return which pairs reach angles that did not occur in training: less than one turn then, and more now."""
        return (self.trained < 1) & (turns > self.trained * (1 + _CLOSE))


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """Return the turns of each pair over the trained and served distance, before and after the spec's scaling.

    `length` is the length of the text if it exceeds the longest distance `served`; only some scalings depend on it.
    """
    plain, scaled = plain_radians(spec), radians(spec, served if length is None else length)
    return Coverage(turns(plain, trained), turns(plain, served), turns(scaled, served))


def stretch(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return the ratio of each pair's scaled frequency to its unscaled one."""
    return radians(spec, length) / plain_radians(spec)


def bands(spec: RopeSpec, length: int | None = None) -> list[str]:
    """Return what the scaling does to each pair: one of BANDS.

    "interpolated" means slowed by the scaling's whole factor, or, if it has none, as much as the most slowed pair.
    """
    share = np.abs(stretch(spec, length))
    factor = None if spec.needs_length else getattr(spec.scaling, "factor", None)
    slowest = 1 / factor if factor else share[share > 0].min(initial=1.0)
    conditions = [share == 0, share > 1 + _CLOSE, share >= 1 - _CLOSE, share <= slowest * (1 + _CLOSE)]
    return np.select(conditions, ["still", "faster", "kept", "interpolated"], "blended").tolist()
