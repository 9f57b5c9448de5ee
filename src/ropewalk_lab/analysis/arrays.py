"""Functions of `ropewalk.analysis` with float64 arrays as their results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np

from ropewalk import analysis
from ropewalk.analysis import Coverage
from ropewalk.errors import RopeError
from ropewalk.spec import RopeSpec

Numbers = Sequence[float] | np.ndarray


def radians(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return the frequency of every pair [pairs], in radians per position, as with precision
    "exact", whatever the spec's precision; `length` is the sequence length, which some scalings
    depend on (None: the trained length).
    """
    return np.array(analysis.radians(spec, length))


def plain_radians(spec: RopeSpec) -> np.ndarray:
    """Return the frequency of every pair without the spec's scaling."""
    return np.array(analysis.plain_radians(spec))


def wavelengths(radians: Numbers) -> np.ndarray:
    """Return the wavelength of each pair: how many positions one turn takes; infinite if the
    frequency is 0.
    """
    return np.array(analysis.wavelengths(radians))


def turns(radians: Numbers, length: float) -> np.ndarray:
    """Return how many turns, fractions included, each pair completes within `length` positions."""
    return np.array(analysis.turns(radians, length))


def stretch(spec: RopeSpec, length: int | None = None) -> np.ndarray:
    """Return scaled frequency / unscaled frequency of each pair; `length` is the sequence length,
    which some scalings depend on (None: the trained length).
    """
    return np.array(analysis.stretch(spec, length))


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """Return how many turns each pair completes: without scaling over the distance `trained`, and
    without and with scaling over the distance `served`. Each is an array [pairs]. `length` is the
    sequence length, which some scalings depend on (None: `served`).
    """
    found = analysis.coverage(spec, trained, served, length)
    return Coverage(np.array(found.trained), np.array(found.unscaled), np.array(found.scaled))


def true_angles(radians: Numbers, positions: Iterable[int]) -> np.ndarray:
    """Return position * radians modulo 2 pi, [positions, pairs], rounded only at the end."""
    return np.array(analysis.true_angles(cast(Any, radians), positions))


def finite(field: str, values: object, *, ndim: int | None = None, least: int = 0) -> np.ndarray:
    """Return `values` as a float64 array; raise an error unless they are finite numbers with `ndim`
    dimensions (None: any number of them) and at least `least` entries along the first. `field` is
    what the error names.
    """
    try:
        found = np.asarray(values)
        # integers or floats; an empty array has no values that could be of another kind
        if found.dtype.kind not in "iuf" and found.size:
            raise TypeError
        found = found.astype(np.float64)
    except (TypeError, ValueError):
        raise RopeError(field, "must be an array of real numbers", values) from None
    if ndim is not None and found.ndim != ndim:
        raise RopeError(field, f"must have {ndim} dimension(s)", list(found.shape))
    # a single number has no dimensions, so there is no first one to count along
    if found.ndim and len(found) < least:
        raise RopeError(field, f"must have at least {least} number(s)", list(found.shape))
    if not np.isfinite(found).all():
        raise RopeError(field, "must be finite", float(found[~np.isfinite(found)][0]))
    return found
