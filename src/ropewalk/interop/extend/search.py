"""LongRoPE's search: one factor per pair, found by evolution under the rule that slower pairs stretch no less."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ropewalk.errors import RopeError, integer, number

Factors = tuple[float, ...]


@dataclass
class _Generation:
    """Every candidate that was tried, and its loss; a candidate is tried once."""

    loss: Callable[[Factors], float]
    highest: float
    step: float
    dice: random.Random
    tried: dict[Factors, float] = field(default_factory=dict)

    def tidy(self, factors: list[float]) -> Factors:
        """On the grid, between 1 and the highest, and never falling: a slower pair stretches at least as much."""
        found, floor = [], 1.0
        for factor in factors:
            floor = max(floor, min(self.highest, round(factor / self.step) * self.step))
            found.append(round(floor, 10))
        return tuple(found)

    def attempt(self, factors: Factors) -> None:
        if factors in self.tried:
            return
        value = float(self.loss(factors))
        # a model that breaks down under bad factors gives NaN: the worst there is, not an end of the search
        self.tried[factors] = math.inf if math.isnan(value) else value

    def best(self, count: int) -> list[Factors]:
        return sorted(self.tried, key=self.tried.__getitem__)[:count]

    def mutant(self, parent: Factors, spread: float) -> Factors:
        """A parent with a run of neighbouring pairs moved together, or each of a few pairs on its own."""
        factors = list(parent)
        first = self.dice.randrange(len(factors))
        last = min(len(factors), first + self.dice.randint(1, max(1, len(factors) // 2)))
        shift = self.dice.gauss(0, spread)
        for pair in range(first, last):
            factors[pair] += shift if self.dice.random() < 0.7 else self.dice.gauss(0, spread)
        # a shift down would be lifted back by the pairs before it: let them give way half of the time
        if shift < 0 and self.dice.random() < 0.5:
            factors[:first] = [min(factor, factors[first]) for factor in factors[:first]]
        return self.tidy(factors)

    def child(self, one: Factors, other: Factors) -> Factors:
        """Fast pairs of one parent, slow pairs of the other."""
        cut = self.dice.randrange(1, len(one)) if len(one) > 1 else 0
        return self.tidy([*one[:cut], *other[cut:]])


def starts(pairs: int, factor: float) -> list[list[float]]:
    """Where the search begins: nothing stretched, interpolation, NTK, and ramps between the two ends."""
    top = max(1, pairs - 1)
    ntk = [factor ** (pair / top) for pair in range(pairs)]
    ramps = [
        [1 + (factor - 1) * min(1.0, max(0.0, (pair / top - low) / 0.5)) for pair in range(pairs)] for low in (0.0, 0.25, 0.5)
    ]
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
    """The factors with the least loss that an evolutionary search finds; the same for the same seed.

    loss        takes one factor per pair, fastest pair first, and returns a number; called once per distinct candidate,
                at most population * (rounds + 1) times
    factor      how much longer the context shall be; factors stay between 1 and 1.25 times this
    population  candidates a round, half of them mutants and half of them children of the best half so far
    step        the grid that factors lie on

    The result is never worse than interpolation, NTK or no stretch at all: these are tried first.
    """
    integer("pairs", pairs, low=1)
    number("factor", factor, low=1)
    integer("population", population, low=8)
    integer("rounds", rounds, low=0)
    number("step", step, above=0)
    generation = _Generation(loss, max(1.0, 1.25 * factor), step, random.Random(seed))
    for start in starts(pairs, factor):
        generation.attempt(generation.tidy(start))
    for index in range(rounds):
        parents = generation.best(population // 2)
        # wide steps first, single grid steps at the end
        spread = max(2 * step, 0.25 * (factor - 1) * 0.85**index)
        for _ in range(population // 2):
            generation.attempt(generation.mutant(generation.dice.choice(parents[: max(4, len(parents) // 4)]), spread))
            generation.attempt(generation.child(generation.dice.choice(parents), generation.dice.choice(parents)))
    best = generation.best(1)[0]
    if not math.isfinite(generation.tried[best]):
        raise RopeError("search", "must give a finite loss for some factors", generation.tried[best])
    return best
