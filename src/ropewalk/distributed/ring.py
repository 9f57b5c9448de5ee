"""Exact softmax attention over a sequence that lies on many ranks.

Queries stay, keys and values go round. Each stop gives a partial result and the log of its sum of exponentials; two of
them merge exactly. On the way back the gradients of k and v travel with them and come home after a full round. Scores
exist for one tile of queries and keys at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ropewalk.attention.softmax import Attention
from ropewalk.distributed.context_parallel import run_torch, torch_why_not
from ropewalk.distributed.sharding import Ring, gather, shard_positions
from ropewalk.distributed.tiles import TILE, Bias, Rule, Span, Tile, attend_tile, bias_of, merge, spans
from ropewalk.encodings.base import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer, number

ENGINES = ("ring", "torch")


@dataclass(frozen=True, eq=False)
class Plan:
    """All of one call but q, k and v: this rank's tokens, whom they see, and how the ring goes."""

    ring: Ring
    rule: Rule
    order: str | None  # None: the indices were given one by one
    indices: tuple[Tensor, ...]  # of every rank's tokens, on the host, so that skipping asks no device
    positions: tuple[Tensor | None, Tensor | None]  # of queries and keys
    documents: Tensor | None
    padding: Tensor | None
    tile: int

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters a bias is made of: each rank finds its own queries' share of their gradient."""
        bias = self.rule.bias
        return [p for p in bias.parameters() if p.requires_grad] if isinstance(bias, nn.Module) else []


@dataclass(frozen=True, eq=False)
class Travellers:
    """What goes round: k, v [B, Hk, S, D] and whatever is known of their tokens."""

    k: Tensor
    v: Tensor
    positions: Tensor | None
    documents: Tensor | None
    padding: Tensor | None

    def passed_on(self, ring: Ring) -> Callable[[], Travellers]:
        present = {name: t for name, t in vars(self).items() if t is not None}
        arrived = ring.pass_on(list(present.values()))
        return lambda: replace(self, **dict(zip(present, arrived(), strict=True)))


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    encoding: Encoding | Bias | None = None,
    causal: bool = True,
    window: int | None = None,
    documents: Tensor | None = None,
    padding: Tensor | None = None,
    scale: float | None = None,
    order: str | Tensor = "contiguous",
    group: dist.ProcessGroup | None = None,
    engine: str | None = None,
    tile: int = TILE,
) -> Tensor:
    """Attend this rank's q [B, H, S, D] to the keys of all ranks; k, v [B, Hk, S, D], turned already. Every rank calls.

    q_positions, k_positions   [S], [B, S] or [axes, B, S]: what a bias follows; keys stand where queries do by default
    encoding                   an Encoding, for its score door; or bias(q, q_positions, k_positions) -> [.., Sq, Sk]
    documents, padding         [B, S] of this rank's tokens: numbers of packed documents, True for real tokens
    order                      "contiguous", "head_tail", or the index [S] in the sequence of each of this rank's tokens:
                               causality and window follow it, positions do not matter there
    engine                     "ring", "torch" (its context parallel), or None for what `pick_engine` says
    """
    plan = _plan(q, k, q_positions, k_positions, encoding, causal, window, documents, padding, scale, order, group, tile)
    name, _ = pick_engine(q, k, plan, engine)
    if name == "torch":
        return run_torch(q, k, v, plan.rule.scale, plan.ring)
    return _RingAttention.apply(plan, q, k, v, *plan.trained)  # type: ignore[return-value]


def pick_engine(q: Tensor, k: Tensor, plan: Plan, name: str | None = None) -> tuple[str, str]:
    """(engine, reason): the named one, or torch's own where it can and ours elsewhere."""
    hidden = {"documents": plan.documents, "padding": plan.padding}
    reason = torch_why_not(q, k, plan.rule, plan.order, [what for what, given in hidden.items() if given is not None])
    if name is None:
        return ("torch", "its fused kernels take plain attention on CUDA") if reason is None else ("ring", reason)
    if choice("engine", name, ENGINES) == "torch" and reason is not None:
        raise RopeError("engine", f"'torch' cannot run this attention: {reason}; use 'ring'", name)
    return name, "asked for"


def ring_forward(
    layer: Attention,
    x: Tensor,
    positions: Tensor,
    *,
    documents: Tensor | None = None,
    padding: Tensor | None = None,
    order: str | Tensor = "contiguous",
    group: dist.ProcessGroup | None = None,
    engine: str | None = None,
    tile: int = TILE,
) -> Tensor:
    """Run `layer` on this rank's tokens x [B, S, model_dim] at `positions`, as if it saw the whole sequence."""
    if layer.dropout and layer.training:
        raise RopeError("dropout", "is not drawn alike on all ranks: set it to 0, or drop out after attention", layer.dropout)
    encoding = layer.encoding
    length = _whole_length(encoding, positions, group)
    x = encoding.embed(x, positions)
    q, k, v = layer.project(x)
    out = ring_attention(
        encoding.turn(q, positions, key=False, length=length), encoding.turn(k, positions, key=True, length=length), v,
        q_positions=positions, encoding=encoding, causal=layer.causal, window=layer.window, documents=documents,
        padding=padding, scale=layer.scale, order=order, group=group, engine=engine, tile=tile,
    )  # fmt: skip
    if padding is not None:
        out = out.masked_fill(~padding[:, None, :, None], 0.0)
    return layer.o_proj(out.transpose(1, 2).flatten(-2))


def _whole_length(encoding: Encoding, positions: Tensor, group: dist.ProcessGroup | None) -> Tensor | None:
    """The length of each whole row, where frequencies follow it: one past the last position on any rank."""
    if not (isinstance(encoding, Rotary) and encoding.rope.spec.needs_length):
        return None
    last = positions.amax(dim=-1).to(torch.int64) + 1
    last = last.amax(dim=0) if positions.ndim == 3 else last
    dist.all_reduce(last, op=dist.ReduceOp.MAX, group=group)
    return last


def _plan(
    q: Tensor,
    k: Tensor,
    q_positions: Tensor | None,
    k_positions: Tensor | None,
    encoding: Encoding | Bias | None,
    causal: bool,
    window: int | None,
    documents: Tensor | None,
    padding: Tensor | None,
    scale: float | None,
    order: str | Tensor,
    group: dist.ProcessGroup | None,
    tile: int,
) -> Plan:
    """Check one call and say it as a Plan."""
    if q.ndim != 4 or k.ndim != 4 or q.shape[-2] != k.shape[-2] or q.shape[1] % k.shape[1]:
        raise RopeError("k", "must hold q's tokens, [B, heads, S, D], in heads that divide q's", [list(q.shape), list(k.shape)])
    bias = bias_of(encoding)
    if bias is not None and q_positions is None:
        raise RopeError("q_positions", "must be given: the bias follows them", None)
    for name, of_tokens in (("documents", documents), ("padding", padding)):
        if of_tokens is not None and of_tokens.shape != (q.shape[0], q.shape[-2]):
            raise RopeError(name, f"must be [{q.shape[0]}, {q.shape[-2]}], for this rank's tokens", list(of_tokens.shape))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else number("scale", scale, above=0)
    window = None if window is None else integer("window", window, low=1)
    ring = Ring(group)
    return Plan(
        ring, Rule(bias, scale, causal, window), order if isinstance(order, str) else None,
        _indices(order, q.shape[-2], ring), (q_positions, q_positions if k_positions is None else k_positions),
        documents, padding, integer("tile", tile, low=1),
    )  # fmt: skip


def _indices(order: str | Tensor, seq: int, ring: Ring) -> tuple[Tensor, ...]:
    """The index in the whole sequence of every rank's tokens."""
    if isinstance(order, str):
        return tuple(shard_positions(seq * ring.size, rank, ring.size, order) for rank in range(ring.size))
    if order.shape != (seq,) or order.is_floating_point():
        raise RopeError("order", f"must be the integer index [{seq}] of each of this rank's tokens", list(order.shape))
    return tuple(gather(order.to(torch.int64), ring.group).cpu())


def _seen_tiles(plan: Plan, source: int) -> Iterator[tuple[Span, Span]]:
    """The pairs of tiles of which something is seen, queries here and keys of `source`; hidden ones cost nothing."""
    ours, theirs = (spans(plan.indices[rank], plan.tile) for rank in (plan.ring.rank, source))
    return ((q, k) for q in ours for k in theirs if not plan.rule.hides(q, k))


def _tile(plan: Plan, q: Tensor, keys: Travellers, source: int, at: Span, to: Span) -> Tile:
    """The queries `at` here and the keys `to` of `source`, in wide numbers."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    q_positions = None if plan.positions[0] is None else plan.positions[0][..., at.here]
    k_positions = None if keys.positions is None else keys.positions[..., to.here]
    indices = plan.indices[plan.ring.rank][at.here], plan.indices[source][to.here]
    allowed = plan.rule.allowed(at, to, *indices, q.device)
    for rule in _token_rules(plan, keys, at, to):
        allowed = rule if allowed is None else allowed & rule
    q, k, v = (t.detach().to(wide) for t in (q[:, :, at.here], keys.k[:, :, to.here], keys.v[:, :, to.here]))
    return Tile(q, k, v, q_positions, k_positions, allowed)


def _token_rules(plan: Plan, keys: Travellers, at: Span, to: Span) -> Iterator[Tensor]:
    """What documents and padding allow, [B, 1, Sq or 1, Sk]."""
    if plan.documents is not None and keys.documents is not None:
        yield (plan.documents[:, at.here, None] == keys.documents[:, None, to.here])[:, None]
    if keys.padding is not None:
        yield keys.padding[:, None, None, to.here]


def _rounds(plan: Plan, k: Tensor, v: Tensor) -> Iterator[tuple[int, Travellers]]:
    """(whose keys, keys) for every stop of the ring; the next are on their way while one is used."""
    keys = Travellers(k, v, plan.positions[1], plan.documents, plan.padding)
    for step in range(plan.ring.size):
        arriving = keys.passed_on(plan.ring) if step + 1 < plan.ring.size else None
        yield plan.ring.source(step), keys
        keys = keys if arriving is None else arriving()


class _RingAttention(torch.autograd.Function):
    """The ring forth and back. Nothing of size S x S is kept: tiles are computed again on the way back."""

    @staticmethod
    def forward(ctx, plan: Plan, q: Tensor, k: Tensor, v: Tensor, *trained: Tensor) -> Tensor:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=wide, device=q.device)
        log_sum = torch.full(q.shape[:-1], -math.inf, dtype=wide, device=q.device)
        with torch.autocast(q.device.type, enabled=False):
            for source, keys in _rounds(plan, k, v):
                for at, to in _seen_tiles(plan, source):
                    part = attend_tile(plan.rule, _tile(plan, q, keys, source, at, to))
                    merge(out[:, :, at.here], log_sum[:, :, at.here], *part)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, log_sum, *trained)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        q, k, v, out, log_sum, *_ = ctx.saved_tensors
        plan: Plan = ctx.plan
        trained = plan.trained  # the module's own, which its bias is made of again
        grad = grad.to(out.dtype)
        beside = (grad * out).sum(dim=-1)
        # a query that saw nothing has log_sum -inf: its shares must be 0, not NaN
        log_sum = log_sum.masked_fill(log_sum == -math.inf, 0.0)
        q_grad, k_grad, v_grad = (torch.zeros_like(t, dtype=out.dtype) for t in (q, k, v))
        trained_grads = [torch.zeros_like(p) for p in trained]
        coming = None
        with torch.autocast(q.device.type, enabled=False):
            for source, keys in _rounds(plan, k, v):
                here = [torch.zeros_like(k_grad), torch.zeros_like(v_grad)]
                for at, to in _seen_tiles(plan, source):
                    merged = Merged(grad[:, :, at.here], beside[:, :, at.here], log_sum[:, :, at.here])
                    dq, dk, dv, *rest = _tile_grads(plan.rule, _tile(plan, q, keys, source, at, to), merged, trained)
                    q_grad[:, :, at.here] += dq
                    here[0][:, :, to.here] += dk
                    here[1][:, :, to.here] += dv
                    for total, found in zip(trained_grads, rest, strict=True):
                        total += found
                # the gradients of these keys follow them one stop behind
                before = [k_grad, v_grad] if coming is None else coming()
                coming = plan.ring.pass_on([a + b for a, b in zip(before, here, strict=True)])
            k_grad, v_grad = coming()  # type: ignore[misc]  # a ring has at least one rank
        return None, q_grad.to(q.dtype), k_grad.to(k.dtype), v_grad.to(v.dtype), *trained_grads


class Merged(NamedTuple):
    """What a tile needs to know of the whole on the way back, for its queries."""

    grad: Tensor  # of the output [B, H, Sq, D]
    beside: Tensor  # grad.output [B, H, Sq], which all shares have in common
    log_sum: Tensor  # [B, H, Sq], finite


def _tile_grads(rule: Rule, tile: Tile, whole: Merged, trained: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of one tile's q, k, v and of trained biases.

    output = sum of share * part, where share = exp(part_log_sum - log_sum).
    """
    inputs = [t.requires_grad_() for t in tile[:3]]
    with torch.enable_grad():
        part, part_log_sum = attend_tile(rule, tile._replace(q=inputs[0], k=inputs[1], v=inputs[2]))
    share = (part_log_sum.detach() - whole.log_sum).exp()
    to_log_sum = share * ((whole.grad * part.detach()).sum(dim=-1) - whole.beside)
    outputs, grads = (part, part_log_sum), (share.unsqueeze(-1) * whole.grad, to_log_sum)
    return torch.autograd.grad(outputs, (*inputs, *trained), grads, allow_unused=True, materialize_grads=True)
