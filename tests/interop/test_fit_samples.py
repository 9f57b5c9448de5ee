"""The samples of `fit`: texts in their order, pass keys, and LongPPL."""

import math

import pytest

from ropewalk.interop.fit.passkeys import make_passkey, passkey_lengths
from ropewalk.interop.fit.text import long_ppl, read_text


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_long_ppl_weights_windows_by_their_key_tokens():
    assert long_ppl([1.5, 2.5], [1, 1]) == pytest.approx(math.exp(2.0))
    assert long_ppl([1.5 + 1.5, 4.0], [2, 1]) == pytest.approx(math.exp(7 / 3))
    assert long_ppl([0.0], [0]) is None


@pytest.mark.parametrize("depth", [0.0, 0.37, 1.0])
def test_a_pass_key_is_stated_once_and_asked_at_the_end(depth):
    made = make_passkey(encode, 700, depth, seed=5)
    text = bytes(made.tokens.tolist()).decode()
    key = text[-5:]
    assert key.isdigit()
    assert made.answer == 6
    assert len(made.tokens) <= 700
    assert text.count(key) == 3
    assert text.endswith(f"What is the pass key? The pass key is {key}")
    before, after = text.split(f"The pass key is {key}. Remember it. {key} is the pass key.\n")
    grass = [part.count("The grass is green") for part in (before, after)]
    assert grass[0] == round(depth * sum(grass))
    assert make_passkey(encode, 700, depth, seed=6).tokens.tolist() != made.tokens.tolist()


def test_pass_keys_are_asked_within_the_trained_length_and_beyond():
    assert passkey_lengths(8192, 32768) == [round(0.95 * n) for n in (2048, 4096, 8192, 12288, 16384, 24576, 32768)]


def test_chapters_are_read_in_their_order(tmp_path):
    for number in (10, 2, 1):
        (tmp_path / f"chapter_{number}.txt").write_text(f"part {number}")
    assert read_text(tmp_path) == "part 1\n\npart 2\n\npart 10"
