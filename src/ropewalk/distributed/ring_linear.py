"""Linear attention over a sequence that lies on many ranks: what a past leaves behind is small, so states travel, not keys."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.attention.linear import check_linear
from ropewalk.attention.linear_sums import CHUNK, FEATURES, State, attend, features
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
    """`linear_attention` of this rank's contiguous shard q, k, v [B, H, S, D] as if it saw the whole sequence.

    Every rank calls; positions default to the tokens' order over all ranks. The state returned is the one after this
    rank's tokens (after all tokens where not causal); the last rank's goes on with the sequence.
    """
    ring = Ring(group)
    check_linear(q, k, v, rope, form, phi, None, chunk)
    if positions is None:
        positions = torch.arange(q.shape[-2], device=q.device) + ring.rank * q.shape[-2]
    found = features(q, k, rope, positions, form, FEATURES[phi] if isinstance(phi, str) else phi, scale)
    k_side, k_plain = found.k, found.k_plain
    if padding is not None:
        real = padding[:, None, :, None]
        k_side, k_plain = k_side * real, k_plain * real
    mixed, total = k_side.transpose(-1, -2) @ v.to(k_side.dtype), k_plain.sum(dim=-2)
    sums = torch.cat((mixed.flatten(1), total.flatten(1)), dim=1)
    mixed_sums, total_sums = _FromOthers.apply(sums, ring, causal).split((mixed[0].numel(), total[0].numel()), dim=1)  # type: ignore[union-attr]
    seen = torch.full((q.shape[0],), q.shape[-2], device=q.device) if padding is None else padding.sum(dim=-1)
    before = gather(seen, group)[_heard(ring, causal)].sum(dim=0)
    state = State(mixed_sums.view_as(mixed), total_sums.view_as(total), before)
    out, mixed, total = attend(found, v, padding, state, causal, chunk=chunk, eps=eps)
    return out.to(v.dtype), State(mixed, total, before + seen)


def _heard(ring: Ring, causal: bool) -> list[int]:
    """The other ranks whose keys this one sees."""
    return [rank for rank in range(ring.size) if rank < ring.rank or (not causal and rank > ring.rank)]


class _FromOthers(torch.autograd.Function):
    """The sum of what other ranks have; its transpose takes from those who heard this one."""

    @staticmethod
    def forward(ctx, x: Tensor, ring: Ring, causal: bool) -> Tensor:
        ctx.ring, ctx.causal = ring, causal
        return gather(x, ring.group)[_heard(ring, causal)].sum(dim=0)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        ring: Ring = ctx.ring
        listeners = [rank for rank in range(ring.size) if rank > ring.rank or (not ctx.causal and rank < ring.rank)]
        return gather(grad, ring.group)[listeners].sum(dim=0), None, None
