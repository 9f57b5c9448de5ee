"""Exact softmax attention over a sequence that is sharded across ranks.

Queries stay on their rank; keys and values are sent around the ring. Each step gives a partial
result and its log-sum-exp, and two partial results merge exactly. In backward the gradients of k
and v travel with them and are back on their own rank after a full round. Scores are materialised
for one tile of queries and keys at a time.

Words of this module:
  index       the place of a token in the whole sequence, which causality and window use; positions
              are used by a bias only
  tile        some of a rank's queries and some of the keys that are here
  keys        as a dict: k, v, and where given the positions, documents and padding of one rank's
              tokens, by name, since all of these travel together
  source      the rank whose keys these are
  log_sum     the log-sum-exp of a query's scores over the keys so far
  order       which tokens each rank has: "contiguous", "head_tail", or their indices
  masking     how scores are computed, and which keys causality and window hide, a `tiles.Masking`
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ropewalk.attention.masks import check_token_masks
from ropewalk.attention.softmax import SoftmaxAttention
from ropewalk.distributed.checked_layer import check_layer
from ropewalk.distributed.context_parallel import run_torch, torch_why_not
from ropewalk.distributed.sharding import (
    Ring,
    check_order,
    exchange_lengths,
    order_number,
    token_indices,
)
from ropewalk.distributed.tiles import TILE, Bias, Masking, Tile, attend_tile, bias_of, merge, spans
from ropewalk.encodings.base import Encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer, number

ENGINES = ("ring", "torch")


@dataclass(frozen=True, eq=False)
class RingCall:
    """The arguments of one call except q, k and v; see `ring_attention`. `documents` and `padding`
    are those of this rank's tokens; `tile` is the most queries, and the most keys, of one tile.
    Without a bias, both `positions` are None.
    """

    ring: Ring
    masking: Masking
    # the indices of every rank's tokens; on the CPU, so that finding the tiles to skip does not
    # wait for a GPU
    indices: tuple[Tensor, ...]
    positions: tuple[Tensor | None, Tensor | None]  # of the queries and of the keys
    documents: Tensor | None
    padding: Tensor | None
    tile: int

    @property
    def bias_parameters(self) -> list[nn.Parameter]:
        """The learned parameters of the bias; each rank computes the part of their gradient that
        its own queries contribute.
        """
        bias = self.masking.bias
        return (
            [p for p in bias.parameters() if p.requires_grad] if isinstance(bias, nn.Module) else []
        )


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
    """Return the attention of this rank's q [B, H, S, D] to the keys of all ranks; k, v [B, Hk, S,
    D]. Every rank must call it.

    q and k must be rotated already.

    q_positions, k_positions   [S], [B, S] or [axes, B, S], used by a bias only; k_positions default
                               to q_positions
    encoding                   an Encoding, used only for the terms that it adds to scores and
                               outputs; or a function bias(q, q_positions, k_positions) -> [.., Sq,
                               Sk]. The parameters of an nn.Module get gradients; tensors that a
                               plain function uses get none
    documents                  [B, S], the document index of each of this rank's tokens
    padding                    [B, S], True for those of this rank's tokens that are real
    scale                      the factor on the scores; by default 1 / sqrt(D)
    order                      "contiguous", "head_tail", or an integer tensor [S]: the index of
                               each of this rank's tokens in the whole sequence. Causality and
                               window use these indices, not the positions
    engine                     "ring", "torch" (its context parallel), or None: "torch" if it can
                               run this attention, else "ring"
    tile                       the most queries, and the most keys, for which "ring" forms scores at
                               a time

    `causal` and `window` are as in `Attention`.
    """
    _check_shapes(q, k, v, q_positions, k_positions)
    check_token_masks(q.shape[0], q.shape[-2], padding, documents)
    check_order(order, q.shape[-2])
    integer("tile", tile, low=1)
    masks = {
        name: mask
        for name, mask in (("documents", documents), ("padding", padding))
        if mask is not None
    }
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else number("scale", scale, above=0)
    masking = Masking(
        bias_of(encoding),
        scale,
        causal,
        None if window is None else integer("window", window, low=1),
    )
    if masking.bias is not None and q_positions is None:
        raise RopeError("q_positions", "must be given: the bias depends on them", None)
    picked, _ = pick_engine(q, k, masking, order, masks, engine)
    k_positions = q_positions if k_positions is None else k_positions
    positions = (None, None) if masking.bias is None else (q_positions, k_positions)
    ring = Ring(group)
    facts = _facts(q, k, v, positions[1], masking) | {
        f"{name} given": name in masks for name in ("documents", "padding")
    }
    facts |= {"order": order_number(order), "engine": ENGINES.index(picked)}
    lengths = exchange_lengths(q.shape[-2], q.device, group, facts)
    indices = token_indices(order, lengths, ring)
    if picked == "torch":
        return run_torch(q, k, v, scale, ring)
    documents = None if documents is None else documents.to(torch.int64)
    call = RingCall(ring, masking, indices, positions, documents, padding, tile)
    return _RingAttention.apply(call, q, k, v, *call.bias_parameters)  # type: ignore[return-value]


def _check_shapes(
    q: Tensor, k: Tensor, v: Tensor, q_positions: Tensor | None, k_positions: Tensor | None
) -> None:
    """Raise an error unless q, k and v fit together, and positions have one entry for each token."""
    fit = (
        q.ndim == k.ndim == v.ndim == 4
        and k.shape == (q.shape[0], k.shape[1], *q.shape[2:])
        and v.shape[:-1] == k.shape[:-1]
    )
    if not fit or k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        rule = (
            "must be [B, heads, S, D]; k must have q's batch, S and D, and its number of heads "
            "must divide q's; v must have k's batch, heads and S"
        )
        raise RopeError("q, k, v", rule, [list(t.shape) for t in (q, k, v)])
    for name, each in (("q_positions", q_positions), ("k_positions", k_positions)):
        if each is not None and each.shape[-1] != q.shape[-2]:
            raise RopeError(
                name,
                f"must have one position for each of this rank's {q.shape[-2]} tokens",
                list(each.shape),
            )


def _facts(
    q: Tensor, k: Tensor, v: Tensor, k_positions: Tensor | None, masking: Masking
) -> dict[str, int | torch.dtype]:
    """Return the sizes, dtypes and masks that all ranks must have in common: they send each other
    k, v and k_positions.
    """
    batch, q_heads, _, head_dim = q.shape
    sizes = {
        "batch": batch,
        "q heads": q_heads,
        "k heads": k.shape[1],
        "head_dim": head_dim,
        "v head_dim": v.shape[-1],
    }
    dtypes = {
        "k dtype": k.dtype,
        "v dtype": v.dtype,
        # positions are never boolean, so torch.bool says that there are none
        "k_positions dtype": torch.bool if k_positions is None else k_positions.dtype,
    }
    rows = () if k_positions is None else k_positions.shape[:-1]
    axes = {
        "leading axes of k_positions": len(rows),
        "rows of k_positions": math.prod(rows),
        "bias": masking.bias is not None,
    }
    return sizes | dtypes | axes | {"causal": masking.causal, "window": masking.window or 0}


def pick_engine(
    q: Tensor,
    k: Tensor,
    masking: Masking,
    order: str | Tensor,
    masks: Iterable[str] = (),
    name: str | None = None,
) -> tuple[str, str]:
    """Return (engine, why it was taken): the engine `name`, or without a name torch's if it can run
    this attention, else "ring". `order` is as in `ring_attention`; `masks` are the names of the masks
    that are given besides causality and window.
    """
    reason = torch_why_not(q, k, masking, order, masks)
    if name is None:
        return (
            ("torch", "its fused kernels support this attention")
            if reason is None
            else ("ring", reason)
        )
    if choice("engine", name, ENGINES) == "torch" and reason is not None:
        raise RopeError("engine", f"'torch' cannot run this attention: {reason}; use 'ring'", name)
    return name, "requested"


def ring_forward(
    layer: SoftmaxAttention,
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
    """Return the output of `layer` for this rank's tokens x [B, S, model_dim] at `positions`, which
    attend to the tokens of all ranks. For padding, every head gives 0 to the output projection.

    positions  [S], [B, S] or [axes, B, S]; the other arguments are those of `ring_attention`
    """
    check_layer(layer)
    encoding = layer.encoding
    length = _whole_length(encoding, positions, group)
    q, k, v = layer.project(encoding.embed(x, positions))
    if layer.temperature is not None:
        q = layer.temperature(q, positions)
    out = ring_attention(
        encoding.rotate(q, positions, key=False, length=length),
        encoding.rotate(k, positions, key=True, length=length),
        v,
        q_positions=positions,
        encoding=encoding,
        causal=layer.causal,
        window=layer.window,
        documents=documents,
        padding=padding,
        scale=layer.scale,
        order=order,
        group=group,
        engine=engine,
        tile=tile,
    )
    if padding is not None:
        out = out.masked_fill(~padding[:, None, :, None], 0.0)
    return layer.o_proj(out.transpose(1, 2).flatten(-2))


def _whole_length(
    encoding: Encoding, positions: Tensor, group: dist.ProcessGroup | None
) -> Tensor | None:
    """Return 1 + the largest position on any rank, for each batch row, or for all rows if positions
    are [S]; None if the frequencies do not depend on the length.
    """
    if not (isinstance(encoding, Rotary) and encoding.rope.spec.needs_length):
        return None
    length = torch.zeros(positions.shape[:-1], dtype=torch.int64, device=positions.device)
    if positions.shape[-1]:
        length = positions.amax(dim=-1).to(torch.int64) + 1
    # [axes, B]: the largest of all axes
    length = length.amax(dim=0) if positions.ndim == 3 else length
    dist.all_reduce(length, op=dist.ReduceOp.MAX, group=group)
    return length


def _tiles(
    call: RingCall, q: Tensor, keys: dict[str, Tensor], source: int
) -> Iterator[tuple[slice, slice, Tile]]:
    """Yield (query slice, key slice, tile) for this rank's queries and `keys`, which are those of
    rank `source`; tiles that causality or the window hides completely are skipped.
    """
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    q_indices, k_indices = call.indices[call.ring.rank], call.indices[source]
    q_positions, k_positions = call.positions[0], keys.get("positions")
    for q_span, k_span in itertools.product(
        spans(q_indices, call.tile), spans(k_indices, call.tile)
    ):
        if call.masking.hides(q_span, k_span):
            continue
        q_slice, k_slice = q_span.local, k_span.local
        allowed = call.masking.allowed(
            q_span, k_span, q_indices[q_slice], k_indices[k_slice], q.device
        )
        for mask in _token_masks(call, keys, q_slice, k_slice):
            allowed = mask if allowed is None else allowed & mask
        parts = (q[:, :, q_slice], keys["k"][:, :, k_slice], keys["v"][:, :, k_slice])
        # detached, because in backward every tile has a graph of its own
        q_part, k_part, v_part = (part.detach().to(compute_dtype) for part in parts)
        tile = Tile(q_part, k_part, v_part, allowed=allowed)
        if q_positions is not None and k_positions is not None:
            tile = tile._replace(
                q_positions=q_positions[..., q_slice], k_positions=k_positions[..., k_slice]
            )
        yield q_slice, k_slice, tile


def _token_masks(
    call: RingCall, keys: dict[str, Tensor], q_slice: slice, k_slice: slice
) -> Iterator[Tensor]:
    """Yield the masks of documents and padding, boolean [B, 1, Sq or 1, Sk], True = attend; `call`
    has the documents of the queries, `keys` the documents and padding of the keys.
    """
    if call.documents is not None:
        yield (call.documents[:, q_slice, None] == keys["documents"][:, None, k_slice])[:, None]
    if call.padding is not None:
        yield keys["padding"][:, None, None, k_slice]


def _steps(call: RingCall, k: Tensor, v: Tensor) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (source, its `keys`) for every step of the ring, first those of this rank; the keys of
    the next step are received while these are used.
    """
    optional = {
        "positions": call.positions[1],
        "documents": call.documents,
        "padding": call.padding,
    }
    keys = {"k": k, "v": v} | {name: t for name, t in optional.items() if t is not None}
    for step in range(call.ring.size):
        next_count = len(call.indices[call.ring.source(step + 1)])  # how many keys arrive next
        receive = (
            call.ring.send_next(list(keys.values()), next_count)
            if step + 1 < call.ring.size
            else None
        )
        yield call.ring.source(step), keys
        keys = keys if receive is None else dict(zip(keys, receive(), strict=True))


class _RingAttention(torch.autograd.Function):
    """Forward and backward of the ring; backward recomputes the tiles, so nothing of size S x S is
    stored.
    """

    @staticmethod
    def forward(
        ctx, call: RingCall, q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor
    ) -> Tensor:
        """Return the attention of this rank's queries over the keys of all ranks, which arrive one
        rank's keys at a time.

        `parameters` are those of a bias, listed so that autograd asks for their gradients.
        """
        compute_dtype = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=compute_dtype, device=q.device)
        log_sum = torch.full(q.shape[:-1], -math.inf, dtype=compute_dtype, device=q.device)
        with torch.autocast(q.device.type, enabled=False):
            for source, keys in _steps(call, k, v):
                for q_slice, _, tile in _tiles(call, q, keys, source):
                    # in place, as slices of `out` and `log_sum` are views
                    merge(
                        out[:, :, q_slice], log_sum[:, :, q_slice], *attend_tile(call.masking, tile)
                    )
        ctx.call = call
        ctx.save_for_backward(q, k, v, out, log_sum, *parameters)
        return out.to(q.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        """Return the gradients of this rank's q, k and v and of the bias's parameters; attention
        weights are recomputed tile by tile.
        """
        q, k, v, out, log_sum, *_ = ctx.saved_tensors
        call: RingCall = ctx.call
        # the call's own parameters, not those in saved_tensors: gradients are taken by those that
        # the recomputed bias uses
        parameters = call.bias_parameters
        grad = grad.to(out.dtype)
        grad_dot_out = (grad * out).sum(dim=-1)
        # a query without keys has log_sum -inf: its shares must be 0, not NaN
        log_sum = log_sum.masked_fill(log_sum == -math.inf, 0.0)
        q_grad, k_grad, v_grad = (torch.zeros_like(t, dtype=out.dtype) for t in (q, k, v))
        parameter_grads = [torch.zeros_like(p) for p in parameters]
        receive = None
        with torch.autocast(q.device.type, enabled=False):
            for step, (source, keys) in enumerate(_steps(call, k, v)):
                step_grads = [torch.zeros_like(keys[name], dtype=out.dtype) for name in ("k", "v")]
                for q_slice, k_slice, tile in _tiles(call, q, keys, source):
                    per_query = (
                        grad[:, :, q_slice],
                        grad_dot_out[:, :, q_slice],
                        log_sum[:, :, q_slice],
                    )
                    dq, dk, dv, *parameter_parts = _tile_grads(
                        call.masking, tile, *per_query, parameters
                    )
                    q_grad[:, :, q_slice] += dq
                    step_grads[0][:, :, k_slice] += dk
                    step_grads[1][:, :, k_slice] += dv
                    for total, part in zip(parameter_grads, parameter_parts, strict=True):
                        total += part
                # the gradients of these keys follow them one step later
                so_far = [k_grad, v_grad] if receive is None else receive()
                totals = [total + part for total, part in zip(so_far, step_grads, strict=True)]
                receive = call.ring.send_next(totals, len(call.indices[call.ring.source(step + 1)]))
            k_grad, v_grad = receive()  # type: ignore[misc]  # a ring has at least one rank
        return None, q_grad.to(q.dtype), k_grad.to(k.dtype), v_grad.to(v.dtype), *parameter_grads


def _tile_grads(
    masking: Masking,
    tile: Tile,
    grad: Tensor,
    grad_dot_out: Tensor,
    log_sum: Tensor,
    parameters: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """Return the gradients of one tile's q, k, v and of `parameters`.

    output = sum of share * part over the tiles of keys, where part is the attention over the keys
    of one tile, and share = exp(part_log_sum - log_sum). grad [B, H, Sq, D] is the gradient of the
    output, grad_dot_out [B, H, Sq] its dot product with the output, log_sum [B, H, Sq] the
    log-sum-exp over all keys, with -inf replaced by 0.
    """
    inputs = [t.requires_grad_() for t in tile[:3]]
    with torch.enable_grad():
        part, part_log_sum = attend_tile(
            masking, tile._replace(q=inputs[0], k=inputs[1], v=inputs[2])
        )
    share = (part_log_sum.detach() - log_sum).exp()
    # the output also depends on part_log_sum: through the share of this tile, and through log_sum,
    # which is in the shares of all tiles
    log_sum_grad = share * ((grad * part.detach()).sum(dim=-1) - grad_dot_out)
    outputs, grads = (part, part_log_sum), (share.unsqueeze(-1) * grad, log_sum_grad)
    # a parameter that the scores of this tile do not depend on has zeros as its gradient
    return torch.autograd.grad(
        outputs, (*inputs, *parameters), grads, allow_unused=True, materialize_grads=True
    )
