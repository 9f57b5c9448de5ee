"""t-SNE, exact and small: points of many dimensions on a plane so that neighbours stay neighbours."""

from __future__ import annotations

import numpy as np

from ropewalk.errors import integer, number

_TINY = 1e-12


def affinities(points: np.ndarray, perplexity: float) -> np.ndarray:
    """p_{j|i} of [n, d] points: Gaussian neighbours whose entropy is that of `perplexity` equal ones; rows sum to 1."""
    distances = _squared_distances(points)
    low, high = np.zeros(len(points)), np.full(len(points), np.inf)
    sharpness = np.ones(len(points))
    for _ in range(64):
        found = _rows(distances, sharpness)
        entropy = -(found * np.log(found + _TINY)).sum(axis=1)
        flat = entropy > np.log(perplexity)
        low, high = np.where(flat, sharpness, low), np.where(flat, high, sharpness)
        sharpness = np.where(np.isinf(high), 2 * sharpness, (low + high) / 2)
    return found


def _squared_distances(points: np.ndarray) -> np.ndarray:
    return ((points[:, None] - points[None]) ** 2).sum(axis=-1)


def _rows(distances: np.ndarray, sharpness: np.ndarray) -> np.ndarray:
    others = distances + np.diag(np.full(len(distances), np.inf))
    # the nearest neighbour as zero: no row underflows to nothing
    weights = np.exp(-(others - others.min(axis=1, keepdims=True)) * sharpness[:, None])
    return weights / weights.sum(axis=1, keepdims=True)


def divergence(joint: np.ndarray, placed: np.ndarray) -> tuple[float, np.ndarray]:
    """The Kullback-Leibler divergence of a placement [n, 2] from the joint affinities [n, n], and its gradient."""
    closeness = 1 / (1 + _squared_distances(placed))
    np.fill_diagonal(closeness, 0)
    found = closeness / closeness.sum()
    cost = (joint * np.log((joint + _TINY) / (found + _TINY))).sum()
    pull = (joint - found) * closeness
    return float(cost), 4 * (pull.sum(axis=1, keepdims=True) * placed - pull @ placed)


def tsne(points: np.ndarray, perplexity: float = 15.0, *, steps: int = 400, seed: int = 0) -> np.ndarray:
    """Points [n, d] on a plane [n, 2] by t-SNE: momentum, adaptive gains, and affinities exaggerated at first."""
    count = integer("points", len(points), low=4)
    conditional = affinities(np.asarray(points, dtype=np.float64), number("perplexity", perplexity, above=1, high=count - 1))
    joint = (conditional + conditional.T) / (2 * count)
    placed = np.random.default_rng(seed).normal(scale=1e-2, size=(count, 2))
    speed, gains = np.zeros_like(placed), np.ones_like(placed)
    for step in range(steps):
        early = step < steps // 4
        _, gradient = divergence(joint * (4 if early else 1), placed)
        gains = np.maximum(np.where(np.sign(gradient) == np.sign(speed), gains * 0.8, gains + 0.2), 0.01)
        speed = (0.5 if early else 0.8) * speed - max(count / 4, 10) * gains * gradient
        placed = placed + speed
        placed -= placed.mean(axis=0)
    return placed
