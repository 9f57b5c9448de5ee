"""Tokenizers: plain bytes, or a byte-pair encoding of the `tokenizers` package."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ropewalk.errors import RopeError


@runtime_checkable
class Tokenizer(Protocol):
    """The interface that a corpus needs; tokenizers that encode differently must have different names."""

    name: str
    vocab_size: int
    num_words: int  # ids below this number may occur in text
    mask_id: int
    separator: int
    dtype: type

    def encode(self, text: bytes) -> np.ndarray:
        """Return the token ids of one document."""
        ...

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Return, for each token of [..., S], whether a word begins there."""
        ...


class Bytes:
    """Every byte is a token; eight more ids are for special tokens, so that the vocabulary is a multiple of eight."""

    name = "bytes"
    vocab_size = 264
    num_words = 256
    mask_id = 256
    separator = 0
    dtype = np.uint8

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Return where words begin: runs of letters, digits, underscores and non-ASCII bytes."""
        inside = _WORD[np.minimum(tokens, 255)]
        starts = np.ones(tokens.shape, dtype=bool)
        starts[..., 1:] = ~(inside[..., 1:] & inside[..., :-1])
        return starts


_WORD = np.array([chr(b).isalnum() or b == ord("_") or b >= 128 for b in range(256)])


class Bpe:
    """A byte-pair encoding from a `tokenizer.json`; a [MASK] token is added if it has none."""

    dtype = np.uint32

    def __init__(self, path: str | Path) -> None:
        self.name = f"bpe-{hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]}"
        package = _tokenizers()
        try:
            self.inner = package.Tokenizer.from_file(str(path))
        except Exception as error:
            raise RopeError("tokenizer", f"must be a tokenizer.json of the tokenizers package ({error})", str(path)) from None
        known = self.num_words = int(self.inner.get_vocab_size())
        mask = self.inner.token_to_id("[MASK]")
        self.mask_id: int = known if mask is None else mask
        end = self.inner.token_to_id("[END]")
        self.separator: int = 0 if end is None else end
        self.vocab_size = -(-max(known, self.mask_id + 1) // 8) * 8
        texts = [self.inner.id_to_token(i) or "" for i in range(self.vocab_size)]
        # byte-level tokens write a leading space as Ġ (a letter to isalnum); other letters, digits and ## continue a word
        self._starts = np.array([text[:1] == "Ġ" or not (text[:1].isalnum() or text[:2] == "##") for text in texts])

    def encode(self, text: bytes) -> np.ndarray:
        encoded = self.inner.encode(text.decode("utf-8", errors="replace"), add_special_tokens=False)
        return np.asarray(encoded.ids, dtype=np.uint32)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        starts = self._starts[tokens]
        starts[..., 0] = True
        return starts


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise RopeError("tokenizer", "needs the tokenizers package: pip install 'ropewalk[hf]'", "bpe") from None
    return tokenizers
