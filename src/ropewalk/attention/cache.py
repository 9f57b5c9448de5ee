"""KVCache: keys and values with the position of each token, so that they can be shifted, evicted,
reused and re-scaled exactly.

Real tokens are those that are not padding. A token's index is its place among the cached tokens, in
order of arrival, which causality uses; its position is what the rotation uses. By default keys are
stored rotated, unless the frequencies depend on the length of the sequence or the layer has a
remapping. The buffers of a cache may have room for more tokens than it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.encodings.base import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer
from ropewalk.positions import left_padded


class CachedTokens(NamedTuple):
    """The contents of a cache: k, v [B, H, N, D], positions [B, N] or [axes, B, N], valid [B, N]
    (False for padding).
    """

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


def _sizes(t: Tensor) -> list[int]:
    """Return the shape of `t` without its token axis."""
    return [*t.shape[: _token_dim(t)], *t.shape[t.ndim + _token_dim(t) + 1 :]]


class KVCache:
    """The key-value cache of one attention layer; `kind` is one of three:

    growing   doubles its memory as needed
    static    holds at most `capacity` tokens and raises an error for more
    sliding   keeps the first `sinks` real tokens of each row and the latest tokens, `capacity` in
              all

    `rotated` says whether it stores keys after the rotation; None: yes, unless the frequencies
    depend on the length or the layer has a remapping.
    """

    def __init__(
        self,
        kind: str = "growing",
        capacity: int | None = None,
        sinks: int = 0,
        rotated: bool | None = None,
    ) -> None:
        """Create an empty cache. A growing one has no limit, a static one raises an error beyond
        `capacity` tokens, a sliding one drops the oldest.
        """
        self.kind = choice("kind", kind, ("growing", "static", "sliding"))
        if kind != "growing" and capacity is None:
            raise RopeError("capacity", f"must be given for a {kind} cache", capacity)
        if kind == "growing" and capacity is not None:
            rule = "must be None for a growing cache, which has no limit; use 'static' or 'sliding'"
            raise RopeError("capacity", rule, capacity)
        self.capacity = None if capacity is None else integer("capacity", capacity, low=1)
        # how many of each row's first real tokens a sliding cache keeps
        self.sinks = integer("sinks", sinks, low=0)
        if self.sinks and (kind != "sliding" or self.sinks >= (capacity or 0)):
            raise RopeError(
                "sinks", "must be 0 unless kind='sliding', and then less than capacity", sinks
            )
        # whether keys are stored after the rotation; None: not decided yet, the first call decides
        self.rotated = rotated
        #: whether any token may be padding; if not, attention needs no padding mask
        self.padded = False
        # how many tokens are cached; the buffers may have room for more
        self.size = 0
        self._buffers: CachedTokens | None = None

    def __len__(self) -> int:
        return self.size

    def keeps_rotated(self, encoding: Encoding) -> bool:
        """Return whether keys are stored rotated. If `rotated` is None, set it: to True, unless the
        encoding's frequencies depend on the length. A layer with a remapping sets `rotated` to
        False itself.
        """
        if self.rotated is None:
            self.rotated = not (isinstance(encoding, Rotary) and encoding.rope.spec.needs_length)
        return self.rotated

    def _holds_rotations(self, encoding: Encoding, name: str = "encoding") -> bool:
        """Return whether the stored keys are rotated, so that new positions need a new rotation.
        Raise an error if they contain their positions in another way, which cannot be undone;
        `name` is what the error calls the encoding.
        """
        # an encoding with another entry point than q and k does not change keys
        if not self.keeps_rotated(encoding) or encoding.entry != "qk":
            return False
        if not isinstance(encoding, Rotary):
            rule = (
                "must rotate, so that its keys can be moved; for this one use "
                "KVCache(rotated=False)"
            )
            raise RopeError(name, rule, type(encoding).__name__)
        return True

    @contextmanager
    def unchanged_on_error(self) -> Iterator[None]:
        """Undo what was appended in this context if it ends with an error."""
        # the cached tokens are still there: `append` writes after them or makes new buffers
        before = self.size, self._buffers, self.padded, self.rotated
        try:
            yield
        except BaseException:
            self.size, self._buffers, self.padded, self.rotated = before
            raise

    @property
    def seen(self) -> CachedTokens:
        """All cached tokens, as views."""
        if self._buffers is None:
            raise RopeError("cache", "is empty: append to it first", self.size)
        return CachedTokens(*(_tokens(t, 0, self.size) for t in self._buffers))

    @property
    def next_positions(self) -> Tensor | int:
        """The position of each row's next token, [B]: 1 + the largest position of its real tokens,
        or 0 if it has none. The number 0 if the cache is empty.
        """
        if not self.size:
            return 0
        seen, lowest = self.seen, -(2**62)  # below every position
        last = torch.where(seen.valid, seen.positions, lowest).amax(dim=-1)
        last = last if last.ndim == 1 else last.amax(dim=0)  # [axes, B]: the largest of all axes
        return torch.where(last > lowest, last + 1, 0)

    def append(
        self, k: Tensor, v: Tensor, positions: Tensor, valid: Tensor | None = None
    ) -> CachedTokens:
        """Add tokens (k, v [B, H, S, D], positions [S], [B, S] or [axes, B, S]) and return all
        cached tokens, these included. `valid` [B, S] is False for padding; None: all are real.

        A sliding cache drops old tokens after this result is built, so the result may exceed its
        capacity.
        """
        added, count = self._checked(k, v, positions, valid), k.shape[-2]
        # a static cache has a capacity
        if self.kind == "static" and self.size + count > self.capacity:  # type: ignore[operator]
            rule = (
                f"holds at most {self.capacity} tokens; give it more capacity or use kind='growing'"
            )
            raise RopeError("cache", rule, self.size + count)
        self.padded = self.padded or valid is not None
        self._store(added, count)
        self.size += count
        seen = self.seen
        if self.kind == "sliding" and self.size > self.capacity:  # type: ignore[operator]
            self._slide()
        return seen

    def _checked(
        self, k: Tensor, v: Tensor, positions: Tensor, valid: Tensor | None
    ) -> CachedTokens:
        """Return the new tokens, with positions and `valid` for every row; raise an error if they
        do not fit together or with the cached ones.
        """
        batch, _, new, _ = k.shape
        if v.shape[:-1] != k.shape[:-1]:
            raise RopeError(
                "v",
                f"must have the batch, heads and tokens of k, {list(k.shape[:-1])}",
                list(v.shape),
            )
        if valid is not None and (valid.dtype != torch.bool or valid.shape != (batch, new)):
            rule = f"must be boolean [{batch}, {new}], True for real tokens"
            raise RopeError("valid", rule, [valid.dtype, list(valid.shape)])
        positions = self._checked_positions(positions, batch, new)
        valid = (
            torch.ones(batch, new, dtype=torch.bool, device=k.device) if valid is None else valid
        )
        added = CachedTokens(k, v, positions, valid)
        if self.size:
            # buffers exist from the first token on
            self._check_sizes(added, self._buffers)  # type: ignore[arg-type]
        return added

    @staticmethod
    def _check_sizes(added: CachedTokens, buffers: CachedTokens) -> None:
        """Raise an error unless the new tokens have the sizes of the cached ones; copying would
        broadcast one row to all rows.
        """
        for name, new, old in zip(CachedTokens._fields, added, buffers, strict=True):
            if _sizes(old) != _sizes(new):
                rule = (
                    f"must have the batch and sizes of the cached ones, {_sizes(old)} besides the "
                    "tokens"
                )
                raise RopeError(name, rule, list(new.shape))

    def _checked_positions(self, positions: Tensor, batch: int, tokens: int) -> Tensor:
        """Return positions [B, S] or [axes, B, S], int64 or floating; raise an error if they have
        another shape, or are floating where the cached ones are integers.
        """
        if positions.shape[-1] != tokens or (
            positions.ndim > 1 and positions.shape[-2] not in (1, batch)
        ):
            rule = f"must be [{tokens}], [{batch}, {tokens}] or [axes, {batch}, {tokens}]"
            raise RopeError("positions", rule, list(positions.shape))
        has_integers = self.size and not self.seen.positions.is_floating_point()
        if has_integers and positions.is_floating_point():
            raise RopeError(
                "positions", "must be integers, as the cached ones are", positions.dtype
            )
        positions = positions.expand(*positions.shape[:-2], batch, tokens)
        # int64, because later positions are stored in the dtype of the first ones
        return positions if positions.is_floating_point() else positions.to(torch.int64)

    def _store(self, added: CachedTokens, count: int) -> None:
        """Write `count` tokens after the cached ones; `size` is not changed yet."""
        if not self.size:
            self._buffers = None  # the rows, sizes and dtypes may be others than before
        if any(t.requires_grad for t in (*added, *(self._buffers or ()))):
            # autograd needs the cached keys and values as they were, so new tensors hold the cached
            # and the added tokens, or the added ones alone if the cache is empty
            parts = zip(self.seen, added, strict=True) if self.size else zip(added, strict=True)
            self._buffers = CachedTokens(
                *(torch.cat(part, dim=_token_dim(part[0])) for part in parts)
            )
            return
        self._leave_inference_mode()
        self._reserve(self.size + count, added)
        # `_reserve` has made the buffers
        for buffer, tokens in zip(self._buffers, added, strict=True):  # type: ignore[arg-type]
            _tokens(buffer, self.size, count).copy_(tokens)

    def _leave_inference_mode(self) -> None:
        """Copy buffers that were made in inference mode if it is off, because torch writes to such
        tensors only inside of it.
        """
        # torch.compile cannot trace `is_inference`
        if (
            self._buffers is None
            or torch.compiler.is_compiling()
            or torch.is_inference_mode_enabled()
        ):
            return
        if any(t.is_inference() for t in self._buffers):
            self._buffers = CachedTokens(*(t.clone() for t in self._buffers))

    def _reserve(self, needed: int, like: CachedTokens) -> None:
        """Make room for `needed` tokens: leave the buffers as they are if they are large enough,
        otherwise copy the cached tokens to larger ones, whose dtypes and other sizes are those of
        `like`.
        """
        allocated = 0 if self._buffers is None else self._buffers.positions.shape[-1]
        if self._buffers is not None and needed <= allocated:
            return
        # a growing or sliding buffer doubles, so that many short calls copy each token a few times
        # only
        allocated = (
            self.capacity if self.kind == "static" and self.capacity else max(needed, 2 * allocated)
        )

        def zeros(t: Tensor) -> Tensor:
            """Return zeros like t, with `allocated` tokens."""
            return t.new_zeros(
                [*t.shape[:-2], allocated, t.shape[-1]]
                if t.ndim == 4
                else [*t.shape[:-1], allocated]
            )

        buffers = CachedTokens(*(zeros(t) for t in like))
        if self.size:
            for buffer, old in zip(buffers, self.seen, strict=True):
                _tokens(buffer, 0, self.size).copy_(old)
        self._buffers = buffers

    def _slide(self) -> None:
        """Drop the oldest tokens beyond the capacity, except the first `sinks` real tokens of each
        row.
        """
        capacity: int = self.capacity  # type: ignore[assignment]  # required for sliding
        if not (self.sinks and self.padded):
            # without sinks, or without padding before them, all rows drop the same places
            self.evict(self.sinks, self.sinks + self.size - capacity)
            return
        valid = self.seen.valid
        sinks = valid & (valid.cumsum(dim=-1) <= self.sinks)
        # the latest tokens have the largest numbers; adding `size` puts the sinks above all others
        order = torch.arange(self.size, device=valid.device) + sinks * self.size
        kept = order.topk(capacity, dim=-1).indices.sort(dim=-1).values  # [B, capacity]
        # by number of axes: 2 for positions and valid, 3 for positions on several axes, 4 for k and
        # v
        index = {
            2: kept,
            3: kept[None],
            4: kept[:, None, :, None],
        }
        self._buffers = CachedTokens(
            *(t.take_along_dim(index[t.ndim], dim=_token_dim(t)) for t in self.seen)
        )
        self.size = capacity

    def evict(self, start: int, stop: int) -> None:
        """Remove the tokens with index start ... stop - 1; the others keep their positions."""
        integer("start", start, low=0, high=self.size)
        integer("stop", stop, low=start, high=self.size)
        keep = [*range(start), *range(stop, self.size)]
        # int64 even if empty
        index = torch.tensor(keep, dtype=torch.int64, device=self.seen.positions.device)
        self._buffers = CachedTokens(*(t.index_select(_token_dim(t), index) for t in self.seen))
        self.size = len(keep)

    def rollback(self, tokens: int) -> None:
        """Remove the latest `tokens` tokens, as after a rejected draft; tokens that a sliding cache
        dropped do not come back.
        """
        self.size -= integer("tokens", tokens, low=0, high=self.size)

    def reorder(self, rows: Tensor) -> None:
        """Replace the batch rows by those with the indices `rows`, as beam search does."""
        self._buffers = CachedTokens(
            # [axes, B, N] has its rows on axis -2, every other tensor on axis 0
            *(t.index_select(-2 if t.ndim == 3 else 0, rows) for t in self.seen)
        )

    def move(
        self,
        positions: Tensor,
        encoding: Encoding,
        to: Encoding | None = None,
        **lengths: int | Tensor | None,
    ) -> None:
        """Give every token a new position, [N], [B, N] or [axes, B, N]; keys that are stored
        rotated (by `encoding`) are re-rotated, by `to` if given. `lengths` are `from_length` and
        `to_length` of `rotation.rerotate`, for frequencies that depend on the length.
        """
        self._refuse_rerotation(encoding)
        to = encoding if to is None else to
        self._refuse_rerotation(to, "to")
        seen = self.seen
        positions = (
            self._checked_positions(positions, len(seen.valid), self.size)
            .expand_as(seen.positions)
            .contiguous()
        )
        holds_rotations = self._holds_rotations(encoding)
        if self._holds_rotations(to, "to") != holds_rotations:
            rule = (
                "must rotate keys if and only if the encoding of the cached keys does; compute the "
                "keys again"
            )
            raise RopeError("to", rule, type(to).__name__)
        if holds_rotations:
            # an encoding that rotates keys has a rope
            rope, target = encoding.rope, to.rope  # type: ignore[union-attr]
            # keys with a magnitude, such as YaRN's, get that of the target instead
            options: Any = {"match_magnitude": True, **lengths}
            k = rope.rerotate(seen.k, seen.positions, positions, target, **options)  # type: ignore
        else:
            k = seen.k
        self._buffers = CachedTokens(k, seen.v, positions, seen.valid)

    def shift(self, by: int | Tensor, encoding: Encoding) -> None:
        """Add `by` (an integer, or one for each row [B]) to every position: the context shift after
        an eviction. `encoding` is the one by which stored keys are rotated.
        """
        seen = self.seen
        if isinstance(by, Tensor):
            if by.is_floating_point() or by.shape not in ((), (len(seen.valid),)):
                rule = f"must be one integer, or one for each of the {len(seen.valid)} rows"
                raise RopeError("by", rule, [by.dtype, list(by.shape)])
            by = by.unsqueeze(-1) if by.ndim else by
        else:
            integer("by", by, low=-(2**62))  # the upper bound is 2^62 by default
        self.move(seen.positions + by, encoding)

    def compact(self, encoding: Encoding) -> None:
        """Close the gaps after an eviction: the real tokens of each row get positions 0, 1, 2 ...
        again.
        """
        self.move(left_padded(self.seen.valid), encoding)

    def rescale(self, encoding: Encoding, to: Encoding, **lengths: int | Tensor | None) -> None:
        """Re-rotate the keys by the encoding `to`, such as one with another scaling or base; the
        positions stay, and so do keys that are stored unrotated. `lengths` are `from_length` and
        `to_length`, as in `move`.
        """
        self.move(self.seen.positions, encoding, to, **lengths)

    def extend(self, other: KVCache, positions: Tensor, encoding: Encoding) -> None:
        """Append the tokens of another cache at new positions, without running the model again;
        `encoding` is that of the keys of both caches.

        One cache may store its keys rotated and the other not, unless the frequencies depend on the
        length.
        """
        if not isinstance(other, KVCache):
            rule = "must be a KVCache, which knows whether its keys are rotated; pass the cache"
            raise RopeError("other", rule, type(other).__name__)
        self._refuse_rerotation(encoding)
        other._refuse_rerotation(encoding)
        seen = other.seen
        positions = self._checked_positions(positions, len(seen.valid), len(other))
        positions = positions.expand_as(seen.positions).contiguous()
        k = self._keys_from(other, positions, encoding)
        self.append(k, seen.v, positions, seen.valid)

    def _keys_from(self, other: KVCache, positions: Tensor, encoding: Encoding) -> Tensor:
        """Return the keys of another cache as this one stores them (rotated or not), at new
        positions. Raise an error if only one of the two caches rotates its keys and the scaling
        depends on the length.
        """
        k, before = other.seen.k, other.seen.positions
        rotated, wanted = other._holds_rotations(encoding), self._holds_rotations(encoding)
        if rotated == wanted:
            # an encoding that rotates keys has a rope
            return encoding.rope.rerotate(k, before, positions) if wanted else k  # type: ignore
        if isinstance(encoding, Rotary) and encoding.rope.spec.needs_length:
            rule = (
                "must store its keys unrotated, as the other of the two caches does, because the "
                "scaling depends on the length; use KVCache(rotated=False)"
            )
            raise RopeError("other" if rotated else "cache", rule, encoding.rope.spec.scaling)
        if wanted:  # only this cache stores its keys rotated
            return encoding.rotate(k, positions, key=True)
        # only the other cache does: rotate its keys back from their old positions
        return encoding.rope.unrotate(k, before, key=True)  # type: ignore[union-attr, operator]

    def _refuse_rerotation(self, encoding: Encoding, name: str = "encoding") -> None:
        """Raise an error if the cached keys are stored rotated and the encoding cannot move them to
        other positions; `name` is what the error calls the encoding.
        """
        if self.keeps_rotated(encoding) and (reason := encoding.why_not("rerotate")):
            raise RopeError(
                name, f"must allow cached keys to move: {reason}", type(encoding).__name__
            )
