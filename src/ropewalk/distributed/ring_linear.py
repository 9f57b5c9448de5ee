"""Linear attention over a sequence that is sharded across ranks: only the small state of each rank is exchanged."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.attention.linear import check_linear
from ropewalk.attention.linear_sums import CHUNK, State, attend, key_sums, make_features
from ropewalk.distributed.sharding import Ring, gather
from ropewalk.rope import Rope


def ring_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    positions: Tensor | None = None,
    *,
    form: str = "numerator",
    phi: str | Callable[[Tensor], Tensor] = "elu",
    scale: Tensor | float = 1.0,
    causal: bool = True,
    padding: Tensor | None = None,
    group: dist.ProcessGroup | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, State]:
    """Apply `linear_attention` to this rank's contiguous shard q, k, v [B, H, S, D], attending to all ranks.

    Every rank must call it. If positions is None, they are the tokens' indices in the whole sequence. The returned state is the
    state after this rank's tokens (after all tokens if not causal); use the last rank's state to continue the sequence.
    """
    ring = Ring(group)
    check_linear(q, k, v, rope, form, phi, None, chunk)
    if positions is None:
        positions = torch.arange(q.shape[-2], device=q.device) + ring.rank * q.shape[-2]
    features = make_features(q, k, rope, positions, padding, form, phi, scale)
    kv_sum, k_sum = key_sums(features, v)
    local_sums = torch.cat((kv_sum.flatten(1), k_sum.flatten(1)), dim=1)
    sizes = kv_sum[0].numel(), k_sum[0].numel()
    other_kv_sums, other_k_sums = _SumOfOthers.apply(local_sums, ring, causal).split(sizes, dim=1)  # type: ignore[union-attr]
    count = torch.full((q.shape[0],), q.shape[-2], device=q.device) if padding is None else padding.sum(dim=-1)
    before = gather(count, group)[_visible_ranks(ring, causal)].sum(dim=0)
    state = State(other_kv_sums.view_as(kv_sum), other_k_sums.view_as(k_sum), before)
    out, kv_sum, k_sum = attend(features, v, state, causal, chunk=chunk, eps=eps)
    return out.to(v.dtype), State(kv_sum, k_sum, before + count)


def _visible_ranks(ring: Ring, causal: bool) -> list[int]:
    """The other ranks whose keys this rank attends to."""
    return [rank for rank in range(ring.size) if rank < ring.rank or (not causal and rank > ring.rank)]


class _SumOfOthers(torch.autograd.Function):
    """The sum of x over the visible ranks; backward sums the gradients of the ranks that attend to this one."""

    @staticmethod
    def forward(ctx, x: Tensor, ring: Ring, causal: bool) -> Tensor:
        ctx.ring, ctx.causal = ring, causal
        return gather(x, ring.group)[_visible_ranks(ring, causal)].sum(dim=0)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        ring: Ring = ctx.ring
        attending = [rank for rank in range(ring.size) if rank > ring.rank or (not ctx.causal and rank < ring.rank)]
        return gather(grad, ring.group)[attending].sum(dim=0), None, None
