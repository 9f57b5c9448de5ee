"""qkv_norm_rope: the QKV product with head norm, rotation and cache write; for few tokens with a
cache in one launch.

Words of this module:
  call   a checked `NormRotationCall`, with one token axis: its q [T, Hq, D] and k have the shapes
         of the product but no values; call.norm is the norm of the heads of q and k
  heads  (Hq, Hk), the numbers of heads of q and of k; v has as many as k
  shape  the sizes of the token axes of x
  rows   x with one token axis, [T, K]
  slot   the place of a token in the cache; a token with a negative slot is not stored
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.decode_step.config import pick_qkv_tile
from ropewalk.kernels.decode_step.workspace import kept_workspace
from ropewalk.kernels.norm_rotation.api import BACKENDS, checked_call
from ropewalk.kernels.norm_rotation.config import why_not_kernel
from ropewalk.kernels.norm_rotation.definition import KVSlots, LatentNorm, NormRotationCall, QKNorm
from ropewalk.kernels.qkv import definition
from ropewalk.kernels.support import multiprocessors
from ropewalk.spec import RopeSpec


def qkv_norm_rope(
    x: Float[Tensor, "... K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None = None,
    *,
    spec: RopeSpec,
    positions: Shaped[Tensor, "..."],
    heads: tuple[int, int],
    cache: KVSlots | None = None,
    slots: Shaped[Tensor, "..."] | None = None,
    norm: QKNorm | None = None,
    backend: str | None = None,
) -> Any:
    """Return the heads of x @ weight^T + bias, those of q and k normed and rotated.

    weight     [(Hq + 2 Hk) head_dim, K]: the rows of all queries, then of all keys, then of all
               values
    positions  one for each token of x, as in `qk_norm_rope`: with several axes always [axes, ...]
    heads      (Hq, Hk)
    cache      KVSlots, with the slot of every token in `slots`; a token with a negative slot is
               padding and not stored
    norm       QKNorm of each head of q and k before the rotation, or None
    backend    "triton" (one launch, for few tokens with a cache), "definition" (F.linear, then
               qk_norm_rope), or None: "triton" if it supports the call (`why_not` says why not),
               else "definition"

    Without a cache: (q, k, v), [..., heads, head_dim] each, with gradients to x, weight, bias and
    the norm's weights. With a cache: q alone, without gradients.
    """
    call, shape = _checked(x, weight, bias, spec, positions, heads, norm, cache, slots)
    inputs = (x, weight, bias, *call.weights)
    gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if gradients and cache is not None:
        raise RopeError(
            "cache",
            "stores values without gradients; call it under torch.no_grad()",
            "an input requires grad",
        )
    rows = x.reshape(-1, x.shape[-1])
    reason = _why_not(rows, weight, bias, call)
    if backend is None:
        backend = "definition" if reason else "triton"
    if choice("backend", backend, BACKENDS) == "triton" and reason:
        raise RopeError(
            "backend", f"'triton' cannot take this call: {reason}; pass backend=None", list(x.shape)
        )
    if backend == "definition":
        return definition.run(x, weight, bias, call, shape)
    return _one_launch(rows, weight, bias, call).unflatten(0, shape)


def why_not(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    spec,
    positions,
    heads,
    cache=None,
    slots=None,
    norm=None,
) -> str | None:
    """Return why one launch cannot compute this call of `qkv_norm_rope`, or None if it can."""
    call, _ = _checked(x, weight, bias, spec, positions, heads, norm, cache, slots)
    return _why_not(x.reshape(-1, x.shape[-1]), weight, bias, call)


def _why_not(
    rows: Tensor, weight: Tensor, bias: Tensor | None, call: NormRotationCall
) -> str | None:
    """Return why one launch cannot compute this call, or None if it can; `rows` is x [T, K]."""
    if torch.compiler.is_compiling():
        return "torch.compile compiles the definition in plain torch instead"
    if call.cache is None:
        return "the kernel stores k and v, so it needs a cache"
    heads = call.q.shape[1] + 2 * call.k.shape[1]
    if not rows.numel():
        return "there are no tokens"
    tile = pick_qkv_tile(
        len(rows),
        rows.shape[1],
        heads,
        call.spec.head_dim,
        norm=False,  # x is not normed before the product
        head_norm=call.head_norm is not None,
        available=multiprocessors(rows.device),
    )
    if tile is None:
        return f"for {len(rows)} tokens of this shape the product and a second launch are faster"
    if reason := why_not_kernel(call):
        return reason
    if isinstance(call.norm, LatentNorm):
        return "the kernel normalises whole heads, not latents"
    if (
        rows.stride(-1) != 1
        or not weight.is_contiguous()
        or (bias is not None and not bias.is_contiguous())
    ):
        return "the last dimension of x, the weight or the bias is not contiguous"
    return "head_dim is odd" if call.spec.head_dim % 2 else None


def _one_launch(
    rows: Tensor, weight: Tensor, bias: Tensor | None, call: NormRotationCall
) -> Tensor:
    """Return the queries [T, Hq, D] of few tokens x [T, K] (`rows`), and write their keys and
    values to the cache, with the kernel of a decode step.
    """
    from ropewalk.kernels.qkv import launch

    # `_why_not` refuses a call without a cache, and `checked_call` a cache without slots
    assert call.cache is not None
    assert call.slots is not None
    q_heads, k_heads, head_dim = call.q.shape[1], call.k.shape[1], call.spec.head_dim
    q, norm = rows.new_empty(len(rows), q_heads, head_dim), call.head_norm
    # memory in which the programs that share a head exchange its sums, for its norm
    workspace = (
        None if norm is None else kept_workspace(len(rows), q_heads, k_heads, head_dim, rows.device)
    )
    launch.qkv_product(
        rows,
        weight,
        q,
        call.cache,
        call.slots,
        call.positions,
        call.spec,
        bias=bias,
        head_norm=norm,
        workspace=workspace,
    )
    return q


def _checked(
    x: Tensor, weight: Tensor, bias: Tensor | None, spec, positions, heads, norm, cache, slots
):
    """Return the checked call, whose q and k have the shape that the product will have but no
    values, and the sizes of the token axes of x.
    """
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and (t.dtype != x.dtype or t.device != x.device):
            raise RopeError(name, f"must be {x.dtype} on {x.device}, like x", [t.dtype, t.device])
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1]:
        raise RopeError("weight", f"must be [N, {x.shape[-1]}]", list(weight.shape))
    if bias is not None and bias.shape != weight.shape[:1]:
        raise RopeError(
            "bias", f"must be [{weight.shape[0]}], one for each row of the weight", list(bias.shape)
        )
    if isinstance(spec, RopeSpec):  # checked_call refuses others
        if spec.needs_length:
            rule = (
                "must have frequencies that do not depend on the length; use F.linear and "
                "qk_norm_rope, which takes a length"
            )
            raise RopeError("spec", rule, spec.scaling)
        q_heads, k_heads = (integer("heads", count, low=1) for count in heads)
        if weight.shape[0] != (q_heads + 2 * k_heads) * spec.head_dim:
            rule = (
                f"must be [({q_heads} + 2 * {k_heads}) * {spec.head_dim}, {x.shape[-1]}] for these "
                "heads"
            )
            raise RopeError("weight", rule, list(weight.shape))
    # checked_call reads none of its numbers, so one row of memory is expanded to all tokens; it has
    # q, k and v packed, so k and v are None, and there is no length
    packed = x.new_empty(weight.shape[0]).expand(*x.shape[:-1], -1)
    return checked_call(packed, None, None, spec, positions, heads, norm, cache, slots, None)
