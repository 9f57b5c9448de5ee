"""Every task asks what it says it asks, at any length and depth, and a sample is the same in any
batch.
"""

import math
import re

import numpy as np
import pytest

from ropewalk.errors import RopeError
from ropewalk_lab.stateless_random import below, fold
from ropewalk_lab.tasks import PADDING
from ropewalk_lab.text_tasks import TASKS

INDEX = np.arange(11)


def rows(name, length=129, **options):
    sample = TASKS[name](5, INDEX, length, **options)
    assert sample.tokens.shape == sample.is_target.shape == (len(INDEX), length)
    assert sample.tokens.dtype == np.uint8
    return [
        (bytes(t).decode(), bytes(t[c]).decode())
        for t, c in zip(sample.tokens, sample.is_target, strict=True)
    ]


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_the_same_in_any_batch(name):
    length = TASKS[name].shortest + 30
    whole = TASKS[name](5, INDEX, length)
    part = TASKS[name](5, np.array([7, 2]), length)
    for found, expected in zip(part, whole, strict=True):
        assert np.array_equal(found, expected[[7, 2]])
    assert not np.array_equal(TASKS[name](6, INDEX, length).tokens, whole.tokens)


@pytest.mark.parametrize("name", TASKS)
def test_every_sample_has_targets_and_the_first_token_is_none(name):
    for length in (TASKS[name].shortest, TASKS[name].shortest + 1, 300):
        is_target = TASKS[name](0, INDEX, length).is_target
        assert is_target.any(1).all()
        assert not is_target[:, 0].any()


@pytest.mark.parametrize("name", TASKS)
def test_too_short_a_length_is_refused(name):
    with pytest.raises(RopeError, match=f"at least {TASKS[name].shortest}"):
        TASKS[name](0, INDEX, TASKS[name].shortest - 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("copy", "a|a"),
        ("reverse", "a|a"),
        ("sort", "a|a"),
        ("addition", "1+2=03"),
        ("passkey", "The pass key is 12345. What is the pass key? The pass key is 12345"),
        ("needle", "The number of Ada is 12345. " * 3 + "What is it? The number of Ada is 12345"),
    ],
)
def test_the_shortest_length_of_a_task_is_that_of_its_shortest_sample(name, text):
    assert TASKS[name].shortest == len(text)


@pytest.mark.parametrize(
    ("name", "answer"),
    [("copy", lambda w: w), ("reverse", lambda w: w[::-1]), ("sort", lambda w: "".join(sorted(w)))],
)
@pytest.mark.parametrize("least", [1.0, 0.1])
def test_copy_reverse_and_sort_have_the_right_answer(name, answer, least):
    sizes = set()
    for text, counted in rows(name, 42, least=least):
        word, _, rest = text.rstrip(chr(PADDING)).partition("|")
        assert rest == counted == answer(word)
        sizes.add(len(word))
    assert sizes == {20} if least == 1 else len(sizes) > 3


@pytest.mark.parametrize("digits", [None, 3])
def test_sums_are_right(digits):
    for text, counted in rows("addition", 40, digits=digits):
        a, b, c = re.fullmatch(r"(\d+)\+(\d+)=(\d+)", text.rstrip(chr(PADDING))).groups()
        assert int(a) + int(b) == int(c)
        assert counted == c
        assert len(a) == len(b) == len(c) - 1 == (digits or 12)


def test_in_induction_the_letter_before_the_answer_occurs_once_before():
    for text, counted in rows("induction"):
        assert text[:-2].count(text[-2]) == 1
        assert counted == text[-1] == text[text.index(text[-2]) + 1]


def test_recall_answers_with_the_value_of_the_key():
    for text, counted in rows("recall", pairs=6):
        pairs = re.findall(r"([a-z])(\d)", text[:-3])
        assert len(dict(pairs)) == len(pairs) == 6
        assert len(set(dict(pairs).values())) > 1  # a constant answer must not be right
        assert counted == dict(pairs)[text[-2]]


@pytest.mark.parametrize("length", [75, 129, 300])
def test_the_pass_key_is_stated_once_before_the_question(length):
    for text, counted in rows("passkey", length):
        assert re.findall(r"The pass key is (\d+)", text) == [counted, counted]
        assert text.endswith("What is the pass key? The pass key is " + counted)


def test_only_one_of_several_needles_is_asked_for():
    for text, counted in rows("needle", 300, needles=4):
        stated = re.findall(r"The number of (\w+) is (\d{5})\.", text)
        asked = re.search(r"The number of (\w+) is (\d{5})$", text).groups()
        # the number must not be known without the name
        assert len(dict(stated)) == len(set(dict(stated).values())) == 4
        assert dict(stated)[asked[0]] == asked[1] == counted


@pytest.mark.parametrize("name", ["passkey", "needle", "recall", "induction"])
def test_depth_says_where_the_answer_is_stated(name):
    length, found = 400, []
    for depth in (0.0, 0.5, 1.0):
        text, counted = rows(name, length, depth=depth)[0]
        stated = {
            "passkey": f"is {counted}",
            "needle": f"is {counted}",
            "recall": text[-2:],
            "induction": text[-2:],
        }[name]
        found.append(text.index(stated) / length)
    assert found[0] < 0.1
    assert 0.3 < found[1] < 0.6
    assert found[2] > 0.75


@pytest.mark.parametrize("distance", [None, 30, 90])
def test_a_planted_name_is_repeated_at_its_distance(distance):
    for text, counted in rows("planted", 129, distance=distance):
        names = [(m.start(), m[1]) for m in re.finditer("<([a-z]{16})>", text)]
        assert [name for _, name in names] == [names[0][1]] * 2
        assert names[1][0] - names[0][0] == (distance or 64)
        assert counted == names[0][1][3:]


def test_the_letters_of_a_planted_name_say_nothing_about_its_place():
    tokens = TASKS["planted"](5, np.arange(400), 129).tokens
    places = [bytes(row).index(b"<") for row in tokens]
    letters = np.array(
        [row[place + 1 : place + 17] for row, place in zip(tokens, places, strict=True)]
    )
    related = [abs(np.corrcoef(places, column)[0, 1]) for column in letters.T]
    assert max(related) < 0.2  # four standard errors of 1 / sqrt(400)


def test_without_options_words_are_as_long_as_they_fit_and_eight_pairs_are_recalled():
    for name in ("copy", "reverse", "sort"):
        assert {text.index("|") for text, _ in rows(name, 42)} == {20}
    for text, _ in rows("recall"):
        assert len(re.findall(r"[a-z]\d", text[:-3])) == 8
    for text, _ in rows("needle", 300):
        assert len(re.findall(r"The number of \w+ is \d{5}\.", text)) == 3


@pytest.mark.parametrize(("depth", "slot"), [(0.0, 0), (0.24, 1), (0.26, 2), (0.74, 4), (1.0, 6)])
def test_a_depth_is_rounded_to_the_nearest_slot(depth, slot):
    """Of 17 tokens three are the question, so there are 7 slots of two tokens, 0 to 6; depth 0.26 is
    0.26 * 6 = 1.56, nearest to slot 2.
    """
    for text, _ in rows("recall", 17, pairs=1, depth=depth):
        assert re.search(r"[a-z]\d", text[:-3]).start() == 2 * slot


def test_a_depth_that_is_not_given_reaches_every_slot():
    tokens = TASKS["recall"](5, np.arange(2000), 17, pairs=1).tokens
    slots = [re.search(rb"[a-z]\d", bytes(row[:-3])).start() // 2 for row in tokens]
    counts = np.bincount(slots, minlength=7)
    assert len(counts) == 7
    assert abs(counts / 2000 - 1 / 7).max() < 0.035


@pytest.mark.parametrize("length", [101, 140, 171, 300])
def test_a_pass_key_at_depth_one_ends_where_the_question_begins(length):
    for text, counted in rows("passkey", length, depth=1.0):
        assert f"The pass key is {counted}. What is the pass key?" in text
    for text, counted in rows("passkey", length, depth=0.0):
        assert text.startswith(f"The pass key is {counted}. ")


def test_planted_text_has_the_words_of_zipfs_law_whatever_the_seed():
    """P(rank) ~ 1 / rank: of 512 words the first is drawn with the probability log 2 / log 512."""
    words = [
        re.findall(r"(?<= )[a-z]{5}(?= )", bytes(row).decode())
        for row in TASKS["planted"](5, np.arange(300), 300).tokens
    ]
    drawn = [word for row in words for word in row]
    names, counts = np.unique(drawn, return_counts=True)
    assert 350 < len(names) <= 512
    by_rank = np.sort(counts)[::-1] / len(drawn)
    for rank in (1, 2, 3):
        expected = math.log((rank + 1) / rank) / math.log(512)
        assert by_rank[rank - 1] == pytest.approx(expected, rel=0.15)
    other = [
        re.findall(r"(?<= )[a-z]{5}(?= )", bytes(row).decode())
        for row in TASKS["planted"](6, np.arange(300), 300).tokens
    ]
    top = names[counts.argmax()]
    # the first word drawn with the seed 7
    assert top == "".join(
        chr(97 + i) for i in below(7, np.arange(1), stream=0, count=5, high=26)[0]
    )
    assert sum(row.count(top) for row in other) / sum(map(len, other)) == pytest.approx(
        math.log(2) / math.log(512), rel=0.15
    )


def test_a_planted_name_may_begin_anywhere_that_leaves_room_for_its_copy():
    tokens = TASKS["planted"](5, np.arange(600), 64, distance=40).tokens
    starts = {bytes(row).index(b"<") for row in tokens}
    assert starts == set(range(64 - 40 - 18 + 1))


def test_samples_of_a_task_are_drawn_apart_from_the_text_of_the_same_seed():
    """The words of the task `copy` are drawn with fold(seed, 77), not with the seed itself, which
    draws the text.
    """
    letters = below(fold(5, 77), INDEX, stream=1, count=20, high=26)
    for (text, _), drawn in zip(rows("copy", 42), letters, strict=True):
        assert text[:20] == "".join("abcdefghijklmnopqrstuvwxyz"[i] for i in drawn)


@pytest.mark.parametrize(("depth", "place"), [(0.0, 0), (1.0, 8)])
def test_the_first_letter_of_an_induction_lies_from_the_start_to_just_before_the_last(depth, place):
    """Of 12 tokens the last two are A B; the first A B may be the two before them."""
    rows, _ = TASKS["induction"](0, np.arange(20), 12, depth=depth)
    for row in rows:
        assert (row == row[-2]).nonzero()[0].tolist() == [place, 10]
        assert row[place + 1] == row[-1]


def test_numbers_of_a_sum_have_as_many_digits_as_fit():
    """In 12 tokens: 3 + 3 + 4 digits and two signs."""
    assert bytes(TASKS["addition"](0, np.arange(1), 12, digits=3).tokens[0]).count(b"\0") == 0
    with pytest.raises(RopeError, match="digits"):
        TASKS["addition"](0, np.arange(1), 12, digits=4)


def test_a_planted_name_is_at_most_so_far_away_that_both_fit():
    """Of 64 tokens a name has 18: one is at the start, its copy at the end."""
    (row,), _ = TASKS["planted"](0, np.arange(1), 64, distance=46)
    assert bytes(row[:18]) == bytes(row[46:])
    with pytest.raises(RopeError, match="distance"):
        TASKS["planted"](0, np.arange(1), 64, distance=47)


def test_letters_digits_and_slots_of_a_recall_say_nothing_about_each_other():
    rows, _ = TASKS["recall"](0, np.arange(4000), 55, pairs=2)
    asked = rows[:, -2]
    # the digits of those pairs whose letter is an a, about 4000 / 26 samples
    digits = rows[asked == ord("a"), -1]
    assert len(digits) > 80
    assert 3 < (digits - ord("0")).mean() < 6
    # 26 slots: that of the other pair is the asked letter's number by chance only
    letters = (rows[:, :-3:2] >= ord("a")) & (rows[:, :-3:2] != asked[:, None])
    assert (letters.argmax(1) == asked - ord("a")).mean() < 0.2
