"""Launches of the decode kernels into given outputs, so that a CUDA graph can capture them.
Importing this imports Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.decode import attend as attend_kernel
from ropewalk.kernels.decode import next_token as next_token_kernel
from ropewalk.kernels.decode import product as device
from ropewalk.kernels.decode import qkv as qkv_kernel
from ropewalk.kernels.decode.config import (
    Tile,
    few_programs,
    in_one_launch,
    library_is_faster,
    pick_keys,
    pick_qkv_tile,
    pick_tile,
    run_concurrently,
)
from ropewalk.kernels.decode.workspace import Workspace
from ropewalk.kernels.fused.api import qk_norm_rope
from ropewalk.kernels.fused.definition import KVSlots, QKNorm
from ropewalk.kernels.fused.launch import cache_strides
from ropewalk.kernels.support import (
    has_pdl,
    has_sine_unit,
    interpreting,
    multiprocessors,
    power_of_two,
    shared_memory,
    tile_width,
)
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on, tables

#: typed Any because type checkers do not see what triton.jit returns
_PRODUCT: Any = device.product
_QKV: Any = qkv_kernel.qkv_product
_NORM: Any = device.norm
_GATE: Any = device.gated
_ATTEND: Any = attend_kernel.attend
_NEXT: Any = next_token_kernel.next_token
#: how many results a program of `gated` computes
GATE_BLOCK = 1024
FINISHES = {"store": device.STORE.value, "add": device.ADD.value, "gate": device.GATE.value}


@dataclass(frozen=True, eq=False)
class Norm:
    """The RMS norm of a product's input: weight [K] and epsilon."""

    weight: Tensor
    eps: float


def normed(x: Tensor, norm: Norm, out: Tensor) -> Tensor:
    """Write the RMS norm of the rows of x [T, K] into `out` and return it."""
    rows, width = x.shape
    block = power_of_two(width)
    with torch.cuda.device_of(x):
        _NORM[(rows,)](
            x, norm.weight, out, norm.eps, x.stride(0), out.stride(0), K=width, BLOCK=block,
            num_warps=max(1, min(16, block // 256)), **_dependent_launch(x),
        )  # fmt: skip
    return out


def product(
    x: Tensor, weight: Tensor, out: Tensor, *, norm: Norm | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, gate: bool = False, tile: Tile | None = None,
) -> None:  # fmt: skip
    """Write norm(x) @ weight^T + bias into `out`, plus `residual`; with `gate`, silu(first half) *
    second half of the columns.
    """
    rows, depth = x.shape
    count = out.shape[1]
    if (
        tile is None
        and norm is None
        and library_is_faster(rows, count, depth, x.element_size(), gate)
    ):
        _library_product(x, weight, out, bias, residual, gate)
        return
    tile = pick_tile(rows, count, depth, gate, multiprocessors(x.device)) if tile is None else tile
    tile = tile.fitted(x.element_size(), shared_memory(x.device))
    finish = "gate" if gate else "store" if residual is None else "add"
    with torch.cuda.device_of(x):
        _PRODUCT[(-(-count // tile.columns), -(-rows // tile.rows))](
            x,
            None if norm is None else norm.weight,
            weight,
            bias,
            residual,
            out,
            rows,
            0.0 if norm is None else norm.eps,
            x.stride(0),
            0 if residual is None else residual.stride(0),
            out.stride(0),
            COUNT=count,
            K=depth,
            FINISH=FINISHES[finish],
            NORM=norm is not None,
            BIAS=bias is not None,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            DEPTH=min(tile.depth, power_of_two(depth)),
            ROWS_MASKED=tile.masks(rows),
            **_machine(x),
            **tile.options(),
        )


def _library_product(
    x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> None:  # fmt: skip
    """Do what `product` does with the library's product."""
    if gate:
        packed = F.linear(x, weight, bias)
        rows, count = out.shape
        with torch.cuda.device_of(x):
            _GATE[(-(-count // GATE_BLOCK), rows)](
                packed,
                out,
                packed.stride(0),
                out.stride(0),
                COUNT=count,
                BLOCK=GATE_BLOCK,
                **_dependent_launch(x),
            )
    elif residual is None:
        torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(
            bias, x, weight.t(), out=out
        )
    elif bias is None:
        torch.addmm(residual, x, weight.t(), out=out)
    else:
        torch.add(F.linear(x, weight, bias), residual, out=out)


def qkv_product(
    x: Tensor, weight: Tensor, q_out: Tensor, cache: KVSlots, slots: Tensor, positions: Tensor, spec: RopeSpec, *,
    norm: Norm | None = None, bias: Tensor | None = None, head_norm: QKNorm | None = None, workspace: Workspace | None = None,
    tile: Tile | None = None, early: bool = False,
) -> None:  # fmt: skip
    """Write rotated queries norm(x) @ weight^T into `q_out` [T, Hq, D], and rotated keys and values
    into the slots of `cache`.

    A head norm needs a `workspace`, unless `tile` has all pairs of a head in its columns. `early`
    reads slots and positions without waiting for the kernels before this one; only for a captured
    graph, none of whose earlier kernels writes them.
    """
    rows, depth = x.shape
    if tile is None and norm is None and not in_one_launch(rows):
        _many_rows(x, weight, q_out, cache, slots, positions, spec, bias, head_norm)
        return
    q_heads, k_heads, head_dim = q_out.shape[1], cache.k.shape[-2], q_out.shape[2]
    tile = pick_qkv_tile(rows, depth, norm is not None) if tile is None else tile
    tile = tile.fitted(x.element_size(), shared_memory(x.device))
    spec_tables = tables(spec, x.device)
    # of the rotated queries, then of the rotated keys
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
        and run_concurrently(grid[0] * grid[1], x.device)
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
            **_machine(x),
            **tile.options(),
            **({"launch_cooperative_grid": True} if concurrent else {}),
        )


def _many_rows(
    x: Tensor, weight: Tensor, q_out: Tensor, cache: KVSlots, slots: Tensor, positions: Tensor, spec: RopeSpec,
    bias: Tensor | None, head_norm: QKNorm | None,
) -> None:  # fmt: skip
    """Do what `qkv_product` does for more rows than its kernel takes: by the library's product and
    a second launch.
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


def attend(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, first_keys: Tensor, num_keys: Tensor, scale: float, workspace: Workspace, *,
    window: int | None = None, keys: int | None = None, early: bool = False,
) -> None:  # fmt: skip
    """Write the attention of q [B, Hq, D] over the cached k and v [B, Hk, N, D] into `out` [B, Hq,
    D].

    first_keys  [B], the index of each row's first key; the keys before it are padding
    num_keys    [1], how many keys the cache holds, those of q's own tokens included
    window      a row sees only so many of its latest keys; None: all
    keys        how many keys a program reads at a time
    early       read `num_keys`, `first_keys` and all keys and values but the newest without waiting
                for the kernels before this one; only for a captured graph, none of whose earlier
                kernels writes them
    """
    rows, q_heads, head_dim = q.shape
    k_heads = k.shape[1]
    group = q_heads // k_heads
    dim_block = tile_width(head_dim)
    few = few_programs(rows, k_heads, q.device)
    most_keys, stages, warps = pick_keys(few, dim_block, k.element_size(), shared_memory(q.device))
    keys = most_keys if keys is None else keys
    with torch.cuda.device_of(q):
        _ATTEND[(rows * k_heads, workspace.splits)](
            q,
            k,
            v,
            out,
            workspace.partial,
            workspace.statistics,
            workspace.arrived,
            first_keys,
            num_keys,
            scale,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            k.stride(2),
            v.stride(0),
            v.stride(1),
            v.stride(2),
            out.stride(0),
            out.stride(1),
            GROUP=group,
            GROUP_BLOCK=tile_width(group),
            K_HEADS=k_heads,
            HEAD_DIM=head_dim,
            DIM_BLOCK=dim_block,
            SPLITS=workspace.splits,
            KEYS=keys,
            WINDOW=window or 0,
            EARLY=early,
            TILES=-(-k.shape[2] // keys) if interpreting() else 0,
            num_warps=warps,
            num_stages=stages,
            **_machine(q),
        )


def next_token(
    logits: Tensor,
    embedding: Tensor,
    tokens: Tensor,
    x: Tensor,
    counters: Tensor,
    workspace: Workspace,
) -> None:
    """Write the most likely token of each row of `logits` [B, V] to `tokens`, at the row's slot,
    and its embedding to x [B, K].

    counters  [2 B + 1]: the position of each row, the slot of each row, and the number of keys; 1
              is added to each
    """
    rows, vocabulary = logits.shape
    with torch.cuda.device_of(x):
        _NEXT[(rows, workspace.vocabulary_splits)](
            logits,
            embedding,
            tokens,
            x,
            counters,
            workspace.highest,
            workspace.places,
            workspace.arrived,
            rows,
            logits.stride(0),
            x.stride(0),
            VOCABULARY=vocabulary,
            WIDTH=x.shape[1],
            SPLITS=workspace.vocabulary_splits,
            num_warps=4,
            **_dependent_launch(x),
        )


def _machine(x: Tensor) -> dict[str, Any]:
    """Return the options of a kernel with matrix products, which depend on the GPU and the dtype."""
    return {"PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **_dependent_launch(x)}


def _dependent_launch(x: Tensor) -> dict[str, Any]:
    """Return the options of a kernel that starts before the previous one ends, where the GPU can."""
    pdl = has_pdl(x.device)
    return {"PDL": pdl, **({"launch_pdl": True} if pdl else {})}
