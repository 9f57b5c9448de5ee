"""Random numbers without a state: each is a function of (seed, sample, stream, column), so a run
can resume at any sample.

The generator is splitmix64: three lines of wrapping integer arithmetic, the same on every machine
and in every version.
"""

from __future__ import annotations

import math

import numpy as np

#: keeps the low 64 bits of a number
_WRAP = (1 << 64) - 1
# 2^64 divided by the golden ratio, the increment of splitmix64
_GOLDEN = 0x9E3779B97F4A7C15
#: rounds of the Feistel network that permutes numbers
_ROUNDS = 4


def mix(x: np.ndarray) -> np.ndarray:
    """Return the numbers after splitmix64's finaliser, a bijection of uint64 that scrambles all
    bits.
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def fold(*numbers: int) -> int:
    """Return one 64-bit seed from several integers; another order of them gives another seed."""
    seed = np.zeros(1, dtype=np.uint64)
    for number in numbers:
        # each number is mixed with the seed so far, so that their order matters
        seed = mix(
            seed * np.uint64(3) + np.array([number & _WRAP], dtype=np.uint64) + np.uint64(_GOLDEN)
        )
    return int(seed[0])


def bits(seed: int, index: np.ndarray, stream: int, count: int) -> np.ndarray:
    """Return random uint64 [len(index), count] for the samples with the numbers `index`.

    Different streams give independent numbers for the same sample.
    """
    rows = mix(index.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(fold(seed, stream)))
    return mix(rows[:, None] + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN))


def below(
    seed: int, index: np.ndarray, stream: int, count: int, high: int | np.ndarray
) -> np.ndarray:
    """Return random int64 [len(index), count] in 0 ... high - 1 for the samples with the numbers
    `index`, high < 2^32; `high` may be an array, one for each row or for each number.
    """
    limit = np.asarray(high, dtype=np.uint64)
    limit = limit[:, None] if limit.ndim == 1 else limit
    # 32 random bits times the limit, divided by 2^32
    return (((bits(seed, index, stream, count) >> np.uint64(32)) * limit) >> np.uint64(32)).astype(
        np.int64
    )


def uniform(seed: int, index: np.ndarray, stream: int, count: int) -> np.ndarray:
    """Return random float64 [len(index), count] in [0, 1), of 53 bits."""
    return (bits(seed, index, stream, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permuted(index: np.ndarray, size: int, seeds: np.ndarray) -> np.ndarray:
    """Return the position of each `index` (0 ... size - 1) in a random permutation of `size` items;
    the entry of `seeds` at the same place determines the permutation.

    A Feistel network permutes the numbers 0 ... 4**n - 1, at least `size` of them; it is applied
    again to every result outside 0 ... size - 1.
    """
    # a number has two halves, left and right
    half_bits = np.uint64(max(1, math.ceil(math.log2(max(size, 2)) / 2)))
    half_mask = np.uint64((1 << int(half_bits)) - 1)
    places = index.astype(np.uint64)
    outside = np.ones(len(places), dtype=bool)
    while outside.any():
        left, right = places[outside] >> half_bits, places[outside] & half_mask
        for number in range(_ROUNDS):
            left, right = (
                right,
                left ^ (mix(right + seeds[outside] + np.uint64(number)) & half_mask),
            )
        places[outside] = (left << half_bits) | right
        outside = places >= np.uint64(size)
    return places.astype(np.int64)
