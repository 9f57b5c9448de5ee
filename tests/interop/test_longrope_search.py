"""The search keeps LongRoPE's rules and finds an optimum that is known."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from ropewalk import RopeError
from ropewalk.interop.extend.search import search_factors

FACTOR = 8.0
#: not one of the candidates with which the search starts
OPTIMUM = (1.0, 1.0, 1.3, 2.1, 5.5, 5.5, 7.9)


def distance(factors):
    """A smooth loss with one least point, at OPTIMUM."""
    return sum(
        (math.log(found) - math.log(wanted)) ** 2
        for found, wanted in zip(factors, OPTIMUM, strict=True)
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_search_finds_a_known_optimum(seed):
    found = search_factors(distance, len(OPTIMUM), FACTOR, seed=seed)
    assert max(abs(a - b) for a, b in zip(found, OPTIMUM, strict=True)) < 0.15
    # no scaling and interpolation are far from the optimum
    assert distance(found) < 0.002 < min(distance((factor,) * 7) for factor in (1.0, FACTOR))


def test_every_candidate_is_valid_and_its_loss_computed_once():
    seen = []
    search_factors(
        lambda factors: seen.append(factors) or distance(factors),
        7,
        FACTOR,
        rounds=5,
        population=16,
    )
    assert len(seen) == len(set(seen)) <= 16 * 6
    for factors in seen:
        assert len(factors) == 7
        assert all(a <= b for a, b in pairwise(factors)), "a slower pair stretches no less"
        assert all(1 <= factor <= 1.25 * FACTOR for factor in factors)
        assert all(abs(factor * 100 - round(factor * 100)) < 1e-6 for factor in factors), (
            "on the grid"
        )


def test_the_same_seed_gives_the_same_factors():
    runs = [
        search_factors(distance, 7, FACTOR, rounds=4, population=12, seed=seed)
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.parametrize(
    "start",
    [lambda i: 1.0, lambda i: FACTOR, lambda i: FACTOR ** (i / 6)],
    ids=["none", "linear", "ntk"],
)
def test_the_result_is_no_worse_than_the_known_rules(start):
    """Where a known rule is the optimum, the search returns its factors, rounded to the grid."""
    loss = lambda factors: sum(abs(found - start(i)) for i, found in enumerate(factors))
    assert loss(search_factors(loss, 7, FACTOR, rounds=0)) <= 7 * 0.005 + 1e-9


def test_factors_with_a_loss_of_nan_are_never_the_result():
    loss = lambda factors: math.nan if factors[-1] > 4 else distance(factors)
    assert search_factors(loss, 7, FACTOR, rounds=3, population=12)[-1] <= 4
    with pytest.raises(RopeError, match="finite"):
        search_factors(lambda factors: math.nan, 7, FACTOR, rounds=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("pairs", 0), ("factor", 0.5), ("population", 7), ("rounds", -1), ("step", 0)],
)
def test_bad_values_are_refused_by_name(name, value):
    given = {"pairs": 3, "factor": 2.0, name: value}
    with pytest.raises(RopeError) as error:
        search_factors(lambda factors: 0.0, **given)
    assert error.value.field == name


def test_a_search_for_one_pair_finds_its_factor():
    assert search_factors(lambda factors: abs(factors[0] - 1.5), 1, 2.0) == (1.5,)


def test_a_population_of_eight_is_accepted():
    assert len(search_factors(distance, 7, FACTOR, rounds=1, population=8)) == 7


def test_the_search_starts_with_the_known_rules_and_three_ramps():
    seen = []
    search_factors(lambda factors: seen.append(factors) or 0.0, 5, 3.0, rounds=0)
    assert seen == [
        (1.0,) * 5,
        (3.0,) * 5,
        (1.0, 1.32, 1.73, 2.28, 3.0),  # 3^(i / 4)
        (1.0, 2.0, 3.0, 3.0, 3.0),  # from 1 to 3 over half of the pairs, from the start,
        (1.0, 1.0, 2.0, 3.0, 3.0),  # from a quarter on
        (1.0, 1.0, 1.0, 2.0, 3.0),  # and from the middle
    ]
