"""What the installed Triton and the GPU support, and helpers for all Triton kernels. Importing this
does not import Triton.

`cached` keeps the results of a function's latest `entries` calls, under the name by which the list
of all caches shows them.
"""

from __future__ import annotations

import ctypes
import os
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from ropewalk.caches import cached

TRITON_INSTALLED = find_spec("triton") is not None


def interpreting() -> bool:
    """Return whether Triton's interpreter is on: kernels then run in Python and accept CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def why_no_triton(x: Tensor) -> str | None:
    """Return why Triton kernels cannot run on x, or None if they can."""
    if not x.is_cuda and not (x.is_cpu and interpreting()):
        return f"the kernel takes CUDA tensors, this one is on {x.device}"
    return None if TRITON_INSTALLED else "triton is not installed; pip install triton"


def has_sine_unit(x: Tensor) -> bool:
    """Return whether kernels use the GPU's sine instruction for x: on NVIDIA GPUs, if x has 16
    bits, whose rounding is larger than the instruction's error.
    """
    return x.element_size() == 2 and x.is_cuda and torch.version.hip is None


@cached("GPUs with programmatic dependent launch", entries=64)
def has_pdl(device: torch.device) -> bool:
    """Return whether a kernel can start before the previous kernel ends (programmatic dependent
    launch, Hopper and later).
    """
    return (
        device.type == "cuda"
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device)[0] >= 9
    )


@cached("GPUs with float8", entries=64)
def has_fp8(device: torch.device) -> bool:
    """Return whether the device converts to float8: GPUs do from compute capability 8.9 on, other
    devices always.
    """
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= (8, 9)


@cached("GPU multiprocessors", entries=64)
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; 1 for the CPU, where the interpreter runs."""
    return (
        torch.cuda.get_device_properties(device).multi_processor_count
        if device.type == "cuda"
        else 1
    )


@cached("shared memory of GPUs", entries=64)
def shared_memory(device: torch.device) -> int:
    """Return how many bytes of shared memory one program can use; for the CPU, where the
    interpreter runs, as many as on Hopper.

    A multiprocessor keeps 1 KiB of its memory for itself.
    """
    if device.type != "cuda":
        return 227 << 10
    return torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor - 1024


def captured_graph(device: torch.device) -> int | None:
    """Return a number that tells the CUDA graph that is being captured on the current stream from
    all others: 0 if none is, None if the driver does not say.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return 0
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuStreamGetCaptureInfo_v2
    except (OSError, AttributeError):
        return None
    # the driver writes the status of the capture, which is known here, and the number of the graph
    status, graph = ctypes.c_int(), ctypes.c_uint64()
    stream = ctypes.c_void_p(torch.cuda.current_stream(device).cuda_stream)
    # None: the outputs that are not needed
    error = ask(stream, ctypes.byref(status), ctypes.byref(graph), None, None, None)
    return None if error else graph.value


def untyped(kernel: Any) -> Any:
    """Return the kernel itself, typed Any because type checkers do not know the type that
    triton.jit returns.
    """
    return kernel


def tile_width(size: int) -> int:
    """Return the width of a tile for `size` dimensions: a power of two, at least 16, which tensor
    cores need.
    """
    return max(16, power_of_two(size))


def power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`; `count` must be 1 or more."""
    return 1 << (count - 1).bit_length()
