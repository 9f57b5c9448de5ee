"""The operations of a decode step in plain torch: what the kernels of this folder compute.

Inputs are computed in their own dtype, so tests pass float64. `ropewalk.kernels.qkv` defines the
QKV product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, eq=False)
class Norm:
    """The RMS norm of a product's input: weight [K] and epsilon."""

    weight: Tensor
    eps: float


def normed(x: Tensor, norm: Norm) -> Tensor:
    """Return the RMS norm of the rows of x [T, K]: x / sqrt(mean(x^2) + eps) * weight."""
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + norm.eps) * norm.weight


def product(
    x: Tensor,
    weight: Tensor,
    *,
    norm: Norm | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    gate: bool = False,
) -> Tensor:
    """Return norm(x) @ weight^T + bias + residual, without those that are None. With `gate`, leave
    the residual out and return silu(first half) * second half of the columns.
    """
    out = (x if norm is None else normed(x, norm)) @ weight.mT
    if bias is not None:
        out = out + bias
    if gate:
        first, second = out.chunk(2, dim=-1)
        return F.silu(first) * second
    return out if residual is None else out + residual


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first_keys: Tensor,
    num_keys: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Return the attention [B, Hq, D] of q [B, Hq, D] over the cached k and v [B, Hk, N, D].

    `num_keys` is how many keys the cache holds, one number for all rows. Row b sees the keys
    first_keys[b] ... num_keys - 1, at least one, and of them at most the latest `window`. Each key
    head serves Hq / Hk neighbouring query heads. `scale` is the softmax scale.
    """
    shared = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(shared, dim=1) for t in (k, v))
    index = torch.arange(k.shape[2], device=k.device)
    first = first_keys if window is None else first_keys.clamp(min=int(num_keys) - window)
    seen = (index >= first[:, None]) & (index < num_keys)  # [B, N]
    scores = scale * (q.unsqueeze(-2) @ k.mT).squeeze(-2)  # [B, Hq, N]
    weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(dim=-1)
    return (weights.unsqueeze(-2) @ v).squeeze(-2)


def next_token(logits: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most likely token of each row of `logits` [B, V], the first of equals, and its
    row of `embedding`.
    """
    tokens = (logits == logits.amax(dim=-1, keepdim=True)).int().argmax(dim=-1)
    return tokens, embedding[tokens]
