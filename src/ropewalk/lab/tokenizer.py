"""Text to token numbers: bytes, which need nothing, or a byte-pair encoding of the `tokenizers` package."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ropewalk.errors import RopeError, integer


@runtime_checkable
class Tokenizer(Protocol):
    """What a corpus asks of a tokenizer; `name` must change whenever `encode` does."""

    name: str
    vocab_size: int
    num_words: int  # the numbers below this may stand in text
    mask_id: int
    separator: int
    dtype: type

    def encode(self, text: bytes) -> np.ndarray:
        """The token numbers of one document."""
        ...

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Whether a word begins at each token of [..., S]."""
        ...


class Bytes:
    """Every byte is a token; eight numbers above them are free for marks, so that matrices stay multiples of eight."""

    name = "bytes"
    vocab_size = 264
    num_words = 256
    mask_id = 256
    separator = 0
    dtype = np.uint8

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, dtype=np.uint8)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Words are runs of letters, digits, underscores and the bytes of other scripts."""
        inside = _WORD[np.minimum(tokens, 255)]
        starts = np.ones(tokens.shape, dtype=bool)
        starts[..., 1:] = ~(inside[..., 1:] & inside[..., :-1])
        return starts


_WORD = np.array([chr(b).isalnum() or b == ord("_") or b >= 128 for b in range(256)])


class Bpe:
    """A byte-pair encoding from a `tokenizer.json`, with a [MASK] of its own where it has none."""

    dtype = np.uint32

    def __init__(self, path: str | Path) -> None:
        source = Path(path)
        self.name = f"bpe-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
        try:
            self.inner = _tokenizers().Tokenizer.from_file(str(source))
        except RopeError:
            raise
        except Exception as error:
            raise RopeError("tokenizer", f"must be a tokenizer.json of the tokenizers package ({error})", str(path)) from None
        known = self.num_words = int(self.inner.get_vocab_size())
        mask = self.inner.token_to_id("[MASK]")
        self.mask_id: int = known if mask is None else mask
        end = self.inner.token_to_id("[END]")
        self.separator: int = 0 if end is None else end
        self.vocab_size = -(-max(known, self.mask_id + 1) // 8) * 8
        heads = [self.inner.id_to_token(i) or "" for i in range(self.vocab_size)]
        # byte-level tokens show a leading space as Ġ; what follows neither a space nor a mark continues its word
        self._starts = np.array([not (head[:1].isalnum() or head[:2] == "##") for head in heads])

    def encode(self, text: bytes) -> np.ndarray:
        found = self.inner.encode(text.decode("utf-8", errors="replace"), add_special_tokens=False)
        return np.asarray(found.ids, dtype=np.uint32)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        starts = self._starts[tokens]
        starts[..., 0] = True
        return starts


def train_bpe(texts: Iterable[bytes], vocab_size: int, path: str | Path) -> Bpe:
    """Learn a byte-level BPE from documents and write it to `path`."""
    integer("vocab_size", vocab_size, low=260)
    package = _tokenizers()
    inner = package.Tokenizer(package.models.BPE())
    inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["[END]", "[MASK]"],
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator((text.decode("utf-8", errors="replace") for text in texts), trainer)
    inner.save(str(path))
    return Bpe(path)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise RopeError("tokenizer", "needs the tokenizers package: pip install 'ropewalk[hf]'", "bpe") from None
    return tokenizers
