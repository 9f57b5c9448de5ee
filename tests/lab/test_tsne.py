"""t-SNE by its definition: perplexity, gradient, and neighbours that stay neighbours."""

import numpy as np
import pytest

import ropewalk as rw
from ropewalk_lab import tsne as module
from ropewalk_lab.tsne import affinities, divergence, tsne


def clouds(count=15, dims=6):
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=(2, count, dims))
    return np.concatenate([first, second + 12])


@pytest.mark.parametrize("perplexity", [3.0, 8.0])
def test_every_row_has_the_perplexity(perplexity):
    found = affinities(clouds(), perplexity)
    assert np.diag(found) == pytest.approx(np.zeros(30))
    assert found.sum(axis=1) == pytest.approx(np.ones(30))
    safe = np.where(found > 0, found, 1)
    entropies = -(found * np.log(safe)).sum(axis=1)
    assert np.exp(entropies) == pytest.approx(np.full(30, perplexity), rel=1e-6)


def test_the_gradient_is_the_slope_of_the_divergence():
    joint = affinities(clouds(3), 2.0)
    joint = (joint + joint.T) / (2 * len(joint))
    placed = np.random.default_rng(1).normal(size=(6, 2))
    _, gradient = divergence(joint, placed)
    for i in range(6):
        for axis in range(2):
            step = np.zeros((6, 2))
            step[i, axis] = 1e-5
            up, down = (divergence(joint, placed + sign * step)[0] for sign in (1, -1))
            assert gradient[i, axis] == pytest.approx((up - down) / 2e-5, abs=1e-7)


def test_the_divergence_is_zero_only_for_the_same_neighbours():
    placed = clouds(4, 2)
    close = 1 / (1 + ((placed[:, None] - placed[None]) ** 2).sum(-1))
    np.fill_diagonal(close, 0)
    assert divergence(close / close.sum(), placed)[0] == pytest.approx(0, abs=1e-9)
    assert divergence(close / close.sum(), 3 * placed)[0] > 0.01


def test_a_quarter_of_the_steps_exaggerates_affinities_that_sum_to_one(monkeypatch):
    seen = []

    def watched(joint, placed):
        seen.append(joint)
        return divergence(joint, placed)

    monkeypatch.setattr(module, "divergence", watched)
    tsne(clouds(), 5.0, steps=8)
    conditional = affinities(clouds(), 5.0)
    for step, joint in enumerate(seen):
        factor = 4 if step < 2 else 1
        assert joint.sum() == pytest.approx(factor)
        assert joint == pytest.approx((conditional + conditional.T) / 60 * factor)


def test_two_clouds_stay_apart_and_the_map_is_the_same_again():
    placed = tsne(clouds(), 5.0)
    distances = np.linalg.norm(placed[:, None] - placed[None], axis=-1)
    np.fill_diagonal(distances, np.inf)
    assert ((distances.argmin(axis=1) < 15) == (np.arange(30) < 15)).all()
    assert distances[:15, 15:].min() > distances.min(axis=1).max()
    assert np.array_equal(placed, tsne(clouds(), 5.0))


def test_the_divergence_falls():
    conditional = affinities(clouds(), 5.0)
    joint = (conditional + conditional.T) / 60
    costs = [divergence(joint, tsne(clouds(), 5.0, steps=steps))[0] for steps in (1, 40, 400)]
    assert costs[0] > costs[1] > costs[2]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: tsne(clouds(3), 40.0), "perplexity"),
        (lambda: tsne(np.ones(5)), "points"),
        (lambda: tsne(np.full((20, 3), np.nan)), "points"),
        (lambda: tsne(clouds(1)[:2], 1.5), "points"),
        (lambda: tsne(clouds(), 5.0, steps=0), "steps"),
    ],
)
def test_bad_arguments_are_refused_with_the_name_of_the_field(call, field):
    with pytest.raises(rw.RopeError, match=f"^{field}: "):
        call()


def test_the_defaults_are_fifteen_neighbours_and_400_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(
        module, "divergence", lambda joint, placed: seen.append(joint) or (0.0, 0 * placed)
    )
    points = clouds(20)
    tsne(points)
    assert len(seen) == 400
    conditional = affinities(points, 15.0)
    assert seen[-1] == pytest.approx((conditional + conditional.T) / 80)


@pytest.mark.parametrize("count", [15, 25])
def test_the_steps_are_those_of_the_rule_written_out(count):
    """Momentum 0.5 in the first quarter and 0.8 after it; the rate is a quarter of the points, at
    least 10, and each coordinate has a gain that grows while the direction stays and else shrinks.
    """
    points, steps = clouds(count), 12
    conditional = affinities(points, 5.0)
    joint = (conditional + conditional.T) / (2 * len(points))
    place = module._principal_plane(points)
    speed, gains = np.zeros_like(place), np.ones_like(place)
    for step in range(steps):
        early = step < 3
        slope = divergence(4 * joint if early else joint, place)[1]
        for at in np.ndindex(place.shape):
            turned = np.sign(slope[at]) != np.sign(speed[at])
            gains[at] = max(gains[at] + 0.2 if turned else gains[at] * 0.8, 0.01)
            rate = max(len(points) / 4, 10) * gains[at]
            speed[at] = (0.5 if early else 0.8) * speed[at] - rate * slope[at]
        place = place + speed
        place = place - place.mean(axis=0)
    found = tsne(points, 5.0, steps=steps)
    assert found == pytest.approx(place, rel=1e-9, abs=1e-12)
    assert found.mean(axis=0) == pytest.approx([0, 0], abs=1e-12)


def test_the_map_begins_with_the_two_widest_directions_made_small():
    generator = np.random.default_rng(3)
    points = generator.normal(size=(40, 3)) * [1.0, 30.0, 6.0] + 5
    place = module._principal_plane(points)
    assert np.abs(place).max() == pytest.approx(0.01)
    for column, axis in ((0, 1), (1, 2)):
        related = np.corrcoef(place[:, column], points[:, axis])[0, 1]
        assert abs(related) > 0.95
        assert place[np.abs(place[:, column]).argmax(), column] > 0
