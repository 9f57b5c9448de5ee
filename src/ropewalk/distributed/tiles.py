"""Attention of one tile of queries to one tile of keys, and the exact merge of two partial
results.

The index of a token is its place in the whole sequence, which causality and window use; positions
are used by a bias only.
"""

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
#: by default, the most queries in one tile, and the most keys
TILE = 1024
#: tiles end at jumps between indices only if a rank's tokens form at most this many runs of
#: consecutive indices
MAX_RUNS = 8


class Span(NamedTuple):
    """A slice of a rank's tokens, and the smallest and largest of their indices in the whole
    sequence.
    """

    local: slice
    first: int
    last: int


def runs_of(indices: Tensor) -> list[tuple[int, int]]:
    """Return (start, end) of every run of consecutive indices, as places in `indices`, end
    exclusive; of no indices one empty run, (0, 0).
    """
    starts_after_jumps = (indices.diff() != 1).nonzero().flatten() + 1
    return list(pairwise([0, *starts_after_jumps.tolist(), len(indices)]))


def spans(indices: Tensor, tile: int) -> list[Span]:
    """Return a rank's tokens divided into tiles of at most `tile` tokens.

    If the tokens form at most MAX_RUNS runs of consecutive indices (head_tail shards form two), a
    tile also ends at the end of a run.
    """
    runs = runs_of(indices)
    # more runs, as of scattered tokens, would give tiny tiles
    runs = runs if len(runs) <= MAX_RUNS else [(0, len(indices))]
    slices = [
        slice(first, min(first + tile, end))
        for start, end in runs
        for first in range(start, end, tile)
    ]
    return [Span(local, int(indices[local].min()), int(indices[local].max())) for local in slices]


@dataclass(frozen=True, eq=False)
class Masking:
    """How scores are computed, and which keys a query attends to, given their indices in the
    sequence.

    bias    adds terms to the scores, an Encoding also to the output; None: nothing is added
    scale   the factor on the scores before that
    window  a query attends to keys fewer than `window` indices away on either side; None: to all
    """

    bias: Encoding | Bias | None
    scale: float
    causal: bool
    window: int | None

    def hides(self, q: Span, k: Span) -> bool:
        """Return True if causality or the window hides every key of tile `k` from every query of
        tile `q`, judged by the first and the last index of each tile.
        """
        if self.causal and k.first > q.last:
            return True
        return self.window is not None and (
            q.first - k.last >= self.window or k.first - q.last >= self.window
        )

    def allowed(
        self, q: Span, k: Span, q_index: Tensor, k_index: Tensor, device: torch.device
    ) -> Tensor | None:
        """Return the boolean mask [Sq, Sk] of causality and window, True = attend; None if they
        hide no key of the tile from any query. q_index and k_index are the indices of the tokens of
        the spans q and k.
        """
        has_later_keys = self.causal and k.last > q.first
        has_far_keys = (
            self.window is not None and max(q.last - k.first, k.last - q.first) >= self.window
        )
        if not has_later_keys and not has_far_keys:
            return None
        k_minus_q = k_index.to(device)[None, :] - q_index.to(device)[:, None]
        allowed = k_minus_q <= 0 if self.causal else torch.ones_like(k_minus_q, dtype=torch.bool)
        return allowed if self.window is None else allowed & (k_minus_q.abs() < self.window)


def bias_of(encoding: Encoding | Bias | None) -> Encoding | Bias | None:
    """Return `encoding`, or None if it is an Encoding that adds nothing to scores and outputs."""
    if not isinstance(encoding, Encoding):
        return encoding
    cls = type(encoding)
    adds_nothing = cls.bias is Encoding.bias and cls.value_bias is Encoding.value_bias
    return None if adds_nothing else encoding


class Tile(NamedTuple):
    """One tile of queries and one of keys: q [B, H, Sq, D], k, v [B, Hk, Sk, D]; without a bias the
    positions are None.

    `allowed`, broadcastable to [B, H, Sq, Sk], is True where a query may attend to a key; None: all
    may attend to all.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    allowed: Tensor | None = None


def attend_tile(masking: Masking, tile: Tile) -> tuple[Tensor, Tensor]:
    """Return the attention output over this tile's keys [B, H, Sq, D], and the log-sum-exp of the
    scores [B, H, Sq].

    A query that may attend to no key of the tile has output 0 and log-sum-exp -inf.
    """
    q, k, v, q_positions, k_positions, allowed = tile
    # key heads, and the query heads that share each of them
    grouped = (
        k.shape[1],
        q.shape[1] // k.shape[1],
    )
    scores = (q.unflatten(1, grouped) @ k.unsqueeze(2).mT).flatten(1, 2) * masking.scale
    encoding = masking.bias if isinstance(masking.bias, Encoding) else None
    bias_function = masking.bias if encoding is None else encoding.bias
    if bias_function is not None:
        bias = bias_function(q, q_positions, k_positions)  # type: ignore[operator]
        scores = scores if bias is None else scores + bias.to(scores.dtype)
    empty = None
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
        # the softmax of a row of -inf is NaN, and so is its gradient
        empty = (scores == -math.inf).all(dim=-1, keepdim=True)
        scores = scores.masked_fill(empty, 0.0)
    log_sum = scores.logsumexp(dim=-1, keepdim=True)
    weights = (scores - log_sum).exp()
    if empty is not None:
        weights, log_sum = weights.masked_fill(empty, 0.0), log_sum.masked_fill(empty, -math.inf)
    out = (weights.unflatten(1, grouped) @ v.unsqueeze(2)).flatten(1, 2)
    # a term that some encodings add to the output
    value_term = (
        None if encoding is None else encoding.value_bias(weights, q_positions, k_positions)  # type: ignore
    )  # type: ignore[arg-type]
    return out if value_term is None else out + value_term.to(out.dtype), log_sum.squeeze(-1)


def merge(out: Tensor, log_sum: Tensor, part: Tensor, part_log_sum: Tensor) -> None:
    """Merge the attention over further keys, `part` and its log-sum-exp, into `out` [B, H, Sq, D]
    and `log_sum` [B, H, Sq], in place.
    """
    total = torch.logaddexp(log_sum, part_log_sum)
    # if neither has keys, both shares are 0, not NaN
    finite = total.masked_fill(total == -math.inf, 0.0)
    shares = [(each - finite).exp().unsqueeze(-1) for each in (log_sum, part_log_sum)]
    out.mul_(shares[0]).add_(part * shares[1])
    log_sum.copy_(total)
