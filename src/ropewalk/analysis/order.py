"""Why a position has to enter at all, and what entering does to a vector: permutations, adding against turning, paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.analysis.distance import pairs_of, phasors
from ropewalk.analysis.ladder import Numbers
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, radians: Numbers | None = None) -> np.ndarray:
    """Bidirectional softmax attention of q, k, v [tokens, d]; tokens stand at 0, 1, 2 ... and turn by `radians` if given."""
    left, right = pairs_of(q), pairs_of(k)
    if radians is not None:
        rotated = phasors(radians, range(len(q)))
        left, right = left * rotated, right * rotated
    logits = np.real(left @ right.conj().T) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def permutation_gap(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, order: Sequence[int] | np.ndarray, radians: Numbers | None = None
) -> float:
    """The largest change of any token's output when the tokens are put in another order.

    Zero without positions: to attention alone "cat chases mouse" is "mouse chases cat".
    """
    order = np.asarray(order)
    return float(np.abs(attend(q[order], k[order], v[order], radians) - attend(q, k, v, radians)[order]).max())


@dataclass(frozen=True, eq=False)
class Doors:
    """One query and one key at a fixed distance, moved on together: their score and the query's norm at each shift."""

    added_score: np.ndarray
    turned_score: np.ndarray
    added_norm: np.ndarray
    turned_norm: np.ndarray


def doors(q: np.ndarray, k: np.ndarray, radians: Numbers, distance: int, shifts: Numbers) -> Doors:
    """Adding a sinusoidal encoding against turning by the same frequencies; q [d] stands `distance` after k [d]."""
    shifts = np.asarray(shifts, dtype=np.float64)
    early, late = phasors(radians, shifts), phasors(radians, shifts + distance)
    added_q, added_k = pairs_of(q) + late, pairs_of(k) + early
    turned_q, turned_k = pairs_of(q) * late, pairs_of(k) * early
    score = lambda left, right: np.real((left * right.conj()).sum(axis=-1))  # noqa: E731 - one line, used twice
    norm = lambda x: np.sqrt((np.abs(x) ** 2).sum(axis=-1))  # noqa: E731
    return Doors(score(added_q, added_k), score(turned_q, turned_k), norm(added_q), norm(turned_q))


def query_path(spec: RopeSpec, positions: Numbers, length: int | None = None) -> np.ndarray:
    """Where the query pair (1, 0) stands at each position, magnitude and growth included: complex [positions, pairs]."""
    found = spec.with_(precision="exact").ladder_frequencies(length)
    path = phasors(found.radians.numpy(), positions) * float(magnitude_on(spec, found.magnitude, key=False))
    if found.growth is not None:
        path = path * np.exp(np.outer(np.asarray(positions, dtype=np.float64) - found.center, found.growth.numpy()))
    return path
