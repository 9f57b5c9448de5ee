"""Build the tokenizer of a GGUF file: byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""

from __future__ import annotations

import os
from typing import Any

from ropewalk.errors import MissingExtra, RopeError, choice
from ropewalk.gguf.file import Array, GgufFile

#: how text is split into words before merges apply, by tokenizer.ggml.pre; None: GPT-2's own
#: pattern
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"  # noqa: E501
PATTERNS = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _WORDS.replace("NUMBER", r"\p{N}{1,3}"),
    "qwen2": _WORDS.replace("NUMBER", r"\p{N}"),
}
#: digits are words of their own
SINGLE_DIGITS = ("smollm",)
#: token types that text is searched for before it is split
CONTROL, USER_DEFINED = 3, 4


def tokenizer(path: str | os.PathLike[str]) -> Any:
    """Return the `tokenizers.Tokenizer` of a GGUF file whose tokenizer is a byte-level BPE; needs
    the extra `gguf`.

    Control tokens, such as <|im_end|>, are special: `decode` leaves them out unless it is told not
    to. A text begins with the BOS token if the file says so.
    """
    return tokenizer_of(GgufFile(path))


def tokenizer_of(file: GgufFile) -> Any:
    """Return the `tokenizers.Tokenizer` of an open GGUF file; see `tokenizer`."""
    try:
        from tokenizers import AddedToken, Tokenizer, decoders, models, processors
    except ImportError:
        raise MissingExtra(f"tokenizer of {file.path}", "tokenizers", "gguf") from None
    choice("tokenizer.ggml.model", file.metadata.get("tokenizer.ggml.model"), ("gpt2",))
    pre = choice("tokenizer.ggml.pre", file.metadata.get("tokenizer.ggml.pre", "gpt-2"), PATTERNS)
    tokens = _strings(file, "tokenizer.ggml.tokens")
    ids = {token: index for index, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        raise RopeError(
            "tokenizer.ggml.tokens", "must be unique", f"{len(tokens) - len(ids)} repeated"
        )
    # llama-bpe: a word that is a token itself is not merged from parts
    bpe = Tokenizer(
        models.BPE(vocab=ids, merges=_merges(file, ids), ignore_merges=pre == "llama-bpe")
    )
    bpe.pre_tokenizer = _splitter(pre)
    bpe.decoder = decoders.ByteLevel()
    types = (
        file.array("tokenizer.ggml.token_type")
        if "tokenizer.ggml.token_type" in file.metadata
        else []
    )
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (CONTROL, USER_DEFINED):
            bpe.add_tokens([AddedToken(token, special=token_type == CONTROL, normalized=False)])
    bos = _bos_token(file, tokens)
    if bos is not None:
        # a template gives $ and : a meaning, so the token has another name in it
        bpe.post_processor = processors.TemplateProcessing(
            single=["BOS", "$A"],
            pair=["BOS", "$A", "BOS", "$B"],
            special_tokens=[{"id": "BOS", "ids": [ids[bos]], "tokens": [bos]}],
        )
    return bpe


def _splitter(pre: str) -> Any:
    """Return the pre-tokenizer that splits text into words and words into bytes; `pre` is
    tokenizer.ggml.pre of the file.
    """
    from tokenizers import Regex, pre_tokenizers

    pattern = PATTERNS[pre]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern is not None:
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), to_bytes])
    if pre in SINGLE_DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), to_bytes])
    return to_bytes


def _strings(file: GgufFile, key: str) -> list[str]:
    """Return the entries of an array of strings."""
    entries = file.array(key)
    if not all(isinstance(entry, str) for entry in entries):
        raise RopeError(key, "must be an array of strings", entries[0])
    return entries


def _merges(file: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return the merges as pairs; both parts and their union must be tokens."""
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


def _bos_token(file: GgufFile, tokens: list[str]) -> str | None:
    """Return the BOS token, if the file says that one is added before each text, else None."""
    if not file.metadata.get("tokenizer.ggml.add_bos_token", False):
        return None
    index = file.metadata.get("tokenizer.ggml.bos_token_id")
    if isinstance(index, Array) or not isinstance(index, int) or not 0 <= index < len(tokens):
        raise RopeError(
            "tokenizer.ggml.bos_token_id",
            f"must be the index of one of the {len(tokens)} tokens",
            index,
        )
    return tokens[index]
