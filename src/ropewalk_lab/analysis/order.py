"""The effect of positions on attention: permutations, added versus rotated encodings, and the path
of a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on
from ropewalk_lab.analysis.arrays import Numbers
from ropewalk_lab.analysis.arrays import radians as radians_of
from ropewalk_lab.analysis.distance import pairs_of, phasors


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, radians: Numbers | None = None
) -> np.ndarray:
    """Return bidirectional softmax attention of q, k, v [tokens, d], rotated at positions 0, 1, 2
    ... if `radians` are given.
    """
    q_pairs, k_pairs = pairs_of(q), pairs_of(k)
    if radians is not None:
        rotations = phasors(radians, range(len(q)))
        q_pairs, k_pairs = q_pairs * rotations, k_pairs * rotations
    logits = np.real(q_pairs @ k_pairs.conj().T) / np.sqrt(q.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def permutation_gap(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    order: Sequence[int] | np.ndarray,
    radians: Numbers | None = None,
) -> float:
    """Return the largest change of any token's output when the tokens are reordered by the
    permutation `order`.

    Without `radians` it is zero: attention without positions cannot distinguish "cat chases mouse"
    from "mouse chases cat".
    """
    order = np.asarray(order)
    return float(
        np.abs(
            attend(q[order], k[order], v[order], radians) - attend(q, k, v, radians)[order]
        ).max()
    )


@dataclass(frozen=True, eq=False)
class EntryComparison:
    """A query and a key at a fixed distance, shifted together: their score and the query's norm at
    each shift.
    """

    added_score: np.ndarray
    rotated_score: np.ndarray
    added_norm: np.ndarray
    rotated_norm: np.ndarray


def compare_entries(
    q: np.ndarray, k: np.ndarray, radians: Numbers, distance: int, shifts: Numbers
) -> EntryComparison:
    """Return the score of q [d] with k [d] and the norm of q, at each of `shifts`, in two ways.

    Once a sinusoidal encoding is added to q and k, once they are rotated by the same frequencies. k
    is at the position `shift` and q `distance` positions after it: only the rotated score is the
    same at all shifts.
    """
    shifts = np.asarray(shifts, dtype=np.float64)
    k_phasors, q_phasors = phasors(radians, shifts), phasors(radians, shifts + distance)
    added_q, added_k = pairs_of(q) + q_phasors, pairs_of(k) + k_phasors
    rotated_q, rotated_k = pairs_of(q) * q_phasors, pairs_of(k) * k_phasors
    # one line, used twice
    score = lambda left, right: np.real((left * right.conj()).sum(axis=-1))  # noqa: E731
    norm = lambda x: np.sqrt((np.abs(x) ** 2).sum(axis=-1))  # noqa: E731
    return EntryComparison(
        score(added_q, added_k), score(rotated_q, rotated_k), norm(added_q), norm(rotated_q)
    )


def query_path(spec: RopeSpec, positions: Numbers, length: int | None = None) -> np.ndarray:
    """Return the query pair (1, 0) rotated to each position, with magnitude and growth: complex
    [positions, pairs].
    """
    frequencies = spec.with_(precision="exact").ladder_frequencies(length)
    path = phasors(radians_of(spec, length), positions) * float(
        magnitude_on(spec, frequencies.magnitude, key=False)
    )
    if (
        frequencies.growth is not None
    ):  # xPos: a query is multiplied by exp(growth) for each step beyond `center`
        path = path * np.exp(
            np.outer(
                np.asarray(positions, dtype=np.float64) - frequencies.center,
                np.array(frequencies.growth),
            )
        )
    return path
