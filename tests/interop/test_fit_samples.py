"""The samples of `fit`: texts in their order, pass keys, and LongPPL."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ropewalk.errors import RopeError
from ropewalk_lab.fit.passkeys import depths, make_passkey, passkey_lengths, plant_passkey
from ropewalk_lab.fit.plan import FitSize, make_samples
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.text import key_tokens, limited_losses, long_ppl, read_text


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_long_ppl_weights_windows_by_their_key_tokens():
    assert long_ppl([1.5, 2.5], [1, 1]) == pytest.approx(math.exp(2.0))
    assert long_ppl([1.5 + 1.5, 4.0], [2, 1]) == pytest.approx(math.exp(7 / 3))
    assert long_ppl([0.0], [0]) is None


def letters(text: str, **_) -> dict[str, torch.Tensor]:
    """A tokenizer of one token per letter, as the package `longppl` calls one."""
    starts = torch.arange(len(text))
    return {
        "input_ids": torch.tensor([encode(text)]),
        "offset_mapping": torch.stack((starts, starts + 1), dim=-1)[None],
    }


@pytest.mark.parametrize("length", [64, 62, 55])
def test_long_ppl_equals_that_of_its_package(length):
    compute = pytest.importorskip("longppl.longppl").compute_longppl
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=3,
        initializer_range=0.4,
    )
    model = LlamaForCausalLM(config).eval()
    # the model's own text: it predicts each token from all before it, and worse from a few
    made = model.generate(
        torch.tensor([[7]]),
        max_new_tokens=length - 1,
        do_sample=True,
        eos_token_id=None,
        pad_token_id=0,
    )
    text, window, reader = bytes(made[0].tolist()).decode(), made[0], Reader(model)
    # the text is within the trained length of 64, so that the long context of both is the whole
    # text
    theirs = compute(text, model, model, letters, letters, trunc_len=16, sliding_window=4)
    total, count = key_tokens(reader, window, 64).total(reader.losses(window[None])[0])
    assert count == theirs["n_key_token"] > 2
    assert long_ppl([total], [count]) == pytest.approx(float(theirs["longppl"]), rel=1e-4)


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
    assert passkey_lengths(8192, 32768) == [
        round(0.95 * n) for n in (2048, 4096, 8192, 12288, 16384, 24576, 32768)
    ]


def test_chapters_are_read_in_their_order(tmp_path):
    for number in (10, 2, 1):
        (tmp_path / f"chapter_{number}.txt").write_text(f"part {number}")
    assert read_text(tmp_path) == "part 1\n\npart 2\n\npart 10"


def test_a_file_is_read_as_it_is(tmp_path):
    (tmp_path / "story.txt").write_text("Once upon a time.\n")
    assert read_text(tmp_path / "story.txt") == "Once upon a time."


class Copier:
    """A reader whose loss of a token is 0.5 if the token stood before in the same piece, else 5."""

    def __init__(self):
        self.calls = []

    def losses(self, tokens, first=1):
        self.calls.append(tuple(tokens.shape))
        return torch.tensor(
            [
                [0.5 if each in row[:place] else 5.0 for place, each in enumerate(row)][first:]
                for row in tokens.tolist()
            ]
        )


@pytest.mark.parametrize("distance", [7, 8, 9, 10, 23, 24, 27, 31, 32])
def test_key_tokens_are_repeats_that_only_the_long_context_holds(distance):
    """With a trained length of 32, the short context of a token is 8 or 9 tokens, the long one 24 to
    31; near the start, all tokens before it.
    """
    for place in range(distance, 70):
        window = torch.arange(70)
        window[place] = place - distance
        short = place if place < 10 else 8 + place % 2
        long = place if place < 32 else 24 + place % 8
        expected = [place - 1] if short < distance <= long else []
        assert key_tokens(Copier(), window, 32).mask.nonzero().flatten().tolist() == expected, place


@pytest.mark.parametrize(
    ("short", "long", "is_key"), [(3.9, 1.8, True), (3.7, 1.8, False), (4.2, 2.1, False)]
)
def test_a_key_token_loses_more_than_two_nats_and_ends_below_two(short, long, is_key):
    """The long context has at least 24 tokens before each token, the short one at most 9."""

    class Steps:
        def losses(self, tokens, first=1):
            place = torch.arange(tokens.shape[1]).expand(tokens.shape)
            return torch.where(place < 16, short, long)[:, first:]

    mask = key_tokens(Steps(), torch.arange(70), 32).mask  # type: ignore[arg-type]
    # token 1 is the first of the mask; a token near the start has few tokens before it in both
    assert mask.tolist() == [is_key and token >= 16 for token in range(1, 70)]


def test_pieces_of_one_length_are_read_in_one_pass():
    reader = Copier()
    limited_losses(reader, torch.arange(41), 8, 3)
    # tokens 0 to 10, then the ten pieces from token 3, 6, ... 30 on; with one token more, a last
    # piece from token 33 on
    assert reader.calls == [(1, 11), (10, 11)]
    limited_losses(reader, torch.arange(42), 8, 3)
    assert reader.calls[2:] == [(1, 11), (10, 11), (1, 9)]


@pytest.mark.parametrize("depth", [0.0, 0.25, 1.0])
def test_a_pass_key_is_planted_in_a_text(depth):
    words = "abcdefgh" * 50
    made = plant_passkey(encode, words, 400, depth)
    text = bytes(made.tokens.tolist()).decode()
    key = text[-5:]
    statement, question = (
        f"\nThe pass key is {key}. Remember it. {key} is the pass key.\n",
        "\nWhat is the pass key? The pass key is",
    )
    before, after = text.split(statement)
    after = after.removesuffix(f"{question} {key}")
    assert len(text) == 400
    assert before + after == words[: 400 - len(statement) - len(question) - 6]
    assert len(before) == round(depth * len(before + after))
    assert (made.stated, made.asked) == (len(before + statement), len(before + statement + after))
    assert made.tokens.equal(plant_passkey(encode, words, 400, depth, seed=0).tokens)


@pytest.mark.parametrize(
    ("make", "around"),
    [(make_passkey, 147), (lambda *given: plant_passkey(given[0], "some text", *given[1:]), 1)],
    ids=["in filler", "planted"],
)
def test_a_length_without_room_for_a_pass_key_is_refused_with_the_least_one(make, around):
    # the statement has 59 letters with both keys, the question 38 and the answer 6
    least = around + 59 + 38 + 6
    with pytest.raises(RopeError, match=f"length: must be at least {least} tokens"):
        make(encode, least - 1, 0.5)
    assert len(make(encode, least, 0.5).tokens) == least


def test_depths_are_spread_from_the_start_to_the_end():
    assert (depths(1), depths(2), depths(5)) == ([0.5], [0.0, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0])


def test_windows_are_shared_out_among_texts_and_the_search_gets_one_of_its_own():
    texts = [torch.arange(start, start + 100) for start in (0, 1000, 2000)]
    size = FitSize(windows=5, passkeys=10, search=0, long_ppl=True, seed=0)
    samples = make_samples(texts, None, 8, 20, size)
    assert samples.windows[:, 0].tolist() == [0, 50, 1000, 1050, 2000]
    assert samples.spare is None
    samples = make_samples(texts, None, 8, 20, replace(size, search=16))
    # three windows of the first text, of which the last is for the search
    assert samples.windows[:, 0].tolist() == [0, 33, 1000, 1050, 2000]
    assert samples.spare.tolist() == list(range(66, 86))


def test_files_are_read_in_the_order_of_the_numbers_in_their_names(tmp_path):
    names = ["a10_part2", "a2_part10", "a2_part9", "b1", "x²"]
    for name in names:
        (tmp_path / f"{name}.txt").write_text(name)
    assert read_text(tmp_path).split() == ["a2_part9", "a2_part10", "a10_part2", "b1", "x²"]
