"""Random numbers without a state: splitmix64, permutations, and samples that do not depend on their
batch.
"""

import math

import numpy as np
import pytest

from ropewalk_lab.stateless_random import below, bits, fold, mix, permuted, uniform

#: the first outputs of splitmix64 from state 1234567, as its author's reference program prints them
SPLITMIX = [
    6457827717110365317,
    3203168211198807973,
    9817491932198370423,
    4593380528125082431,
    16408922859458223821,
]


def test_the_generator_is_splitmix64():
    states = np.array([1234567], dtype=np.uint64) + np.arange(1, 6, dtype=np.uint64) * np.uint64(
        0x9E3779B97F4A7C15
    )
    assert mix(states).tolist() == SPLITMIX


def test_random_bits_of_a_sample_do_not_depend_on_its_batch():
    whole = bits(3, np.arange(20), 1, 7)
    assert np.array_equal(bits(3, np.array([13, 4]), 1, 7), whole[[13, 4]])
    assert np.array_equal(bits(3, np.arange(20), 1, 3), whole[:, :3])


@pytest.mark.parametrize(("seed", "index", "stream"), [(4, 0, 1), (3, 1, 1), (3, 0, 2)])
def test_other_seeds_samples_and_streams_draw_other_numbers(seed, index, stream):
    assert not (bits(seed, np.array([index]), stream, 9) == bits(3, np.array([0]), 1, 9)).any()


def test_random_numbers_are_uniform():
    found = below(0, np.arange(4000), 0, 10, 7)
    share = np.bincount(found.ravel(), minlength=7) / found.size
    assert abs(share - 1 / 7).max() < 0.006  # 3.5 standard deviations
    assert abs(uniform(0, np.arange(4000), 0, 10).mean() - 0.5) < 0.005


def test_below_takes_a_limit_for_each_row():
    high = np.array([1, 2, 30])
    found = below(0, np.arange(3), 0, 200, high)
    assert found.min() >= 0
    assert found.max(1).tolist() == (high - 1).tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 65, 1000])
def test_a_permutation_has_every_number_once(size):
    seeds = np.full(size, 99, dtype=np.uint64)
    found = permuted(np.arange(size), size, seeds)
    assert sorted(found) == list(range(size))
    if size >= 17:
        assert (found == np.arange(size)).mean() < 0.3
        assert not np.array_equal(found, permuted(np.arange(size), size, seeds + np.uint64(1)))


def test_fold_depends_on_the_order_and_number_of_its_arguments():
    assert len({fold(1, 2), fold(2, 1), fold(1), fold(1, 2, 0), fold(-1)}) == 5


@pytest.mark.parametrize("size", [64, 1000])
def test_neighbours_are_not_neighbours_after_a_shuffle(size):
    """In a random order two neighbours are on average a third of the size apart; a weak shuffle,
    which moves whole blocks, leaves them closer.
    """
    apart = [
        np.abs(
            np.diff(permuted(np.arange(size), size, np.full(size, seed, dtype=np.uint64)))
        ).mean()
        for seed in range(20)
    ]
    assert np.mean(apart) == pytest.approx(size / 3, rel=0.08)


WRAP = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def finalised(x):
    """The finaliser of splitmix64, in Python's integers."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WRAP
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WRAP
    return x ^ (x >> 31)


def folded(*numbers):
    seed = 0
    for number in numbers:
        seed = finalised((3 * seed + number + GOLDEN) & WRAP)
    return seed


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (0, 1), (1, 0), (5, 99), (2**40, 3)])
def test_numbers_are_those_of_the_seed_the_stream_the_sample_and_the_column(seed, stream):
    index = np.array([0, 3, 1 << 40])
    expected = []
    for sample in index.tolist():
        row = finalised((sample * GOLDEN + folded(seed, stream)) & WRAP)
        expected.append([finalised((row + (column + 1) * GOLDEN) & WRAP) for column in range(4)])
    assert bits(seed, index, stream, 4).tolist() == expected
    shares = [[(number >> 11) / 2**53 for number in row] for row in expected]
    assert uniform(seed, index, stream, 4).tolist() == shares
    tens = [[(number >> 32) * 10 >> 32 for number in row] for row in expected]
    assert below(seed, index, stream, 4, 10).tolist() == tens


@pytest.mark.parametrize("size", [1, 2, 5, 16, 17, 1000])
def test_a_permutation_is_four_rounds_of_a_feistel_network_walked_into_the_range(size):
    halves = max(1, math.ceil(math.log2(max(size, 2)) / 2))
    mask = (1 << halves) - 1

    def place(number, seed):
        while True:
            left, right = number >> halves, number & mask
            for turn in range(4):
                left, right = right, left ^ (finalised((right + seed + turn) & WRAP) & mask)
            number = left << halves | right
            if number < size:
                return number

    index = np.arange(min(size, 64))
    seeds = np.full(len(index), 77, dtype=np.uint64)
    assert permuted(index, size, seeds).tolist() == [place(i, 77) for i in index.tolist()]
