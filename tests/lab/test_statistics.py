"""Differences within noise are ties: paired comparisons and their standard errors."""

import math

import numpy as np
import pytest

from ropewalk.errors import RopeError
from ropewalk_lab.scores import Score, compare, rank, standard_error

RNG = np.random.default_rng(0)
WINDOWS = RNG.normal(2.0, 0.5, 40)


def test_a_gap_smaller_than_the_spread_of_windows_is_significant_if_every_window_has_it():
    """Windows have a deviation of 0.5, and one score is larger by about 0.05 on each of them."""
    a, b = Score(WINDOWS), Score(WINDOWS + 0.05 + RNG.normal(0, 0.01, 40))
    assert a.error > 0.05
    found = compare(a, b)
    assert found.verdict == "a"
    assert found.difference == pytest.approx(-0.05, abs=0.01)
    assert compare(b, a).verdict == "b"


def test_scores_that_differ_by_noise_are_tied():
    noisy = Score(WINDOWS + RNG.normal(0, 0.3, 40))
    assert compare(Score(WINDOWS), noisy).verdict == "tied"
    assert compare(noisy, noisy).verdict == "tied"


def test_the_standard_error_adds_the_squares_over_windows_and_over_seeds():
    values = RNG.normal(size=(3, 40))
    of_windows = np.std(values.mean(0), ddof=1) / math.sqrt(40)
    of_seeds = np.std(values.mean(1), ddof=1) / math.sqrt(3)
    assert standard_error(values) == pytest.approx(math.sqrt(of_windows**2 + of_seeds**2))
    assert Score(values[0]).error == pytest.approx(np.std(values[0], ddof=1) / math.sqrt(40))


def test_one_window_has_the_error_of_its_seeds():
    values = np.array([[1.0], [3.0], [5.0]])
    assert standard_error(values) == pytest.approx(2 / math.sqrt(3))
    assert standard_error(values[:1]) == 0


def test_seeds_that_disagree_make_a_tie_that_windows_alone_would_not():
    gap = np.array([0.2, -0.15, 0.05])[:, None]
    a, b = Score(np.stack([WINDOWS] * 3) + gap), Score(np.stack([WINDOWS] * 3))
    assert compare(a, b).verdict == "tied"
    assert (
        compare(Score(a.values[:1]), Score(b.values[:1] + 1e-3 * RNG.normal(size=40))).verdict
        == "b"
    )


def test_a_known_floor_adds_to_the_error():
    a, b = Score(WINDOWS), Score(WINDOWS + 0.02 + 1e-4 * RNG.normal(size=40))
    assert compare(a, b).verdict == "a"
    assert compare(a, b, floor=0.015).verdict == "tied"
    assert compare(a, b, floor=0.015).error == pytest.approx(0.015, rel=1e-3)


def test_about_one_in_twenty_pairs_of_equal_scores_is_not_tied():
    wrong = sum(
        compare(Score(RNG.normal(size=30)), Score(RNG.normal(size=30))).verdict != "tied"
        for _ in range(400)
    )
    assert 5 < wrong < 45


def test_ranks_group_the_tied():
    scores = {
        "c": Score(WINDOWS + 1),
        "a": Score(WINDOWS),
        "b": Score(WINDOWS + RNG.normal(0, 0.2, 40)),
    }
    assert [sorted(group) for group in rank(scores)] == [["a", "b"], ["c"]]


def test_different_windows_are_not_compared():
    with pytest.raises(RopeError, match="same seeds and windows"):
        compare(Score(WINDOWS), Score(WINDOWS[:-1]))
    with pytest.raises(RopeError, match="noise of a single value is unknown"):
        compare(Score(WINDOWS[:1]), Score(WINDOWS[1:2]))
    for values in (WINDOWS * math.nan, WINDOWS[:0]):
        with pytest.raises(RopeError, match="finite"):
            Score(values)


def test_a_rank_group_holds_names_tied_with_its_first_alone():
    """With a noise of 0.015, scores that differ by 0.02 are tied and scores that differ by 0.04 are
    not; names that are tied only by way of another one must not be in one group.
    """
    scores = {name: Score(WINDOWS + step * 0.02) for step, name in enumerate("abcd")}
    assert rank(scores, floor=0.015) == [["a", "b"], ["c", "d"]]


def test_a_difference_of_exactly_two_standard_errors_is_a_tie():
    """Two windows differ by 2 and by 4: the mean difference of 3 is 3 standard errors of 1."""
    a, b = Score(np.array([[2.0, 4.0]])), Score(np.array([[0.0, 0.0]]))
    found = compare(a, b)
    assert (found.difference, found.error) == (3.0, 1.0)
    assert [compare(a, b, sigmas=sigmas).verdict for sigmas in (2.0, 3.0, 3.5)] == [
        *("b", "tied", "tied")
    ]
    assert compare(b, a).verdict == "a"
    # with a noise floor the error is sqrt(1 + 1.25) = 1.5, so the difference is two errors
    assert compare(a, b, floor=math.sqrt(1.25)).verdict == "tied"
    assert compare(a, b, floor=1.0).verdict == "b"
    assert compare(a, b, floor=1.0).error == pytest.approx(math.sqrt(2))


def test_a_comparison_counts_trainings_and_windows():
    values = np.arange(12.0).reshape(3, 4)
    found = compare(Score(values), Score(values * 2))
    assert (found.seeds, found.windows) == (3, 4)
    assert (Score(values).seeds, Score(values).windows) == (3, 4)
    # the errors over windows and over seeds, by their formulas; their squares add up
    of_windows = np.array([4.0, 5, 6, 7]).std(ddof=1) / 2
    of_seeds = np.array([1.5, 5.5, 9.5]).std(ddof=1) / math.sqrt(3)
    assert Score(values).error == pytest.approx(math.hypot(of_windows, of_seeds))
    assert Score(values).mean == 5.5


def test_a_rank_uses_the_noise_that_is_given():
    """Means 0, 3 and 6 with standard errors of 1: apart by three errors."""
    scores = {
        "far": Score(np.array([[5.0, 7.0]])),
        "near": Score(np.array([[0.0, 0.0]])),
        "middle": Score(np.array([[2.0, 4.0]])),
    }
    assert rank(scores) == [["near"], ["middle"], ["far"]]
    assert rank(scores, sigmas=3.0)[0] == ["near", "middle"]
    assert rank(scores, sigmas=2.0, floor=math.sqrt(1.25))[0] == ["near", "middle"]
    # a group is tied with its first name, not with its last
    a = np.array([[0.0, 0.0]])
    chain = {"a": a, "b": np.array([[0.5, 2.5]]), "c": np.array([[3.0, 3.0]])}
    assert rank({name: Score(values) for name, values in chain.items()}) == [["a", "b"], ["c"]]
