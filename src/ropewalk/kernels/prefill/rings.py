"""Rings of blocks in shared memory: some warps copy blocks of x and of the weight to them, others
multiply. Gluon, for Hopper.

A ring has STAGES blocks. Every block has two barriers, on which warps wait for each other: it is
`full` when it is copied, and `empty` when it is multiplied. Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon.jit
@no_type_check
def barriers(STAGES: gl.constexpr, COUNT: gl.constexpr):
    """Return a barrier for each block of a ring, which opens when COUNT copies or groups of warps
    have arrived at it.
    """
    made = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(made.index(stage), count=COUNT)
    return made


@gluon.jit
@no_type_check
def place(tile, rows, ROWS: gl.constexpr, TILES: gl.constexpr, GROUP: gl.constexpr):
    """Return the first row of a tile, and its index among the TILES tiles of columns.

    GROUP tiles of rows come one after the other, so that a block of the weight is read by programs
    that run together. The last tile of rows begins so early that all of its rows exist: to fill
    blocks with zeros takes longer than to compute rows twice.
    """
    first_tile = tile // (GROUP * TILES) * GROUP
    size = gl.minimum(gl.cdiv(rows, ROWS) - first_tile, GROUP)
    row_tile = first_tile + tile % (GROUP * TILES) % size
    return gl.maximum(gl.minimum(row_tile * ROWS, rows - ROWS), 0), tile % (GROUP * TILES) // size


@gluon.jit
@no_type_check
def end_of_tiles(rows, ROWS: gl.constexpr, TILES: gl.constexpr, ONE_TILE: gl.constexpr):
    """Return the index before which the tiles of this program end."""
    if ONE_TILE:
        return gl.program_id(0) + 1
    else:
        return gl.cdiv(rows, ROWS) * TILES


@gluon.jit
@no_type_check
def copy(
    x,
    weight,
    rings,
    rows,
    K: gl.constexpr,
    TILES: gl.constexpr,
    GROUP: gl.constexpr,
    ONE_TILE: gl.constexpr,
):
    """Copy the blocks of x and of the weight for all tiles of this program, each as soon as its
    place in the ring is empty.
    """
    xs, ws, x_full, w_full, x_empty, w_empty = rings
    X_STAGES: gl.constexpr = xs.shape[0]
    W_STAGES: gl.constexpr = ws.shape[0]
    ROWS: gl.constexpr = xs.shape[1]
    COLUMNS: gl.constexpr = ws.shape[1]
    DEPTH: gl.constexpr = xs.shape[2]
    SHARED: gl.constexpr = X_STAGES == W_STAGES  # one barrier for both blocks of a step
    step = 0
    for tile in range(
        gl.program_id(0), end_of_tiles(rows, ROWS, TILES, ONE_TILE), gl.num_programs(0)
    ):
        first_row, column_tile = place(tile, rows, ROWS, TILES, GROUP)
        # for the previous kernel, because this one may start before it ends
        tl.extra.cuda.gdc_wait()
        for start in range(0, K, DEPTH):
            x_stage, w_stage = step % X_STAGES, step % W_STAGES
            mbarrier.wait(w_empty.index(w_stage), step // W_STAGES & 1 ^ 1)
            mbarrier.expect(
                w_full.index(w_stage), 2 * (COLUMNS + (ROWS if SHARED else 0)) * DEPTH
            )  # bytes
            tma.async_copy_global_to_shared(
                weight, [column_tile * COLUMNS, start], w_full.index(w_stage), ws.index(w_stage)
            )
            if not SHARED:
                mbarrier.wait(x_empty.index(x_stage), step // X_STAGES & 1 ^ 1)
                mbarrier.expect(x_full.index(x_stage), 2 * ROWS * DEPTH)
            tma.async_copy_global_to_shared(
                x, [first_row, start], x_full.index(x_stage), xs.index(x_stage)
            )
            step += 1


@gluon.jit
@no_type_check
def multiply(product, rings, step, PART: gl.constexpr):
    """Start the matrix instructions of one step, as soon as its blocks have arrived, and return
    without waiting.
    """
    xs, ws, x_full, w_full, _, _ = rings
    X_STAGES: gl.constexpr = xs.shape[0]
    W_STAGES: gl.constexpr = ws.shape[0]
    ROWS: gl.constexpr = product.shape[0]
    mbarrier.wait(w_full.index(step % W_STAGES), step // W_STAGES & 1)
    if X_STAGES != W_STAGES:  # otherwise both have one barrier
        mbarrier.wait(x_full.index(step % X_STAGES), step // X_STAGES & 1)
    x = xs.index(step % X_STAGES).slice(PART * ROWS, ROWS)
    return warpgroup_mma(x, ws.index(step % W_STAGES).permute([1, 0]), product, is_async=True)


@gluon.jit
@no_type_check
def release(rings, step, exists):
    """Say that the blocks of a step are multiplied, if it `exists`, so that others can be copied to
    their place.
    """
    xs, ws, _, _, x_empty, w_empty = rings
    X_STAGES: gl.constexpr = xs.shape[0]
    W_STAGES: gl.constexpr = ws.shape[0]
    mbarrier.arrive(w_empty.index(step % W_STAGES), pred=exists)
    if X_STAGES != W_STAGES:
        mbarrier.arrive(x_empty.index(step % X_STAGES), pred=exists)


@gluon.jit
@no_type_check
def release_previous(product, rings, step, exists):
    """Wait until the step before this one, if it `exists`, is multiplied, and release its blocks."""
    product = warpgroup_mma_wait(1, deps=[product])
    release(rings, step - 1, exists)
    return product
