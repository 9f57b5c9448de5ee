"""The ladder of frequencies in numbers: wavelengths, turns, coverage, critical dimension, bands of a scaling."""

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
# two float64 formulas for one ratio differ by a few units in the last place
_CLOSE = 1e-9


def radians(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Radians per step of every pair along its own axis, float64 [pairs]; `length` is read where the scaling follows it."""
    if spec.mixed:
        raise RopeError("axes", "must not be MixedAxes: its frequencies are trained and belong to a Rope", spec.axes)
    return spec.with_(precision="exact").ladder_frequencies(length).radians.numpy()


def plain_radians(spec: RopeSpec) -> np.ndarray:
    """The same ladder before any scaling."""
    return radians(spec.with_(scaling=Default()))


def wavelengths(radians: Numbers) -> np.ndarray:
    """Steps after which each pair has gone round once and repeats itself; infinite where it stands still."""
    with np.errstate(divide="ignore"):
        return 2 * np.pi / np.abs(np.asarray(radians, dtype=np.float64))


def turns(radians: Numbers, length: float) -> np.ndarray:
    """How often each pair goes round within `length` steps."""
    return np.abs(np.asarray(radians, dtype=np.float64)) * length / (2 * np.pi)


def critical_dimension(radians: Numbers, length: float) -> int:
    """How many dimensions belong to pairs that complete a turn within `length` steps.

    On the plain ladder this is 2 * ceil(d/2 * log_theta(length / (2 pi))) of the scaling-laws paper: 92 for Llama 2.
    """
    return 2 * int(np.count_nonzero(turns(radians, length) >= 1))


@dataclass(frozen=True)
class Aliasing:
    """When planes repeat: `shortest` and `longest` in steps, and how many of them do so within the length."""

    shortest: float
    longest: float
    repeating: int
    pairs: int


def aliasing(radians: Numbers, length: float) -> Aliasing:
    """The wavelengths that bound aliasing; planes that stand still never repeat and are left out."""
    found = wavelengths(radians)
    turning = found[np.isfinite(found)]
    shortest, longest = (turning.min(), turning.max()) if turning.size else (np.inf, np.inf)
    return Aliasing(float(shortest), float(longest), int(np.count_nonzero(found <= length)), found.size)


@dataclass(frozen=True, eq=False)
class Coverage:
    """Turns of each pair: plain within the trained length, plain and scaled within the served one."""

    trained: np.ndarray
    unscaled: np.ndarray
    scaled: np.ndarray

    def new_angles(self, turns: np.ndarray) -> np.ndarray:
        """Which pairs reach angles that training never showed: no whole turn then, and further round now."""
        return (self.trained < 1) & (turns > self.trained * (1 + _CLOSE))


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """How far round each pair goes in training and in service, before and after the spec's scaling.

    `length` is that of the text where it is longer than the longest distance `served`; only some scalings read it.
    """
    plain, scaled = plain_radians(spec), radians(spec, served if length is None else length)
    return Coverage(turns(plain, trained), turns(plain, served), turns(scaled, served))


def stretch(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Each pair's frequency under the scaling as a share of its plain one."""
    return radians(spec, length) / plain_radians(spec)


def bands(spec: RopeSpec, length: int | None = None) -> list[str]:
    """What the scaling does to each pair: one of BANDS.

    "interpolated" is a pair slowed by the scaling's whole factor, or by the most that any pair is slowed where it has none.
    """
    share = np.abs(stretch(spec, length))
    factor = None if spec.needs_length else getattr(spec.scaling, "factor", None)
    slowest = 1 / factor if factor else share[share > 0].min(initial=1.0)
    conditions = [share == 0, share > 1 + _CLOSE, share >= 1 - _CLOSE, share <= slowest * (1 + _CLOSE)]
    return np.select(conditions, ["still", "faster", "kept", "interpolated"], "blended").tolist()
