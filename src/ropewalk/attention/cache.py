"""KVCache: keys and values with the position of each token, so that they can be shifted, evicted, reused and re-scaled exactly.

A token's index is its order of arrival, which causality uses; its position is what the rotation uses. Keys are stored
rotated, or unrotated if the frequencies depend on the length of the sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.encodings.base import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer
from ropewalk.positions import left_padded


class CachedTokens(NamedTuple):
    """The contents of a cache: k, v [B, H, N, D], positions [B, N] or [axes, B, N], valid [B, N] (False for padding)."""

    k: Tensor
    v: Tensor
    positions: Tensor
    valid: Tensor


def _token_dim(t: Tensor) -> int:
    """Return the token axis of `t`: -2 for keys and values [B, H, N, D], else -1."""
    return -2 if t.ndim == 4 else -1


def _tokens(t: Tensor, start: int, count: int) -> Tensor:
    """Return a view of `count` tokens of `t`, from token `start` on."""
    return t.narrow(_token_dim(t), start, count)


class KVCache:
    """The key-value cache of one attention layer; `kind` is one of three:

    growing   doubles its memory as needed
    static    holds at most `capacity` tokens and raises an error for more
    sliding   keeps the first `sinks` tokens and the latest ones, `capacity` in all
    """

    def __init__(self, kind: str = "growing", capacity: int | None = None, sinks: int = 0, rotated: bool | None = None) -> None:
        self.kind = choice("kind", kind, ("growing", "static", "sliding"))
        if kind != "growing" and capacity is None:
            raise RopeError("capacity", f"must be given for a {kind} cache", capacity)
        self.capacity = None if capacity is None else integer("capacity", capacity, low=1)
        self.sinks = integer("sinks", sinks, low=0)
        if self.sinks and (kind != "sliding" or self.sinks >= (capacity or 0)):
            raise RopeError("sinks", "must be 0 unless kind='sliding', and then less than capacity", sinks)
        self.rotated = rotated
        #: whether any token may be padding; if not, attention needs no mask
        self.padded = False
        self.size = 0
        self._buffers: CachedTokens | None = None

    def __len__(self) -> int:
        return self.size

    def keeps_rotated(self, encoding: Encoding) -> bool:
        """Whether keys are stored rotated: yes, unless their frequencies change with the length."""
        if self.rotated is None:
            self.rotated = not (isinstance(encoding, Rotary) and encoding.rope.spec.needs_length)
        return self.rotated

    @property
    def seen(self) -> CachedTokens:
        """All cached tokens, as views."""
        if self._buffers is None:
            raise RopeError("cache", "is empty: append to it first", self.size)
        return CachedTokens(*(_tokens(t, 0, self.size) for t in self._buffers))

    @property
    def next_positions(self) -> Tensor | int:
        """The position of each row's next token, [B]: its last real position + 1; 0 if the cache is empty."""
        if not self.size:
            return 0
        seen = self.seen
        after = torch.where(seen.valid, seen.positions, -1).amax(dim=-1) + 1
        return after if after.ndim == 1 else after.amax(dim=0)

    def append(self, k: Tensor, v: Tensor, positions: Tensor, valid: Tensor | None = None) -> CachedTokens:
        """Add tokens (k, v [B, H, S, D], positions [B, S]) and return all tokens that their queries may attend to.

        A sliding cache drops old tokens after this result is built, so the result may exceed its capacity.
        """
        batch, _, new, _ = k.shape
        positions = positions.expand(*positions.shape[:-2], batch, new)
        self.padded = self.padded or valid is not None
        valid = torch.ones(batch, new, dtype=torch.bool, device=k.device) if valid is None else valid
        if self.kind == "static" and self.size + new > self.capacity:  # type: ignore[operator]  # required for static
            rule = f"holds at most {self.capacity} tokens; give it more capacity or use kind='growing'"
            raise RopeError("cache", rule, self.size + new)
        self._reserve(self.size + new, CachedTokens(k, v, positions, valid))
        for buffer, added in zip(self._buffers, (k, v, positions, valid), strict=True):  # type: ignore[arg-type]  # reserved above
            _tokens(buffer, self.size, new).copy_(added)
        self.size += new
        seen = self.seen
        if self.kind == "sliding" and self.size > self.capacity:  # type: ignore[operator]
            self.evict(self.sinks, self.sinks + self.size - self.capacity)  # type: ignore[operator]
        return seen

    def _reserve(self, needed: int, like: CachedTokens) -> None:
        """Allocate buffers for at least `needed` tokens; their dtypes and other sizes are those of `like`."""
        allocated = 0 if self._buffers is None else self._buffers.positions.shape[-1]
        if needed <= allocated:
            return
        allocated = self.capacity if self.kind == "static" and self.capacity else max(needed, 2 * allocated)

        def empty(t: Tensor) -> Tensor:
            return t.new_zeros([*t.shape[:-2], allocated, t.shape[-1]] if t.ndim == 4 else [*t.shape[:-1], allocated])

        buffers = CachedTokens(*(empty(t) for t in like))
        if self.size:
            for buffer, old in zip(buffers, self.seen, strict=True):
                _tokens(buffer, 0, self.size).copy_(old)
        self._buffers = buffers

    def evict(self, start: int, stop: int) -> None:
        """Remove the tokens with index start ... stop - 1; the others keep their positions."""
        integer("start", start, low=0, high=self.size)
        integer("stop", stop, low=start, high=self.size)
        keep = [*range(start), *range(stop, self.size)]
        index = torch.tensor(keep, dtype=torch.int64, device=self.seen.positions.device)  # int64 even if empty
        self._buffers = CachedTokens(*(t.index_select(_token_dim(t), index) for t in self.seen))
        self.size = len(keep)

    def rollback(self, tokens: int) -> None:
        """Remove the latest `tokens` tokens, as after a rejected draft."""
        self.size -= integer("tokens", tokens, low=0, high=self.size)

    def reorder(self, rows: Tensor) -> None:
        """Select rows by index, as beam search does."""
        self._buffers = CachedTokens(*(t.index_select(-2 if t.ndim == 3 else 0, rows) for t in self.seen))

    def move(self, positions: Tensor, encoding: Encoding, to: Encoding | None = None, **lengths: int | Tensor | None) -> None:
        """Give every token a new position, and rotate by the encoding `to` if given; keys are re-rotated, not recomputed."""
        seen = self.seen
        positions = positions.expand_as(seen.positions).contiguous()
        if self.keeps_rotated(encoding) and isinstance(encoding, Rotary):
            target = to.rope if isinstance(to, Rotary) else None
            k = encoding.rope.rerotate(seen.k, seen.positions, positions, target, match_magnitude=True, **lengths)
        else:
            k = seen.k
        self._buffers = CachedTokens(k, seen.v, positions, seen.valid)

    def shift(self, by: int | Tensor, encoding: Encoding) -> None:
        """Add `by` (an int, or [B]) to every position: the context shift after an eviction."""
        by = by.unsqueeze(-1) if isinstance(by, Tensor) and by.ndim else by
        self.move(self.seen.positions + by, encoding)

    def compact(self, encoding: Encoding) -> None:
        """Close the gaps after an eviction: the tokens of each row get positions 0, 1, 2 ... again."""
        self.move(left_padded(self.seen.valid), encoding)

    def rescale(self, encoding: Encoding, to: Encoding, **lengths: int | Tensor | None) -> None:
        """Re-rotate the keys with another scaling or base; the positions stay."""
        self.move(self.seen.positions, encoding, to, **lengths)

    def extend(self, other: CachedTokens, positions: Tensor, encoding: Encoding) -> None:
        """Append the contents of another cache at new positions, without running the model again."""
        k = other.k
        if self.keeps_rotated(encoding) and isinstance(encoding, Rotary):
            k = encoding.rope.rerotate(k, other.positions, positions.expand_as(other.positions).contiguous())
        self.append(k, other.v, positions, other.valid)
