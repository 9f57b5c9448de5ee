"""Sharding of sequences: which rank holds which tokens, split and gather, and a ring of
point-to-point transfers.

The shards of W ranks:

contiguous   rank r holds chunk r of W                       simple; under causality the last rank
             has the most work
head_tail    rank r holds chunks r and 2W - 1 - r of 2W      under causality all ranks have the same
             work
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from ropewalk.errors import RopeError, choice, integer

SHARD_KINDS = ("contiguous", "head_tail")
#: ranks compare dtypes by their index in this list
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def shard_positions(seq: int, rank: int, world: int, kind: str = "contiguous") -> Tensor:
    """Return the indices of the tokens that `rank` of `world` ranks holds, in the order in which it
    holds them: int64 [seq / world].
    """
    choice("kind", kind, SHARD_KINDS)
    integer("world", world, low=1)
    integer("rank", rank, low=0, high=world - 1)
    chunks = world if kind == "contiguous" else 2 * world
    if integer("seq", seq, low=1) % chunks:
        longer = seq + -seq % chunks
        raise RopeError(
            "seq",
            f"must be a multiple of {chunks} for {kind} shards on {world} ranks; pad it to "
            f"{longer}",
            seq,
        )
    tokens = torch.arange(seq).view(chunks, -1)
    return (
        tokens[rank]
        if kind == "contiguous"
        else torch.cat((tokens[rank], tokens[2 * world - 1 - rank]))
    )


def shard(
    x: Tensor, dim: int, group: dist.ProcessGroup | None = None, kind: str = "contiguous"
) -> Tensor:
    """Return this rank's tokens of a whole tensor; `dim` is the axis of the tokens."""
    indices = shard_positions(x.shape[dim], dist.get_rank(group), dist.get_world_size(group), kind)
    return x.index_select(dim, indices.to(x.device))


def unshard(
    x: Tensor, dim: int, group: dist.ProcessGroup | None = None, kind: str = "contiguous"
) -> Tensor:
    """Gather every rank's shard into the whole tensor, in token order; in backward the gradients of
    all ranks are summed.

    Contiguous shards may differ in length.
    """
    choice("kind", kind, SHARD_KINDS)
    dim = dim % x.ndim
    sizes = {f"axis {axis} of x": size for axis, size in enumerate(x.shape) if axis != dim}
    # an error on every rank if the size of an axis other than `dim`, or the dtype, differs between
    # ranks
    lengths = exchange_lengths(x.shape[dim], x.device, group, sizes | {"dtype": x.dtype})
    order = torch.cat(token_indices(kind, lengths, Ring(group))).argsort()
    # all_gather needs equal shapes, so shorter shards are filled with zeros and cut off again
    filled = torch.cat(
        (x, x.new_zeros(*x.shape[:dim], max(lengths) - x.shape[dim], *x.shape[dim + 1 :])), dim=dim
    )
    parts = [
        part.narrow(dim, 0, length)
        for part, length in zip(gather(filled, group), lengths, strict=True)
    ]
    return torch.cat(parts, dim=dim).index_select(dim, order.to(x.device))


def exchange_lengths(
    tokens: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    facts: Mapping[str, int | torch.dtype],
) -> list[int]:
    """Return the number of tokens on every rank; raise an error on all ranks if one of `facts`
    differs between ranks.

    tokens  how many tokens this rank has
    facts   {name for the error: a number or dtype}, with the same names on every rank. They must be
            equal: tensors of other sizes or dtypes would abort the process or be mixed up
    """
    numbers = [
        DTYPES.index(fact) if isinstance(fact, torch.dtype) else int(fact)
        for fact in facts.values()
    ]
    # gathered by rank, and transposed: for each number, what every rank has
    lengths, *columns = gather(torch.tensor([tokens, *numbers], device=device), group).T.tolist()
    for (name, fact), column in zip(facts.items(), columns, strict=True):
        if len(set(column)) > 1:
            by_rank = (
                [DTYPES[number] for number in column] if isinstance(fact, torch.dtype) else column
            )
            raise RopeError(name, "must be the same on every rank", by_rank)
    return lengths


def token_indices(order: str | Tensor, lengths: Sequence[int], ring: Ring) -> tuple[Tensor, ...]:
    """Return, for each rank, the indices of its tokens in the whole sequence, on the CPU.

    order    the name of a kind of shards, or the indices of this rank's tokens
    lengths  the number of tokens of each rank
    """
    if isinstance(order, str):
        if choice("order", order, SHARD_KINDS) == "contiguous":
            return torch.arange(sum(lengths)).split(list(lengths))
        if len(set(lengths)) > 1:
            rule = (
                f"{order!r} needs the same number of tokens on every rank; use 'contiguous' or "
                "pass the index of every token"
            )
            raise RopeError("order", rule, list(lengths))
        return tuple(
            shard_positions(sum(lengths), rank, ring.size, order) for rank in range(ring.size)
        )
    # gather needs equal shapes, so shorter shards are filled with zeros and cut off again
    filled = F.pad(order.to(torch.int64), (0, max(lengths) - len(order)))
    indices = [
        row[:length] for row, length in zip(gather(filled, ring.group).cpu(), lengths, strict=True)
    ]
    if len(torch.cat(indices).unique()) < sum(lengths):
        rule = (
            "must give every token of the whole sequence an index of its own; an index occurs twice"
        )
        raise RopeError("order", rule, [row.tolist() for row in indices])
    return tuple(indices)


def check_order(order: str | Tensor, seq: int) -> None:
    """Raise an error unless `order` is the name of a kind of shards, or the integer index of each
    of this rank's tokens.
    """
    if isinstance(order, Tensor) and (
        order.shape != (seq,) or order.is_floating_point() or order.dtype == torch.bool
    ):
        raise RopeError(
            "order",
            f"must be the integer index [{seq}] of each of this rank's tokens",
            list(order.shape),
        )
    if not isinstance(order, Tensor):
        choice("order", order, SHARD_KINDS)


def order_number(order: str | Tensor) -> int:
    """Return a number for the kind of order, by which ranks compare it; all tensors have the same
    one, because every rank has a tensor of its own.
    """
    return SHARD_KINDS.index(order) if isinstance(order, str) else len(SHARD_KINDS)


def gather(x: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return every rank's x, [world, ...], of one shape and dtype; backward sums all ranks'
    gradients of this rank's x.
    """
    return _Gather.apply(x, group)  # type: ignore[return-value]


class _Gather(torch.autograd.Function):
    """`gather`, with gradients."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        """Return x of every rank, stacked in the order of ranks."""
        ctx.group = group
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of this rank's x, summed over the outputs of all ranks."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad[dist.get_rank(ctx.group)], None


class Ring:
    """The ranks of a group in a circle: each sends to the next rank and receives from the previous
    one.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        world = dist.group.WORLD if group is None else group
        # transfers take the ranks of all processes, not those within the group
        self.next, self.previous = (
            dist.get_global_rank(world, (self.rank + by) % self.size)  # type: ignore[arg-type]
            for by in (1, -1)
        )

    def source(self, step: int) -> int:
        """Return the rank whose shard is here after `step` transfers."""
        return (self.rank - step) % self.size

    def send_next(self, tensors: Sequence[Tensor], tokens: int) -> Callable[[], list[Tensor]]:
        """Start sending `tensors` to the next rank; the returned function waits for and returns
        those of the previous rank.

        The received tensors have `tokens` tokens, which are the axis before the last of a tensor
        [B, H, S, D], and the last axis of any other. Do not write to `tensors` before that function
        has returned.
        """
        if self.size == 1:
            return lambda: list(tensors)
        sent = [t.contiguous() for t in tensors]
        shapes = [
            (*t.shape[:-2], tokens, t.shape[-1]) if t.ndim == 4 else (*t.shape[:-1], tokens)
            for t in tensors
        ]
        received = [t.new_empty(shape) for t, shape in zip(tensors, shapes, strict=True)]
        # a shard may be empty, and not every backend can send an empty tensor
        operations = [dist.P2POp(dist.isend, t, self.next, self.group) for t in sent if t.numel()]
        operations += [
            dist.P2POp(dist.irecv, t, self.previous, self.group) for t in received if t.numel()
        ]
        works = dist.batch_isend_irecv(operations) if operations else []

        def wait() -> list[Tensor]:
            """Wait until everything is sent and received, and return the received tensors."""
            for work in works:
                work.wait()
            sent.clear()  # the tensors had to stay alive until they were sent
            return received

        return wait
