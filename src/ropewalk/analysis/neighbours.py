"""Exact t-SNE for small sets of points: maps points of many dimensions to a plane so that neighbours stay neighbours."""

from __future__ import annotations

import numpy as np

from ropewalk.errors import integer, number

_TINY = 1e-12


def affinities(points: np.ndarray, perplexity: float) -> np.ndarray:
    """Return p_{j|i} [n, n] of points [n, d]: Gaussian weights with entropy log(perplexity) in each row; rows sum to 1."""
    distances = _squared_distances(points)
    low, high = np.zeros(len(points)), np.full(len(points), np.inf)
    sharpness = np.ones(len(points))
    for _ in range(64):
        weights = _gaussian_rows(distances, sharpness)
        entropy = -(weights * np.log(weights + _TINY)).sum(axis=1)
        too_flat = entropy > np.log(perplexity)
        low, high = np.where(too_flat, sharpness, low), np.where(too_flat, high, sharpness)
        sharpness = np.where(np.isinf(high), 2 * sharpness, (low + high) / 2)
    return weights


def _squared_distances(points: np.ndarray) -> np.ndarray:
    return ((points[:, None] - points[None]) ** 2).sum(axis=-1)


def _gaussian_rows(distances: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    others = distances + np.diag(np.full(len(distances), np.inf))
    # relative to the nearest neighbour, so that no row underflows to 0
    weights = np.exp(-(others - others.min(axis=1, keepdims=True)) * sharpness[:, None])
    return weights / weights.sum(axis=1, keepdims=True)


def divergence(joint: np.ndarray, embedded: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the Kullback-Leibler divergence of points [n, 2] from the joint affinities [n, n], and its gradient."""
    closeness = 1 / (1 + _squared_distances(embedded))
    np.fill_diagonal(closeness, 0)
    shares = closeness / closeness.sum()
    cost = (joint * np.log((joint + _TINY) / (shares + _TINY))).sum()
    pull = (joint - shares) * closeness
    return float(cost), 4 * (pull.sum(axis=1, keepdims=True) * embedded - pull @ embedded)


def tsne(points: np.ndarray, perplexity: float = 15.0, *, steps: int = 400, seed: int = 0) -> np.ndarray:
    """Map points [n, d] to a plane [n, 2] by t-SNE, with momentum, adaptive step sizes and early exaggeration."""
    count = integer("points", len(points), low=4)
    conditional = affinities(np.asarray(points, dtype=np.float64), number("perplexity", perplexity, above=1, high=count - 1))
    joint = (conditional + conditional.T) / (2 * count)
    embedded = np.random.default_rng(seed).normal(scale=1e-2, size=(count, 2))
    velocity, rates = np.zeros_like(embedded), np.ones_like(embedded)
    for step in range(steps):
        early = step < steps // 4
        _, gradient = divergence(joint * (4 if early else 1), embedded)
        rates = np.maximum(np.where(np.sign(gradient) == np.sign(velocity), rates * 0.8, rates + 0.2), 0.01)
        velocity = (0.5 if early else 0.8) * velocity - max(count / 4, 10) * rates * gradient
        embedded = embedded + velocity
        embedded -= embedded.mean(axis=0)
    return embedded
