"""The tokenizer of a GGUF file: byte-level BPE, against tokens found by hand."""

import pytest

from gguf_samples import byte_tokens, write
from ropewalk import RopeError
from ropewalk.interop.gguf import tokenizer

pytest.importorskip("tokenizers")

MERGES = ["t h", "th e", "Ġ the", "i n", "1 2", "a b", "ab ab", "! in"]


def metadata(**changes) -> dict:
    tokens = [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES), "<s>", "<|end|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 4],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.add_bos_token": False,
        **changes,
    }


def made(tmp_path, **changes):
    return tokenizer(write(tmp_path / "a.gguf", metadata(**changes)))


@pytest.mark.parametrize(
    ("pre", "text", "tokens"),
    [
        ("smollm", "the the12", ["the", "Ġthe", "1", "2"]),
        ("gpt-2", "the the12", ["the", "Ġthe", "12"]),
        ("llama-bpe", "the the12", ["the", "Ġthe", "12"]),
        ("qwen2", "the the12", ["the", "Ġthe", "1", "2"]),
        ("gpt-2", "abab in", ["abab", "Ġ", "in"]),
        ("gpt-2", "é\n", ["Ã", "©", "Ċ"]),
        # a sign before letters belongs to their word, but not in GPT-2's pattern
        *((pre, "!in", ["!in"]) for pre in ("llama-bpe", "qwen2")),
        *((pre, "!in", ["!", "in"]) for pre in ("gpt-2", "smollm")),
        ("gpt-2", "the<s>12<|end|>", ["the", "<s>", "12", "<|end|>"]),
    ],
)
def test_text_becomes_these_tokens(pre, text, tokens, tmp_path):
    found = made(tmp_path, **{"tokenizer.ggml.pre": pre})
    assert found.encode(text).tokens == tokens
    assert found.decode(found.encode(text).ids, skip_special_tokens=False) == text


def test_the_first_token_is_added_if_the_file_says_so(tmp_path):
    found = made(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    assert found.encode("the").tokens == ["<s>", "the"]
    assert found.decode(found.encode("the").ids) == "the"


@pytest.mark.parametrize("bos", ["$x", "$A", "a:1", ":"])
def test_any_token_can_be_the_first(bos, tmp_path):
    tokens = [*metadata()["tokenizer.ggml.tokens"][:-2], bos + "<s>", bos * 3]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": len(tokens) - 1}
    found = made(tmp_path, **changes, **{"tokenizer.ggml.add_bos_token": True})
    assert found.encode("the").tokens == [bos * 3, "the"]
    assert found.encode("the", "in").tokens == [bos * 3, "the", bos * 3, "in"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.model: must be one of gpt2"),
        ({"tokenizer.ggml.pre": "tekken"}, r"tokenizer\.ggml\.pre: must be one of gpt-2"),
        ({"tokenizer.ggml.merges": ["the in"]}, r"tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.merges": ["the"]}, r"tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, r"tokenizer\.ggml\.tokens: must be unique"),
        ({"tokenizer.ggml.tokens": 5}, r"tokenizer\.ggml\.tokens: must be an array"),
        (
            {"tokenizer.ggml.tokens": [1, 2]},
            r"tokenizer\.ggml\.tokens: must be an array of strings; got 1",
        ),
        (
            {"tokenizer.ggml.merges": [1, 2]},
            r"tokenizer\.ggml\.merges: must be an array of strings; got 1",
        ),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 10**6},
            r"tokenizer\.ggml\.bos_token_id",
        ),
    ],
)
def test_another_tokenizer_is_refused(changes, message, tmp_path):
    with pytest.raises(RopeError, match=message):
        made(tmp_path, **changes)
