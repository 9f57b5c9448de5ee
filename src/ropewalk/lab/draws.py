"""Random numbers without a state: each is a function of (seed, sample, stream, place), so a run resumes at any sample.

The generator is splitmix64, which is three lines of wrapping integer arithmetic and the same on every machine and version.
"""

from __future__ import annotations

import math

import numpy as np

_WRAP = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 4


def mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: a bijection of uint64 that leaves no visible pattern."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fold(*numbers: int) -> int:
    """One 64-bit seed from several integers."""
    seed = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        seed = mix(seed * np.uint64(3) + np.array([number & _WRAP], dtype=np.uint64) + np.uint64(_GOLDEN))
    return int(seed[0])


def bits(seed: int, index: np.ndarray, stream: int, count: int) -> np.ndarray:
    """uint64 [len(index), count]; `stream` keeps the draws of one sample apart."""
    rows = mix(index.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(fold(seed, stream)))
    return mix(rows[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def below(seed: int, index: np.ndarray, stream: int, count: int, high: int | np.ndarray) -> np.ndarray:
    """int64 [len(index), count] in 0 ... high - 1, high < 2^32; an array of highs has one a row or one a draw."""
    limit = np.asarray(high, dtype=np.uint64)
    limit = limit[:, None] if limit.ndim == 1 else limit
    return (((bits(seed, index, stream, count) >> np.uint64(32)) * limit) >> np.uint64(32)).astype(np.int64)


def uniform(seed: int, index: np.ndarray, stream: int, count: int) -> np.ndarray:
    """float64 [len(index), count] in [0, 1)."""
    return (bits(seed, index, stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permuted(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Where each of `index` (0 ... size - 1) goes in a shuffle of `size` things; rows with one key share one shuffle.

    A Feistel network permutes a power of four; who lands beyond `size` walks on until it is inside.
    """
    half = np.uint64(max(1, math.ceil(math.log2(max(size, 2)) / 2)))
    low = np.uint64((1 << int(half)) - 1)
    found = index.astype(np.uint64)
    outside = np.ones(len(found), dtype=bool)
    while outside.any():
        left, right = found[outside] >> half, found[outside] & low
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mix(right + keys[outside] + np.uint64(turn)) & low)
        found[outside] = (left << half) | right
        outside = found >= np.uint64(size)
    return found.astype(np.int64)
