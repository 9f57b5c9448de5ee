"""Launch of the QKV product of many tokens. The kernels, and Triton, are imported at the launch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.fused.definition import Call
from ropewalk.kernels.prefill.forms import DEPTH, Form
from ropewalk.kernels.support import has_sine_unit, interpreting, multiprocessors
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on, tables


def run(
    form: Form,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    call: Call,
    out: Tensor | None = None,
) -> Tensor:
    """Return x [T, K] @ weight^T + bias with the heads of q and k in it normed and rotated: [T, N],
    or q alone with a cache.

    The N columns are the heads of q, then of k, then of v. `call` has their numbers, the norm, the
    positions and the cache, whose slots are filled. `out`, for a specialised form with a cache, is
    where to write q, [T, Hq head_dim].
    """
    from ropewalk.kernels.fused.launch import cache_strides

    columns, spec, cache = weight.shape[0], call.spec, call.cache
    width = call.q.shape[1] * spec.head_dim  # of q
    if out is None:
        out = x.new_empty(len(x), columns if cache is None or not form.specialised else width)
    kernel, tiles, options = (_specialised if form.specialised else _plain)(
        form, x, weight, out, spec
    )
    heads, norm = form.columns // spec.head_dim, call.head_norm  # heads of one tile
    spec_tables = tables(spec, x.device)
    magnitudes = (
        float(magnitude_on(spec, spec_tables.frequencies.magnitude, key)) for key in (False, True)
    )
    stores, scales = (
        ((None, None), (None, None)) if cache is None else ((cache.k, cache.v), cache.scales)
    )
    k_strides, v_strides, page_size = cache_strides(cache)
    with torch.cuda.device_of(x):
        kernel[(form.programs(len(x), columns, multiprocessors(x.device)),)](
            *tiles,
            bias,
            *call.weights,
            *stores,
            *scales,
            call.positions,
            call.slots,
            spec_tables.steps,
            spec_tables.axis_of_pair,
            len(x),
            0 if cache is None else cache.num_slots,
            0.0 if norm is None else norm.eps,
            *magnitudes,
            call.positions.stride(0) if spec.num_axes > 1 else 0,
            *k_strides,
            *v_strides,
            Q_TILES=call.q.shape[1] // heads,
            K_TILES=call.k.shape[1] // heads,
            K=x.shape[1],
            HALF=spec.head_dim // 2,
            HEADS=heads,
            AXES=spec.num_axes,
            INTERLEAVED=spec.layout == "interleaved",
            BIAS=bias is not None,
            NORM=norm is not None,
            WEIGHT=call.weight_form,
            CACHE=cache is not None,
            PAGE_SIZE=page_size,
            QUANTISED=cache is not None and cache.quantised,
            ROWS=form.rows,
            DEPTH=DEPTH,
            GROUP=form.group,
            **options,
        )
    return out if cache is None else out[:, :width]


def _specialised(
    form: Form, x: Tensor, weight: Tensor, out: Tensor, spec: RopeSpec
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the kernel in Gluon, descriptors of the tiles of x, weight and out, and the kernel's
    own options.
    """
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from ropewalk.kernels.prefill import specialised

    layout = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16)
    # groups of four warps compute 64 rows each, and store them
    blocks = ((x, [form.rows, DEPTH]), (weight, [form.columns, DEPTH]), (out, [64, form.columns]))
    tiles = tuple(
        TensorDescriptor(t, list(t.shape), [t.stride(0), 1], block, layout) for t, block in blocks
    )
    options = {
        "X_STAGES": form.x_stages,
        "W_STAGES": form.weight_stages,
        "ONE_TILE": form.one_tile,
        "num_warps": 4,
        "launch_pdl": True,
    }
    return specialised.qkv_tiles, tiles, options


def _plain(
    form: Form, x: Tensor, weight: Tensor, out: Tensor, spec: RopeSpec
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the kernel in Triton, descriptors of the tiles of x, weight and out, and the kernel's
    own options.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    from ropewalk.kernels.prefill import kernel

    (tokens, depth), columns, half = x.shape, weight.shape[0], spec.head_dim // 2
    heads, interleaved = form.columns // spec.head_dim, spec.layout == "interleaved"
    # read the weight as [head, pair, member, depth], so that both members of a pair become
    # neighbouring columns of the product
    pair_stride, member_stride = (2 * depth, depth) if interleaved else (depth, half * depth)
    rows_of_weight = [columns // spec.head_dim, half, 2, depth]
    strides = [spec.head_dim * depth, pair_stride, member_stride, 1]
    x_tiles = TensorDescriptor(x, [tokens, depth], [x.stride(0), 1], [form.rows, DEPTH])
    weight_tiles = TensorDescriptor(weight, rows_of_weight, strides, [heads, half, 2, DEPTH])
    # the results are stored in the layout of the spec: interleaved pairs are as in the product,
    # others are stored by members
    if interleaved:
        out_tiles = TensorDescriptor(
            out, [tokens, columns], [columns, 1], [form.rows, form.columns]
        )
    else:
        shape, out_strides = (
            [tokens, columns // spec.head_dim, 2, half],
            [columns, spec.head_dim, half, 1],
        )
        out_tiles = TensorDescriptor(out, shape, out_strides, [form.rows, heads, 1, half])
    # Triton's interpreter cannot loop to a computed bound, so it gets the number of tiles as a
    # constant
    options = {
        "COUNT": form.tiles(tokens, columns) if interpreting() else 0,
        "PROGRAMS": form.programs(tokens, columns, multiprocessors(x.device)),
        "QUICK": has_sine_unit(x),
        "PRECISION": "ieee" if x.dtype == torch.float32 else "tf32",
        "num_stages": form.weight_stages,
        "num_warps": 8,
    }
    return kernel.qkv_tiles, (x_tiles, weight_tiles, out_tiles), options
