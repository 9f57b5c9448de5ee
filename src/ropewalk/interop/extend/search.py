"""LongRoPE's evolutionary search for one factor per pair, which divides its frequency; factors
never decrease from fast to slow pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.errors import RopeError, integer, number

Factors = tuple[float, ...]


@dataclass
class _Population:
    """Every candidate tried so far with its loss; no candidate is tried twice.

    loss     the function to minimise
    highest  the largest factor that is allowed
    step     factors are rounded to multiples of this before they are limited
    random   gives random numbers
    losses   {candidate: its loss}
    """

    loss: Callable[[Factors], float]
    highest: float
    step: float
    random: random.Random
    losses: dict[Factors, float] = field(default_factory=dict)

    def valid(self, factors: list[float]) -> Factors:
        """Return `factors` rounded to multiples of `step`, limited to 1 ... `highest`, and made
        non-decreasing.
        """
        rounded, lower_bound = [], 1.0
        for factor in factors:
            lower_bound = max(lower_bound, min(self.highest, round(factor / self.step) * self.step))
            # rounding errors are removed, so that equal candidates are recognised
            rounded.append(round(lower_bound, 10))
        return tuple(rounded)

    def evaluate(self, factors: Factors) -> None:
        """Compute and record the loss of a new candidate."""
        if factors in self.losses:
            return
        value = float(self.loss(factors))
        # a model whose outputs overflow gives NaN: the worst loss, but the search goes on
        self.losses[factors] = math.inf if math.isnan(value) else value

    def best(self, count: int) -> list[Factors]:
        """Return the `count` candidates with the smallest losses, the best first."""
        return sorted(self.losses, key=self.losses.__getitem__)[:count]

    def mutant(self, parent: Factors, spread: float) -> Factors:
        """Return `parent` with the factors of a run of neighbouring pairs shifted, most of them by
        the same amount; `spread` is the standard deviation of the shifts.
        """
        factors = list(parent)
        first = self.random.randrange(len(factors))
        stop = min(len(factors), first + self.random.randint(1, max(1, len(factors) // 2)))
        shift = self.random.gauss(0, spread)
        for pair in range(first, stop):
            factors[pair] += shift if self.random.random() < 0.7 else self.random.gauss(0, spread)
        # factors must not decrease, so larger ones before `first` would undo a shift down: lower
        # them half of the time
        if shift < 0 and self.random.random() < 0.5:
            factors[:first] = [min(factor, factors[first]) for factor in factors[:first]]
        return self.valid(factors)

    def child(self, one: Factors, other: Factors) -> Factors:
        """Return a candidate with the fast pairs of one parent and the slow pairs of the other."""
        cut = self.random.randrange(1, len(one)) if len(one) > 1 else 0
        return self.valid([*one[:cut], *other[cut:]])


def _first_candidates(pairs: int, factor: float) -> list[list[float]]:
    """Return six candidates: the factors of no scaling, of interpolation by `factor`, of NTK, and
    three ramps from 1 to `factor` over half of the pairs.
    """
    last_pair = max(1, pairs - 1)
    ntk = [factor ** (pair / last_pair) for pair in range(pairs)]
    ramps = []
    for start in (0.0, 0.25, 0.5):  # as a fraction of the pairs
        rise = [min(1.0, max(0.0, (pair / last_pair - start) / 0.5)) for pair in range(pairs)]
        ramps.append([1 + (factor - 1) * part for part in rise])
    return [[1.0] * pairs, [factor] * pairs, ntk, *ramps]


def search_factors(
    loss: Callable[[Factors], float],
    pairs: int,
    factor: float,
    *,
    population: int = 64,
    rounds: int = 40,
    step: float = 0.01,
    seed: int = 0,
) -> Factors:
    """Return the factors with the smallest loss that an evolutionary search finds; the same for the
    same seed.

    loss        takes one factor per pair, fastest pair first, and returns a number; called once per
                distinct candidate, at most population * (rounds + 1) times
    factor      how many times longer the context becomes; factors stay between 1 and 1.25 times
                this
    population  candidates per round: half of them are children of the best population / 2 so far,
                and half are mutants of the best quarter of those (of 4 at least)
    step        factors are rounded to multiples of this before they are limited

    The result is never worse than interpolation, NTK or no scaling with factors rounded to `step`,
    which are tried first.
    """
    integer("pairs", pairs, low=1)
    number("factor", factor, low=1)
    integer("population", population, low=8)
    integer("rounds", rounds, low=0)
    number("step", step, above=0)
    candidates = _Population(loss, max(1.0, 1.25 * factor), step, random.Random(seed))
    for factors in _first_candidates(pairs, factor):
        candidates.evaluate(candidates.valid(factors))
    for index in range(rounds):
        parents = candidates.best(population // 2)
        # mutations spread widely in the first rounds, less in later ones, but by two steps at least
        spread = max(2 * step, 0.25 * (factor - 1) * 0.85**index)
        best_parents = parents[: max(4, len(parents) // 4)]
        for _ in range(population // 2):
            candidates.evaluate(candidates.mutant(candidates.random.choice(best_parents), spread))
            candidates.evaluate(
                candidates.child(
                    candidates.random.choice(parents), candidates.random.choice(parents)
                )
            )
    best = candidates.best(1)[0]
    if not math.isfinite(candidates.losses[best]):
        raise RopeError(
            "search", "must give a finite loss for some factors", candidates.losses[best]
        )
    return best
