"""Tokenizers: plain bytes, or the subwords of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from ropewalk.errors import RopeError
from ropewalk_lab.subwords import Subwords

#: files that may hold the tokenizer of a checkpoint; the first that exists is used. vocab.txt comes
#: first, because a RoFormer's tokenizer.json lacks the segmentation into Chinese words
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json")


@runtime_checkable
class Tokenizer(Protocol):
    """The interface that a corpus needs; tokenizers that encode differently must have different
    names.
    """

    name: str
    vocab_size: int
    num_text_ids: int  # ids below this number may occur in text
    mask_id: int
    # [CLS] or <s>, the first token of a row whose texts each end in a separator; None: a row begins
    # with its first text, and the separator stands between two texts
    start: int | None
    separator: int  # the token between two texts or documents
    dtype: type

    def encode(self, text: bytes) -> np.ndarray:
        """Return the token ids of one document."""
        ...

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Return whether a word begins at each token, bool [..., S]; True for the first token of
        each row.
        """
        ...


class Bytes:
    """Every byte is a token; eight more ids are for special tokens, so that the vocabulary is a
    multiple of eight.
    """

    name = "bytes"
    vocab_size = 264
    num_text_ids = 256
    mask_id = 256
    start: int | None = None
    separator = 0
    dtype = np.uint8

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Return whether a word begins at each token. A word is a run of letters, digits, _ and
        non-ASCII bytes; every other byte is a word of its own. The first token of a row begins one.
        """
        # special tokens, from 256 on, count as non-ASCII bytes
        inside = _WORD[np.minimum(tokens, 255)]
        starts = np.ones(tokens.shape, dtype=bool)
        starts[..., 1:] = ~(inside[..., 1:] & inside[..., :-1])
        return starts


#: whether each byte is part of a word: [256]
_WORD = np.array([chr(b).isalnum() or b == ord("_") or b >= 128 for b in range(256)])


def open_tokenizer(name: str | Path) -> Tokenizer:
    """Return the tokenizer "bytes", or that of a vocab.txt, of a tokenizer.json, or of a
    checkpoint's folder with one of them.
    """
    if str(name) == "bytes":
        return Bytes()
    path = Path(name)
    if path.is_dir():
        files = [path / each for each in TOKENIZER_FILES if (path / each).is_file()]
        if not files:
            rule = (
                f'must be "bytes", or one of {", ".join(TOKENIZER_FILES)}, or a folder that has one'
            )
            raise RopeError("tokenizer", rule, str(name))
        path = files[0]
    return Subwords(path)
