"""The Triton backend: which tensors it supports, and functions that import Triton when they are
called.

A TableRequest is a rotation by cos and sin of the caller, other requests have positions. A lazy
negative view is a tensor whose memory holds the values with the opposite sign.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ropewalk.kernels.request import COMPUTED_IN_FLOAT32, AnyRequest, Request, TableRequest
from ropewalk.kernels.support import why_no_triton

#: a wider head does not fit in one program's registers
MOST_DIMS = 4096


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """Return why this backend cannot rotate x, or None if it can."""
    if (reason := why_no_triton(x)) is not None:
        return reason
    if x.dtype not in COMPUTED_IN_FLOAT32:
        return (
            "the kernel computes in float32, so it takes bfloat16, float16 and float32, not "
            f"{x.dtype}"
        )
    if x.ndim > 4:
        return f"the kernel takes up to 4 axes, this tensor has {x.ndim}"
    if x.shape[-1] > MOST_DIMS:
        return (
            f"the kernel takes heads of at most {MOST_DIMS} dimensions, this one has {x.shape[-1]}"
        )
    if isinstance(request, TableRequest) and request.cos.ndim == 4 and request.cos.shape[1] > 1:
        return "the kernel takes one table for all heads, this one differs from head to head"
    if isinstance(request, TableRequest) and (request.cos.is_neg() or request.sin.is_neg()):
        return "cos or sin is a lazy negative view; call .resolve_neg()"
    return "x is a lazy negative view; call .resolve_neg()" if x.is_neg() else None


def prepare(
    xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request
) -> Callable[..., bool] | None:
    """Return a function (q, k, q_out, k_out, positions, offset) -> started, for calls whose tensors
    have these shapes, dtypes and strides: it starts the compiled kernel and returns True, or starts
    nothing and returns False if it does not support the call. None if there is no single compiled
    kernel for them.
    """
    from ropewalk.kernels.rotation.triton import launch

    return launch.prepare(xs, outs, request)


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each rotated x into its out, which may be x itself."""
    from ropewalk.kernels.rotation.triton.launch import launch

    launch(xs, outs, request)
