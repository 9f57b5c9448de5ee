"""Launches of the kernels whose bits do not depend on the batch. Importing this imports Triton.

The keys of a row are divided into segments of SEGMENT keys, from its first key on. A program of
`attend` sums either one segment (APART), and `join` adds the segments up, or all of them. A tile
holds the queries or the keys that a program computes at a time.

`first_keys` [B] has the index of each row's first key; the keys before it are padding. A query sees
the keys up to its own, with a `window` at most its latest ones; `scale` is the softmax scale.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.decode_step import launch as decode_launch
from ropewalk.kernels.decode_step.config import MOST_TILE_ROWS, ProductTile, pick_tile
from ropewalk.kernels.decode_step.definition import Norm
from ropewalk.kernels.invariant import kernel
from ropewalk.kernels.support import interpreting, multiprocessors, power_of_two, tile_width

#: typed Any because type checkers do not see what triton.jit returns
_ATTEND: Any = kernel.attend
_JOIN: Any = kernel.join
#: the queries of a tile, the keys of a tile and the keys of a segment; the bits of attention depend
#: on these three numbers
QUERIES, KEYS, SEGMENT = 64, 64, 512
#: how many segments a program of `join` loads at once, and how many dims it has
AT_ONCE, JOIN_DIMS = 8, 64


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of the rows of x [T, K]."""
    return decode_launch.normed(x, Norm(weight, eps), torch.empty_like(x))


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> Tensor:
    """Return x @ weight^T + bias [T, N], plus `residual`; or, with `gate`, silu(first half) *
    second half of the columns.

    Every sum runs over its terms in order, 16 of them in one matrix instruction. All instructions
    round alike, whatever their tile, so the tile may depend on the number of rows.
    """
    rows, depth = x.shape
    columns = weight.shape[0] // (2 if gate else 1)
    out = x.new_empty(rows, columns)
    if rows:
        tile = product_tile(rows, columns, depth, gate, multiprocessors(x.device))
        decode_launch.product(x, weight, out, bias=bias, residual=residual, gate=gate, tile=tile)
    return out


def product_tile(rows: int, columns: int, depth: int, gate: bool, available: int) -> ProductTile:
    """Return the tile of a product, on `available` multiprocessors; a single row is computed as one
    of several, because the tiles of a single row sum in another order.
    """
    if rows <= MOST_TILE_ROWS:
        tile = pick_tile(max(2, rows), columns, depth, gate, available)
        # without a mask, most rows of the tile would read a row of x that another one reads
        return replace(tile, masked=True) if 4 * rows <= tile.rows else tile
    # many rows, as in a prompt: a large tile, which `pick_tile` does not have
    return ProductTile(128, 64 if gate else 128, 64, stages=4, warps=8)


def attention(
    q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor, scale: float, window: int | None
) -> Tensor:
    """Return the attention [B, S, Hq, D] of q [B, S, Hq, D] over k and v [B, Hk, N, D]; the S
    queries are the last S of the N tokens. Other arguments as in `api.attention`.
    """
    num_keys = torch.full((1,), k.shape[2], dtype=torch.int64, device=q.device)
    if q.shape[1] == 1:
        # the segments of the keys are computed side by side, with the same bits
        out = torch.empty_like(q)
        decode(q[:, 0], k, v, out[:, 0], first_keys, num_keys, scale, window)
        return out
    out = torch.empty_like(q)
    options = _options(q, k, window)
    tokens = options["QUERIES"] // options["GROUP_BLOCK"]  # of one program
    # not APART: no memory for the sums of segments (None, None), whose number is not read (0)
    _attend((-(-q.shape[1] // tokens),), q, k, v, out, None, None, first_keys, num_keys, scale,
            SEGMENTS=0, APART=False, TILES=_most_tiles(k.shape[2]), **options)  # fmt: skip
    return out


def decode(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, first_keys: Tensor, num_keys: Tensor, scale: float,
    window: int | None,
) -> None:  # fmt: skip
    """Write into `out` the attention of one token of each row, q [B, Hq, D], over the keys
    first_keys[b] ... num_keys - 1 of row b, at most the latest `window` of them. A CUDA graph can
    capture the launches.
    """
    rows, heads, head_dim = q.shape
    k_heads, segments = k.shape[1], -(-k.shape[2] // SEGMENT)
    # for `join`: each segment's sum of values, and its highest score and sum of weights
    partial = torch.empty(rows * heads * segments, head_dim, dtype=torch.float32, device=q.device)
    statistics = torch.empty(rows * heads * segments, 2, dtype=torch.float32, device=q.device)
    # `attend` takes q and out with an axis of tokens, here of size 1
    options = _options(q[:, None], k, window)
    _attend((segments,), q[:, None], k, v, out[:, None], partial, statistics, first_keys, num_keys,
            scale, SEGMENTS=segments, APART=True, TILES=_most_tiles(SEGMENT), **options)  # fmt: skip
    dims = min(JOIN_DIMS, options["DIM_BLOCK"])
    # ROUNDS: a compiled program finds its number of rounds itself (0), the interpreter cannot
    with torch.cuda.device_of(q):
        _JOIN[(rows * k_heads, -(-head_dim // dims))](
            partial, statistics, out, first_keys, num_keys, out.stride(0), out.stride(1),
            GROUP=heads // k_heads, GROUP_BLOCK=power_of_two(heads // k_heads), K_HEADS=k_heads,
            HEAD_DIM=head_dim, DIMS=dims, SEGMENT=SEGMENT, SEGMENTS=segments, WINDOW=window or 0,
            AT_ONCE=AT_ONCE, ROUNDS=-(-segments // AT_ONCE) if interpreting() else 0, num_warps=4,
            **decode_launch.dependent_launch(q),
        )  # fmt: skip


def _options(q: Tensor, k: Tensor, window: int | None) -> dict[str, Any]:
    """Return the constants of `attend` that prompts and single tokens share."""
    group = q.shape[2] // k.shape[1]
    return {
        "K_HEADS": k.shape[1],
        "HEAD_DIM": q.shape[3],
        "DIM_BLOCK": tile_width(q.shape[3]),
        "GROUP": group,
        "GROUP_BLOCK": power_of_two(group),
        # at least one token with all its heads
        "QUERIES": max(QUERIES, power_of_two(group)),
        # float32 keys take twice the memory
        "KEYS": KEYS if q.element_size() == 2 else KEYS // 2,
        "WINDOW": window or 0,
    }


def _most_tiles(keys: int) -> int:
    """Return how many tiles a program of the interpreter computes for `keys` keys, if each tile has
    the fewest (those of float32); 0 for a compiled program, which finds the number itself.
    """
    return -(-keys // (KEYS // 2)) if interpreting() else 0


def _attend(
    grid, q, k, v, out, partial, statistics, first_keys, num_keys, scale, **options
) -> None:
    """Launch `attend` for every row and key head of q [B, S, Hq, D]; `grid` has the further axes of
    the grid, `options` the constants. partial and statistics are None unless options["APART"].
    """
    with torch.cuda.device_of(q):
        _ATTEND[(q.shape[0] * k.shape[1], *grid)](
            q, k, v, out, partial, statistics, first_keys, num_keys, q.shape[1], scale,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            SEGMENT=SEGMENT, **decode_launch.machine_options(q),
            num_warps=4 if q.shape[3] <= 128 else 8, num_stages=2, **options,
        )  # fmt: skip
