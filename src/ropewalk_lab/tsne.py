"""Exact t-SNE of a few hundred points: a map of many dimensions onto a plane that keeps neighbours
together.
"""

from __future__ import annotations

import numpy as np

from ropewalk.errors import RopeError, integer, number

#: avoids the logarithm of 0 and a division by 0
_TINY = 1e-12


def tsne(points: np.ndarray, perplexity: float = 15.0, *, steps: int = 400) -> np.ndarray:
    """Return points [n, d] mapped to a plane [n, 2]; the same points give the same map.

    perplexity  how many neighbours of each point count
    steps       gradient steps; the affinities are four times as large in the first quarter of them
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or not np.isfinite(points).all():
        raise RopeError("points", "must be finite numbers of shape [n, d]", list(points.shape))
    count = integer("points", len(points), low=4)
    number("perplexity", perplexity, above=1, high=count - 1)
    integer("steps", steps, low=1)
    conditional = affinities(points, perplexity)
    joint = (conditional + conditional.T) / (2 * count)
    embedded = _principal_plane(points)
    # `rates` multiply the learning rate of each coordinate
    velocity, rates = np.zeros_like(embedded), np.ones_like(embedded)
    for step in range(steps):
        early = step < steps // 4
        _, gradient = divergence(joint * (4 if early else 1), embedded)
        # a step that keeps its direction grows, one that turns back shrinks; steps go against the
        # gradient, so equal signs mean that it turns back
        turns_back = np.sign(gradient) == np.sign(velocity)
        rates = np.maximum(np.where(turns_back, rates * 0.8, rates + 0.2), 0.01)
        # momentum, and a learning rate that grows with the number of points
        velocity = (0.5 if early else 0.8) * velocity - max(count / 4, 10) * rates * gradient
        embedded = embedded + velocity
        embedded -= embedded.mean(axis=0)
    return embedded


def affinities(points: np.ndarray, perplexity: float) -> np.ndarray:
    """Return p_{j|i} [n, n] of points [n, d]: row i has the Gaussian weights of the other points j.
    Each row sums to 1 and has the entropy log(perplexity), unless too many distances are equal.
    """
    distances = _squared_distances(points)
    low, high = np.zeros(len(points)), np.full(len(points), np.inf)
    sharpness = np.ones(len(points))
    weights = distances
    # bisection of each row's sharpness, which doubles until an upper bound is found
    for _ in range(64):
        weights = _gaussian_rows(distances, sharpness)
        entropy = -(weights * np.log(weights + _TINY)).sum(axis=1)
        too_flat = entropy > np.log(perplexity)
        low, high = np.where(too_flat, sharpness, low), np.where(too_flat, high, sharpness)
        sharpness = np.where(np.isinf(high), 2 * sharpness, (low + high) / 2)
    return weights


def divergence(joint: np.ndarray, embedded: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the Kullback-Leibler divergence KL(joint || shares), and its gradient [n, 2] by the
    points `embedded` [n, 2]; `joint` and `shares`, the affinities of these points, are [n, n].
    """
    closeness = 1 / (1 + _squared_distances(embedded))
    np.fill_diagonal(closeness, 0)
    shares = closeness / closeness.sum()
    cost = (joint * np.log((joint + _TINY) / (shares + _TINY))).sum()
    pull = (joint - shares) * closeness
    return float(cost), 4 * (pull.sum(axis=1, keepdims=True) * embedded - pull @ embedded)


def _principal_plane(points: np.ndarray) -> np.ndarray:
    """Return the first two principal components [n, 2] as the start, scaled to at most 0.01; the
    signs are fixed.
    """
    centred = points - points.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(points), 2))
    plane[:, : len(directions[:2])] = centred @ directions[:2].T
    # the sign of a singular vector is arbitrary: the largest entry of each column is positive
    largest = plane[np.abs(plane).argmax(axis=0), [0, 1]]
    return plane * np.where(largest < 0, -1e-2, 1e-2) / max(np.abs(plane).max(), _TINY)


def _squared_distances(points: np.ndarray) -> np.ndarray:
    """Return the squared distance of every two points: [n, n]."""
    return ((points[:, None] - points[None]) ** 2).sum(axis=-1)


def _gaussian_rows(distances: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    """Return exp(-sharpness * distance) of every other point, as shares of each row: [n, n]. A
    point has the weight 0 for itself. Distances are squared; `sharpness` [n] has one for each row.
    """
    others = distances + np.diag(np.full(len(distances), np.inf))
    # relative to the nearest neighbour, so that no row underflows to 0
    weights = np.exp(-(others - others.min(axis=1, keepdims=True)) * sharpness[:, None])
    return weights / weights.sum(axis=1, keepdims=True)
