"""How scores depend on distance: decay and its bound, similarity, and the cosine sum of the base
bound.

R_m is the rotation at position m, and omega_i the frequency of pair i, in radians per position;
`radians` are the frequencies of all pairs.
"""

from __future__ import annotations

import numpy as np

from ropewalk.errors import RopeError
from ropewalk_lab.analysis.arrays import Numbers, finite

# distances computed at once: a million distances of 64 pairs would take half a gigabyte
_BLOCK = 1 << 15


def phasors(radians: Numbers, positions: Numbers) -> np.ndarray:
    """Return e^{i p omega}, the rotation of each pair at each position: complex [positions, pairs]."""
    return np.exp(1j * np.outer(finite("positions", positions, ndim=1), _frequencies(radians)))


def _frequencies(radians: Numbers) -> np.ndarray:
    """Return the frequencies of one or more pairs as an array [pairs]; otherwise raise an error."""
    return finite("radians", radians, ndim=1, least=1)


def pairs_of(x: np.ndarray, field: str = "x") -> np.ndarray:
    """Return the pairs (x_i, x_{i+d/2}) of x [..., d] as complex numbers [..., d/2]; `field` is
    what an error calls x.
    """
    x = finite(field, x)
    half = x.shape[-1] // 2 if x.ndim else 0
    if not half or x.shape[-1] != 2 * half:
        raise RopeError(
            field, "must have an even last dimension, since dimensions form pairs", list(x.shape)
        )
    return x[..., :half] + 1j * x[..., half:]


def pairs_for(
    q: np.ndarray, k: np.ndarray, radians: Numbers | None, ndim: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the pairs of q and of k as complex numbers, as `pairs_of` does. q and k must have
    `ndim` axes and equally many dimensions, two for each frequency if `radians` are given.
    """
    q_pairs, k_pairs = (
        pairs_of(finite(name, x, ndim=ndim), name) for name, x in (("q", q), ("k", k))
    )
    pairs = q_pairs.shape[-1]
    if k_pairs.shape[-1] != pairs:
        raise RopeError("k", f"must have the {2 * pairs} dimensions of q", list(np.shape(k)))
    if radians is not None and len(_frequencies(radians)) != pairs:
        raise RopeError(
            "radians", f"must have {pairs} numbers, one for each pair of q", len(radians)
        )
    return q_pairs, k_pairs


def scores(q: np.ndarray, k: np.ndarray, radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return <R_m q, R_n k> for each distance m - n; q and k are [d]."""
    q_pairs, k_pairs = pairs_for(q, k, radians)
    # of two pairs as complex numbers, the real part of q conj(k) is the inner product
    return np.real(phasors(radians, distances) @ (q_pairs * k_pairs.conj()))


def partial_sums(radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return |S_j|, S_j = sum of the first j phasors, j = 1 ... pairs: [distances, pairs]."""
    return np.abs(np.cumsum(phasors(radians, distances), axis=-1))


def decay(radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return RoFormer's decay curve: the mean of |S_j| over j for each distance."""
    # `partial_sums` returns |S_j|, not S_j
    return partial_sums(radians, distances).mean(axis=-1)


def abel_bound(q: np.ndarray, k: np.ndarray, radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return a bound on |<R_m q, R_n k>| for each distance m - n, by Abel summation: max_i |h_{i+1}
    - h_i| * sum_j |S_j|, where h_i = q_i conj(k_i), and 0 after the last pair; S_j is the sum of
    the phasors of the first j pairs.
    """
    q_pairs, k_pairs = pairs_for(q, k, radians)
    products = np.append(q_pairs * k_pairs.conj(), 0)
    return np.abs(np.diff(products)).max() * partial_sums(radians, distances).sum(axis=-1)


def cosine_sum(radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return sum_i cos(m omega_i) for each distance m; omega_i is the frequency of pair i.

    It is proportional to how far a key similar to the query outscores a random one ("Base of RoPE
    Bounds Context Length").
    """
    distances, frequencies = finite("distances", distances, ndim=1), _frequencies(radians)
    blocks = np.split(distances, range(_BLOCK, len(distances), _BLOCK))
    return np.concatenate([np.cos(np.outer(block, frequencies)).sum(axis=-1) for block in blocks])


def similarity(radians: Numbers, distances: Numbers) -> np.ndarray:
    """Return the cosine similarity of the sinusoidal encodings of two positions, for each distance
    m between them: the mean of cos(m omega_i).
    """
    return cosine_sum(radians, distances) / len(radians)


def similarity_matrix(radians: Numbers, positions: Numbers) -> np.ndarray:
    """Return the cosine similarity of the sinusoidal encodings of every two positions: [positions,
    positions].
    """
    rotated = phasors(radians, positions)
    return np.real(rotated @ rotated.conj().T) / rotated.shape[-1]


def score_matrix(q: np.ndarray, k: np.ndarray, radians: Numbers, positions: Numbers) -> np.ndarray:
    """Return <R_m q, R_n k> for every two of `positions`, m for the rows and n for the columns:
    [positions, positions]; q and k are [d].
    """
    q_pairs, k_pairs = pairs_for(q, k, radians)
    rotated = phasors(radians, positions)
    return np.real((rotated * q_pairs) @ (rotated * k_pairs).conj().T)
