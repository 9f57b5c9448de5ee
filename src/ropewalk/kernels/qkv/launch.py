"""The launch of the QKV product into given outputs, so that a CUDA graph can capture it. Importing
this imports Triton.

`norm` is the norm of the product's input x, head_norm that of the heads of q and k. A tile says how
the product is divided; a workspace is memory in which programs that share a head exchange sums.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.decode_step.config import ProductTile, can_run_concurrently, pick_qkv_tile
from ropewalk.kernels.decode_step.definition import Norm
from ropewalk.kernels.decode_step.launch import machine_options
from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
from ropewalk.kernels.norm_rotation.api import qk_norm_rope
from ropewalk.kernels.norm_rotation.definition import KVSlots, QKNorm
from ropewalk.kernels.norm_rotation.launch import cache_strides
from ropewalk.kernels.qkv import kernel
from ropewalk.kernels.support import has_sine_unit, multiprocessors, power_of_two, shared_memory
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on, tables

#: typed Any because type checkers do not see what triton.jit returns
_QKV: Any = kernel.qkv_product


def qkv_product(
    x: Tensor, weight: Tensor, q_out: Tensor, cache: KVSlots, slots: Tensor, positions: Tensor, spec: RopeSpec, *,
    norm: Norm | None = None, bias: Tensor | None = None, head_norm: QKNorm | None = None, workspace: DecodeWorkspace | None = None,
    tile: ProductTile | None = None, early: bool = False,
) -> None:  # fmt: skip
    """Write rotated queries norm(x) @ weight^T into `q_out` [T, Hq, D], and the rotated keys and
    the values, which do not rotate, into the slots of `cache`.

    A head norm needs a `workspace`, unless `tile` has all pairs of a head in its columns. `early`
    reads slots and positions without waiting for the kernels before this one; only for a captured
    graph in which no earlier kernel writes them.
    """
    rows, depth = x.shape
    q_heads, k_heads, head_dim = q_out.shape[1], cache.k.shape[-2], q_out.shape[2]
    heads, available = q_heads + 2 * k_heads, multiprocessors(x.device)
    if tile is None:
        tile = pick_qkv_tile(
            rows,
            depth,
            heads,
            head_dim,
            norm=norm is not None,
            head_norm=head_norm is not None,
            available=available,
        )
    if tile is None:
        _two_launches(x, weight, q_out, cache, slots, positions, spec, bias, head_norm)
        return
    tile = tile.fitted(x.element_size(), shared_memory(x.device))
    spec_tables = tables(spec, x.device)
    # the magnitude of the rotated queries, then that of the rotated keys
    magnitudes = (
        float(magnitude_on(spec, spec_tables.frequencies.magnitude, key)) for key in (False, True)
    )
    k_strides, v_strides, page_size = cache_strides(cache)
    # a program computes `columns` pairs of one head, so `parts` programs share a head; for a norm
    # over the whole head they exchange sums of squares if all programs run at the same time,
    # otherwise pairs
    half = power_of_two(-(-head_dim // 2))
    columns = min(tile.columns, half)
    parts = -(-head_dim // 2 // columns)
    q_weight, k_weight = (
        (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    )
    memory = (
        (None,) * 3 if workspace is None else (workspace.partial, workspace.arrived, workspace.sums)
    )
    grid = ((q_heads + 2 * k_heads) * parts, -(-rows // tile.rows))
    concurrent = (
        head_norm is not None
        and parts > 1
        and tile.rows > 1
        and can_run_concurrently(grid[0] * grid[1], tile, x)
    )
    if (
        workspace is not None
        and workspace.sums.numel() < grid[1] * tile.rows * (q_heads + k_heads) * parts * parts
    ):
        concurrent = False  # `tile` has fewer pairs than the workspace expects
    with torch.cuda.device_of(x):
        _QKV[grid](
            x,
            None if norm is None else norm.weight,
            weight,
            bias,
            *memory,
            rows,
            0.0 if norm is None else norm.eps,
            x.stride(0),
            q_weight,
            k_weight,
            q_out,
            cache.k,
            cache.v,
            *cache.scales,
            positions,
            slots,
            spec_tables.steps,
            spec_tables.axis_of_pair,
            cache.num_slots,
            0.0 if head_norm is None else head_norm.eps,
            *magnitudes,
            q_out.stride(0),
            q_out.stride(1),
            positions.stride(0) if spec.num_axes > 1 else 0,
            *k_strides,
            *v_strides,
            Q_HEADS=q_heads,
            K_HEADS=k_heads,
            K=depth,
            HEAD_DIM=head_dim,
            START=spec.rotary_start,
            PAIRS=spec.pairs,
            AXES=spec.num_axes,
            INTERLEAVED=spec.layout == "interleaved",
            INTERLEAVED_OUT=spec.output_layout == "interleaved",
            NORM=norm is not None,
            BIAS=bias is not None,
            HEAD_NORM=head_norm is not None,
            HEAD_WEIGHT=q_weight is not None,
            PLUS_ONE=head_norm is not None and head_norm.plus_one,
            PAGE_SIZE=page_size,
            QUANTISED=cache.quantised,
            QUICK=has_sine_unit(x),
            ROWS=tile.rows,
            COLUMNS=columns,
            HALF_BLOCK=half,
            DEPTH=min(tile.depth, power_of_two(depth)),
            EARLY=early,
            CONCURRENT=concurrent,
            ROWS_MASKED=tile.masks(rows),
            **machine_options(x),
            **tile.options(),
            **({"launch_cooperative_grid": True} if concurrent else {}),
        )


def _two_launches(
    x: Tensor, weight: Tensor, q_out: Tensor, cache: KVSlots, slots: Tensor, positions: Tensor, spec: RopeSpec,
    bias: Tensor | None, head_norm: QKNorm | None,
) -> None:  # fmt: skip
    """Do what `qkv_product` does by torch's product and a second launch. x is not normed here:
    `pick_qkv_tile` has a tile for every product with a norm.
    """
    qk_norm_rope(
        F.linear(x, weight, bias),
        spec=spec,
        positions=positions,
        heads=(q_out.shape[1], cache.k.shape[-2]),
        norm=head_norm,
        cache=cache,
        slots=slots,
        q_out=q_out,
    )
