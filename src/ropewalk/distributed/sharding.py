"""Sharding of sequences: which rank holds which tokens, split and gather, and a ring of point-to-point transfers.

contiguous   rank r holds chunk r of W                       simple; under causality the last rank has the most work
head_tail    rank r holds chunks r and 2W - 1 - r of 2W      under causality all ranks have the same work
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer

SHARD_KINDS = ("contiguous", "head_tail")


def shard_positions(seq: int, rank: int, world: int, kind: str = "contiguous") -> Tensor:
    """Return the indices of the tokens that `rank` of `world` holds, in its order: int64 [seq / world]."""
    choice("kind", kind, SHARD_KINDS)
    integer("world", world, low=1)
    integer("rank", rank, low=0, high=world - 1)
    chunks = world if kind == "contiguous" else 2 * world
    if integer("seq", seq, low=1) % chunks:
        longer = seq + -seq % chunks
        raise RopeError("seq", f"must be a multiple of {chunks} for {kind} shards on {world} ranks; pad it to {longer}", seq)
    tokens = torch.arange(seq).view(chunks, -1)
    return tokens[rank] if kind == "contiguous" else torch.cat((tokens[rank], tokens[2 * world - 1 - rank]))


def shard(x: Tensor, dim: int, group: dist.ProcessGroup | None = None, kind: str = "contiguous") -> Tensor:
    """Return this rank's tokens of a whole tensor; `dim` is the axis of the tokens."""
    indices = shard_positions(x.shape[dim], dist.get_rank(group), dist.get_world_size(group), kind)
    return x.index_select(dim, indices.to(x.device))


def unshard(x: Tensor, dim: int, group: dist.ProcessGroup | None = None, kind: str = "contiguous") -> Tensor:
    """Gather every rank's shard into the whole tensor, in token order; in backward the gradients of all ranks are summed."""
    world = dist.get_world_size(group)
    seq = x.shape[dim] * world
    order = torch.cat([shard_positions(seq, rank, world, kind) for rank in range(world)]).argsort()
    return torch.cat(tuple(_Gather.apply(x, group)), dim=dim).index_select(dim, order.to(x.device))


def gather(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return every rank's x, [world, ...], without a gradient."""
    x = x.contiguous()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x, group=group)
    return torch.stack(parts)


class _Gather(torch.autograd.Function):
    """`gather` with a gradient: backward sums all ranks' gradients of this rank's x."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        return gather(x, group)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


class Ring:
    """The ranks of a group in a circle: each sends to the next rank and receives from the previous one."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        world = dist.group.WORLD if group is None else group
        self.next, self.previous = (dist.get_global_rank(world, (self.rank + by) % self.size) for by in (1, -1))  # type: ignore[arg-type]

    def source(self, step: int) -> int:
        """Return the rank whose shard is here after `step` transfers."""
        return (self.rank - step) % self.size

    def send_next(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Start sending `tensors` to the next rank; the returned function waits for and returns those of the previous rank.

        Do not write to `tensors` before that.
        """
        if self.size == 1:
            return lambda: list(tensors)
        sent = [t.contiguous() for t in tensors]
        received = [torch.empty_like(t) for t in sent]
        operations = [dist.P2POp(dist.isend, t, self.next, self.group) for t in sent]
        operations += [dist.P2POp(dist.irecv, t, self.previous, self.group) for t in received]
        works = dist.batch_isend_irecv(operations)

        def wait() -> list[Tensor]:
            for work in works:
                work.wait()
            sent.clear()
            return received

        return wait
