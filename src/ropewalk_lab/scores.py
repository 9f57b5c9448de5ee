"""Compare scores by paired differences over windows and seeds; differences within the noise are
ties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import RopeError, number

#: a difference is significant beyond this many standard errors
SIGMAS = 2.0


@dataclass(frozen=True, eq=False)
class Score:
    """Values [seeds, windows], measured on the same windows for every seed and every compared
    model. `rank` takes lower values as better.
    """

    values: np.ndarray

    def __post_init__(self) -> None:
        """Check the values and convert them to float64 with two axes."""
        values = np.atleast_2d(np.asarray(self.values, dtype=np.float64))
        if values.ndim != 2 or not values.size or not np.isfinite(values).all():
            raise RopeError(
                "values", "must be finite numbers [seeds, windows]", np.shape(self.values)
            )
        object.__setattr__(self, "values", values)

    @property
    def seeds(self) -> int:
        """The number of trainings."""
        return self.values.shape[0]

    @property
    def windows(self) -> int:
        """The number of windows."""
        return self.values.shape[1]

    @property
    def mean(self) -> float:
        """The mean over seeds and windows."""
        return float(self.values.mean())

    @property
    def error(self) -> float:
        """The standard error of the mean over windows and, if there are several, over seeds."""
        return standard_error(self.values)


def standard_error(values: np.ndarray) -> float:
    """Return the standard error of the mean of [seeds, windows]; the squared errors over windows
    and over seeds are added.

    A single window, or a single seed, contributes no error.
    """
    seeds, windows = values.shape
    of_windows = values.mean(0).std(ddof=1) / math.sqrt(windows) if windows > 1 else 0.0
    of_seeds = values.mean(1).std(ddof=1) / math.sqrt(seeds) if seeds > 1 else 0.0
    return math.hypot(of_windows, of_seeds)


@dataclass(frozen=True)
class Comparison:
    """How two scores differ.

    verdict     "a" or "b", the one that is lower, or "tied": the difference is within the noise
    difference  the mean of a - b over `seeds` x `windows` values
    error       its standard error, with the additional noise `floor` of `compare`
    """

    verdict: str
    difference: float
    error: float
    seeds: int
    windows: int


def compare(a: Score, b: Score, *, sigmas: float = SIGMAS, floor: float = 0.0) -> Comparison:
    """Return which of two scores on the same windows is lower, or that they are tied.

    sigmas  a difference of at most this many standard errors is a tie
    floor   additional noise, such as the deviation between seeds if only one was run; its square
            adds to the squared error
    """
    if a.values.shape != b.values.shape:
        rule = "must be measured on the same seeds and windows to be compared"
        raise RopeError("score", rule, [list(a.values.shape), list(b.values.shape)])
    if a.values.size < 2:
        raise RopeError(
            "score",
            "must have at least two windows or seeds: the noise of a single value is unknown",
            a.values.size,
        )
    paired = a.values - b.values
    difference = float(paired.mean())
    error = math.hypot(standard_error(paired), number("floor", floor, low=0))
    lower = "a" if difference < 0 else "b"
    is_tied = difference == 0 or abs(difference) <= sigmas * error
    return Comparison("tied" if is_tied else lower, difference, error, a.seeds, a.windows)


def rank(
    scores: Mapping[str, Score], *, sigmas: float = SIGMAS, floor: float = 0.0
) -> list[list[str]]:
    """Return groups of names from lowest to highest mean; a group has the names that `compare`
    finds tied with its first name, the lowest of the group.
    """
    groups: list[list[str]] = []
    for name in sorted(scores, key=lambda each: scores[each].mean):
        if (
            groups
            and compare(scores[groups[-1][0]], scores[name], sigmas=sigmas, floor=floor).verdict
            == "tied"
        ):
            groups[-1].append(name)
        else:
            groups.append([name])
    return groups
