"""Text matching in the format of CAIL2019-SCM: JSON lines of texts A, B, C and optionally a label,
which names the text that is closer to A: B or C.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ropewalk.errors import RopeError, choice
from ropewalk_lab.batches import IGNORED, Batch
from ropewalk_lab.corpus import held_out
from ropewalk_lab.sources import parse_line, refuse_pipe
from ropewalk_lab.stateless_random import bits
from ropewalk_lab.text_rows import make_row, pad_rows, shuffled
from ropewalk_lab.tokenizer import Bytes, Tokenizer

LABELS = ("B", "C")


@dataclass(frozen=True)
class Triplet:
    """Three texts; `label` is "B" or "C": the text that is closer to `a`, or None if it is not
    known.
    """

    a: str
    b: str
    c: str
    label: str | None


def read_triplets(path: str | Path, unlabelled: str | None = "B") -> list[Triplet]:
    """Return the triplets A, B, C of a JSON lines file.

    unlabelled  the label of lines that have none: "B", since B is the closer text in the published
                data, or None for unknown
    """
    if unlabelled is not None:
        choice("unlabelled", unlabelled, LABELS)
    refuse_pipe(Path(path))
    triplets = []
    for number, line in enumerate(Path(path).read_bytes().splitlines(), start=1):
        if line.strip():
            row = parse_line(str(path), line, f"line {number}", "A", "B", "C")
            label = (
                choice(f"line {number}, label", row["label"], LABELS)
                if "label" in row
                else unlabelled
            )
            triplets.append(Triplet(row["A"], row["B"], row["C"], label))
    if not triplets:
        raise RopeError(str(path), "must have at least one line of A, B, C", 0)
    return triplets


def split_triplets(triplets: Sequence[Triplet]) -> tuple[list[Triplet], list[Triplet]]:
    """Return the triplets as (train, valid), split by a hash of the text of A: triplets with the
    same A are in the same split, and about a tenth of these texts are in `valid`.
    """
    splits: dict[bool, list[Triplet]] = {False: [], True: []}
    for triplet in triplets:
        is_valid = held_out(hashlib.sha256(triplet.a.encode()).hexdigest())
        splits[is_valid].append(triplet)
    return splits[False], splits[True]


@dataclass(frozen=True, eq=False)
class TripletBatches:
    """Batches of triplets.

    form="pairs" has rows (A, B) and (A, C) for a model that reads two texts at once;
    form="triplets" has rows A, B and C. With `shuffle`, each pass over the triplets has a new
    random order, and in each sample B and C are exchanged at random, so that a constant answer is
    right half the time. Without it, the samples are the triplets in their order. The target of a
    triplet without a label is ignored.
    """

    FORMS: ClassVar[tuple[str, ...]] = ("pairs", "triplets")

    triplets: Sequence[Triplet]
    form: str = "pairs"
    tokenizer: Tokenizer = field(default_factory=Bytes)
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        choice("form", self.form, self.FORMS)
        if not self.triplets:
            raise RopeError("triplets", "must not be empty", 0)

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """A text that identifies the samples: the form, the tokenizer, the seed, the order, and a
        hash of the triplets.
        """
        texts = "\0".join("\0".join((t.a, t.b, t.c, t.label or "")) for t in self.triplets)
        order = "" if self.shuffle else " in order"
        return (
            f"triplets {self.form} {self.tokenizer.name} {self.seed} "
            f"{hashlib.sha256(texts.encode()).hexdigest()}{order}"
        )

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return the samples with the numbers `index` as padded rows; the target of a sample is 0
        if its second text is closer to A, 1 if its third is, and IGNORED without a label.

        The second and third text are B and C, or with `shuffle` at random C and B.
        """
        index, size = np.asarray(index, dtype=np.int64), len(self.triplets)
        places = shuffled(index, size, self.seed) if self.shuffle else index % size
        # the stream 1, because the stream 0 gives the order
        swapped = bits(self.seed, index, stream=1, count=1)[:, 0] % np.uint64(2) == 1
        rows, targets = [], []
        for place, swap in zip(places, swapped & self.shuffle, strict=True):
            triplet = self.triplets[int(place)]
            b, c = (triplet.c, triplet.b) if swap else (triplet.b, triplet.c)
            texts = (
                [(triplet.a, b), (triplet.a, c)]
                if self.form == "pairs"
                else [(triplet.a, None), (b, None), (c, None)]
            )
            rows += [make_row(self.tokenizer, first, second, length) for first, second in texts]
            c_is_closer = (triplet.label == "C") != bool(swap)  # a swap exchanges the labels too
            targets.append(IGNORED if triplet.label is None else int(c_is_closer))
        tokens, types, padding = pad_rows(rows, length)
        count = len(targets) - targets.count(IGNORED)
        return Batch(
            tokens,
            torch.tensor(targets),
            count,
            types=types if self.form == "pairs" else None,
            padding=padding,
        )
