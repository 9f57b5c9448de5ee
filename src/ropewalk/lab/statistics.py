"""Numbers with their noise: paired differences over windows and seeds, and no rank for what the noise covers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import RopeError, number

#: a difference counts from this many standard errors on
SIGMAS = 2.0


@dataclass(frozen=True, eq=False)
class Score:
    """Values [seeds, windows]: the same windows for every seed, and for every model that is compared. Lower is better."""

    values: np.ndarray

    def __post_init__(self) -> None:
        values = np.atleast_2d(np.asarray(self.values, dtype=np.float64))
        if values.ndim != 2 or not values.size or not np.isfinite(values).all():
            raise RopeError("values", "must be finite numbers [seeds, windows]", np.shape(self.values))
        object.__setattr__(self, "values", values)

    @property
    def seeds(self) -> int:
        """How many times the model was trained."""
        return self.values.shape[0]

    @property
    def windows(self) -> int:
        """How many windows it was measured on."""
        return self.values.shape[1]

    @property
    def mean(self) -> float:
        """Over everything."""
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean: what other windows and, where there are several, other seeds would change."""
        return standard_error(self.values)

    def __neg__(self) -> Score:
        return Score(-self.values)


def standard_error(values: np.ndarray) -> float:
    """Of the mean of [seeds, windows]; the two kinds of noise add as squares. One of a kind tells nothing of its noise."""
    seeds, windows = values.shape
    of_windows = values.mean(0).std(ddof=1) / math.sqrt(windows) if windows > 1 else 0.0
    of_seeds = values.mean(1).std(ddof=1) / math.sqrt(seeds) if seeds > 1 else 0.0
    return math.hypot(of_windows, of_seeds)


@dataclass(frozen=True)
class Comparison:
    """`verdict` is "a" or "b" (which is lower) or "tied"; `difference` is a - b, `error` its standard error."""

    verdict: str
    difference: float
    error: float
    seeds: int
    windows: int


def compare(a: Score, b: Score, *, sigmas: float = SIGMAS, floor: float = 0.0) -> Comparison:
    """Which of two scores on the same windows is lower, if the noise lets us say so.

    `floor` is noise known from elsewhere (the deviation between seeds, where only one was run); it adds to the error.
    """
    if a.values.shape != b.values.shape:
        rule = "must be measured on the same seeds and windows to be compared"
        raise RopeError("score", rule, [list(a.values.shape), list(b.values.shape)])
    if a.values.size < 2:
        raise RopeError("score", "must have at least two windows or seeds, or its noise is unknown", a.values.size)
    paired = a.values - b.values
    difference = float(paired.mean())
    error = math.hypot(standard_error(paired), number("floor", floor, low=0))
    verdict = "tied" if abs(difference) <= sigmas * error or difference == 0 else "a" if difference < 0 else "b"
    return Comparison(verdict, difference, error, a.seeds, a.windows)


def rank(scores: Mapping[str, Score], *, sigmas: float = SIGMAS, floor: float = 0.0) -> list[list[str]]:
    """Names from lowest to highest; who is tied with the first of a group stands in it."""
    groups: list[list[str]] = []
    for name in sorted(scores, key=lambda each: scores[each].mean):
        tied = groups and compare(scores[groups[-1][0]], scores[name], sigmas=sigmas, floor=floor).verdict == "tied"
        if tied:
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups
