"""Causal softmax attention of a whole text on the CPU, by the native library.

B is the batch size, S the number of tokens, H and G are the heads of q and of k; `library.handle`
is the loaded library, None without one, and `library.missing` then says why.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.kernels.cpu import library

#: the head dimension must be a multiple of this: the library multiplies tiles of 8 dimensions
DIM_MULTIPLE = 8
#: `struct attention` of attention.inc: pointer and strides (batch, head, row) of q, k, v and y;
#: batch size, heads of q and of k, rows, head dimension; the softmax scale
_CALL = struct.Struct("=16q5qd")
_attend: Callable[[bytes], int] | None = getattr(library.handle, "ropewalk_attend", None)


def available() -> bool:
    """Return whether the library has attention for this machine."""
    return _attend is not None


def why_not(q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Return why the library cannot compute the attention of q [B, H, S, D], k and v [B, G, S, D],
    or None if it can.
    """
    if library.handle is None:
        return library.missing
    if _attend is None:
        return "the native library has attention for 64-bit ARM only; elsewhere torch's own is used"
    if not all(x.is_cpu and x.dtype == torch.float32 for x in (q, k, v)):
        return "q, k and v must be float32 on the CPU"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return "the native attention has no gradient"
    if (
        k.shape != v.shape
        or q.shape[0] != k.shape[0]
        or q.shape[2:] != k.shape[2:]
        or q.shape[1] % k.shape[1]
    ):
        return (
            "q, k and v must have the same batch size, length and head dimension, k and v the same "
            "number of heads, and q's number of heads must be a multiple of k's"
        )
    if not q.numel():
        return "q is empty"
    if q.shape[-1] % DIM_MULTIPLE:
        return f"the head dimension must be a multiple of {DIM_MULTIPLE}"
    return None


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Return the causal attention of q [B, H, S, D] to k and v [B, G, S, D] of G key heads: [B, H,
    S, D], in memory as [B, S, H, D]. `scale` is the softmax scale.

    The caller has asked `why_not`, which returned None.
    """
    assert _attend is not None
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    y = q.new_empty(batch, rows, heads, dim).transpose(1, 2)
    # a pointer and three strides of each tensor
    pointers_and_strides = [word for x in (q, k, v, y) for word in (x.data_ptr(), *x.stride()[:3])]
    out_of_memory = _attend(
        _CALL.pack(*pointers_and_strides, batch, heads, k.shape[1], rows, dim, scale)
    )
    if out_of_memory:
        raise RopeError(
            "q", "must be shorter: there is no memory for copies of q, k and v", list(q.shape)
        )
    return y
