"""A corpus: tokenized documents in two memory-mapped files, a training split and a held-out split.

The split that a document belongs to depends only on its name. The files on disk are a cache: they
are rebuilt when a source file, the tokenizer or the format changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import RopeError, choice, integer
from ropewalk_lab.cache_folder import cache_folder
from ropewalk_lab.sources import TextSource, find_source
from ropewalk_lab.stateless_random import fold, permuted
from ropewalk_lab.tokenizer import Bytes, Tokenizer

SPLITS = ("train", "valid")
#: the share of documents in the held-out split
HELD_OUT = 0.1
#: the version of the stored files; files of another version are not used
_FORMAT = 1


@dataclass(frozen=True)
class Split:
    """Tokens of one split with a separator after each document; `starts` are the starts of the
    documents, then the end of the last one.
    """

    tokens: np.ndarray
    starts: np.ndarray

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return the `length` tokens from each start, [len(starts), length]."""
        # int32, because torch has few operations on unsigned integers wider than uint8
        dtype = self.tokens.dtype if self.tokens.dtype == np.uint8 else np.int32
        return np.lib.stride_tricks.sliding_window_view(self.tokens, length)[starts].astype(
            dtype, copy=False
        )

    def windows(self, count: int, length: int, seed: int = 0) -> np.ndarray:
        """Return `count` windows [count, length], each within one document, from as many documents
        as possible.
        """
        sizes = np.diff(self.starts) - 1  # without the separator
        long_enough = np.flatnonzero(sizes >= length)
        if not len(long_enough):
            raise RopeError(
                "length",
                f"must be at most {sizes.max()}, the tokens of the longest document of this split",
                length,
            )
        window = np.arange(integer("count", count, low=1))
        # one window of each document, in a random order, then the next window of each; the seed is
        # folded with 1, so that it differs from that of other random choices
        seeds = np.full(count, fold(seed, 1), dtype=np.uint64)
        chosen = long_enough[permuted(window % len(long_enough), len(long_enough), seeds)]
        # windows of the same document start at evenly spaced positions
        windows_per_document = -(-count // len(long_enough))  # rounded up
        # where a window starts, from 0 (the start of the document) to 1 (the latest start)
        share = (window // len(long_enough) + 0.5) / windows_per_document
        latest_start = sizes[chosen] - length
        return self.rows(self.starts[chosen] + (share * latest_start).astype(np.int64), length)


@dataclass(frozen=True)
class Corpus:
    """The two splits, and `facts`: the contents of corpus.json, such as the fingerprint and the
    number of tokens.
    """

    folder: Path
    facts: dict[str, Any]

    @cached_property
    def train(self) -> Split:
        """The split to train on."""
        return self._split("train")

    @cached_property
    def valid(self) -> Split:
        """The held-out split."""
        return self._split("valid")

    @property
    def fingerprint(self) -> str:
        """The sha256 of the tokenizer's name and of all documents with their names."""
        return self.facts["fingerprint"]

    @property
    def vocab_size(self) -> int:
        """The number of token ids that the tokenizer has."""
        return self.facts["vocab_size"]

    def _split(self, name: str) -> Split:
        """Return a split; its tokens are mapped from the file, not read into memory."""
        dtype = np.dtype(choice("dtype", self.facts["dtype"], ("uint8", "uint32")))
        tokens = np.memmap(self.folder / f"{name}.tokens", dtype=dtype, mode="r")
        return Split(tokens, np.fromfile(self.folder / f"{name}.starts", dtype="<i8"))


def open_corpus(
    source: str | Path = "code",
    tokenizer: Tokenizer | None = None,
    *,
    cache: str | Path | None = None,
    field: str = "text",
) -> Corpus:
    """Return the corpus of a source: a name from SOURCES, a text file, a file of JSON lines with
    the text in `field`, a folder of such files, or a dataset that `datasets` saved to disk. It is
    tokenized only if the cache does not have it.

    tokenizer  None: bytes
    cache      the folder of all tokenized corpora; None: `cache_folder()`
    """
    tokenizer = Bytes() if tokenizer is None else tokenizer
    files = find_source(source, field)
    root = Path(cache) if cache is not None else cache_folder()
    folder = root / f"corpus-{_cache_id(files, tokenizer, field)}"
    if not (folder / "corpus.json").exists():
        _build(files, tokenizer, folder)
    return Corpus(folder, json.loads((folder / "corpus.json").read_text()))


def held_out(name: str) -> bool:
    """Return whether the document of this name is in the held-out split, as are about a tenth: the
    hash of the name decides.
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < HELD_OUT * 2**64


def _cache_id(source: TextSource, tokenizer: Tokenizer, field: str) -> str:
    """Return 24 hex digits that identify the stored corpus: they depend on the names, sizes and
    modification times of the files, how they are read, the tokenizer and the format.
    """
    digest = hashlib.sha256(
        f"{_FORMAT}/{tokenizer.name}/{field}/{getattr(source.read, '__name__', '')}".encode()
    )
    for name, path in source.files:
        stat = path.stat()
        digest.update(f"{name}/{stat.st_size}/{stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _build(source: TextSource, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the splits to a temporary folder and rename it to `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".corpus-", dir=folder.parent))
    try:
        facts = _write(source, tokenizer, draft)
        (draft / "corpus.json").write_text(json.dumps(facts, indent=2))
        try:
            draft.rename(folder)
        except OSError:
            if not (folder / "corpus.json").exists():
                raise
            # another process made the same corpus first
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(source: TextSource, tokenizer: Tokenizer, draft: Path) -> dict[str, Any]:
    """Write the tokens and document starts of both splits into the folder `draft`, and return the
    facts about them.
    """
    digest = hashlib.sha256(tokenizer.name.encode())
    starts: dict[str, list[int]] = {name: [0] for name in SPLITS}
    separator = np.array([tokenizer.separator], dtype=tokenizer.dtype).tobytes()
    with (draft / "train.tokens").open("wb") as train, (draft / "valid.tokens").open("wb") as valid:
        files = {"train": train, "valid": valid}
        for name, text in source.documents():
            digest.update(f"{name}\0{len(text)}\0".encode() + text)
            split = "valid" if held_out(name) else "train"
            tokens = tokenizer.encode(text)
            files[split].write(tokens.astype(tokenizer.dtype, copy=False).tobytes() + separator)
            starts[split].append(starts[split][-1] + len(tokens) + 1)
    for name, split_starts in starts.items():
        if len(split_starts) == 1:
            rule = (
                f"must have documents for both splits, but the {name} split is empty; use more "
                "text or more files"
            )
            raise RopeError("source", rule, f"{len(source.files)} files")
        np.array(split_starts, dtype="<i8").tofile(draft / f"{name}.starts")
    return {
        "fingerprint": digest.hexdigest(),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(tokenizer.dtype).name,
        "documents": {name: len(split_starts) - 1 for name, split_starts in starts.items()},
        "tokens": {name: split_starts[-1] for name, split_starts in starts.items()},
    }
