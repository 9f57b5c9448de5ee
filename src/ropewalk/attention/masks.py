"""Who may look at whom: causality, window, documents, padding and the caller's own mask, as one additive or boolean mask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer


@dataclass(frozen=True, eq=False)
class Visibility:
    """The rules of one call. `offset` keys came before the first query, so causality is right with a cache.

    `window` counts how many keys, itself included, a query sees to the left (and to the right where not causal).
    `padding` [B, Sk] is True for real keys; `documents` are the [B, S] numbers of packed documents;
    `mask` is the caller's own: boolean, True = may look, or float to be added; broadcastable to [B, H, Sq, Sk].
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
        if self.padding is not None and self.padding.dtype != torch.bool:
            raise RopeError("padding", "must be boolean [batch, keys], True for real tokens", self.padding.dtype)
        if self.mask is not None and self.mask.dtype != torch.bool and not self.mask.is_floating_point():
            raise RopeError("mask", "must be boolean (True = may look) or float (added to the scores)", self.mask.dtype)

    @property
    def only_causal(self) -> bool:
        """Nothing but causality: backends have a flag for that."""
        return self.causal and all(x is None for x in (self.window, self.padding, self.q_documents, self.mask))

    def allowed(self, q_len: int, k_len: int, device: torch.device) -> Tensor | None:
        """Boolean, broadcastable to [B, H, Sq, Sk], True = may look; None if all may."""
        rules = []
        if self.causal or self.window is not None:
            queries = torch.arange(q_len, device=device)[:, None] + self.offset
            ahead = torch.arange(k_len, device=device)[None, :] - queries  # key - query
            if self.causal:
                rules.append(ahead <= 0)
            if self.window is not None:
                rules.append(ahead.abs() < self.window)
        if self.padding is not None:
            rules.append(self.padding[:, None, None, :])
        if self.q_documents is not None and self.k_documents is not None:
            rules.append((self.q_documents[:, :, None] == self.k_documents[:, None, :])[:, None])
        if self.mask is not None and self.mask.dtype == torch.bool:
            rules.append(self.mask)
        allowed = None
        for rule in rules:
            allowed = rule if allowed is None else allowed & rule
        return allowed

    @property
    def added(self) -> Tensor | None:
        """The caller's float mask."""
        return self.mask if self.mask is not None and self.mask.is_floating_point() else None
