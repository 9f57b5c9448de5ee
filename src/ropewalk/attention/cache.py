"""KVCache: keys, values and where each of them stands, so that a cache can be shifted, cut, reused and re-scaled exactly.

Every token has its row, its index (order of arrival, what causality follows) and its position (what the rotation
follows). Keys are kept rotated, or unrotated where the frequencies follow the length of the sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.encodings.base import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer


class Seen(NamedTuple):
    """All a query may look at: keys and values [B, H, N, D], positions [B, N] or [axes, B, N], validity [B, N]."""

    k: Tensor
    v: Tensor
    positions: Tensor
    valid: Tensor


class KVCache:
    """A cache for one attention layer.

    growing   doubles its memory as needed
    static    holds at most `capacity` tokens and refuses more
    sliding   keeps the first `sinks` and the latest tokens, `capacity` in all
    """

    def __init__(self, kind: str = "growing", capacity: int | None = None, sinks: int = 0, rotated: bool | None = None) -> None:
        self.kind = choice("kind", kind, ("growing", "static", "sliding"))
        if kind != "growing" and capacity is None:
            raise RopeError("capacity", f"must be given for a {kind} cache", capacity)
        self.capacity = None if capacity is None else integer("capacity", capacity, low=1)
        self.sinks = integer("sinks", sinks, low=0)
        if self.sinks and (kind != "sliding" or self.sinks >= (capacity or 0)):
            raise RopeError("sinks", "belong to a sliding cache and must be fewer than its capacity", sinks)
        self.rotated = rotated
        #: whether any token may be padding; if none is, nobody needs a mask
        self.padded = False
        self.size = 0
        self._kept: Seen | None = None

    def __len__(self) -> int:
        return self.size

    def keeps_rotated(self, encoding: Encoding) -> bool:
        """Rotated keys, unless their frequencies would have to change with every token."""
        if self.rotated is None:
            self.rotated = not (isinstance(encoding, Rotary) and encoding.rope.spec.needs_length)
        return self.rotated

    @property
    def seen(self) -> Seen:
        """Everything kept, as views."""
        if self._kept is None:
            raise RopeError("cache", "is empty: append to it first", self.size)
        return Seen(*(t.narrow(-2 if t.ndim == 4 else -1, 0, self.size) for t in self._kept))

    @property
    def next_positions(self) -> Tensor | int:
        """The position each row's next token takes: one past its last real one, [B]; 0 while empty."""
        if not self.size:
            return 0
        seen = self.seen
        last = torch.where(seen.valid, seen.positions, -1).amax(dim=-1) + 1
        return last if last.ndim == 1 else last.amax(dim=0)

    def append(self, k: Tensor, v: Tensor, positions: Tensor, valid: Tensor | None = None) -> Seen:
        """Add tokens (k, v [B, H, S, D], positions [B, S]) and return all that their queries may look at.

        A sliding cache returns what was kept before together with all new tokens, and trims afterwards.
        """
        batch, _, new, _ = k.shape
        positions = positions.expand(*positions.shape[:-2], batch, new)
        self.padded = self.padded or valid is not None
        valid = torch.ones(batch, new, dtype=torch.bool, device=k.device) if valid is None else valid
        if self.kind == "static" and self.size + new > self.capacity:  # type: ignore[operator]  # given for static
            raise RopeError(
                "cache", f"holds at most {self.capacity} tokens; make it larger or use kind='growing'", self.size + new
            )
        self._reserve(self.size + new, Seen(k, v, positions, valid))
        for target, fresh in zip(self._kept, (k, v, positions, valid), strict=True):  # type: ignore[arg-type]  # reserved above
            target.narrow(-2 if target.ndim == 4 else -1, self.size, new).copy_(fresh)
        self.size += new
        seen = self.seen
        if self.kind == "sliding" and self.size > self.capacity:  # type: ignore[operator]
            self.evict(self.sinks, self.sinks + self.size - self.capacity)  # type: ignore[operator]
        return seen

    def _reserve(self, needed: int, like: Seen) -> None:
        room = 0 if self._kept is None else self._kept.positions.shape[-1]
        if needed <= room:
            return
        room = self.capacity if self.kind == "static" and self.capacity else max(needed, 2 * room)

        def empty(t: Tensor) -> Tensor:
            return t.new_zeros([*t.shape[:-2], room, t.shape[-1]] if t.ndim == 4 else [*t.shape[:-1], room])

        grown = Seen(*(empty(t) for t in like))
        if self._kept is not None and self.size:
            for target, old in zip(grown, self.seen, strict=True):
                target.narrow(-2 if target.ndim == 4 else -1, 0, self.size).copy_(old)
        self._kept = grown

    def evict(self, start: int, stop: int) -> None:
        """Forget the tokens with index start ... stop - 1; the others keep their positions."""
        integer("start", start, low=0, high=self.size)
        integer("stop", stop, low=start, high=self.size)
        keep = [*range(start), *range(stop, self.size)]
        index = torch.tensor(keep, dtype=torch.int64, device=self.seen.positions.device)  # also where nothing is kept
        self._kept = Seen(*(t.index_select(-2 if t.ndim == 4 else -1, index) for t in self.seen))
        self.size = len(keep)

    def rollback(self, tokens: int) -> None:
        """Forget the latest `tokens` tokens, as after a rejected draft."""
        self.size -= integer("tokens", tokens, low=0, high=self.size)

    def reorder(self, rows: Tensor) -> None:
        """Take rows by index, as beam search does."""
        self._kept = Seen(*(t.index_select(-2 if t.ndim == 3 else 0, rows) for t in self.seen))

    def move(self, positions: Tensor, encoding: Encoding, to: Encoding | None = None, **lengths: int | Tensor | None) -> None:
        """Every kept token takes a new position (and scaling, if `to` is given): keys are re-rotated, not recomputed."""
        seen = self.seen
        positions = positions.expand_as(seen.positions).contiguous()
        if self.keeps_rotated(encoding) and isinstance(encoding, Rotary):
            target = to.rope if isinstance(to, Rotary) else None
            k = encoding.rope.rerotate(seen.k, seen.positions, positions, target, match_magnitude=True, **lengths)
        else:
            k = seen.k
        self._kept = Seen(k, seen.v, positions, seen.valid)

    def shift(self, by: int | Tensor, encoding: Encoding) -> None:
        """Add `by` (an int, or one a row) to every position: the context shift after an eviction."""
        by = by.unsqueeze(-1) if isinstance(by, Tensor) and by.ndim else by
        self.move(self.seen.positions + by, encoding)

    def compact(self, encoding: Encoding) -> None:
        """Close the gaps an eviction left: the kept tokens of each row count 0, 1, 2 ... again."""
        seen = self.seen
        self.move((seen.valid.long().cumsum(-1) - 1).clamp(min=0), encoding)

    def rescale(self, encoding: Encoding, to: Encoding, **lengths: int | Tensor | None) -> None:
        """Change scaling or base of the kept keys; the positions stay."""
        self.move(self.seen.positions, encoding, to, **lengths)

    def extend(self, other: Seen, positions: Tensor, encoding: Encoding) -> None:
        """Append a chunk cached elsewhere at new positions, without running the model on it again."""
        k = other.k
        if self.keeps_rotated(encoding) and isinstance(encoding, Rotary):
            k = encoding.rope.rerotate(k, other.positions, positions.expand_as(other.positions).contiguous())
        self.append(k, other.v, positions, other.valid)
