"""The definition of attention over a band of (query, key) pairs in plain torch, with all scores in
memory.

Calls that the kernel does not support are computed by `ropewalk.attention.lse`, a block of queries
at a time.

A BandedCall has q [B, H, Sq, D], k and v [B, Hk, Sk, ...], and which keys a query sees: `causal`,
those up to its own index plus `offset`; `low` and `high`, those with low <= q_group - k_group <
high, where each token has a group and None is no bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.kernels.banded_attention.api import BandedCall


def run(call: BandedCall) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, Sq, Dv] and the log-sum-exp [B, H, Sq]; a query without keys has 0
    and -inf. `call.ranges` is not used: it only says which keys the kernel may skip.
    """
    dtype = torch.promote_types(call.q.dtype, torch.float32)
    shared = call.q.shape[1] // call.k.shape[1]  # query heads of one key head
    k, v = (t.to(dtype).repeat_interleave(shared, dim=1) for t in (call.k, call.v))
    scores = call.scale * (call.q.to(dtype) @ k.mT)  # [B, H, Sq, Sk]
    query, key = (torch.arange(n, device=k.device) for n in scores.shape[-2:])
    seen = torch.ones_like(scores, dtype=torch.bool)
    if call.causal:
        seen = seen & (key <= query[:, None] + call.offset)
    # [1 or B, 1, Sq, Sk]
    difference = (call.q_group[..., :, None] - call.k_group[..., None, :]).unsqueeze(-3)
    if call.low is not None:
        seen = seen & (difference >= call.low)
    if call.high is not None:
        seen = seen & (difference < call.high)
    scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(dim=-1).nan_to_num(0.0)  # a query without keys has NaN
    return weights @ v, scores.logsumexp(dim=-1)
