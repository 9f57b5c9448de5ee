"""Functions of `ropewalk.analysis` with float64 arrays as their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ropewalk import analysis
from ropewalk.analysis import Coverage
from ropewalk.spec import RopeSpec

Numbers = Sequence[float] | np.ndarray


def radians(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return the frequency of every pair, [pairs]; `length` is the sequence length, which some
    scalings depend on.
    """
    return np.array(analysis.radians(spec, length))


def plain_radians(spec: RopeSpec) -> np.ndarray:
    """Return the frequency of every pair without the spec's scaling."""
    return np.array(analysis.plain_radians(spec))


def wavelengths(radians: Numbers) -> np.ndarray:
    """Return the wavelength of each pair: how many positions one turn takes; infinite if the
    frequency is 0.
    """
    return np.array(analysis.wavelengths(_floats(radians)))


def turns(radians: Numbers, length: float) -> np.ndarray:
    """Return how many turns each pair completes within `length` positions, as a float."""
    return np.array(analysis.turns(_floats(radians), length))


def stretch(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return scaled frequency / unscaled frequency of each pair."""
    return np.array(analysis.stretch(spec, length))


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """Return how many turns each pair completes over the distances `trained` and `served`, without
    and with scaling: arrays [pairs].
    """
    found = analysis.coverage(spec, trained, served, length)
    return Coverage(np.array(found.trained), np.array(found.unscaled), np.array(found.scaled))


def true_angles(radians: Numbers, positions: Iterable[int]) -> np.ndarray:
    """Return position * radians modulo 2 pi, [positions, pairs], rounded only at the end."""
    return np.array(analysis.true_angles(_floats(radians), positions))


def _floats(values: Numbers) -> Sequence[Any]:
    """Return the numbers of an array as floats of Python; Decimals stay as they are."""
    return values.tolist() if isinstance(values, np.ndarray) else values
