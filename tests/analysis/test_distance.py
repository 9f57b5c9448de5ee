"""Scores by distance, compared with rotation matrices, double loops and 50-digit arithmetic."""

import cmath
import math

import mpmath
import numpy as np
import pytest

import ropewalk as rw
from ropewalk_lab import analysis

PAIRS = 5
STEPS = analysis.radians(rw.RopeSpec(2 * PAIRS, theta=100.0))
DISTANCES = [0, 1, 2, 7, 31, 200]


def vectors(seed=0):
    return np.random.default_rng(seed).normal(size=(2, 2 * PAIRS))


def matrix(position, steps=STEPS):
    """R_m in the half-split layout, entry by entry."""
    n = len(steps)
    rotation = np.zeros((2 * n, 2 * n))
    for i, step in enumerate(steps):
        c, s = math.cos(position * step), math.sin(position * step)
        rotation[i, i], rotation[i, n + i], rotation[n + i, i], rotation[n + i, n + i] = c, -s, s, c
    return rotation


def partial(distance, j, steps=STEPS):
    return sum(cmath.exp(1j * distance * step) for step in steps[:j])


def test_scores_are_those_of_the_rotation_matrices():
    q, k = vectors()
    expected = [(matrix(d + 11) @ q) @ (matrix(11) @ k) for d in DISTANCES]
    assert analysis.scores(q, k, STEPS, DISTANCES) == pytest.approx(expected, abs=1e-12)


def test_score_matrix_is_that_of_the_rotation_matrices():
    q, k = vectors(1)
    expected = [[(matrix(m) @ q) @ (matrix(n) @ k) for n in range(7)] for m in range(7)]
    assert analysis.score_matrix(q, k, STEPS, range(7)) == pytest.approx(
        np.array(expected), abs=1e-12
    )


def test_decay_is_the_mean_of_the_partial_sums():
    expected = [np.mean([abs(partial(d, j)) for j in range(1, PAIRS + 1)]) for d in DISTANCES]
    assert analysis.decay(STEPS, DISTANCES) == pytest.approx(expected, abs=1e-12)
    assert analysis.decay(STEPS, [0]) == pytest.approx([(PAIRS + 1) / 2])


def test_the_classic_decay_curve_in_50_digits():
    steps = [mpmath.mpf(10_000) ** (-mpmath.mpf(i) / 64) for i in range(64)]
    found = analysis.decay(analysis.radians(rw.RopeSpec(128)), [1, 50, 256])
    for distance, value in zip([1, 50, 256], found, strict=True):
        total = sizes = mpmath.mpf(0)
        for step in steps:
            total += mpmath.expj(distance * step)
            sizes += abs(total)
        assert value == pytest.approx(float(sizes / 64), rel=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_no_score_exceeds_the_abel_bound(seed):
    q, k = vectors(seed)
    distances = np.arange(300)
    assert (
        np.abs(analysis.scores(q, k, STEPS, distances))
        <= analysis.abel_bound(q, k, STEPS, distances) + 1e-12
    ).all()


@pytest.mark.parametrize(
    ("q", "k"),
    [
        vectors(5),
        np.ones((2, 2 * PAIRS)),
        # the first pair's product is large, but the bound has no step from 0 to it
        (np.array([9.0, *[1.0] * (2 * PAIRS - 1)]), np.array([9.0, *[1.0] * (2 * PAIRS - 1)])),
    ],
    ids=["random", "only the last step is steep", "the first step is steep"],
)
def test_the_abel_bound_is_its_formula(q, k):
    h = [complex(q[i], q[PAIRS + i]) * complex(k[i], -k[PAIRS + i]) for i in range(PAIRS)] + [0]
    steepest = max(abs(h[i + 1] - h[i]) for i in range(PAIRS))
    expected = [steepest * sum(abs(partial(d, j)) for j in range(1, PAIRS + 1)) for d in DISTANCES]
    assert analysis.abel_bound(q, k, STEPS, DISTANCES) == pytest.approx(expected, rel=1e-12)


def test_the_cosine_sum_and_similarity_are_their_formulas():
    expected = [float(sum(mpmath.cos(d * mpmath.mpf(float(s))) for s in STEPS)) for d in DISTANCES]
    assert analysis.cosine_sum(STEPS, DISTANCES) == pytest.approx(expected, abs=1e-12)
    assert analysis.similarity(STEPS, DISTANCES) == pytest.approx(
        np.array(expected) / PAIRS, abs=1e-12
    )


def test_similarity_matrix_is_the_cosine_of_the_sinusoidal_encodings():
    positions = np.arange(9)
    encodings = np.concatenate(
        [np.cos(np.outer(positions, STEPS)), np.sin(np.outer(positions, STEPS))], axis=1
    )
    unit = encodings / np.linalg.norm(encodings, axis=1, keepdims=True)
    assert analysis.similarity_matrix(STEPS, positions) == pytest.approx(unit @ unit.T, abs=1e-14)


@pytest.mark.parametrize(
    ("theta", "length", "passes"),
    [
        (4.3e3, 1024, True),
        (4.4e3, 1024, False),
        (8.4e4, 8192, True),
        (8.5e4, 8192, False),
        (9.1e4, 8192, True),
    ],
)
def test_passing_the_base_bound_is_not_monotone_in_the_base(theta, length, passes):
    first = analysis.first_negative(analysis.radians(rw.RopeSpec(128, theta=theta)), length)
    assert (first is None) is passes


@pytest.mark.parametrize("first", [1, 2, 32_768, 32_769, 40_000])
def test_the_first_negative_distance_is_found_in_any_block(first):
    step = math.pi / 2 / (first - 0.5)
    assert analysis.first_negative([step], first) == first
    assert first == 1 or analysis.first_negative([step], first - 1) is None


def test_odd_vectors_and_empty_lengths_are_refused():
    with pytest.raises(rw.RopeError, match="even"):
        analysis.pairs_of(np.ones(5))
    with pytest.raises(rw.RopeError, match="length"):
        analysis.first_negative(STEPS, 0)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17])
def test_a_sum_in_blocks_has_a_value_for_every_distance(monkeypatch, count):
    from ropewalk_lab.analysis import distance as module

    monkeypatch.setattr(module, "_BLOCK", 8)
    distances = np.arange(count) * 3
    found = module.cosine_sum([1.0, 0.1], distances)
    assert found == pytest.approx([math.cos(d) + math.cos(d / 10) for d in distances])
    sizes = []
    outer = np.outer
    monkeypatch.setattr(module.np, "outer", lambda a, b: sizes.append(len(a)) or outer(a, b))
    module.cosine_sum([1.0], distances)
    assert max(sizes) <= 8
