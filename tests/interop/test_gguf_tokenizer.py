"""The tokenizer of a GGUF file: byte-level BPE against tokens found by hand, SentencePiece's BPE
against the algorithm written out.
"""

import itertools
import random
import time

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
        ("llama-v3", "the the12", ["the", "Ġthe", "12"]),
        ("deepseek-r1-qwen", "the the12", ["the", "Ġthe", "1", "2"]),
        ("gpt-2", "abab in", ["abab", "Ġ", "in"]),
        ("gpt-2", "é\n", ["Ã", "©", "Ċ"]),
        # in the first two patterns a sign before letters belongs to their word, in the others not
        *((pre, "!in", ["!in"]) for pre in ("llama-bpe", "qwen2")),
        *((pre, "!in", ["!", "in"]) for pre in ("gpt-2", "smollm")),
        ("gpt-2", "the<s>12<|end|>", ["the", "<s>", "12", "<|end|>"]),
    ],
)
def test_a_text_is_split_into_the_expected_tokens_and_decoded_again(pre, text, tokens, tmp_path):
    found = made(tmp_path, **{"tokenizer.ggml.pre": pre})
    assert found.encode(text).tokens == tokens
    assert found.decode(found.encode(text).ids, skip_special_tokens=False) == text


def test_the_first_token_is_added_if_the_file_says_so(tmp_path):
    found = made(tmp_path, **{"tokenizer.ggml.add_bos_token": True})
    assert found.encode("the").tokens == ["<s>", "the"]
    assert found.decode(found.encode("the").ids) == "the"


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("gpt-2", False)])
def test_llama_cpp_adds_the_first_token_of_llama_3_by_itself(pre, adds, tmp_path):
    """llama-vocab.cpp sets add_bos for this pattern; the key of the file has precedence."""
    keys = metadata(**{"tokenizer.ggml.pre": pre})
    del keys["tokenizer.ggml.add_bos_token"]
    found = tokenizer(write(tmp_path / "a.gguf", keys))
    assert found.encode("the").tokens == (["<s>", "the"] if adds else ["the"])


PIECES = ["▁", "a", "b", "c", "é", "ab", "bc", "▁a", "▁ab", "abc", "ca", "aa", "caa", "▁▁"]


def sentencepiece(scores: list[float], **changes) -> dict:
    """Metadata of SentencePiece's BPE: <unk>, <s>, </s>, 256 bytes, then the pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + scores,
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **changes,
    }


def merged(text: str, score: dict[str, float]) -> list[str]:
    """The pieces of a text: of all neighbours that join to a piece, those of the highest score are
    joined first, and of equal ones the first (llm_tokenizer_spm_session::tokenize).
    """
    pieces = list(text)
    while True:
        joined = [a + b for a, b in itertools.pairwise(pieces)]
        known = [(-score[each], at) for at, each in enumerate(joined) if each in score]
        if not known:
            break
        at = min(known)[1]
        pieces[at : at + 2] = [joined[at]]
    in_bytes = lambda piece: [f"<0x{byte:02X}>" for byte in piece.encode()]
    return [each for piece in pieces for each in ([piece] if piece in score else in_bytes(piece))]


@pytest.mark.parametrize("seed", range(8))
def test_pieces_of_the_highest_score_are_merged_first(seed, tmp_path):
    draw = random.Random(seed)
    scores = [-float(i) for i in range(len(PIECES))]
    draw.shuffle(scores)
    found = tokenizer(write(tmp_path / "a.gguf", sentencepiece(scores)))
    for _ in range(200):
        text = "".join(draw.choice("aabbcc é😀") for _ in range(draw.randrange(12)))
        expected = merged("▁" + text.replace(" ", "▁"), dict(zip(PIECES, scores, strict=True)))
        got = found.encode(text)
        assert got.tokens == ["<s>", *(expected if text else [])]
        assert found.decode(got.ids) == text


def test_a_text_may_begin_without_a_space_and_hold_control_tokens(tmp_path):
    scores = [-float(i) for i in range(len(PIECES))]
    changes = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False}
    found = tokenizer(write(tmp_path / "a.gguf", sentencepiece(scores, **changes)))
    assert found.encode("ab ab</s>ab").tokens == ["ab", "▁ab", "</s>", "ab"]
    assert found.decode(found.encode("ab ab").ids) == "ab ab"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.scores": [0.0, 1.0]}, r"scores: must be one finite number for each of"),
        ({"tokenizer.ggml.scores": ["a"]}, r"scores: must be an array of numbers"),
        (
            {"tokenizer.ggml.scores": [float("nan")] * (259 + len(PIECES))},
            r"scores: must be one finite",
        ),
        ({"tokenizer.ggml.unknown_token_id": 10**6}, r"unknown_token_id: must be the index of"),
        (
            {"tokenizer.ggml.tokens": ["a" * 300, "b"], "tokenizer.ggml.scores": [0.0, 0.0]},
            r"tokens: must have at most 256 letters",
        ),
    ],
)
def test_a_wrong_sentencepiece_tokenizer_is_refused(changes, message, tmp_path):
    scores = [-float(i) for i in range(len(PIECES))]
    with pytest.raises(RopeError, match=message):
        tokenizer(write(tmp_path / "a.gguf", sentencepiece(scores, **changes)))


def test_tokens_of_many_letters_are_refused_at_once(tmp_path):
    """Each token is split at every place, which takes a while."""
    tokens = [f"{i:0256d}" for i in range(40_000)]
    keys = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * len(tokens)}
    with pytest.raises(RopeError, match="tokens: must have at most 8000000 letters in all"):
        tokenizer(write(tmp_path / "a.gguf", sentencepiece([], **keys)))


@pytest.mark.parametrize("bos", ["$x", "$A", "a:1", ":"])
def test_the_bos_token_may_have_any_text(bos, tmp_path):
    tokens = [*metadata()["tokenizer.ggml.tokens"][:-2], bos + "<s>", bos * 3]
    changes = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.bos_token_id": len(tokens) - 1}
    found = made(tmp_path, **changes, **{"tokenizer.ggml.add_bos_token": True})
    assert found.encode("the").tokens == [bos * 3, "the"]
    assert found.encode("the", "in").tokens == [bos * 3, "the", bos * 3, "in"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "t5"}, r"tokenizer\.ggml\.model: must be one of gpt2, llama"),
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


def test_many_control_tokens_take_seconds_at_most(tmp_path):
    """Control tokens are added all at once: adding one rebuilds the search for all of them."""
    count = 60_000
    tokens = [*metadata()["tokenizer.ggml.tokens"], *(f"<{i}>" for i in range(count))]
    changes = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - count) + [3] * count,
    }
    path = write(tmp_path / "a.gguf", metadata(**changes))
    began = time.process_time()
    assert tokenizer(path).encode("the<59999>12").tokens == ["the", "<59999>", "1", "2"]
    assert time.process_time() - began < 10
