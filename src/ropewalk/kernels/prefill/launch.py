"""Launch of the QKV product of many tokens, and which calls it supports. The kernel, and Triton, are imported at the launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.caches import cached
from ropewalk.kernels.fused.definition import Call, LatentNorm
from ropewalk.kernels.support import TRITON_INSTALLED, has_sine_unit, interpreting, multiprocessors
from ropewalk.table import magnitude_on, tables

#: from a sweep on an H200: tokens and columns of a tile, depth, tiles of rows that share a block of the weight
ROWS, COLUMNS, DEPTH, GROUP = 128, 256, 64, 8
OPTIONS = {"num_stages": 3, "num_warps": 8}
#: with fewer or more tokens the library's product and a second launch are faster
FEWEST_TOKENS, MOST_TOKENS = 2048, 8192


def why_not(x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> str | None:
    """Return why the kernel cannot take x [T, K], weight and bias for `call`, or None if it can."""
    spec, heads = call.spec, (call.q.shape[1], call.k.shape[1])
    if not _has_tensor_copies(x.device) and not interpreting():
        return "the kernel needs Triton 3.4 and a Hopper GPU, whose copy engine reads the weight"
    if x.element_size() != 2 and not interpreting():
        return f"the kernel takes float16 and bfloat16, not {x.dtype}"
    if isinstance(call.norm, LatentNorm) or spec.layout != spec.layout_out or 2 * spec.pairs != spec.head_dim:
        return "the kernel rotates whole heads and keeps the layout"
    if spec.head_dim < 16 or COLUMNS % spec.head_dim or any(count * spec.head_dim % COLUMNS for count in heads):
        return f"the heads of q and of k must each have a multiple of {COLUMNS} dims"
    if any(t.stride(-1) != 1 or t.stride(0) * t.element_size() % 16 or t.data_ptr() % 16 for t in (x, weight)):
        return "x and weight need rows of 16-byte multiples"
    if not weight.is_contiguous() or (bias is not None and not bias.is_contiguous()):
        return "weight and bias must be contiguous"
    return None


@cached("GPUs with tensor copies", entries=64)
def _has_tensor_copies(device: torch.device) -> bool:
    """Return whether the GPU and Triton have tensor descriptors, which copy whole tiles: Hopper and Triton 3.4.

    Newer GPUs have them too, but the tiles were chosen and measured on Hopper.
    """
    if device.type != "cuda" or torch.version.hip is not None or not TRITON_INSTALLED:
        return False
    import triton

    return hasattr(triton.language, "make_tensor_descriptor") and torch.cuda.get_device_capability(device)[0] == 9


def run(x: Tensor, weight: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    """Return x [T, K] @ weight^T + bias, [T, N], with the heads of q and k in it normed and rotated; fill the call's cache.

    The N columns are the heads of q, then of k, then of v. `call` has their numbers, the norm, the positions and the cache.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    from ropewalk.kernels.fused.launch import cache_strides
    from ropewalk.kernels.prefill import kernel

    (tokens, depth), columns, spec, cache = x.shape, weight.shape[0], call.spec, call.cache
    half, interleaved, norm = spec.head_dim // 2, spec.layout == "interleaved", call.head_norm
    heads = COLUMNS // spec.head_dim  # in one tile
    out = x.new_empty(tokens, columns)
    # read the weight as [head, pair, member, depth], so that both members of a pair become neighbouring columns of the product
    pair_stride, member_stride = (2 * depth, depth) if interleaved else (depth, half * depth)
    rows_of_weight = [columns // spec.head_dim, half, 2, depth]
    strides = [spec.head_dim * depth, pair_stride, member_stride, 1]
    x_tiles = TensorDescriptor(x, [tokens, depth], [x.stride(0), 1], [ROWS, DEPTH])
    weight_tiles = TensorDescriptor(weight, rows_of_weight, strides, [heads, half, 2, DEPTH])
    # the results are stored in the layout of the spec: interleaved pairs are as in the product, others are stored by members
    if interleaved:
        out_tiles = TensorDescriptor(out, [tokens, columns], [columns, 1], [ROWS, COLUMNS])
    else:
        shape, out_strides = [tokens, columns // spec.head_dim, 2, half], [columns, spec.head_dim, half, 1]
        out_tiles = TensorDescriptor(out, shape, out_strides, [ROWS, heads, 1, half])
    spec_tables = tables(spec, x.device)
    q_magnitude, k_magnitude = (float(magnitude_on(spec, spec_tables.frequencies.magnitude, key)) for key in (False, True))
    stores, scales = ((None, None), (None, None)) if cache is None else ((cache.k, cache.v), cache.scales)
    k_strides, v_strides, page_size = cache_strides(cache)
    count = -(-tokens // ROWS) * (columns // COLUMNS)  # tiles of the product
    programs = min(multiprocessors(x.device), count)
    qkv_tiles: Any = kernel.qkv_tiles
    eps, norm_weights = 0.0 if norm is None else norm.eps, call.weights
    # Triton's interpreter cannot loop to a computed bound, so it gets the number of tiles as a constant
    constant_count = count if interpreting() else 0
    with torch.cuda.device_of(x):
        qkv_tiles[(programs,)](
            x_tiles, weight_tiles, out_tiles, bias, *norm_weights, *stores, *scales, call.positions, call.slots,
            spec_tables.steps, spec_tables.axis_of_pair, tokens, 0 if cache is None else cache.num_slots, eps,
            q_magnitude, k_magnitude, call.positions.stride(0) if spec.num_axes > 1 else 0, *k_strides, *v_strides,
            Q_TILES=call.q.shape[1] // heads, K_TILES=call.k.shape[1] // heads, K=depth, HALF=half, HEADS=heads,
            AXES=spec.num_axes, INTERLEAVED=interleaved, BIAS=bias is not None, NORM=norm is not None, WEIGHT=call.weight_form,
            CACHE=cache is not None, PAGE_SIZE=page_size, QUANTISED=cache is not None and cache.quantised,
            QUICK=has_sine_unit(x), ROWS=ROWS, DEPTH=DEPTH, GROUP=GROUP, PROGRAMS=programs,
            COUNT=constant_count, PRECISION="ieee" if x.dtype == torch.float32 else "tf32", **OPTIONS,
        )  # fmt: skip
    return out
