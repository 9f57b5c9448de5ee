"""Visibility: which keys a query may attend to, by causality, window, documents, padding, a band
and the caller's mask.

Documents are packed sequences: a query attends only to its own one. A band belongs to attention
that is computed in pieces. Tokens are put into groups, such as chunks, and the band of a piece
holds the pairs of tokens whose groups have a certain distance.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.checks import INTEGERS
from ropewalk.errors import RopeError, integer


def check_token_masks(
    batch: int, seq: int, padding: Tensor | None, documents: Tensor | None
) -> None:
    """Raise an error unless padding is boolean and documents are integer, both [batch, seq]; each
    may be None.
    """
    shape = (batch, seq)
    if padding is not None and (padding.shape != shape or padding.dtype != torch.bool):
        rule = f"must be boolean {list(shape)}, True for real tokens"
        raise RopeError("padding", rule, [padding.dtype, list(padding.shape)])
    if documents is not None and (documents.shape != shape or documents.dtype not in INTEGERS):
        rule = f"must be integer {list(shape)}, the document index of every token"
        raise RopeError("documents", rule, [documents.dtype, list(documents.shape)])


def checked_positions(positions: Tensor, batch: int, seq: int, entry: str | None) -> Tensor:
    """Return positions; raise an error unless they are [seq], [batch, seq] or [axes, batch, seq],
    where batch may also be 1.

    entry  where positions enter attention, `Encoding.entry`; None without an encoding. For "input"
           and "scores", positions must be integers on one axis; they are returned as int64, whose
           differences are exact. An encoding that rotates checks dtype and axes itself.
    """
    one_axis = entry in ("input", "scores")
    if not isinstance(positions, Tensor) or (one_axis and positions.dtype not in INTEGERS):
        rule = f"must be an integer tensor {_shapes_of_positions(batch, seq, one_axis)}"
        raise RopeError("positions", rule, getattr(positions, "dtype", type(positions)))
    shape = list(positions.shape)
    if (
        not 1 <= len(shape) <= (2 if one_axis else 3)
        or shape[-1] != seq
        or (len(shape) > 1 and shape[-2] not in (1, batch))
    ):
        raise RopeError(
            "positions",
            f"must be {_shapes_of_positions(batch, seq, one_axis)} for these tokens",
            shape,
        )
    return positions.to(torch.int64) if one_axis else positions


def _shapes_of_positions(batch: int, seq: int, one_axis: bool) -> str:
    """Return the accepted shapes of positions, for an error message."""
    return (
        f"[{seq}] or [{batch}, {seq}]"
        if one_axis
        else f"[{seq}], [{batch}, {seq}] or [axes, {batch}, {seq}]"
    )


def part_of_scores(t: Tensor, start: int, stop: int, first_key: int, stop_key: int) -> Tensor:
    """Return the part of `t`, which broadcasts to [B, H, Sq, Sk], for queries start ... stop - 1
    and keys first_key ... stop_key - 1.
    """
    # an axis of size 1, or an absent one, is for all queries or keys
    t = t if t.ndim == 0 or t.shape[-1] == 1 else t[..., first_key:stop_key]
    return t if t.ndim < 2 or t.shape[-2] == 1 else t[..., start:stop, :]


@dataclass(frozen=True, eq=False)
class Band:
    """The (query, key) pairs with low <= q_group - k_group < high; None: no such bound.

    q_group, k_group  integers [S] or [B, S]: the group of each query and key, such as its chunk
    """

    q_group: Tensor
    k_group: Tensor
    low: int | None = None
    high: int | None = None

    def contains(self, difference: Tensor) -> Tensor:
        """Return where a difference of groups, q_group - k_group, is inside the band."""
        above = (
            torch.ones_like(difference, dtype=torch.bool)
            if self.low is None
            else difference >= self.low
        )
        return above if self.high is None else above & (difference < self.high)

    def allowed(self) -> Tensor:
        """Return which (query, key) pairs are in the band, as a boolean mask: [Sq, Sk], or [B, 1,
        Sq, Sk] if q_group or k_group is [B, S].
        """
        allowed = self.contains(self.q_group.unsqueeze(-1) - self.k_group.unsqueeze(-2))
        return allowed if allowed.ndim == 2 else allowed.unsqueeze(1)

    def at(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return whether query q of row b and key k are inside the band; all three are index
        tensors.
        """
        q_group = self.q_group[q] if self.q_group.ndim == 1 else self.q_group[b, q]
        k_group = self.k_group[k] if self.k_group.ndim == 1 else self.k_group[b, k]
        return self.contains(q_group - k_group)


@dataclass(frozen=True, eq=False)
class Visibility:
    """The masking of one attention call.

    window       how many keys a query attends to, its own and those on its left (and as many on its
                 right if not causal), counted in the row: padding and tokens of other documents
                 count too
    padding      [B, Sk], True for real keys
    q_documents  [B, Sq], the document index of each query in a packed row; `k_documents` [B, Sk]
                 that of each key
    mask         the caller's own, broadcastable to [B, H, Sq, Sk]: boolean (True = attend), or
                 float to add to the scores
    offset       number of cached keys before the first query; causality and window take it into
                 account
    band         for attention computed in pieces (remappings): the pairs of tokens of one piece
    """

    causal: bool = False
    window: int | None = None
    padding: Tensor | None = None
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    mask: Tensor | None = None
    offset: int = 0
    band: Band | None = None

    def __post_init__(self) -> None:
        if self.window is not None:
            integer("window", self.window, low=1)
        if (
            self.mask is not None
            and self.mask.dtype != torch.bool
            and not self.mask.is_floating_point()
        ):
            raise RopeError(
                "mask",
                "must be boolean (True = attend) or float (added to the scores)",
                self.mask.dtype,
            )

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only mask; then backends need no mask tensor if no keys are
        cached.
        """
        return self.causal and all(
            x is None for x in (self.window, self.padding, self.q_documents, self.mask, self.band)
        )

    def allowed(self, q_len: int, k_len: int, device: torch.device) -> Tensor | None:
        """Return the boolean mask, broadcastable to [B, H, Sq, Sk], True = attend; None if there is
        none. A float `mask`, which is added to scores, is not part of it.
        """
        masks = []
        if self.causal or self.window is not None:
            queries = torch.arange(q_len, device=device)[:, None] + self.offset
            k_minus_q = torch.arange(k_len, device=device)[None, :] - queries
            if self.causal:
                masks.append(k_minus_q <= 0)
            if self.window is not None:
                masks.append(k_minus_q.abs() < self.window)
        if self.padding is not None:
            masks.append(self.padding[:, None, None, :])
        if self.q_documents is not None and self.k_documents is not None:
            masks.append((self.q_documents[:, :, None] == self.k_documents[:, None, :])[:, None])
        if self.mask is not None and self.mask.dtype == torch.bool:
            masks.append(self.mask)
        if self.band is not None:
            masks.append(self.band.allowed())
        return functools.reduce(torch.logical_and, masks) if masks else None

    @property
    def added(self) -> Tensor | None:
        """The caller's mask if it is a float one, else None."""
        return self.mask if self.mask is not None and self.mask.is_floating_point() else None

    def part(self, start: int, stop: int, first_key: int, stop_key: int) -> Visibility:
        """Return the masking of queries start ... stop - 1 and keys first_key ... stop_key - 1. Its
        `offset` is the index of the first of these queries minus that of the first of these keys.
        """
        band, keys = self.band, slice(first_key, stop_key)
        if band is not None:
            band = replace(
                band, q_group=band.q_group[..., start:stop], k_group=band.k_group[..., keys]
            )
        return replace(
            self,
            padding=None if self.padding is None else self.padding[:, keys],
            q_documents=None if self.q_documents is None else self.q_documents[:, start:stop],
            k_documents=None if self.k_documents is None else self.k_documents[:, keys],
            mask=None
            if self.mask is None
            else part_of_scores(self.mask, start, stop, first_key, stop_key),
            offset=self.offset + start - first_key,
            band=band,
        )

    def at(self, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Return whether query q of head h and row b attends to key k; all four are index tensors,
        as in FlexAttention.
        """
        k_minus_q = k - q - self.offset
        # without causality a comparison that is always true, as a tensor of the right shape
        allowed = k_minus_q <= 0 if self.causal else k_minus_q == k_minus_q
        if self.window is not None:
            allowed = allowed & (k_minus_q.abs() < self.window)
        if self.padding is not None:
            allowed = allowed & self.padding[b, k]
        if self.q_documents is not None and self.k_documents is not None:
            allowed = allowed & (self.q_documents[b, q] == self.k_documents[b, k])
        if self.mask is not None:  # boolean, expanded to [B, H, Sq, Sk] by `flex.run`
            allowed = allowed & self.mask[b, h, q, k]
        return allowed if self.band is None else allowed & self.band.at(b, q, k)
