"""Launches of the decode kernels into given outputs, so that a CUDA graph can capture them.
Importing this imports Triton.

B is the number of rows of a step, one token each; a workspace is memory in which the programs of a
launch exchange their parts. The norm, bias, residual and gate of a product are those of
`definition.product`. PDL (programmatic dependent launch) starts a kernel before the previous one
ends.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.decode_step import attend as attend_kernel
from ropewalk.kernels.decode_step import next_token as next_token_kernel
from ropewalk.kernels.decode_step import product as device
from ropewalk.kernels.decode_step.config import (
    ProductTile,
    few_programs,
    library_is_faster,
    pick_keys,
    pick_tile,
)
from ropewalk.kernels.decode_step.definition import Norm
from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
from ropewalk.kernels.support import (
    has_pdl,
    interpreting,
    multiprocessors,
    power_of_two,
    shared_memory,
    tile_width,
)

#: typed Any because type checkers do not see what triton.jit returns
_PRODUCT: Any = device.product
_NORM: Any = device.norm
_GATE: Any = device.gated
_ATTEND: Any = attend_kernel.attend
_NEXT: Any = next_token_kernel.next_token
#: how many results a program of `gated` computes
GATE_BLOCK = 1024
FINISHES = {"store": device.STORE.value, "add": device.ADD.value, "gate": device.GATE.value}


def normed(x: Tensor, norm: Norm, out: Tensor) -> Tensor:
    """Write the RMS norm of the rows of x [T, K] into `out` and return it."""
    rows, width = x.shape
    block = power_of_two(width)
    with torch.cuda.device_of(x):
        _NORM[(rows,)](
            x, norm.weight, out, norm.eps, x.stride(0), out.stride(0), K=width, BLOCK=block,
            num_warps=max(1, min(16, block // 256)), **dependent_launch(x),
        )  # fmt: skip
    return out


def product(
    x: Tensor, weight: Tensor, out: Tensor, *, norm: Norm | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, gate: bool = False, tile: ProductTile | None = None, part: int = 0,
) -> None:  # fmt: skip
    """Write norm(x) @ weight^T + bias + residual into `out`, without those that are None. With
    `gate`, leave the residual out and write silu(first half) * second half of the columns.

    With a `part`, for a tile of several rows, every `part` terms are summed from zero, and these
    sums are added in their order; the depth of the tile must divide it.
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
            PART=part,
            ROWS_MASKED=tile.masks(rows),
            **machine_options(x),
            **tile.options(),
        )


def _library_product(
    x: Tensor, weight: Tensor, out: Tensor, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> None:  # fmt: skip
    """Write x @ weight^T + bias + residual into `out`, without those that are None, by torch's
    matrix product; with `gate`, leave the residual out and write silu(first half) * second half of
    the columns.
    """
    if gate:
        packed = F.linear(x, weight, bias)  # both halves of the columns
        rows, count = out.shape
        with torch.cuda.device_of(x):
            _GATE[(-(-count // GATE_BLOCK), rows)](
                packed,
                out,
                packed.stride(0),
                out.stride(0),
                COUNT=count,
                BLOCK=GATE_BLOCK,
                **dependent_launch(x),
            )
    elif residual is None:
        torch.mm(x, weight.t(), out=out) if bias is None else torch.addmm(
            bias, x, weight.t(), out=out
        )
    elif bias is None:
        torch.addmm(residual, x, weight.t(), out=out)
    else:
        torch.add(F.linear(x, weight, bias), residual, out=out)


def attend(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, first_keys: Tensor, num_keys: Tensor, scale: float, workspace: DecodeWorkspace, *,
    window: int | None = None, keys: int | None = None, early: bool = False,
) -> None:  # fmt: skip
    """Write the attention of q [B, Hq, D] over the cached k and v [B, Hk, N, D] into `out` [B, Hq,
    D].

    first_keys  [B], the index of each row's first key; the keys before it are padding
    num_keys    [1], how many keys the cache holds, those of q's own tokens included
    window      how many of its latest keys a row sees; None: all
    keys        how many keys a program reads at a time; None: as many as `pick_keys` says
    early       read `num_keys`, `first_keys` and all keys and values but the newest without waiting
                for the kernels before this one; only for a captured graph in which no earlier
                kernel writes these tensors
    """
    rows, q_heads, head_dim = q.shape
    k_heads = k.shape[1]
    group = q_heads // k_heads
    dim_block = tile_width(head_dim)
    few = few_programs(rows, k_heads, q.device)
    capacity = k.shape[2] if window is None else min(window, k.shape[2])
    most_keys, stages, warps = pick_keys(
        few,
        dim_block,
        k.element_size(),
        shared_memory(q.device),
        part=capacity // workspace.splits,
    )
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
            # 0: the kernel computes the number of tiles itself
            TILES=-(-k.shape[2] // keys) if interpreting() else 0,
            num_warps=warps,
            num_stages=stages,
            **machine_options(q),
        )


def next_token(
    logits: Tensor,
    embedding: Tensor,
    tokens: Tensor,
    x: Tensor,
    counters: Tensor,
    workspace: DecodeWorkspace,
) -> None:
    """Write the most likely token of each row of `logits` [B, V] to `tokens`, at the row's slot,
    and its embedding to x [B, K].

    embedding  [V, K], one row for each token of the vocabulary
    tokens     [B, N], the tokens of the texts; a slot is an index into all B N places
    counters   [2 B + 1]: the position of each row, the slot of each row, and the number of keys; 1
               is added to each
    workspace  says among how many programs the vocabulary is divided
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
            **dependent_launch(x),
        )


def machine_options(x: Tensor) -> dict[str, Any]:
    """Return those options of a kernel with matrix products that depend on x's GPU and dtype."""
    return {"PRECISION": "ieee" if x.dtype == torch.float32 else "tf32", **dependent_launch(x)}


def dependent_launch(x: Tensor) -> dict[str, Any]:
    """Return the launch options with which a kernel starts before the previous one ends; on a GPU
    that cannot do this, PDL=False alone.
    """
    pdl = has_pdl(x.device)
    return {"PDL": pdl, **({"launch_pdl": True} if pdl else {})}
