"""Build the tokenizer of a GGUF file: byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it,
or SentencePiece's BPE, as Llama 2, Mistral and Phi 3 have it.

Words of this module:
  BPE      byte-pair encoding: a word is split into letters, and neighbours are merged to tokens
  letter   what a BPE begins with: a byte, or in SentencePiece a character
  merge    two tokens (left, right) whose concatenation is a token
  ids      {token: its index in `tokens`}
  ▁        how SentencePiece writes a space in a token
"""

from __future__ import annotations

import math
import os
from typing import Any

from ropewalk.errors import MissingExtra, RopeError, choice
from ropewalk.gguf.file import GgufFile

#: the words of Llama 3 and Qwen 2, which differ only in how many digits NUMBER takes
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
#: tokenizer.ggml.pre -> how text is split into words before merges apply; None: GPT-2's own pattern
PATTERNS = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _WORDS.replace("NUMBER", r"\p{N}{1,3}"),
    "qwen2": _WORDS.replace("NUMBER", r"\p{N}"),
}
#: another value of tokenizer.ggml.pre -> the key of PATTERNS that splits text in the same way
SAME_PATTERN = {
    **dict.fromkeys(("llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral"), "llama-bpe"),
    **dict.fromkeys(("deepseek-r1-qwen", "kormo", "f2llmv2"), "qwen2"),
    **dict.fromkeys(("phi-2", "gigachat", "a.x-4.0", "mellum"), "gpt-2"),
}
#: values of tokenizer.ggml.pre with which every digit is a word of its own
SINGLE_DIGITS = ("smollm",)
#: patterns with which llama.cpp adds the BOS token by itself, and does not split a word that is a
#: token
LIKE_LLAMA_3 = ("llama-bpe",)
#: two of GGUF's types of tokens: those that are searched for in a text before it is split into
#: words
CONTROL, USER_DEFINED = 3, 4
#: the most letters of all tokens together, and of one, since merges are found by splitting each
#: token at every place
MAX_LETTERS = 8_000_000
MAX_TOKEN_LETTERS = 256


def tokenizer(path: str | os.PathLike[str]) -> Any:
    """Return the `tokenizers.Tokenizer` of a GGUF file whose tokenizer is a BPE of bytes (gpt2) or
    of SentencePiece (llama); needs the extra `gguf`.

    Control tokens, such as <|im_end|>, are special: `decode` leaves them out unless it is told not
    to. A text begins with the BOS token if the file says so, or if it says nothing and llama.cpp
    adds the token.
    """
    return tokenizer_of(GgufFile(path))


def tokenizer_of(file: GgufFile) -> Any:
    """Return the `tokenizers.Tokenizer` of an open GGUF file; see `tokenizer`."""
    try:
        from tokenizers import AddedToken, processors
    except ImportError:
        raise MissingExtra(f"tokenizer of {file.path}", "tokenizers", "gguf") from None
    models = {"gpt2": _bytes_bpe, "llama": _sentencepiece_bpe}
    model = choice("tokenizer.ggml.model", file.metadata.get("tokenizer.ggml.model"), models)
    tokens = _strings(file, "tokenizer.ggml.tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise RopeError(
            "tokenizer.ggml.tokens", "must be unique", f"{len(tokens) - len(ids)} repeated"
        )
    bpe, adds_bos = models[model](file, tokens, ids)
    # in one call, because each call rebuilds the search for all added tokens; a file without
    # token_type has none of them
    bpe.add_tokens(
        [
            AddedToken(token, special=token_type == CONTROL, normalized=False)
            for token, token_type in zip(tokens, _numbers(file, "token_type"), strict=False)
            if token_type in (CONTROL, USER_DEFINED)
        ]
    )
    if file.metadata.get("tokenizer.ggml.add_bos_token", adds_bos):
        bos = _bos_token(file, tokens)
        # a template gives $ and : a meaning, so the token has another name in it
        bpe.post_processor = processors.TemplateProcessing(
            single=["BOS", "$A"],
            pair=["BOS", "$A", "BOS", "$B"],
            special_tokens=[{"id": "BOS", "ids": [ids[bos]], "tokens": [bos]}],
        )
    return bpe


def _bytes_bpe(file: GgufFile, tokens: list[str], ids: dict[str, int]) -> tuple[Any, bool]:
    """Return a BPE whose letters are bytes, and whether llama.cpp adds the BOS token by itself.

    `tokens` is not needed here; the arguments are those of `_sentencepiece_bpe`, since
    `tokenizer_of` calls one of the two.
    """
    from tokenizers import Tokenizer, decoders, models

    named = file.metadata.get("tokenizer.ggml.pre", "gpt-2")
    pre = choice("tokenizer.ggml.pre", named, (*PATTERNS, *SAME_PATTERN))
    pre = SAME_PATTERN.get(pre, pre)
    like_llama_3 = pre in LIKE_LLAMA_3
    bpe = Tokenizer(models.BPE(vocab=ids, merges=_merges(file, ids), ignore_merges=like_llama_3))
    bpe.pre_tokenizer = splitter(pre)
    bpe.decoder = decoders.ByteLevel()
    return bpe, like_llama_3


def _sentencepiece_bpe(file: GgufFile, tokens: list[str], ids: dict[str, int]) -> tuple[Any, bool]:
    """Return a BPE whose letters are characters, or bytes where a character is no token, and True:
    llama.cpp adds the BOS token by itself.

    Two neighbours that join to a token are merged, those with the highest score first.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _numbers(file, "scores")
    if len(scores) != len(tokens) or not all(map(math.isfinite, scores)):
        rule = f"must be one finite number for each of the {len(tokens)} tokens"
        raise RopeError("tokenizer.ggml.scores", rule, f"{len(scores)} numbers")
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    if type(unknown) is not int or not 0 <= unknown < len(tokens):
        rule = f"must be the index of one of the {len(tokens)} tokens"
        raise RopeError("tokenizer.ggml.unknown_token_id", rule, unknown)
    bpe = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges_by_score(tokens, ids, scores),
            unk_token=tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", "▁")
    prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    # Strip takes away the prefix: at most one space at the beginning, none at the end
    bpe.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return bpe, True


def _merges_by_score(
    tokens: list[str], ids: dict[str, int], scores: list[float]
) -> list[tuple[str, str]]:
    """Return every (left, right) of tokens whose concatenation is a token too, in the order of that
    token's score, highest first; of equal scores, that with the smaller indices.
    """
    # bounds on the time, since each token is split at every place
    if sum(map(len, tokens)) > MAX_LETTERS:
        rule = f"must have at most {MAX_LETTERS} letters in all"
        raise RopeError("tokenizer.ggml.tokens", rule, sum(map(len, tokens)))
    merges = []
    for token, score in zip(tokens, scores, strict=True):
        if len(token) > MAX_TOKEN_LETTERS:
            raise RopeError(
                "tokenizer.ggml.tokens", f"must have at most {MAX_TOKEN_LETTERS} letters", token
            )
        halves = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
        merges += [
            (-score, ids[left], ids[right])
            for left, right in halves
            if left in ids and right in ids
        ]
    return [(tokens[left], tokens[right]) for _, left, right in sorted(merges)]


def splitter(pre: str) -> Any:
    """Return the pre-tokenizer that splits text into words and words into bytes.

    pre  tokenizer.ggml.pre of the file, a key of PATTERNS
    """
    from tokenizers import Regex, pre_tokenizers

    pattern = PATTERNS[pre]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        # "isolated": each match of the pattern becomes a word
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])
    if pre in SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), to_bytes])
    return to_bytes


def _strings(file: GgufFile, key: str) -> list[str]:
    """Return the entries of the array `key`; raise an error unless all are strings."""
    entries = file.array(key)
    if not all(isinstance(entry, str) for entry in entries):
        raise RopeError(key, "must be an array of strings", entries[0])
    return entries


def _numbers(file: GgufFile, name: str) -> list[Any]:
    """Return the entries of an array of numbers; none if the file does not have it."""
    key = f"tokenizer.ggml.{name}"
    entries = file.array(key) if key in file.metadata else []
    if not all(isinstance(entry, int | float) for entry in entries):
        raise RopeError(key, "must be an array of numbers", entries[0])
    return entries


def _merges(file: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges of the file as (left, right), in its order; raise an error unless left,
    right and their concatenation are tokens.
    """
    merges = []
    for line in _strings(file, "tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not space or left not in ids or right not in ids or left + right not in ids:
            raise RopeError(
                "tokenizer.ggml.merges",
                "must be two tokens with a space between, which join to a token",
                line,
            )
        merges.append((left, right))
    return merges


def _bos_token(file: GgufFile, tokens: list[str]) -> str:
    """Return the BOS token of the file."""
    index = file.metadata.get("tokenizer.ggml.bos_token_id")
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise RopeError(
            "tokenizer.ggml.bos_token_id",
            f"must be the index of one of the {len(tokens)} tokens",
            index,
        )
    return tokens[index]
