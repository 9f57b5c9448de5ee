"""LongRoPE2's search: find the critical pair and the factors from it on; the factors of the pairs
before it follow from its factor.

The critical pair is the first that completes at most one turn in training. In theory the base and
the trained length determine it; but slow pairs are trained less well than the theory assumes, so
the best choice lies a little earlier and is searched too. A pair's frequency is divided by its
factor.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from ropewalk.errors import RopeError, integer, number
from ropewalk.interop.extend.search import Factors


def critical_pair(dim: int, theta: float, length: float, turns: float = 1.0) -> int:
    """Return the index of the first pair that completes at most `turns` turns within `length`
    tokens, ceil(dim / 2 * log_theta(length / (2 pi turns))). `dim` is twice the number of pairs.

    The result is not limited to 0 ... dim / 2: it is 0 or less if no pair completes more turns,
    and may be above dim / 2 if all do.
    """
    return math.ceil(dim / 2 * math.log(length / (2 * math.pi * turns)) / math.log(theta))


def rescale_factors(critical: int, slow: Factors) -> Factors:
    """Return the factors of all pairs: `slow` from pair `critical` on, and slow[0]^(i/critical) for
    each pair i before it.
    """
    return (*(slow[0] ** (pair / critical) for pair in range(critical)), *slow)


def search_longrope2(
    loss: Callable[[Factors], float],
    pairs: int,
    factor: float,
    *,
    theta: float,
    length: int,
    population: int = 64,
    rounds: int = 40,
    step: float = 0.01,
    mutation: float = 0.3,
    seed: int = 0,
) -> Factors:
    """Return the factors with the smallest loss that an evolutionary search finds; the same for the
    same seed.

    loss        takes one factor per pair, fastest pair first, and returns a number. In the paper it
                counts only the answer to a question about the start of a long text, since most
                tokens do not need a long context
    factor      how many times longer the context becomes; factors from the critical pair on are
                between this and twice this, and never decrease
    theta, length  the base and the trained length, which determine the candidates for the critical
                   pair
    population  candidates per round: half are mutants and half are children, both of the best
                population / 4 so far (of 2 at least)
    step        factors from the critical pair on are rounded to `factor` plus a multiple of this
    mutation    the probability that a factor of a mutant changes
    """
    integer("pairs", pairs, low=1)
    number("factor", factor, low=1)
    integer("population", population, low=8)
    integer("rounds", rounds, low=0)
    number("step", step, above=0)
    number("mutation", mutation, above=0, high=1)
    # candidates for the critical pair: from the first that completes fewer than 10 turns in
    # training to the theoretical one; pairs are counted from 0, so the number of pairs before the
    # critical one is its index
    last = min(max(critical_pair(2 * pairs, theta, length), 0), pairs - 1)
    first = min(max(critical_pair(2 * pairs, theta, length, turns=10.0), 0), last)
    search = _FactorSearch(loss, factor, step, mutation, random.Random(seed))
    for critical in range(first, last + 1):
        # start with equal factors, and with factors that grow up to twice `factor`
        search.evaluate(critical, [factor] * (pairs - critical))
        search.evaluate(
            critical,
            [factor * (1 + i / max(1, pairs - critical - 1)) for i in range(pairs - critical)],
        )
    for _ in range(rounds):
        parents = search.best(max(2, population // 4))
        for _ in range(population // 2):
            search.evaluate(*search.mutant(search.random.choice(parents)))
            search.evaluate(
                *search.child(search.random.choice(parents), search.random.choice(parents))
            )
    best = search.best(1)[0]
    if not math.isfinite(search.losses[best]):
        raise RopeError("search", "must give a finite loss for some factors", search.losses[best])
    return rescale_factors(*best)


#: the critical pair and the factors from it on
Candidate = tuple[int, Factors]


class _FactorSearch:
    """Every candidate tried so far with its loss; no candidate is tried twice."""

    def __init__(
        self,
        loss: Callable[[Factors], float],
        factor: float,
        step: float,
        mutation: float,
        rng: random.Random,
    ) -> None:
        """Start without candidates; the arguments are those of `search_longrope2`, and `rng` gives
        random numbers.
        """
        self.loss, self.factor, self.step = loss, factor, step
        self.mutation, self.random = mutation, rng
        self.losses: dict[Candidate, float] = {}

    def evaluate(self, critical: int, slow: list[float]) -> None:
        """Record the loss of `slow`, the factors from pair `critical` on, after they were rounded,
        limited to `factor` ... 2 x `factor`, and made non-decreasing.
        """
        valid, lower_bound = [], self.factor
        for value in slow:
            rounded = self.factor + round((value - self.factor) / self.step) * self.step
            lower_bound = max(lower_bound, min(2 * self.factor, rounded))
            # rounding errors are removed, so that equal candidates are recognised
            valid.append(round(lower_bound, 10))
        candidate = critical, tuple(valid)
        if candidate not in self.losses:
            loss = float(self.loss(rescale_factors(*candidate)))
            self.losses[candidate] = math.inf if math.isnan(loss) else loss

    def best(self, count: int) -> list[Candidate]:
        """Return the `count` candidates with the smallest losses, the best first."""
        return sorted(self.losses, key=self.losses.__getitem__)[:count]

    def mutant(self, parent: Candidate) -> tuple[int, list[float]]:
        """Return `parent` with some of its factors drawn anew between their neighbours."""
        critical, slow = parent
        # the neighbours of factor i are bounds[i] and bounds[i + 2]
        bounds = (self.factor, *slow, 2 * self.factor)
        factors = list(slow)
        for i in range(len(slow)):
            if self.random.random() < self.mutation:
                factors[i] = self.random.uniform(bounds[i], bounds[i + 2])
        return critical, factors

    def child(self, one: Candidate, other: Candidate) -> tuple[int, list[float]]:
        """Return a candidate with the critical pair and the factors of `one`, except that its
        slowest pairs, a random number of them, have the factors of `other`.
        """
        (critical, slow), (_, other_slow) = one, other
        # the number of factors from `other`
        taken = self.random.randrange(min(len(slow), len(other_slow)) + 1)
        return critical, [*slow[: len(slow) - taken], *other_slow[len(other_slow) - taken :]]
