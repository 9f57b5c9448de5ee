"""qkv_norm_rope: the QKV product, head norm, rotation and cache write of a decode step in one launch."""

from __future__ import annotations

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn import functional as F

from ropewalk.errors import RopeError, choice
from ropewalk.kernels.decode.config import MOST_TOKENS
from ropewalk.kernels.fused.api import BACKENDS, checked_call, qk_norm_rope
from ropewalk.kernels.fused.config import why_not_kernel
from ropewalk.kernels.fused.definition import KVSlots, LatentNorm, QKNorm
from ropewalk.spec import RopeSpec


def qkv_norm_rope(
    x: Float[Tensor, "... K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None = None,
    *,
    spec: RopeSpec,
    positions: Shaped[Tensor, "..."],
    heads: tuple[int, int],
    cache: KVSlots,
    slots: Shaped[Tensor, "..."],
    norm: QKNorm | None = None,
    backend: str | None = None,
) -> Float[Tensor, "... H D"]:
    """Return the rotated queries of x @ weight^T + bias, and store its rotated keys and its values in the cache.

    weight     [(Hq + 2 Hk) head_dim, K]: the rows of all queries, then of all keys, then of all values
    positions  integers, one per token of x; [axes, ...] if the spec has several axes
    heads      (Hq, Hk)
    slots      the cache slot of every token; a token with a negative slot is padding and not stored
    norm       QKNorm of each head of q and k before the rotation, or None
    backend    "triton", "definition" (F.linear, then qk_norm_rope), or None: the faster one that supports the call

    There are no gradients: for training call F.linear and `qk_norm_rope` without a cache.
    """
    reason = why_not(x, weight, bias, spec=spec, positions=positions, heads=heads, cache=cache, slots=slots, norm=norm)
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, weight, bias)):
        raise RopeError("cache", "stores values without gradients; call it under torch.no_grad()", "an input requires grad")
    if backend is None:
        # measured on an H200: with more tokens, the library's product and a second launch are faster
        backend = "definition" if reason or x.shape[:-1].numel() > MOST_TOKENS else "triton"
    if choice("backend", backend, BACKENDS) == "definition":
        packed = F.linear(x, weight, bias)
        q: Tensor = qk_norm_rope(packed, spec=spec, positions=positions, heads=heads, norm=norm, cache=cache, slots=slots)  # type: ignore[assignment]
        return q
    if reason:
        raise RopeError("backend", f"'triton' cannot take this call: {reason}; pass backend=None", list(x.shape))
    from ropewalk.kernels.decode import launch

    call, shape = _call(x, weight, spec, positions, heads, norm, cache, slots)
    assert call.slots is not None
    rows = x.reshape(-1, x.shape[-1])
    q = x.new_empty(len(rows), heads[0], spec.head_dim)
    workspace = None if norm is None else launch.Workspace(len(rows), *heads, spec.head_dim, 1, x.device)
    launch.qkv_product(
        rows, weight, q, cache, call.slots, call.positions, spec, bias=bias, head_norm=norm, workspace=workspace
    )  # fmt: skip
    return q.view(*shape, *q.shape[1:])


def why_not(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, spec, positions, heads, cache, slots, norm=None
) -> str | None:
    """Return why the Triton kernel does not support this call of `qkv_norm_rope`, or None if it does."""
    for name, t in (("weight", weight), ("bias", bias)):
        if t is not None and (t.dtype != x.dtype or t.device != x.device):
            raise RopeError(name, f"must be {x.dtype} on {x.device}, like x", [t.dtype, t.device])
    if weight.ndim != 2 or weight.shape[1] != x.shape[-1] or (bias is not None and bias.shape != weight.shape[:1]):
        raise RopeError("weight", f"must be [N, {x.shape[-1]}], with a bias [N] or none", list(weight.shape))
    if reason := why_not_kernel(_call(x, weight, spec, positions, heads, norm, cache, slots)[0]):
        return reason
    if isinstance(norm, LatentNorm):
        return "the kernel normalises whole heads, not latents"
    if not weight.is_contiguous() or spec.head_dim % 2:
        return "the kernel takes a contiguous weight and an even head_dim"
    return None if x.numel() else "there are no tokens"


def _call(x: Tensor, weight: Tensor, spec, positions, heads, norm, cache, slots):
    # a tensor of the product's shape without its memory, which the checks look at
    packed = x.new_empty(weight.shape[0]).expand(*x.shape[:-1], -1)
    return checked_call(packed, None, None, spec, positions, heads, norm, cache, slots, None)
