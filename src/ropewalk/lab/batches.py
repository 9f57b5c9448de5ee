"""Batches as functions of sample numbers: the place in the data is one integer, whatever the number of ranks or steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError, number
from ropewalk.lab.corpus import Split
from ropewalk.lab.draws import bits, fold, permuted, uniform
from ropewalk.lab.tasks import Sample
from ropewalk.lab.text_tasks import TASKS
from ropewalk.lab.tokenizer import Tokenizer

#: a target that is not asked for, as torch's cross entropy has it
IGNORED = -100
_FATE = np.uint64(2**20 - 1)


@dataclass(frozen=True)
class Batch:
    """Rows for a model and what it should say; `count` is how many targets there are, known on the host.

    inputs   integer [B, S]                    targets  integer [B, S], or [B] for matching
    the rest goes to the model by its name, where it is not None
    """

    inputs: Tensor
    targets: Tensor
    count: int
    positions: Tensor | None = None
    padding: Tensor | None = None
    documents: Tensor | None = None

    @property
    def given(self) -> dict[str, Tensor]:
        """What the model is told beside the inputs."""
        known = {"positions": self.positions, "padding": self.padding, "documents": self.documents}
        return {name: value for name, value in known.items() if value is not None}

    def on(self, device: torch.device) -> Batch:
        """The batch on a device: narrow numbers travel, from pinned memory, and are widened there."""
        return replace(self, **{f.name: _moved(getattr(self, f.name), device) for f in fields(self) if f.name != "count"})


def _moved(x: Tensor | None, device: torch.device) -> Tensor | None:
    if x is None:
        return None
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.contiguous().pin_memory().to(device, non_blocking=True)
    return x if x.dtype == torch.bool else x.to(device, torch.int64)


@runtime_checkable
class Batches(Protocol):
    """Samples by number."""

    @property
    def vocab_size(self) -> int:
        """How many token numbers there may be."""
        ...

    @property
    def fingerprint(self) -> str:
        """What changes when the samples do."""
        ...

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """The samples `index`, of `length` inputs each."""
        ...


def next_token(rows: np.ndarray, counts: np.ndarray | None = None) -> Batch:
    """Rows [B, S + 1] as inputs and what follows each; where `counts` is False the target is ignored."""
    inputs, targets = torch.from_numpy(np.ascontiguousarray(rows[:, :-1])), torch.from_numpy(np.ascontiguousarray(rows[:, 1:]))
    if counts is None:
        return Batch(inputs, targets, targets.numel())
    asked = counts[:, 1:]
    return Batch(inputs, targets.int().masked_fill(torch.from_numpy(~asked), IGNORED), int(asked.sum()))


@dataclass(frozen=True)
class TextBatches:
    """Windows of a split, every one once before any comes again; each pass cuts and shuffles anew.

    With `documents`, a token sees its own document alone.
    """

    split: Split
    vocab_size: int
    fingerprint: str
    seed: int = 0
    documents: bool = False

    def batch(self, index: np.ndarray, length: int) -> Batch:
        starts = self.starts(index, length)
        found = next_token(self.split.rows(starts, length + 1))
        return replace(found, documents=self._numbers(starts, length)) if self.documents else found

    def starts(self, index: np.ndarray, length: int) -> np.ndarray:
        """Where the window of each sample begins."""
        windows = (len(self.split.tokens) - 1) // length - 1
        if windows < 1:
            raise RopeError("length", f"must be under half of the corpus of {len(self.split.tokens)} tokens", length)
        passes, place = np.divmod(np.asarray(index, dtype=np.int64), windows)
        keys = bits(fold(self.seed, length), passes, 0, 2)  # one shuffle and one offset for a pass
        return permuted(place, windows, keys[:, 0]) * length + (keys[:, 1] % np.uint64(length)).astype(np.int64)

    def _numbers(self, starts: np.ndarray, length: int) -> Tensor:
        tokens = starts[:, None] + np.arange(length)
        return torch.from_numpy(np.searchsorted(self.split.starts, tokens, side="right"))


@dataclass(frozen=True)
class TaskBatches:
    """Samples of a task from TASKS."""

    task: str
    vocab_size: int = 264
    seed: int = 0
    options: tuple[tuple[str, float], ...] = ()

    @property
    def fingerprint(self) -> str:
        return f"task {self.task} {self.seed} {self.options}"

    def sample(self, index: np.ndarray, length: int) -> Sample:
        """The rows of `length` + 1 tokens and which of them count."""
        if self.task not in TASKS:
            raise RopeError("task", f"must be one of {', '.join(TASKS)}", self.task)
        return TASKS[self.task](self.seed, index, length + 1, **dict(self.options))

    def batch(self, index: np.ndarray, length: int) -> Batch:
        return next_token(*self.sample(index, length))


@dataclass(frozen=True)
class MixedBatches:
    """Each sample comes from one of several, in given shares; one and the same for every run with this seed."""

    parts: tuple[Batches, ...]
    shares: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.shares) or abs(sum(number("shares", s, low=0) for s in self.shares) - 1) > 1e-9:
            raise RopeError("shares", f"must be {len(self.parts)} numbers that add up to 1", self.shares)

    @property
    def vocab_size(self) -> int:
        return max(part.vocab_size for part in self.parts)

    @property
    def fingerprint(self) -> str:
        return " + ".join(f"{share} {part.fingerprint}" for share, part in zip(self.shares, self.parts, strict=True))

    def batch(self, index: np.ndarray, length: int) -> Batch:
        chosen = np.searchsorted(np.cumsum(self.shares)[:-1], uniform(self.seed, index, 5, 1)[:, 0], side="right")
        # in order of the parts: rows of a batch have no order of their own
        found = [part.batch(index[chosen == i], length) for i, part in enumerate(self.parts) if (chosen == i).any()]
        return joined(found)


def joined(batches: Sequence[Batch]) -> Batch:
    """Rows of several batches in one."""
    if any(b.given for b in batches):
        raise RopeError("shares", "can mix only samples that need no more than their tokens", sorted(batches[0].given))
    inputs, targets = (torch.cat([getattr(b, name).int() for b in batches]) for name in ("inputs", "targets"))
    return Batch(inputs, targets, sum(b.count for b in batches))


@dataclass(frozen=True)
class MaskedBatches:
    """Masked language modelling over another source's rows: of `share` of the tokens, or of words, the model says what they were.

    Of the chosen, 80 % become the mask, 10 % any token, 10 % stay.
    """

    text: Batches
    tokenizer: Tokenizer
    share: float = 0.15
    whole_words: bool = False
    seed: int = 0

    @property
    def vocab_size(self) -> int:
        return self.text.vocab_size

    @property
    def fingerprint(self) -> str:
        return f"masked {self.share} {self.whole_words} {self.seed} {self.text.fingerprint}"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        found = self.text.batch(index, length)
        inputs, targets = mask_tokens(
            found.inputs.numpy(), index, self.tokenizer, share=self.share, whole_words=self.whole_words, seed=self.seed
        )
        return replace(found, inputs=inputs, targets=targets, count=int((targets != IGNORED).sum()))


def mask_tokens(
    rows: np.ndarray, index: np.ndarray, tokenizer: Tokenizer, *, share: float = 0.15, whole_words: bool = False, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """(inputs, targets) [B, S] of masked language modelling; which tokens are chosen depends on (seed, index) alone."""
    number("share", share, above=0, high=1)
    length = rows.shape[1]
    raw = bits(seed, index, 0, length)  # three numbers in one: 24 bits of chance, 20 of fate, 20 of another token
    draw, fate, other = raw >> np.uint64(40), (raw >> np.uint64(20)) & _FATE, raw & _FATE
    if whole_words:
        # every token of a word takes the draw of its first
        first = np.where(tokenizer.starts_word(rows), np.arange(length), 0)
        draw = np.take_along_axis(draw, np.maximum.accumulate(first, axis=1), axis=1)
    chosen = draw < share * 2**24
    other = ((other * np.uint64(tokenizer.num_words)) >> np.uint64(20)).astype(np.int32)
    rows = rows.astype(np.int32)
    changed = np.where(fate < 0.8 * 2**20, tokenizer.mask_id, np.where(fate < 0.9 * 2**20, other, rows))
    inputs, targets = np.where(chosen, changed, rows), np.where(chosen, rows, IGNORED)
    return torch.from_numpy(inputs.astype(np.int32)), torch.from_numpy(targets.astype(np.int32))
