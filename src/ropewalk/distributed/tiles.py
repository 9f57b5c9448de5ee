"""One tile of queries and keys: who sees whom, its part of the softmax, and how two parts become one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.encodings.base import Encoding

#: bias(q, q_positions, k_positions), broadcastable to [B, H, Sq, Sk]
Bias = Callable[[Tensor, Tensor, Tensor], Tensor | None]
#: queries, and keys, whose scores exist at one time
TILE = 1024
#: with more runs than these, indices are given in no order worth following
MOST_RUNS = 8


class Span(NamedTuple):
    """A run of tokens on a rank, and the first and last of their indices in the whole sequence."""

    here: slice
    first: int
    last: int


def spans(indices: Tensor, tile: int) -> list[Span]:
    """A rank's tokens cut into tiles; a tile ends early where the indices jump, as between head and tail."""
    starts = [0, *((indices.diff() != 1).nonzero().flatten() + 1).tolist(), len(indices)]
    runs = pairwise(starts) if len(starts) <= MOST_RUNS + 1 else [(0, len(indices))]
    cuts = [slice(a, min(a + tile, end)) for start, end in runs for a in range(start, end, tile)]
    return [Span(cut, int(indices[cut].min()), int(indices[cut].max())) for cut in cuts]


@dataclass(frozen=True, eq=False)
class Rule:
    """How scores are made and whom a query sees by its index."""

    bias: Encoding | Bias | None
    scale: float
    causal: bool
    window: int | None

    def hides(self, q: Span, k: Span) -> bool:
        """Whether no query of one tile sees any key of the other."""
        if self.causal and k.first > q.last:
            return True
        return self.window is not None and (q.first - k.last >= self.window or k.first - q.last >= self.window)

    def allowed(self, q: Span, k: Span, q_index: Tensor, k_index: Tensor, device: torch.device) -> Tensor | None:
        """[Sq, Sk], True = may look; None where every query sees every key."""
        some_ahead = self.causal and k.last > q.first
        some_far = self.window is not None and max(q.last - k.first, k.last - q.first) >= self.window
        if not some_ahead and not some_far:
            return None
        ahead = k_index.to(device)[None, :] - q_index.to(device)[:, None]
        seen = ahead <= 0 if self.causal else torch.ones_like(ahead, dtype=torch.bool)
        return seen if self.window is None else seen & (ahead.abs() < self.window)


def bias_of(encoding: Encoding | Bias | None) -> Encoding | Bias | None:
    """The encoding if it has a score door, nothing if it has none."""
    if not isinstance(encoding, Encoding):
        return encoding
    kind = type(encoding)
    quiet = kind.bias is Encoding.bias and kind.value_bias is Encoding.value_bias
    return None if quiet else encoding


class Tile(NamedTuple):
    """Some queries and some keys: q [B, H, Sq, D], k, v [B, Hk, Sk, D], allowed broadcastable to [B, H, Sq, Sk]."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    allowed: Tensor | None = None


def attend_tile(rule: Rule, tile: Tile) -> tuple[Tensor, Tensor]:
    """The softmax over this tile's keys alone [B, H, Sq, D], and the log of its sum [B, H, Sq]; nothing seen: 0 and -inf."""
    q, k, v, q_positions, k_positions, allowed = tile
    grouped = k.shape[1], q.shape[1] // k.shape[1]
    scores = (q.unflatten(1, grouped) @ k.unsqueeze(2).mT).flatten(1, 2) * rule.scale
    of_encoding = isinstance(rule.bias, Encoding)
    if rule.bias is not None:
        bias = (rule.bias.bias if of_encoding else rule.bias)(q, q_positions, k_positions)  # type: ignore[union-attr, operator]
        scores = scores if bias is None else scores + bias.to(scores.dtype)
    blind = None
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
        # the softmax of a row of -inf is NaN, and so is its gradient
        blind = (scores == -math.inf).all(dim=-1, keepdim=True)
        scores = scores.masked_fill(blind, 0.0)
    log_sum = scores.logsumexp(dim=-1, keepdim=True)
    weights = (scores - log_sum).exp()
    if blind is not None:
        weights, log_sum = weights.masked_fill(blind, 0.0), log_sum.masked_fill(blind, -math.inf)
    out = (weights.unflatten(1, grouped) @ v.unsqueeze(2)).flatten(1, 2)
    beside = rule.bias.value_bias(weights, q_positions, k_positions) if of_encoding else None  # type: ignore[union-attr]
    return out if beside is None else out + beside.to(out.dtype), log_sum.squeeze(-1)


def merge(out: Tensor, log_sum: Tensor, part: Tensor, part_log_sum: Tensor) -> None:
    """Take a part into `out` and `log_sum`, in place: each weighs by its share of the common sum."""
    together = torch.logaddexp(log_sum, part_log_sum)
    finite = together.masked_fill(together == -math.inf, 0.0)  # both saw nothing: shares of 0, not NaN
    shares = [(each - finite).exp().unsqueeze(-1) for each in (log_sum, part_log_sum)]
    out.mul_(shares[0]).add_(part * shares[1])
    log_sum.copy_(together)
