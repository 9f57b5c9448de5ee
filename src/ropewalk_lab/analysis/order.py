"""The effect of positions on attention: permutations, added versus rotated encodings, and the path
of a query.

q and k are [..., d]; `pairs_for` returns their pairs of dimensions as complex numbers, which
`phasors`, e^{i p omega} for a position p and the frequency omega of a pair, rotate. The `entry` of
an encoding is how positions enter attention: added to q and k, or by their rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.errors import RopeError, number
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on
from ropewalk_lab.analysis.arrays import Numbers, finite
from ropewalk_lab.analysis.arrays import radians as radians_of
from ropewalk_lab.analysis.distance import pairs_for, phasors


def attend(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, radians: Numbers | None = None
) -> np.ndarray:
    """Return bidirectional softmax attention [tokens, d] of q, k, v [tokens, d]; q and k are
    rotated at positions 0, 1, 2 ... if `radians` are given.
    """
    q_pairs, k_pairs = pairs_for(q, k, radians, ndim=2)
    v = finite("v", v, ndim=2)
    if len(v) != len(k_pairs) or not len(v):
        raise RopeError(
            "v", f"must have a row for each key, {len(k_pairs)}, and at least 1", len(v)
        )
    if radians is not None:
        q_pairs = q_pairs * phasors(radians, range(len(q_pairs)))
        k_pairs = k_pairs * phasors(radians, range(len(k_pairs)))
    # the real part is the inner product of q and k; two dimensions for each pair give sqrt(d)
    logits = np.real(q_pairs @ k_pairs.conj().T) / np.sqrt(2 * q_pairs.shape[-1])
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

    Without `radians` it is zero up to rounding: attention without positions cannot distinguish "cat
    chases mouse" from "mouse chases cat".
    """
    q, k, v, found = np.asarray(q), np.asarray(k), np.asarray(v), finite("order", order, ndim=1)
    before = attend(q, k, v, radians)
    if len(q) != len(k):
        raise RopeError("k", f"must have the {len(q)} tokens of q", list(k.shape))
    if sorted(found.tolist()) != list(range(len(q))):
        raise RopeError("order", f"must have each of 0 ... {len(q) - 1} once", order)
    index = found.astype(np.int64)
    return float(np.abs(attend(q[index], k[index], v[index], radians) - before[index]).max())


@dataclass(frozen=True, eq=False)
class EntryComparison:
    """A query and a key at a fixed distance, shifted together: their score and the query's norm at
    each shift, with an encoding that is added and with one that rotates. All are [shifts].
    """

    added_score: np.ndarray
    rotated_score: np.ndarray
    added_norm: np.ndarray
    rotated_norm: np.ndarray


def compare_entries(
    q: np.ndarray, k: np.ndarray, radians: Numbers, distance: int, shifts: Numbers
) -> EntryComparison:
    """Return the score of q [d] with k [d] and the norm of q, at each of `shifts`, in two ways.

    "added": a sinusoidal encoding is added to q and k; "rotated": they are rotated by the same
    frequencies. k is at the position of the shift and q `distance` positions after it: only the
    rotated score is the same at all shifts.
    """
    q_pairs, k_pairs = pairs_for(q, k, radians)
    shifts = finite("shifts", shifts, ndim=1)
    k_phasors = phasors(radians, shifts)
    q_phasors = phasors(radians, shifts + number("distance", distance))
    # a sinusoidal encoding has the pairs (cos, sin), which are the phasors
    added_q, added_k = q_pairs + q_phasors, k_pairs + k_phasors
    rotated_q, rotated_k = q_pairs * q_phasors, k_pairs * k_phasors
    score = lambda left, right: np.real((left * right.conj()).sum(axis=-1))  # noqa: E731
    norm = lambda x: np.sqrt((np.abs(x) ** 2).sum(axis=-1))  # noqa: E731
    return EntryComparison(
        score(added_q, added_k), score(rotated_q, rotated_k), norm(added_q), norm(rotated_q)
    )


def query_path(spec: RopeSpec, positions: Numbers, length: int | None = None) -> np.ndarray:
    """Return the query (1, 0) of each pair, rotated to each position: complex [positions, pairs].
    `length` is the sequence length, which some scalings depend on (None: the trained length).

    It is multiplied by the magnitude, a factor of the scaling (YaRN has one), and by xPos's growth
    with the position.
    """
    path = phasors(radians_of(spec, length), positions)
    # as in `radians_of`, whatever the spec's precision
    frequencies = spec.with_(precision="exact").ladder_frequencies(length)
    path = path * float(magnitude_on(spec, frequencies.magnitude, key=False))
    if frequencies.growth is not None:
        # xPos: a query is multiplied by exp(growth) for each step beyond `center`
        path = path * np.exp(
            np.outer(
                np.asarray(positions, dtype=np.float64) - frequencies.center,
                np.array(frequencies.growth),
            )
        )
    return path
