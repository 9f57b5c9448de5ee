"""Text matching in the format of CAIL2019-SCM: JSON lines of texts A, B, C and optionally a label, the text closer to A."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ropewalk.errors import RopeError, choice
from ropewalk.lab.batches import Batch
from ropewalk.lab.corpus import held_out
from ropewalk.lab.sources import parse_line
from ropewalk.lab.stateless_random import bits, fold, permuted
from ropewalk.lab.tokenizer import Bytes, Tokenizer


@dataclass(frozen=True)
class Triplet:
    """Three texts; `label` is "B" or "C": the text that is closer to `a`."""

    a: str
    b: str
    c: str
    label: str


def read_triplets(path: str | Path, unlabelled: str = "B") -> list[Triplet]:
    """Read the triplets of a file; the label of a line without one is `unlabelled` (B in the published training data)."""
    choice("unlabelled", unlabelled, ("B", "C"))
    triplets = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        if line.strip():
            row = parse_line("triplets", line, f"line {number}", "A", "B", "C")
            label = choice(f"line {number}, label", row.get("label", unlabelled), ("B", "C"))
            triplets.append(Triplet(row["A"], row["B"], row["C"], label))
    if not triplets:
        raise RopeError("triplets", "must have at least one line of A, B, C", str(path))
    return triplets


def split_triplets(triplets: Sequence[Triplet]) -> tuple[list[Triplet], list[Triplet]]:
    """Split triplets into (train, valid) by the text of A, so that triplets with the same A are in the same split."""
    train: list[Triplet] = []
    valid: list[Triplet] = []
    for triplet in triplets:
        (valid if held_out(hashlib.sha256(triplet.a.encode()).hexdigest()) else train).append(triplet)
    return train, valid


@dataclass(frozen=True, eq=False)
class TripletBatches:
    """Batches of triplets; B and C are swapped at random, so that a constant answer is right half the time.

    form="pairs" has rows (A, B) and (A, C) for a model that reads two texts at once; form="triplets" has rows A, B and C.
    Texts are truncated, to half of the length in pairs and to the whole length in triplets.
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
        chosen = permuted(place, size, bits(fold(self.seed, size), passes, 0, 1)[:, 0]) if self.swap else place
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
        separator, half = np.array([self.tokenizer.separator], dtype=np.int32), (length - 1) // 2
        return [np.concatenate((a_tokens[:half], separator, other[: length - 1 - half])) for other in others]
