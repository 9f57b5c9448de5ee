"""LongRoPE2's search keeps its rules, finds a known optimum, and runs on a model through `extend`."""

from __future__ import annotations

import copy
import math
from itertools import pairwise

import pytest

import ropewalk as rw
from ropewalk import RopeError
from ropewalk.interop.extend import critical_pair, rescale_factors, search_longrope2

FACTOR, PAIRS, THETA, LENGTH = 4.0, 16, 1e4, 512
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 31,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "max_position_embeddings": LENGTH,
    "rope_theta": THETA,
}


@pytest.mark.parametrize(
    ("dim", "theta", "length", "first", "last"),
    [(96, 1e4, 2048, 19, 31), (128, 5e5, 8192, 24, 35)],
    ids=["phi3", "llama3"],
)
def test_the_critical_pair_is_that_of_the_paper(dim, theta, length, first, last):
    assert critical_pair(dim, theta, length) == last
    assert critical_pair(dim, theta, length, turns=10.0) == first


def test_factors_of_fast_pairs_follow_from_that_of_the_critical_pair():
    assert rescale_factors(2, (3.0, 3.5)) == pytest.approx((1, 1.732051, 3, 3.5), abs=1e-6)


def test_every_candidate_is_valid_and_its_loss_computed_once():
    seen = []
    options = {"theta": THETA, "length": LENGTH, "rounds": 4, "population": 12}
    search_longrope2(lambda factors: seen.append(factors) or sum(factors), PAIRS, FACTOR, **options)
    assert len(seen) == len(set(seen)) > 12
    # candidates for the critical pair: the first with fewer than 10 turns in training, up to the
    # first with less than one
    turns = [LENGTH / (2 * math.pi * THETA ** (pair / PAIRS)) for pair in range(PAIRS)]
    expected = range(
        next(i for i in range(PAIRS) if turns[i] < 10),
        next(i for i in range(PAIRS) if turns[i] < 1) + 1,
    )
    assert expected == range(4, 9)
    equal = {
        critical: rescale_factors(critical, (FACTOR,) * (PAIRS - critical))
        for critical in range(1, PAIRS)
    }
    assert [critical for critical, factors in equal.items() if factors in seen] == list(expected)
    for factors in seen:
        assert all(a <= b for a, b in pairwise(factors))
        assert any(follows_from(critical, factors) for critical in expected)


def follows_from(critical, factors):
    fast = [factors[critical] ** (i / critical) for i in range(critical)]
    in_range = all(FACTOR <= factor <= 2 * FACTOR for factor in factors[critical:])
    return in_range and factors[:critical] == pytest.approx(fast)


def test_the_search_finds_a_known_optimum_and_repeats_it_for_the_same_seed():
    wanted = rescale_factors(5, tuple(FACTOR + 0.3 * i for i in range(PAIRS - 5)))
    loss = lambda factors: sum((a - b) ** 2 for a, b in zip(factors, wanted, strict=True))
    options = {"theta": THETA, "length": LENGTH, "rounds": 30, "population": 32}
    found = [search_longrope2(loss, PAIRS, FACTOR, seed=seed, **options) for seed in (1, 1)]
    assert found[0] == found[1]
    assert loss(found[0]) < 0.05 < loss(rescale_factors(5, (FACTOR,) * (PAIRS - 5)))


def test_extend_searches_as_longrope2_does_on_request():
    config, judged = copy.deepcopy(CONFIG), []

    def loss(factors):
        spec = rw.from_hf(config)
        # the config has the factors while they are judged
        assert spec.scaling.long_factor == factors
        judged.append(factors)
        return sum(factors)

    options = {"method": "longrope2", "rounds": 1, "population": 8}
    report = rw.extend(config, "longrope", factor=FACTOR, search=loss, search_options=options)
    assert min(judged, key=sum) == rw.from_hf(config).scaling.long_factor
    assert all(factors[-1] >= FACTOR for factors in judged)
    assert report.kind == "longrope"
    with pytest.raises(RopeError, match="method"):
        rw.extend(
            copy.deepcopy(CONFIG),
            "longrope",
            factor=FACTOR,
            search=loss,
            search_options={"method": "third"},
        )


@pytest.mark.parametrize(
    ("theta", "length", "critical"),
    [
        (
            10.0,
            10**6,
            3,
            # 4 ln(1e6 / 2 pi) / ln 10 = 20.8: every pair turns often, so only the last can be
            # critical
        ),
        (1e4, 6, 0),  # 6 tokens are less than 2 pi: not even the first pair completes a turn
    ],
)
def test_the_critical_pair_is_one_of_the_pairs(theta, length, critical):
    """Without rounds only the starts are tried: equal factors from the critical pair on, and
    factors that grow to twice it.
    """
    seen = []
    search_longrope2(
        lambda factors: seen.append(factors) or 0.0, 4, 2.0, theta=theta, length=length, rounds=0
    )
    slow = 4 - critical
    starts = {(2.0,) * slow, tuple(round(2 * (1 + i / max(1, slow - 1)), 2) for i in range(slow))}
    fast = tuple(2 ** (i / critical) for i in range(critical))
    assert {factors[critical:] for factors in seen} == starts
    assert all(factors[:critical] == pytest.approx(fast) for factors in seen)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mutation", 0),
        ("mutation", -0.5),
        ("mutation", 1.5),
        ("population", 7),
        ("step", 0),
        ("factor", 0.5),
    ],
)
def test_bad_values_are_refused_by_name(name, value):
    given = {"pairs": 3, "factor": 2.0, "theta": 1e4, "length": 64, name: value}
    with pytest.raises(RopeError) as error:
        search_longrope2(lambda factors: 0.0, **given)
    assert error.value.field == name
