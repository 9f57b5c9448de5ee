"""Long texts to match, in the format of CAIL2019-SCM: JSON lines of A, B, C and, where known, which of B and C is nearer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ropewalk.errors import RopeError, choice
from ropewalk.lab.batches import Batch
from ropewalk.lab.corpus import held_out
from ropewalk.lab.draws import bits, fold, permuted
from ropewalk.lab.tokenizer import Bytes, Tokenizer


@dataclass(frozen=True)
class Triplet:
    """Three texts; `label` says which of b and c is nearer to a."""

    a: str
    b: str
    c: str
    label: str


def read_triplets(path: str | Path, unlabelled: str = "B") -> list[Triplet]:
    """The triplets of a file; a line without a label has the one given (released training data always means B)."""
    choice("unlabelled", unlabelled, ("B", "C"))
    found = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), start=1):
        if line.strip():
            found.append(_triplet(line, f"line {number}", unlabelled))
    if not found:
        raise RopeError("triplets", "must have at least one line of A, B, C", str(path))
    return found


def _triplet(line: str, where: str, unlabelled: str) -> Triplet:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise RopeError("triplets", f"{where} must be JSON ({error})", line[:60]) from None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in "ABC"):
        raise RopeError("triplets", f"{where} must be an object with strings A, B and C", row)
    return Triplet(row["A"], row["B"], row["C"], choice(f"{where}, label", row.get("label", unlabelled), ("B", "C")))


def split_triplets(triplets: Sequence[Triplet]) -> tuple[list[Triplet], list[Triplet]]:
    """(train, valid) by the text of A: no A is on both sides, though many lines share one."""
    side = [held_out(hashlib.sha256(t.a.encode()).hexdigest()) for t in triplets]
    sides = list(zip(triplets, side, strict=True))
    return [t for t, is_out in sides if not is_out], [t for t, is_out in sides if is_out]


@dataclass(frozen=True, eq=False)
class TripletBatches:
    """Triplets by number, B and C changing places at random, or a constant answer would win.

    form="pairs": rows (A, B), (A, C) for a model that reads both.  form="triplets": rows A, B, C for one that reads each.
    A text is cut to its share of the length: what is beyond the cut-off is not seen.
    """

    FORMS: ClassVar[tuple[str, ...]] = ("pairs", "triplets")

    triplets: Sequence[Triplet]
    form: str = "pairs"
    tokenizer: Tokenizer = field(default_factory=Bytes)
    seed: int = 0
    swap: bool = True

    def __post_init__(self) -> None:
        choice("form", self.form, self.FORMS)
        if not self.triplets:
            raise RopeError("triplets", "must not be empty", 0)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        texts = "\0".join("\0".join((t.a, t.b, t.c, t.label)) for t in self.triplets)
        return f"triplets {self.form} {self.seed} {hashlib.sha256(texts.encode()).hexdigest()}"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        size = len(self.triplets)
        passes, place = np.divmod(np.asarray(index, dtype=np.int64), size)
        keys = bits(fold(self.seed, size), passes, 0, 1)[:, 0]
        chosen = permuted(place, size, keys) if self.swap else place
        swapped = bits(self.seed, np.asarray(index), 1, 1)[:, 0] % np.uint64(2) == 1
        inputs, padding, targets = [], [], []
        for number, swap in zip(chosen, swapped & self.swap, strict=True):
            triplet = self.triplets[int(number)]
            b, c = (triplet.c, triplet.b) if swap else (triplet.b, triplet.c)
            for row in self._rows(triplet.a, b, c, length):
                inputs.append(np.pad(row, (0, length - len(row))))
                padding.append(np.arange(length) < len(row))
            targets.append(int((triplet.label == "C") != bool(swap)))
        stacked = torch.from_numpy(np.stack(inputs))
        return Batch(stacked, torch.tensor(targets), len(targets), padding=torch.from_numpy(np.stack(padding)))

    def _rows(self, a: str, b: str, c: str, length: int) -> list[np.ndarray]:
        a_tokens, *others = (self.tokenizer.encode(text.encode()).astype(np.int32) for text in (a, b, c))
        if self.form == "triplets":
            return [tokens[:length] for tokens in (a_tokens, *others)]
        mark, half = np.array([self.tokenizer.separator], dtype=np.int32), (length - 1) // 2
        return [np.concatenate((a_tokens[:half], mark, other[: length - 1 - half])) for other in others]
