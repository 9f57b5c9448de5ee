"""t-SNE by its definition: perplexity, gradient, and neighbours that stay neighbours."""

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import analysis
from ropewalk.analysis import neighbours


def clouds(count=15, dims=6):
    generator = np.random.default_rng(0)
    return np.concatenate([generator.normal(size=(count, dims)), generator.normal(size=(count, dims)) + 12])


@pytest.mark.parametrize("perplexity", [3.0, 8.0])
def test_every_row_has_the_asked_perplexity(perplexity):
    found = analysis.affinities(clouds(), perplexity)
    assert np.diag(found) == pytest.approx(np.zeros(30))
    assert found.sum(axis=1) == pytest.approx(np.ones(30))
    safe = np.where(found > 0, found, 1)
    assert np.exp(-(found * np.log(safe)).sum(axis=1)) == pytest.approx(np.full(30, perplexity), rel=1e-6)


def test_the_gradient_is_the_slope_of_the_divergence():
    generator = np.random.default_rng(1)
    joint = analysis.affinities(clouds(3), 2.0)
    joint = (joint + joint.T) / (2 * len(joint))
    placed = generator.normal(size=(6, 2))
    _, gradient = analysis.divergence(joint, placed)
    for i in range(6):
        for axis in range(2):
            step = np.zeros((6, 2))
            step[i, axis] = 1e-5
            slope = (analysis.divergence(joint, placed + step)[0] - analysis.divergence(joint, placed - step)[0]) / 2e-5
            assert gradient[i, axis] == pytest.approx(slope, abs=1e-7)


def test_the_divergence_is_zero_only_for_the_same_neighbours():
    placed = clouds(4, 2)
    close = 1 / (1 + ((placed[:, None] - placed[None]) ** 2).sum(-1))
    np.fill_diagonal(close, 0)
    assert analysis.divergence(close / close.sum(), placed)[0] == pytest.approx(0, abs=1e-9)
    assert analysis.divergence(close / close.sum(), 3 * placed)[0] > 0.01


def test_a_quarter_of_the_steps_exaggerates_joint_affinities_that_add_up_to_one(monkeypatch):
    seen, divergence = [], neighbours.divergence
    monkeypatch.setattr(neighbours, "divergence", lambda joint, placed: seen.append(joint) or divergence(joint, placed))
    neighbours.tsne(clouds(), 5.0, steps=8)
    conditional = analysis.affinities(clouds(), 5.0)
    for step, joint in enumerate(seen):
        assert joint.sum() == pytest.approx(4 if step < 2 else 1)
        assert joint == pytest.approx((conditional + conditional.T) / (2 * 30) * (4 if step < 2 else 1))


def test_two_clouds_stay_apart_and_a_seed_repeats():
    placed = analysis.tsne(clouds(), 5.0)
    distances = np.linalg.norm(placed[:, None] - placed[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert ((distances.argmin(axis=1) < 15) == (np.arange(30) < 15)).all()
    assert distances[:15, 15:].min() > np.sort(distances, axis=1)[:, 0].max()
    assert np.array_equal(placed, analysis.tsne(clouds(), 5.0))


def test_more_neighbours_than_points_are_refused():
    with pytest.raises(rw.RopeError, match="perplexity"):
        analysis.tsne(clouds(3), 40.0)
