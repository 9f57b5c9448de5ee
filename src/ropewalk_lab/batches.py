"""Batches as functions of sample numbers: the state of the data is one integer, whatever the number
of ranks or steps.

Words of this module:
  sample       what has a number: a row of tokens, or the rows of two or three texts
  seed         with a sample's number, it decides every random choice for that sample
  split        the tokens of the training text, or those of the held-out text
  window       consecutive tokens of a split, which make one sample
  index        the numbers of the samples of a batch, integer [samples]
  fingerprint  a text that identifies the samples; a run continues only with the same one
  stream       one of several independent series of random numbers of a sample, see
               `stateless_random`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError, number
from ropewalk_lab.corpus import Split
from ropewalk_lab.stateless_random import bits, fold, permuted, uniform
from ropewalk_lab.tasks import Sample
from ropewalk_lab.text_tasks import TASKS
from ropewalk_lab.tokenizer import Tokenizer

#: the target of a token without a loss; torch's cross entropy ignores it by default
IGNORED = -100
#: the sample number of the first held-out sample; no training gets there
BEYOND_TRAINING = 1 << 40
_LOW_20_BITS = np.uint64(2**20 - 1)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets of a model; `count` is the number of targets that are not IGNORED, kept as
    an int so that no device sync is needed.

    inputs     integer [B, S]
    targets    integer [B, S]; for pairs, triplets and classes [samples], where a sample has 2, 3
               and 1 rows of `inputs`
    positions  integer [S], or [axes, B, S] for several axes; None: 0, 1, 2, ... over real tokens
    types      integer [B, S], 1 for tokens of a second text, else 0
    padding    bool [B, S], True for real tokens and False for padding
    documents  integer [B, S], the document index of each token

    The last four are passed to the model as keyword arguments if they are not None.
    """

    inputs: Tensor
    targets: Tensor
    count: int
    positions: Tensor | None = None
    types: Tensor | None = None
    padding: Tensor | None = None
    documents: Tensor | None = None

    @property
    def keywords(self) -> dict[str, Tensor]:
        """The tensors that the model gets as keyword arguments: those that are not None."""
        tensors = {
            "positions": self.positions,
            "types": self.types,
            "padding": self.padding,
            "documents": self.documents,
        }
        return {name: value for name, value in tensors.items() if value is not None}

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; integers are copied in their narrow dtypes and converted to
        int64 on the device.
        """
        return replace(
            self,
            **{
                f.name: _moved(getattr(self, f.name), device)
                for f in fields(self)
                if f.name != "count"
            },
        )


def _moved(x: Tensor | None, device: torch.device) -> Tensor | None:
    """Return x on the device, integers as int64; None stays None. A copy to a GPU does not block,
    because its source is pinned memory.
    """
    if x is None:
        return None
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.contiguous().pin_memory().to(device, non_blocking=True)
    return x.to(device, x.dtype if x.dtype == torch.bool else torch.int64)


@runtime_checkable
class Batches(Protocol):
    """A source of numbered samples."""

    @property
    def vocab_size(self) -> int:
        """The number of token ids that the vocabulary has."""
        ...

    @property
    def fingerprint(self) -> str:
        """A text that identifies the data: sources with different samples have different
        fingerprints.
        """
        ...

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return the samples with the numbers `index`, of `length` inputs each."""
        ...


def next_token(rows: np.ndarray, is_target: np.ndarray | None = None) -> Batch:
    """Return rows [B, S + 1] as inputs and next-token targets [B, S]; tokens where `is_target`
    [B, S + 1] is False are ignored as targets. None: every token is a target.
    """
    inputs = torch.from_numpy(np.ascontiguousarray(rows[:, :-1]))
    targets = torch.from_numpy(np.ascontiguousarray(rows[:, 1:]))
    if is_target is None:
        return Batch(inputs, targets, targets.numel())
    target_mask = is_target[:, 1:]
    # `int`, because the uint8 of bytes cannot hold IGNORED, which is negative
    return Batch(
        inputs,
        targets.int().masked_fill(torch.from_numpy(~target_mask), IGNORED),
        int(target_mask.sum()),
    )


@dataclass(frozen=True)
class TextBatches:
    """Windows of a split. Each pass over the split uses every window once, with a new offset and a
    new order.

    With `documents`, batches have the document index of each token, and attention is limited to the
    token's document.
    """

    split: Split
    vocab_size: int
    fingerprint: str
    seed: int = 0
    documents: bool = False

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return the windows with the numbers `index`, of `length` inputs each."""
        starts = self.starts(index, length)
        batch = next_token(self.split.rows(starts, length + 1))
        return (
            replace(batch, documents=self._document_indices(starts, length))
            if self.documents
            else batch
        )

    def starts(self, index: np.ndarray, length: int) -> np.ndarray:
        """Return the first token of each sample's window, as an index into the split; `index` are
        the numbers of the samples.
        """
        # A window has `length` inputs, and one more token as the last target. One window fewer than
        # fit is used, because the windows of a pass are shifted by up to `length` - 1 tokens.
        windows = (len(self.split.tokens) - 1) // length - 1
        if windows < 1:
            raise RopeError(
                "length",
                f"must be less than half of the {len(self.split.tokens)} tokens of this split",
                length,
            )
        # each pass over the text has another order of its windows, and another offset of the first
        # one
        passes, window = np.divmod(np.asarray(index, dtype=np.int64), windows)
        # for each pass two random numbers of the stream 0: of its order and of its offset
        random_bits = bits(fold(self.seed, length), passes, 0, 2)
        offset = (random_bits[:, 1] % np.uint64(length)).astype(np.int64)
        return permuted(window, windows, random_bits[:, 0]) * length + offset

    def _document_indices(self, starts: np.ndarray, length: int) -> Tensor:
        """Return the document index of each token of the windows, from 1: [len(starts), length]."""
        tokens = starts[:, None] + np.arange(length)
        return torch.from_numpy(np.searchsorted(self.split.starts, tokens, side="right"))


@dataclass(frozen=True)
class TaskBatches:
    """Samples of a task from TASKS; `options` are (name, value) pairs of that task, such as
    ("depth", 0.5). The vocabulary is that of the tokenizer `Bytes`.
    """

    task: str
    vocab_size: int = 264
    seed: int = 0
    options: tuple[tuple[str, float], ...] = ()

    @property
    def fingerprint(self) -> str:
        return f"task {self.task} {self.seed} {self.options}"

    def sample(self, index: np.ndarray, length: int) -> Sample:
        """Return the samples with the numbers `index`: rows of `length` + 1 tokens, and which of
        them are targets.
        """
        if self.task not in TASKS:
            raise RopeError("task", f"must be one of {', '.join(TASKS)}", self.task)
        return TASKS[self.task](self.seed, index, length + 1, **dict(self.options))

    def batch(self, index: np.ndarray, length: int) -> Batch:
        return next_token(*self.sample(index, length))


@dataclass(frozen=True)
class MixedBatches:
    """Samples from several sources: seed and sample number choose the source of a sample, at random
    with the probabilities `shares`.
    """

    parts: tuple[Batches, ...]
    shares: tuple[float, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shares that are not one for each part, or do not add up to 1."""
        if (
            len(self.parts) != len(self.shares)
            or abs(sum(number("shares", s, low=0) for s in self.shares) - 1) > 1e-9
        ):
            raise RopeError(
                "shares", f"must be {len(self.parts)} numbers that add up to 1", self.shares
            )

    @property
    def vocab_size(self) -> int:
        return max(part.vocab_size for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """The shares and the fingerprints of the parts, and the seed."""
        parts = " + ".join(
            f"{share} {part.fingerprint}"
            for share, part in zip(self.shares, self.parts, strict=True)
        )
        return f"mixed {self.seed} {parts}"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return the samples with the numbers `index`; a random number, drawn from the number of the
        sample, selects the part it comes from with the probabilities `shares`.
        """
        draws = uniform(self.seed, index, stream=5, count=1)[:, 0]  # a stream that no part uses
        chosen = np.searchsorted(np.cumsum(self.shares)[:-1], draws, side="right")
        # the rows of a batch are grouped by part: their order within a batch does not matter
        batches = [
            part.batch(index[chosen == i], length)
            for i, part in enumerate(self.parts)
            if (chosen == i).any()
        ]
        return concatenate(batches)


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches, the parts of a MixedBatches, as one batch; raise an error
    if one has more tensors than inputs and targets.
    """
    extra = sorted({name for batch in batches for name in batch.keywords})
    if extra:
        raise RopeError(
            "shares",
            "must mix sources whose batches have inputs and targets and no other tensors",
            extra,
        )
    # `int`, because batches may have different dtypes
    inputs = torch.cat([b.inputs.int() for b in batches])
    targets = torch.cat([b.targets.int() for b in batches])
    return Batch(inputs, targets, sum(b.count for b in batches))


@dataclass(frozen=True)
class MaskedBatches:
    """Masked language modelling on another source's rows: about `share` of the tokens, or of the
    words with `whole_words`, are targets.

    In the inputs about 80 % of the targets are replaced by the mask and 10 % by a random token; the
    others are unchanged.
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
        """Return the samples with the numbers `index`, with some tokens chosen and changed by
        `mask_tokens`; the targets are the chosen tokens as they were.
        """
        batch = self.text.batch(index, length)
        inputs, targets = mask_tokens(
            batch.inputs.numpy(),
            index,
            self.tokenizer,
            share=self.share,
            whole_words=self.whole_words,
            seed=self.seed,
        )
        return replace(batch, inputs=inputs, targets=targets, count=int((targets != IGNORED).sum()))


def mask_tokens(
    rows: np.ndarray,
    index: np.ndarray,
    tokenizer: Tokenizer,
    *,
    share: float = 0.15,
    whole_words: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets) [B, S] of masked language modelling; the random choices depend only
    on (seed, index).

    rows, index  the tokens [B, S], and the number of each sample [B]
    share        how likely each token, or with `whole_words` each word, is a target
    """
    number("share", share, above=0, high=1)
    length = rows.shape[1]
    # 64 random bits for each token make three numbers: the high 24 bits choose the targets, the
    # next 20 the kind of replacement, and the low 20 a random token; they are of the stream 0
    raw = bits(seed, index, 0, length)
    draw = raw >> np.uint64(40)
    replacement, other = (raw >> np.uint64(20)) & _LOW_20_BITS, raw & _LOW_20_BITS
    if whole_words:
        # every token of a word uses the draw of the word's first token, which is the latest column
        # where a word starts; a row may begin within a word, which then starts in column 0
        first = np.where(tokenizer.starts_word(rows), np.arange(length), 0)
        draw = np.take_along_axis(draw, np.maximum.accumulate(first, axis=1), axis=1)
    chosen = draw < share * 2**24
    # a 20-bit number times the number of ids that occur in text, divided by 2^20: one of these ids
    random_token = ((other * np.uint64(tokenizer.num_text_ids)) >> np.uint64(20)).astype(np.int32)
    rows = rows.astype(np.int32)
    # 80 % of the targets become the mask, 10 % a random token, and 10 % stay as they are
    changed = np.where(
        replacement < 0.8 * 2**20,
        tokenizer.mask_id,
        np.where(replacement < 0.9 * 2**20, random_token, rows),
    )
    inputs, targets = np.where(chosen, changed, rows), np.where(chosen, rows, IGNORED)
    return torch.from_numpy(inputs.astype(np.int32)), torch.from_numpy(targets.astype(np.int32))
