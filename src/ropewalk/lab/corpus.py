"""A corpus: documents as token numbers in two memory-mapped files, one to train on and one held out.

Which split a document is in depends on its name alone. What is on disk is a cache: it is rebuilt whenever a source file,
the tokenizer or the format changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import RopeError, choice, integer
from ropewalk.lab.draws import fold, permuted
from ropewalk.lab.sources import Source, find_source
from ropewalk.lab.tokenizer import Bytes, Tokenizer

SPLITS = ("train", "valid")
HELD_OUT = 0.1
_FORMAT = 1


@dataclass(frozen=True)
class Split:
    """The tokens of one split, each document followed by the separator, and where documents start (and the last ends)."""

    tokens: np.ndarray
    starts: np.ndarray

    def rows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """[len(starts), length] tokens from each start."""
        # as signed numbers of a width that torch has on every device
        kept = self.tokens.dtype if self.tokens.dtype == np.uint8 else np.int32
        return np.lib.stride_tricks.sliding_window_view(self.tokens, length)[starts].astype(kept, copy=False)

    def windows(self, count: int, length: int, seed: int = 0) -> np.ndarray:
        """`count` windows that lie within one document each, from as many documents as there are: [count, length]."""
        sizes = np.diff(self.starts) - 1  # without the separator
        long_enough = np.flatnonzero(sizes >= length)
        if not len(long_enough):
            raise RopeError("length", f"no document of this split has so many tokens; the longest has {sizes.max()}", length)
        turn = np.arange(integer("count", count, low=1))
        keys = np.full(count, fold(seed, 1), dtype=np.uint64)
        chosen = long_enough[permuted(turn % len(long_enough), len(long_enough), keys)]
        # the k-th window of a document starts at the k-th of evenly spread places
        rounds, room = -(-count // len(long_enough)), sizes[chosen] - length
        share = (turn // len(long_enough) + 0.5) / rounds
        return self.rows(self.starts[chosen] + (share * room).astype(np.int64), length)


@dataclass(frozen=True)
class Corpus:
    """Two splits and what is known of them."""

    folder: Path
    facts: dict[str, Any]

    @cached_property
    def train(self) -> Split:
        """What a model may learn from."""
        return self._split("train")

    @cached_property
    def valid(self) -> Split:
        """What it is judged by."""
        return self._split("valid")

    @property
    def fingerprint(self) -> str:
        """sha256 over the sorted documents and their names, and the tokenizer."""
        return self.facts["fingerprint"]

    @property
    def vocab_size(self) -> int:
        """How many token numbers there may be."""
        return self.facts["vocab_size"]

    def _split(self, name: str) -> Split:
        dtype = np.dtype(choice("dtype", self.facts["dtype"], ("uint8", "uint32")))
        tokens = np.memmap(self.folder / f"{name}.tokens", dtype=dtype, mode="r")
        return Split(tokens, np.fromfile(self.folder / f"{name}.starts", dtype="<i8"))


def cache_folder() -> Path:
    """Where corpora are kept: ROPEWALK_CACHE, or the user's cache folder."""
    named = os.environ.get("ROPEWALK_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "ropewalk"


def open_corpus(
    source: str | Path = "code", tokenizer: Tokenizer | None = None, *, cache: str | Path | None = None, field: str = "text"
) -> Corpus:
    """The corpus of a source: a name from SOURCES, a text or JSON lines file, or a folder of them."""
    tokenizer = Bytes() if tokenizer is None else tokenizer
    found = find_source(source, field)
    root = Path(cache) if cache is not None else cache_folder()
    folder = root / f"corpus-{_key(found, tokenizer, field)}"
    if not (folder / "corpus.json").exists():
        _build(found, tokenizer, folder)
    return Corpus(folder, json.loads((folder / "corpus.json").read_text()))


def held_out(name: str) -> bool:
    """Whether the document of this name is in the valid split."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < HELD_OUT * 2**64


def _key(source: Source, tokenizer: Tokenizer, field: str) -> str:
    """What changes when the files do, found without reading them."""
    digest = hashlib.sha256(f"{_FORMAT}/{tokenizer.name}/{field}/{getattr(source.read, '__name__', '')}".encode())
    for name, path in source.files:
        known = path.stat()
        digest.update(f"{name}/{known.st_size}/{known.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _build(source: Source, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the splits beside `folder` and put them in place with one rename."""
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
            # another process was first, with the same result
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _write(source: Source, tokenizer: Tokenizer, draft: Path) -> dict[str, Any]:
    digest = hashlib.sha256(tokenizer.name.encode())
    starts: dict[str, list[int]] = {name: [0] for name in SPLITS}
    end = np.array([tokenizer.separator], dtype=tokenizer.dtype)
    with (draft / "train.tokens").open("wb") as train, (draft / "valid.tokens").open("wb") as valid:
        files = {"train": train, "valid": valid}
        for name, text in source.documents():
            digest.update(f"{name}\0{len(text)}\0".encode() + text)
            split = "valid" if held_out(name) else "train"
            tokens = tokenizer.encode(text)
            files[split].write(tokens.astype(tokenizer.dtype, copy=False).tobytes() + end.tobytes())
            starts[split].append(starts[split][-1] + len(tokens) + 1)
    for name, places in starts.items():
        if len(places) == 1:
            rule = f"must have documents for both splits, and the {name} split is empty; give more text, or more files"
            raise RopeError("source", rule, f"{len(source.files)} files")
        np.array(places, dtype="<i8").tofile(draft / f"{name}.starts")
    return {
        "fingerprint": digest.hexdigest(),
        "tokenizer": tokenizer.name,
        "vocab_size": tokenizer.vocab_size,
        "dtype": np.dtype(tokenizer.dtype).name,
        "documents": {name: len(places) - 1 for name, places in starts.items()},
        "tokens": {name: places[-1] for name, places in starts.items()},
    }
