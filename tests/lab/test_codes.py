"""Windows with codes: the text that is left, where each code is stated and asked for, and what is
refused.
"""

import math
import random
import re

import numpy as np
import pytest
import torch

from ropewalk import RopeError
from ropewalk_lab.codes import NAMES, with_codes


def window_of(tokens: int, count: int, seed: int = 0) -> str:
    text = torch.tensor([ord(letter) for letter in ("abcdefghij" * tokens)[:tokens]])
    made = with_codes(text, count, lambda words: words.encode(), random.Random(seed))
    assert (len(made), made.dtype) == (tokens, text.dtype)
    return bytes(made.tolist()).decode()


@pytest.mark.parametrize(
    ("tokens", "count"), [(1000, 0), (1001, 1), (4096, 20), (16384, len(NAMES))]
)
def test_each_code_is_stated_once_and_asked_for_later(tokens, count):
    made = window_of(tokens, count)
    stated = {
        m[1]: (m[2], m.start())
        for m in re.finditer(r"\nThe code of the (\w+ \w+) is (\d{5})\.\n", made)
    }
    asked = {
        m[1]: (m[2], m.start())
        for m in re.finditer(r"\nWhich code has the (\w+ \w+)\? Its code is (\d{5})\.\n", made)
    }
    assert len(stated) == len(asked) == count
    for name, (code, place) in stated.items():
        assert asked[name][0] == code
        assert asked[name][1] > place
    # what is left is the beginning of the text
    left = re.sub(r"\n(The code of the|Which code has the) [^\n]*\n", "", made)
    assert left == ("abcdefghij" * tokens)[: len(left)]


def test_all_distances_are_equally_likely():
    """Of 400 codes in long windows, each quarter of the possible distances from statement to question
    has about a quarter.
    """
    counts = [0, 0, 0, 0]
    for seed in range(40):
        made = window_of(65536, 10, seed)
        for match in re.finditer(r"The code of the (\w+ \w+) is", made):
            distance = made.index(f"Which code has the {match[1]}?") - match.start()
            counts[4 * distance // 65536] += 1
    assert all(65 < count < 135 for count in counts)


def test_windows_of_one_seed_are_equal_and_of_two_differ():
    assert window_of(4096, 5, 1) == window_of(4096, 5, 1) != window_of(4096, 5, 2)


@pytest.mark.parametrize(("tokens", "count"), [(100, 2), (65536, len(NAMES) + 1), (1000, -1)])
def test_more_codes_than_names_or_than_the_window_holds_are_refused(tokens, count):
    rule = {
        100: "must be fewer: their statements and questions have .* tokens, a window has 100; got 2"
    }.get(tokens, "must be")
    with pytest.raises(RopeError, match=f"codes.*{rule}"):
        window_of(tokens, count)


def test_codes_have_five_digits_and_stand_anywhere_in_the_text():
    places = []
    for seed in range(60):
        made = window_of(8192, 10, seed)
        codes = re.findall(r"is (\d+)\.\n", made)
        assert all(10_000 <= int(code) <= 99_999 and len(code) == 5 for code in codes)
        places += [m.start() / 8192 for m in re.finditer("The code of the", made)]
    # a code with the distance d to its question can be stated in the first 1 - d of the text, so
    # early places are likelier
    counts = np.histogram(places, bins=4, range=(0, 1))[0] / len(places)
    # of two numbers from 0 to 1 the product is below x with the probability x (1 - log x)
    below = lambda x: x * (1 - math.log(x)) if x else 0
    expected = [below((q + 1) / 4) - below(q / 4) for q in range(4)]
    assert counts == pytest.approx(expected, abs=0.06)


def test_codes_may_fill_the_whole_window():
    text = torch.zeros(100, dtype=torch.int64)
    encode = lambda words: [1] * 50
    assert with_codes(text, 1, encode, random.Random(0)).tolist() == [1] * 100
    with pytest.raises(RopeError, match="codes: must be fewer"):
        with_codes(text[:99], 1, encode, random.Random(0))
