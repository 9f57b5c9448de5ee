"""One Triton kernel for CUDA tensors: q and k in one launch, any memory order, exact phases instead of tables.

Triton itself is imported with the first tensor that needs it. Under TRITON_INTERPRET=1 CPU tensors are taken too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from ropewalk.kernels.request import AnyRequest, Request, TableRequest

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
#: a wider head does not fit in one program's registers
MOST_DIMS = 4096


@cache
def _installed() -> bool:
    return find_spec("triton") is not None


def interpreting() -> bool:
    """Whether Triton runs its kernels in Python on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_no_triton(x: Tensor) -> str | None:
    """The reason why no Triton kernel can take a tensor of this device here, or None."""
    if not x.is_cuda and not (x.is_cpu and interpreting()):
        return f"it takes CUDA tensors, this one is on {x.device}"
    return None if _installed() else "triton is not installed; pip install triton"


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """The reason why this tensor cannot be turned here, or None."""
    if (reason := why_no_triton(x)) is not None:
        return reason
    if x.dtype not in DTYPES:
        return f"it computes in float32, so it takes bfloat16, float16 and float32, not {x.dtype}"
    if x.ndim > 4:
        return f"it takes up to 4 axes, this tensor has {x.ndim}"
    if x.shape[-1] > MOST_DIMS:
        return f"a head of at most {MOST_DIMS} dimensions fits in one program, this one has {x.shape[-1]}"
    if isinstance(request, TableRequest) and request.cos.ndim == 4 and request.cos.shape[1] > 1:
        return "its tables are shared by all heads, these differ from head to head"
    return None


def has_sine_unit(x: Tensor) -> bool:
    """Whether the GPU's own sine is good enough: its error vanishes in the rounding to 16 bits, and CUDA's assembler has it."""
    return x.element_size() == 2 and x.is_cuda and torch.version.hip is None


@cache
def _launcher():
    from ropewalk.kernels.triton import launch as triton_launch

    return triton_launch.launch


def prepare(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request) -> Callable[..., bool] | None:
    """A function that starts the compiled kernel for other calls of this kind, or None if there is no one kernel."""
    from ropewalk.kernels.triton import launch as triton_launch

    return triton_launch.prepare(xs, outs, request)


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each turned x into its out, which may be x itself, in one launch."""
    _launcher()(xs, outs, request)
