"""Attention without positions ignores order; adding an encoding is only partly relative, rotating
is entirely relative.
"""

import math

import numpy as np
import pytest
import torch

import ropewalk as rw
from helpers import HEAD_DIM, ROTARY_START, sample_spec
from ropewalk_lab import analysis

STEPS = analysis.radians(rw.RopeSpec(10, theta=100.0))


def tokens(count=7, dim=10, seed=0):
    return np.random.default_rng(seed).normal(size=(3, count, dim))


def test_attention_is_that_of_torch():
    q, k, v = tokens()
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x)[None] for x in (q, k, v))
    )[0]
    assert analysis.attend(q, k, v) == pytest.approx(expected.numpy(), abs=1e-12)
    rotated = rw.Rope(rw.RopeSpec(10, theta=100.0))(
        *(torch.from_numpy(x)[None, None] for x in (q, k))
    )
    expected = torch.nn.functional.scaled_dot_product_attention(
        *rotated, torch.from_numpy(v)[None, None]
    )[0, 0]
    assert analysis.attend(q, k, v, STEPS) == pytest.approx(expected.numpy(), abs=1e-12)


def test_attention_with_huge_scores_returns_the_value_of_the_largest():
    q, v = np.array([[3000.0, 0.0]]), np.array([[5.0, 7.0], [1.0, 2.0], [4.0, 8.0]])
    k = np.array([[-1.0, 0.0], [1.0, 0.0], [0.5, 0.0]])
    assert analysis.attend(q, k, v).tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize("order", [[2, 1, 0, 3, 4, 5, 6], [6, 5, 4, 3, 2, 1, 0]])
def test_the_permutation_gap_is_0_without_positions_and_not_with_rope(order):
    q, k, v = tokens()
    assert analysis.permutation_gap(q, k, v, order) < 1e-14
    assert analysis.permutation_gap(q, k, v, order, STEPS) > 0.1


def test_the_permutation_gap_of_the_unchanged_order_is_0():
    assert analysis.permutation_gap(*tokens(), list(range(7)), STEPS) == 0


def sinusoid(position):
    return np.array([f(position * step) for f in (math.cos, math.sin) for step in STEPS])


def test_rotating_is_relative_and_keeps_the_norm_where_adding_does_neither():
    q, k, _ = tokens(1)[:, 0]
    shifts = np.arange(0, 500, 17)
    found = analysis.compare_entries(q, k, STEPS, 3, shifts)
    assert np.ptp(found.rotated_score) < 1e-11
    assert found.rotated_score[0] == pytest.approx(analysis.scores(q, k, STEPS, [3])[0], abs=1e-12)
    assert found.rotated_norm == pytest.approx(np.full(len(shifts), np.linalg.norm(q)), rel=1e-12)
    assert found.added_score == pytest.approx(
        [(q + sinusoid(s + 3)) @ (k + sinusoid(s)) for s in shifts], abs=1e-11
    )
    assert found.added_norm == pytest.approx(
        [np.linalg.norm(q + sinusoid(s + 3)) for s in shifts], rel=1e-12
    )
    assert np.ptp(found.added_score) > 1
    assert np.ptp(found.added_norm) > 0.5


def test_the_path_of_a_query_refuses_mixed_axes():
    with pytest.raises(rw.RopeError, match="MixedAxes"):
        analysis.query_path(rw.RopeSpec(8, axes=rw.axes.MixedAxes(2, 4)), [0, 1])


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_the_path_of_a_query_has_the_values_that_rope_gives_it(name):
    spec, positions = sample_spec(name), torch.tensor([0, 1, 5, 40])
    x = torch.zeros(1, 1, 4, HEAD_DIM, dtype=torch.float64)
    x[..., ROTARY_START : ROTARY_START + spec.pairs] = 1
    rotated = (
        rw.Rope(spec)
        .rotate(x, positions, length=41)
        .detach()[0, 0]
        .numpy()[:, ROTARY_START : ROTARY_START + 2 * spec.pairs]
    )
    found = analysis.query_path(spec, positions.numpy(), 41)
    assert found == pytest.approx(
        rotated[:, : spec.pairs] + 1j * rotated[:, spec.pairs :], abs=1e-9
    )


@pytest.mark.parametrize(("on", "power"), [("qk", 1), ("q", 2), ("scale", 0)])
def test_the_path_of_a_query_has_the_magnitude_of_queries(on, power):
    yarn = rw.frequencies.Yarn(original_length=64, factor=4.0)
    found = analysis.query_path(rw.RopeSpec(8, scaling=yarn, magnitude_on=on), [0, 5])
    np.testing.assert_allclose(np.abs(found), (0.1 * np.log(4) + 1) ** power, rtol=1e-12)
