"""The launch of attention over a band of (query, key) pairs: which calls the kernel supports, and
its sizes.

Each token has a number, its group. A band is the set of (query, key) pairs whose groups differ by a
number between two bounds; causality may hide some of these pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.request import COMPUTED_IN_FLOAT32
from ropewalk.kernels.support import shared_memory, tile_width, untyped, why_no_triton

#: queries of one GPU program; a call has one range of keys for each block of ROWS queries
ROWS = 128
#: keys of one step for heads of up to 64 and of up to 128 dimensions; half as many for float32,
#: whose tiles are twice as large
KEYS = {64: 64, 128: 32}
#: the shared memory of a program that computes float32 heads of more than 64 dimensions; consumer
#: GPUs have less
WIDE_FLOAT32_BYTES = 145 << 10


@dataclass(frozen=True, eq=False)
class BandedCall:
    """One call: q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv], and which keys each query
    sees.

    scale     the softmax scale
    ranges    integer [2, blocks]: the first key and the end (exclusive) of the keys of each block
              of ROWS queries
    causal    a query sees only keys up to its own index plus `offset`
    q_group, k_group  integer [1 or B, S], a number for each token: a query sees only keys with low
                      <= q_group - k_group < high; a low or high of None is no bound
    """

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    ranges: Tensor
    causal: bool
    offset: int
    q_group: Tensor
    k_group: Tensor
    low: int | None
    high: int | None


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return why the kernel does not support these tensors, or None if it does."""
    if (reason := why_no_triton(q)) is not None:
        return reason
    if not q.dtype == k.dtype == v.dtype or q.dtype not in COMPUTED_IN_FLOAT32:
        return (
            "the kernel takes q, k and v of one dtype, bfloat16, float16 or float32, not "
            f"{q.dtype}, {k.dtype} and {v.dtype}"
        )
    dims = max(q.shape[-1], v.shape[-1])
    if dims > max(KEYS):
        return (
            f"the kernel takes heads of at most {max(KEYS)} dimensions, these have {q.shape[-1]} "
            f"and {v.shape[-1]}"
        )
    if dims > 64 and q.dtype == torch.float32 and shared_memory(q.device) < WIDE_FLOAT32_BYTES:
        return "this GPU has too little shared memory for float32 heads of more than 64 dimensions"
    if torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)):
        return "the kernel has no backward pass"
    return None


def run(call: BandedCall) -> tuple[Tensor, Tensor]:
    """Return the output [B, H, Sq, Dv] and the log-sum-exp [B, H, Sq], both float32; a query
    without keys has 0 and -inf.
    """
    from ropewalk.kernels.banded_attention.kernel import attend_band

    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (call.q, call.k, call.v))
    (batch, heads, q_len, head_dim), (k_heads, k_len), width = q.shape, k.shape[1:3], v.shape[-1]
    out = torch.empty(batch, heads, q_len, width, dtype=torch.float32, device=q.device)
    lse = torch.empty(batch, heads, q_len, dtype=torch.float32, device=q.device)
    if not q.numel():
        return out, lse
    q_group, k_group = (
        group.reshape(-1, group.shape[-1]).contiguous() for group in (call.q_group, call.k_group)
    )
    blocks = -(-q_len // ROWS)
    # keys of one step; TILES bounds the steps in the interpreter, and the GPU computes their number
    # from `ranges`
    keys = KEYS[64 if max(head_dim, width) <= 64 else 128] // (2 if q.dtype == torch.float32 else 1)
    constants: dict[str, Any] = {
        "GROUP": heads // k_heads,
        "HEAD_DIM": head_dim,
        "DIM_BLOCK": tile_width(head_dim),
        "WIDTH": width,
        "WIDTH_BLOCK": tile_width(width),
        "ROWS": ROWS,
        "KEYS": keys,
        "CAUSAL": call.causal,
        "LOW": call.low is not None,
        "HIGH": call.high is not None,
        "TILES": 0 if q.is_cuda else -(-k_len // keys),
        "PRECISION": "tf32x3" if q.dtype == torch.float32 else "tf32",
        "num_warps": 8,
        "num_stages": 2,
    }
    with torch.cuda.device_of(q):
        untyped(attend_band)[(blocks, batch * heads)](
            q,
            k,
            v,
            out,
            lse,
            q_group,
            k_group,
            call.ranges.contiguous(),
            q_len,
            call.offset,
            call.low or 0,
            call.high or 0,
            call.scale,
            heads,
            blocks,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *(group.stride(0) if len(group) > 1 else 0 for group in (q_group, k_group)),
            **constants,
        )
    return out, lse
