"""Visibility: which keys a query may attend to, by causality, window, documents, padding and the caller's mask."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer


def check_token_masks(batch: int, seq: int, padding: Tensor | None, documents: Tensor | None) -> None:
    """Raise an error unless padding and documents are [batch, seq], boolean and integer."""
    shape = (batch, seq)
    if padding is not None and (padding.shape != shape or padding.dtype != torch.bool):
        rule = f"must be boolean {list(shape)}, True for real tokens"
        raise RopeError("padding", rule, [padding.dtype, list(padding.shape)])
    if documents is not None and (documents.shape != shape or documents.is_floating_point() or documents.is_complex()):
        rule = f"must be integer {list(shape)}, the document index of every token"
        raise RopeError("documents", rule, [documents.dtype, list(documents.shape)])


@dataclass(frozen=True, eq=False)
class Visibility:
    """The masking of one attention call.

    window     how many keys a query attends to, itself included, on its left (and as many on its right if not causal)
    padding    [B, Sk], True for real keys
    documents  [B, S], the document index of each token in a packed row
    mask       the caller's own, broadcastable to [B, H, Sq, Sk]: boolean (True = attend), or float to add to the scores
    offset     number of cached keys before the first query; causality and window take it into account
    """

    causal: bool = False
    window: int | None = None
    padding: Tensor | None = None
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    mask: Tensor | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        if self.window is not None:
            integer("window", self.window, low=1)
        if self.mask is not None and self.mask.dtype != torch.bool and not self.mask.is_floating_point():
            raise RopeError("mask", "must be boolean (True = attend) or float (added to the scores)", self.mask.dtype)

    @property
    def only_causal(self) -> bool:
        """Whether causality is the only mask; then backends can use their is_causal flag instead of a mask tensor."""
        return self.causal and all(x is None for x in (self.window, self.padding, self.q_documents, self.mask))

    def allowed(self, q_len: int, k_len: int, device: torch.device) -> Tensor | None:
        """Return the boolean mask, broadcastable to [B, H, Sq, Sk], True = attend; None if nothing is masked."""
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
        return functools.reduce(torch.logical_and, masks) if masks else None

    @property
    def added(self) -> Tensor | None:
        """The caller's mask if it is a float one, else None."""
        return self.mask if self.mask is not None and self.mask.is_floating_point() else None
