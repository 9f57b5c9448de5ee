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
from ropewalk.kernels.invariant import kernel, one_row
from ropewalk.kernels.support import interpreting, multiprocessors, power_of_two, tile_width

#: typed Any because type checkers do not see what triton.jit returns
_ATTEND: Any = kernel.attend
_JOIN: Any = kernel.join
_NORM: Any = one_row.norm
_ONE_ROW: Any = one_row.product_of_one_row
#: the terms of a sum are divided into parts of a multiple of PART_UNIT terms if a product has at
#: most MOST_COLUMNS columns and MOST_WEIGHTS weights; the bits of products depend on these numbers
PART_UNIT, MOST_COLUMNS, MOST_WEIGHTS = 128, 4096, 1 << 25
#: the queries of a tile, the keys of a tile and the keys of a segment; the bits of attention depend
#: on these three numbers
QUERIES, KEYS, SEGMENT = 64, 64, 256
#: for how many segments loads of `join` are under way at once, and how many dims a program has
AT_ONCE, JOIN_DIMS = 16, 64


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of the rows of x [T, K]."""
    return normed_into(x, Norm(weight, eps), torch.empty_like(x))


def normed_into(x: Tensor, norm: Norm, out: Tensor) -> Tensor:
    """Write the RMS norm of the rows of x [T, K] into `out` and return it."""
    rows, width = x.shape
    block = power_of_two(width)
    if rows:
        with torch.cuda.device_of(x):
            _NORM[(rows,)](
                x, norm.weight, out, norm.eps, x.stride(0), out.stride(0), K=width, BLOCK=block,
                num_warps=max(1, min(16, block // 256)), **decode_launch.dependent_launch(x),
            )  # fmt: skip
    return out


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> Tensor:
    """Return x @ weight^T + bias [T, N], plus `residual`; or, with `gate`, silu(first half) *
    second half of the columns.
    """
    out = x.new_empty(len(x), weight.shape[0] // (2 if gate else 1))
    if len(x):
        product_into(x, weight, out, bias=bias, residual=residual, gate=gate)
    return out


def product_into(
    x: Tensor, weight: Tensor, out: Tensor, *, norm: Norm | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, gate: bool = False,
) -> None:  # fmt: skip
    """Write `product` of x [T, K], which has at least one row, into `out` [T, N]; with a `norm`, x
    is normed first.

    A matrix instruction adds 16 terms to a sum. All instructions round alike, whatever their tile,
    so the tile may depend on the number of rows. A single row of 16-bit numbers would wait for one
    instruction after another, so `part_of` divides the sums of small weights into parts: each is
    summed from zero, for one row side by side, and the parts are added in their order.
    """
    part = part_of(out.shape[1], x.shape[1])
    if part and len(x) == 1 and x.element_size() == 2:
        _product_of_one_row(x, weight, out, norm, bias, residual, gate, part)
        return
    if norm is not None:
        x = normed_into(x, norm, torch.empty_like(x))
    tile = product_tile(len(x), out.shape[1], x.shape[1], gate, multiprocessors(x.device))
    decode_launch.product(
        x, weight, out, bias=bias, residual=residual, gate=gate, tile=tile, part=part
    )


def part_of(columns: int, depth: int) -> int:
    """Return how many terms are in a part of the sums of a product with `columns` results for each
    row, sums of `depth` terms; 0 if a sum is not divided. The bits of the product depend on it.

    The product of a large weight takes as long as reading the weight, whatever the order.
    """
    if columns > MOST_COLUMNS or columns * depth > MOST_WEIGHTS:
        return 0
    return -(-depth // (one_row.PARTS.value * PART_UNIT)) * PART_UNIT


def _product_of_one_row(
    x: Tensor, weight: Tensor, out: Tensor, norm: Norm | None, bias: Tensor | None, residual: Tensor | None,
    gate: bool, part: int,
) -> None:  # fmt: skip
    """Write the product of one row x [1, K] into `out`; arguments as in `product_into`, and `part`
    is that of its sums.
    """
    depth, count = x.shape[1], out.shape[1]
    columns, tile_depth, warps = one_row_tile(part, count, norm is not None)
    columns //= 2 if gate else 1
    finish = "gate" if gate else "store" if residual is None else "add"
    with torch.cuda.device_of(x):
        _ONE_ROW[(-(-count // columns),)](
            x, None if norm is None else norm.weight, weight, bias, residual, out, 0.0 if norm is None else norm.eps,
            COUNT=count, K=depth, FINISH=decode_launch.FINISHES[finish], NORM=norm is not None, BIAS=bias is not None,
            BLOCK=power_of_two(depth), COLUMNS=columns, DEPTH=tile_depth, PART=part,
            num_warps=warps, num_stages=1, **decode_launch.dependent_launch(x),
        )  # fmt: skip


def one_row_tile(part: int, count: int, norm: bool) -> tuple[int, int, int]:
    """Return how many rows of the weight a program of one row reads, how many terms of a part at a
    time, and its warps; from sweeps on an H200. `count` is the number of results.
    """
    if part > 512 or (part > 256 and count >= MOST_COLUMNS and not norm):
        return 4, 256, 2
    depth = power_of_two(part)
    # every program norms x, so there should be few
    return (8, depth, 4 if depth <= 256 else 8) if norm else (4, depth, 4)


def product_tile(rows: int, columns: int, depth: int, gate: bool, available: int) -> ProductTile:
    """Return the tile of a product with `columns` results for each row, sums of `depth` terms, on
    `available` multiprocessors; a single row gets a tile of several rows.

    With `gate` a result is silu(a) * b of two sums a and b. If `part_of` divides the sums, the
    tile's depth divides the terms of a part.
    """
    if rows > MOST_TILE_ROWS:
        # many rows, as in a prompt: a large tile, which `pick_tile` does not have
        return ProductTile(128, 64 if gate else 128, 64, stages=4, warps=8)
    tile = pick_tile(max(2, rows), columns, depth, gate, available)
    part = part_of(columns, depth)
    if part and rows > 16 and depth >= 4 * columns:
        # every step of a loop with parts waits for its matrix instructions: fewer steps
        tile = replace(tile, depth=256, stages=4)
    if part % tile.depth:
        tile = replace(tile, depth=PART_UNIT)
    # without a mask, most rows of the tile would read a row of x that another one reads
    return replace(tile, masked=True) if 4 * rows <= tile.rows else tile


def attention(
    q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor, scale: float, window: int | None
) -> Tensor:
    """Return the attention [B, S, Hq, D] of q [B, S, Hq, D] over k and v [B, Hk, N, D]; the S
    queries are the last S of the N tokens. Other arguments as in `api.attention`.
    """
    num_keys = torch.full((1,), k.shape[2], dtype=torch.int64, device=q.device)
    out = torch.empty_like(q)
    if q.shape[1] == 1:
        # the segments of the keys are computed side by side, with the same bits
        decode(q[:, 0], k, v, out[:, 0], first_keys, num_keys, scale, window)
    else:
        _attend_in_order(q, k, v, out, first_keys, num_keys, scale, window)
    return out


def _attend_in_order(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, first_keys: Tensor, num_keys: Tensor, scale: float,
    window: int | None,
) -> None:  # fmt: skip
    """Write the attention of the last S tokens of each row, q [B, S, Hq, D], into `out`; a program
    computes all segments of its queries, one after another.
    """
    options = _options(q, k, window)
    tokens = options["QUERIES"] // options["GROUP_BLOCK"]  # of one program
    # not APART: no memory for the sums of segments (None, None), whose number is not read (0)
    _attend((-(-q.shape[1] // tokens),), q, k, v, out, None, None, first_keys, num_keys, scale,
            SEGMENTS=0, APART=False, TILES=_most_tiles(k.shape[2]), **options)  # fmt: skip


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
    if segments == 1:  # nothing to add up
        _attend_in_order(q[:, None], k, v, out[:, None], first_keys, num_keys, scale, window)
        return
    # for `join`: each segment's sum of values, and its highest score and sum of weights
    partial = torch.empty(rows * heads * segments, head_dim, dtype=torch.float32, device=q.device)
    statistics = torch.empty(rows * heads * segments, 2, dtype=torch.float32, device=q.device)
    # `attend` takes q and out with an axis of tokens, here of size 1
    options = _options(q[:, None], k, window)
    _attend((segments,), q[:, None], k, v, out[:, None], partial, statistics, first_keys, num_keys,
            scale, SEGMENTS=segments, APART=True, TILES=_most_tiles(SEGMENT), **options)  # fmt: skip
    dims = min(JOIN_DIMS, options["DIM_BLOCK"])
    # MOST_SEGMENTS: Triton's interpreter cannot loop to a bound that the kernel computes, so it is
    # given the number of segments; 0: the compiled kernel computes it
    with torch.cuda.device_of(q):
        _JOIN[(rows * k_heads, -(-head_dim // dims))](
            partial, statistics, out, first_keys, num_keys, out.stride(0), out.stride(1),
            GROUP=heads // k_heads, GROUP_BLOCK=power_of_two(heads // k_heads), K_HEADS=k_heads,
            HEAD_DIM=head_dim, DIMS=dims, SEGMENT=SEGMENT, SEGMENTS=segments, WINDOW=window or 0,
            AT_ONCE=AT_ONCE, MOST_SEGMENTS=segments if interpreting() else 0, num_warps=4,
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
