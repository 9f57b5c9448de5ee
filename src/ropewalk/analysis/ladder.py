"""Properties of a spec's frequencies: wavelengths, turns, coverage, critical dimension, and what a
scaling does to each pair.

In this module `radians` are the frequencies of all pairs, in radians per position; a turn is one
full revolution, 2 pi.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from ropewalk.errors import RopeError, integer, number
from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec

#: what a scaling does to a pair's frequency: unchanged, reduced in part, reduced by the whole
#: factor, set to 0, increased
BANDS = ("kept", "blended", "interpolated", "still", "faster")
# relative tolerance: two formulas of the same ratio may differ by a few units in the last place
_TOLERANCE = 1e-9


class Numbers(Protocol):
    """One number for each pair: a list, a tuple or an array."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[float]: ...

    def __getitem__(self, index: Any, /) -> Any: ...


def radians(spec: RopeSpec, length: int | None = None) -> tuple[float, ...]:
    """Return the frequency of every pair, not rounded to float32 whatever the spec's precision;
    raise an error if they are learned for every head or differ from head to head.

    length  the sequence length, which some scalings depend on; None: the trained length
    """
    require_one_series(spec)
    return spec.with_(precision="exact").ladder_frequencies(length).radians


def require_one_series(spec: RopeSpec) -> None:
    """Raise an error if the frequencies of the spec are learned for every head, or differ from head
    to head.
    """
    require_spec(spec)
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


def require_spec(spec: object) -> None:
    """Raise an error if the value is no RopeSpec."""
    if not isinstance(spec, RopeSpec):
        raise RopeError("spec", "must be a RopeSpec; `from_hf` reads one from a config", spec)


def series(field: str, values: Iterable[Any]) -> list[Any]:
    """Return the entries of a list or an array; raise an error, which calls it `field`, if it is
    something else or has none.
    """
    entries = values.tolist() if hasattr(values, "tolist") else values  # type: ignore[attr-defined]
    if isinstance(entries, str | bytes) or not isinstance(entries, Iterable):
        raise RopeError(field, "must be a list of numbers, one for each pair", values)
    found = list(entries)
    if not found:
        raise RopeError(field, "must have at least one number", found)
    return found


def _frequencies(radians: Numbers) -> list[float]:
    """Return the frequencies of one or more pairs as finite floats."""
    return [number("radians", value) for value in series("radians", radians)]


def plain_radians(spec: RopeSpec) -> tuple[float, ...]:
    """Return the frequency of every pair without the spec's scaling."""
    require_spec(spec)
    return radians(spec.with_(scaling=Default()))


def wavelengths(radians: Numbers) -> tuple[float, ...]:
    """Return the wavelength of each pair: how many positions one turn takes; infinite if the
    frequency is 0.
    """
    return tuple(2 * math.pi / abs(value) if value else math.inf for value in _frequencies(radians))


def turns(radians: Numbers, length: float) -> tuple[float, ...]:
    """Return how many turns each pair completes within `length` positions, as a float."""
    length = number("length", length, low=0)
    return tuple(abs(value) * length / (2 * math.pi) for value in _frequencies(radians))


def critical_dimension(radians: Numbers, length: float) -> int:
    """Return how many dimensions belong to pairs that complete at least one turn within `length`
    positions.

    Without scaling, and for a length between the shortest and the longest wavelength, this is 2 *
    ceil(d/2 * log_theta(length / (2 pi))), the critical dimension of "Scaling Laws of RoPE-based
    Extrapolation": 92 for Llama 2.
    """
    return 2 * sum(count >= 1 for count in turns(radians, length))


@dataclass(frozen=True)
class Aliasing:
    """The shortest and longest wavelength in positions, and how many of all `pairs` (`repeating`)
    complete a turn within the length of a text, and so repeat their angles.
    """

    shortest: float
    longest: float
    repeating: int
    pairs: int


def aliasing(radians: Numbers, length: float) -> Aliasing:
    """Return the shortest and longest wavelength, and how many pairs complete a turn within
    `length` positions; pairs with frequency 0 have no wavelength and complete none. If all pairs
    are such, both wavelengths are infinite.
    """
    waves, length = wavelengths(radians), number("length", length, low=0)
    finite = [wave for wave in waves if math.isfinite(wave)] or [math.inf]
    return Aliasing(min(finite), max(finite), sum(wave <= length for wave in waves), len(waves))


@dataclass(frozen=True, eq=False)  # arrays have no single answer to ==
class Coverage:
    """How many turns each pair completes, one number for each pair.

    trained    within the trained length, without scaling
    unscaled   within the served length, without scaling
    scaled     within the served length, with the spec's scaling
    """

    trained: Numbers
    unscaled: Numbers
    scaled: Numbers

    def new_angles(self, turns: Numbers) -> list[bool]:
        """Return for each pair whether it reaches angles unseen in training: whether it completed
        less than one turn in training, and `turns` is more than it completed.
        """
        if len(turns) != len(self.trained):
            raise RopeError("turns", f"must have {len(self.trained)} numbers", len(turns))
        both = zip(self.trained, turns, strict=True)
        return [seen < 1 and reached > seen * (1 + _TOLERANCE) for seen, reached in both]


def coverage(spec: RopeSpec, trained: int, served: int, length: int | None = None) -> Coverage:
    """Return how many turns each pair completes over the distances `trained` and `served`, without
    and with scaling.

    `length` is the sequence length for scalings that depend on it; None: `served`. With a sliding
    window the caller passes more than `served`: the sequence is longer than the distances in it.
    """
    integer("trained", trained, low=1)
    integer("served", served, low=1)
    unscaled, scaled = plain_radians(spec), radians(spec, served if length is None else length)
    return Coverage(turns(unscaled, trained), turns(unscaled, served), turns(scaled, served))


def stretch(spec: RopeSpec, length: int | None = None) -> tuple[float, ...]:
    """Return scaled frequency / unscaled frequency of each pair."""
    both = zip(radians(spec, length), plain_radians(spec), strict=True)
    return tuple(scaled / unscaled for scaled, unscaled in both)


def bands(spec: RopeSpec, length: int | None = None) -> list[str]:
    """Return what the scaling does to each pair: one of BANDS.

    "interpolated" means divided by the scaling's factor or by more; if the scaling has no fixed
    factor, divided by as much as the pair that slows most.
    """
    ratios = [abs(ratio) for ratio in stretch(spec, length)]  # scaled / unscaled frequency
    # the factor of a scaling that depends on the length is not what the frequencies are divided by
    factor = None if spec.needs_length else getattr(spec.scaling.innermost, "factor", None)
    # without the pairs whose frequency is set to 0
    moving = [ratio for ratio in ratios if ratio > 0]
    # the ratio of a pair that is slowed fully
    slowest = 1 / factor if factor else min([1.0, *moving])
    return [_band(ratio, slowest) for ratio in ratios]


def _band(ratio: float, slowest: float) -> str:
    """Return the band of a pair whose frequency was multiplied by `ratio`; at `slowest` and below
    it counts as slowed by the whole factor.
    """
    if ratio == 0:
        return "still"
    if ratio > 1 + _TOLERANCE:
        return "faster"
    if ratio >= 1 - _TOLERANCE:
        return "kept"
    return "interpolated" if ratio <= slowest * (1 + _TOLERANCE) else "blended"


def cosine_sum(radians: Numbers, distance: float) -> float:
    """Return sum_i cos(m omega_i) for the distance m; omega_i is the frequency of pair i.

    It is proportional to how far, on average, the score of a key similar to the query is above that
    of a random key ("Base of RoPE Bounds Context Length").
    """
    return _cosine_sum(_frequencies(radians), number("distance", distance))


def _cosine_sum(radians: list[float], distance: float) -> float:
    """Return the sum for values that were checked."""
    return math.fsum([math.cos(distance * value) for value in radians])


def first_negative(radians: Numbers, length: int) -> int | None:
    """Return the first distance up to `length` at which the cosine sum is negative, or None.

    The curve is jagged: if the frequencies of one theta give None, those of a slightly larger theta
    may still give a distance.
    """
    integer("length", length, low=1)
    frequencies = _frequencies(radians)
    # from one distance to the next the cosine sum falls by at most the sum of the absolute
    # frequencies, so where it is large some distances can be skipped
    steepest = sum(map(abs, frequencies)) or 1.0  # 1 if all are 0: the sum is then constant
    distance = 1
    while distance <= length:
        value = _cosine_sum(frequencies, distance)
        if value < 0:
            return distance
        distance += int(value / steepest) + 1
    return None
