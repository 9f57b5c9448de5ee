"""The samples of `fit`: texts in their order, pass keys, and LongPPL."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ropewalk.interop.fit.passkeys import make_passkey, passkey_lengths
from ropewalk.interop.fit.reader import Reader
from ropewalk.interop.fit.text import key_tokens, long_ppl, read_text


def encode(text: str) -> list[int]:
    return list(text.encode())


def test_long_ppl_weights_windows_by_their_key_tokens():
    assert long_ppl([1.5, 2.5], [1, 1]) == pytest.approx(math.exp(2.0))
    assert long_ppl([1.5 + 1.5, 4.0], [2, 1]) == pytest.approx(math.exp(7 / 3))
    assert long_ppl([0.0], [0]) is None


def letters(text: str, **_) -> dict[str, torch.Tensor]:
    """A tokenizer of one token per letter, as the package `longppl` calls one."""
    starts = torch.arange(len(text))
    return {"input_ids": torch.tensor([encode(text)]), "offset_mapping": torch.stack((starts, starts + 1), dim=-1)[None]}


@pytest.mark.parametrize("length", [64, 62, 55])
def test_long_ppl_equals_that_of_its_package(length):
    compute = pytest.importorskip("longppl.longppl").compute_longppl
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=128, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=3, initializer_range=0.4
    )
    model = LlamaForCausalLM(config).eval()
    # the model's own text: it predicts each token from all before it, and worse from a few
    made = model.generate(torch.tensor([[7]]), max_new_tokens=length - 1, do_sample=True, eos_token_id=None, pad_token_id=0)
    text, window, reader = bytes(made[0].tolist()).decode(), made[0], Reader(model)
    # the text is within the trained length of 64, so that the long context of both is the whole text
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
    assert passkey_lengths(8192, 32768) == [round(0.95 * n) for n in (2048, 4096, 8192, 12288, 16384, 24576, 32768)]


def test_chapters_are_read_in_their_order(tmp_path):
    for number in (10, 2, 1):
        (tmp_path / f"chapter_{number}.txt").write_text(f"part {number}")
    assert read_text(tmp_path) == "part 1\n\npart 2\n\npart 10"
