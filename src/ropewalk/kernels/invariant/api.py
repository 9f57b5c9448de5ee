"""Norm, product and attention whose bits do not depend on the batch: by Triton kernels where they
can run (plain torch computes their gradients), else by the definition.

`plain` is a function in plain torch with the arguments of a kernel. Its results need not have the
same bits; only its gradients are used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.invariant import definition
from ropewalk.kernels.request import COMPUTED_IN_FLOAT32
from ropewalk.kernels.support import why_no_triton


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of the rows of x [T, K]."""
    if not _by_kernel(x):
        return definition.normed(x, weight, eps)
    from ropewalk.kernels.invariant import launch

    return _with_gradients(
        lambda x, weight: launch.normed(x, weight, eps),
        lambda x, weight: F.rms_norm(x, weight.shape, weight, eps),
        x,
        weight,
    )


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    gate: bool = False,
) -> Tensor:
    """Return x @ weight^T + bias [T, N] for x [T, K], plus `residual`; or, with `gate`, silu(first
    half) * second half of the columns.
    """
    if not _by_kernel(x):
        return definition.product(x, weight, bias, residual, gate)
    from ropewalk.kernels.invariant import launch

    def plain(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """Return the product in plain torch, for its gradients."""
        return definition.finished(F.linear(x, weight, bias), residual, gate)

    return _with_gradients(
        lambda x, weight, bias, residual: launch.product(x, weight, bias, residual, gate),
        plain,
        x,
        weight,
        bias,
        residual,
    )


def attention(
    q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor, scale: float, window: int | None = None
) -> Tensor:
    """Return the attention [B, S, Hq, D] of q [B, S, Hq, D] over k and v [B, Hk, N, D].

    The S queries are the last S of the N tokens. A query sees the keys from first_keys[row] to its
    own, and with a window at most the latest `window` of them; a query before its row's first key
    sees nothing.
    """
    if not _by_kernel(q):
        return definition.attention(q, k, v, first_keys, scale, window)
    from ropewalk.kernels.invariant import launch

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention in plain torch, for its gradients; first_keys, window and scale are
        those of `attention`.
        """
        # `own` is the index of each query's own key
        own = torch.arange(k.shape[2] - q.shape[1], k.shape[2], device=q.device)[:, None]
        key = torch.arange(k.shape[2], device=q.device)
        seen = (key <= own) & (key >= first_keys[:, None, None])  # [B, S, N]
        if window is not None:
            seen = seen & (key > own - window)
        # the gradients of a query that sees no key would be NaN, so it sees all keys here, and its
        # output is set to 0
        sees = seen.any(-1, keepdim=True)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, (seen | ~sees)[:, None], scale=scale, enable_gqa=True
        )
        return out.transpose(1, 2) * sees[..., None]

    return _with_gradients(
        lambda q, k, v: launch.attention(q, k, v, first_keys, scale, window), plain, q, k, v
    )


def _by_kernel(x: Tensor) -> bool:
    """Return whether the Triton kernels can compute with x."""
    return why_no_triton(x) is None and x.dtype in COMPUTED_IN_FLOAT32


def _with_gradients(
    kernel: Callable[..., Tensor], plain: Callable[..., Tensor], *tensors: Tensor | None
) -> Tensor:
    """Return kernel(*tensors); its gradients are those of plain(*tensors)."""
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors):
        return _KernelWithPlainGradients.apply(kernel, plain, *tensors)  # type: ignore[return-value]
    return kernel(*tensors)


class _KernelWithPlainGradients(torch.autograd.Function):
    """A kernel forward; the backward computes the same in plain torch and differentiates that."""

    @staticmethod
    def forward(ctx: Any, kernel, plain, *tensors):
        """Return kernel(*tensors)."""
        ctx.plain = plain
        ctx.save_for_backward(*tensors)
        return kernel(*tensors)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor):
        """Return None for the two functions, and the gradient of each tensor, None where none is
        needed.
        """
        needed = ctx.needs_input_grad[2:]  # without those of `kernel` and `plain`
        inputs: list[Any] = [
            t if t is None else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        with torch.enable_grad():
            out = ctx.plain(*inputs)
        wanted = [t for t, need in zip(inputs, needed, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad))
        return None, None, *(next(found) if need else None for need in needed)
