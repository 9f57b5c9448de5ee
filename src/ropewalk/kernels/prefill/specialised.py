"""The QKV product with specialised warps, in Gluon for Hopper: some copy blocks to shared memory,
the others compute.

It does what `kernel.qkv_tiles` does, faster: later blocks are copied while warps multiply, norm and
rotate, and cos and sin are computed while matrix instructions run or the first blocks are copied.
Gluon is Triton's language for kernels that say which thread holds which element; it has no
interpreter. Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    tma,
    warpgroup_mma_wait,
)

from ropewalk.kernels.fused.tiles import as_stored, heads_in_slots
from ropewalk.kernels.prefill.epilogue import cos_sin, norm_factors, normed, with_bias
from ropewalk.kernels.prefill.rings import (
    barriers,
    copy,
    end_of_tiles,
    multiply,
    place,
    release,
    release_previous,
)
from ropewalk.kernels.triton.angles import rotated


@gluon.jit
@no_type_check
def _pairs(product, HEADS: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr):
    """Return both members of all pairs [ROWS, HEADS, HALF] of a product; one thread holds both, so
    nothing moves.
    """
    ROWS: gl.constexpr = product.shape[0]
    if INTERLEAVED:
        return gl.split(gl.reshape(product, [ROWS, HEADS, HALF, 2]))
    else:
        return gl.split(gl.permute(gl.reshape(product, [ROWS, HEADS, 2, HALF]), [0, 1, 3, 2]))


@gluon.jit
@no_type_check
def _columns(first, second, INTERLEAVED: gl.constexpr):
    """Return the columns of a product in their order, from both members of all pairs: the opposite
    of `_pairs`.
    """
    ROWS: gl.constexpr = first.shape[0]
    COLUMNS: gl.constexpr = 2 * first.shape[1] * first.shape[2]
    both = gl.join(first, second)
    if not INTERLEAVED:
        both = gl.permute(both, [0, 1, 3, 2])
    return gl.reshape(both, [ROWS, COLUMNS])


@gluon.jit
@no_type_check
def _angles(
    first_row,
    rows,
    first_pair,
    angles,
    ROWS: gl.constexpr,
    PAIRS: gl.constexpr,
    AXES: gl.constexpr,
    LAYOUT: gl.constexpr,
):
    """Return cos and sin [ROWS, PAIRS] of the pairs from `first_pair` on."""
    positions, steps, axis_of_pair, axis_stride = angles
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    pair = first_pair + gl.arange(0, PAIRS, gl.SliceLayout(0, LAYOUT))[None, :]
    return cos_sin(row, rows, pair, positions, steps, axis_of_pair, axis_stride, AXES, True)


@gluon.jit
@no_type_check
def _multiply_with_angles(
    product, rings, step, PART: gl.constexpr, quarter: gl.constexpr, first_row, rows, angles,
    PAIRS: gl.constexpr, AXES: gl.constexpr, LAYOUT: gl.constexpr,
):  # fmt: skip
    """Multiply one step, and meanwhile compute cos and sin of a quarter of the pairs."""
    ROWS: gl.constexpr = product.shape[0]
    product = multiply(product, rings, step + quarter, PART)
    cos, sin = _angles(first_row, rows, quarter * PAIRS, angles, ROWS, PAIRS, AXES, LAYOUT)
    return release_previous(product, rings, step + quarter, quarter > 0), cos, sin


@gluon.jit
@no_type_check
def _first_half(values):
    """Return the first half of the columns of values [ROWS, N]."""
    first, _ = gl.split(
        gl.permute(gl.reshape(values, [values.shape[0], 2, values.shape[1] // 2]), [0, 2, 1])
    )
    return first


@gluon.jit
@no_type_check
def _side_by_side(left, right):
    """Return [ROWS, 2 N] of two [ROWS, N]."""
    return gl.reshape(
        gl.permute(gl.join(left, right), [0, 2, 1]), [left.shape[0], 2 * left.shape[1]]
    )


@gluon.jit
@no_type_check
def _slots(slots, first_row, rows, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the cache slots [ROWS, 1] of the rows; -1 after the last row."""
    row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))[:, None]
    return gl.load(slots + row, mask=row < rows, other=-1).to(gl.int64)


@gluon.jit
@no_type_check
def _store_in_slots(
    columns, results, slot, first_head, num_slots, cache, scale, page_stride, slot_stride, head_stride,
    HEAD_DIM: gl.constexpr, PAGE_SIZE: gl.constexpr, QUANTISED: gl.constexpr, PRODUCT: gl.constexpr, ROW_MAJOR: gl.constexpr,
):  # fmt: skip
    """Store whole heads of every token in the token's cache slot; tokens with a negative slot are
    not stored.

    `results` is shared memory, through which threads get 8 neighbouring dims each. It has 16 bits
    for each, which hold a float8.
    """
    dtype: gl.constexpr = cache.dtype.element_ty
    inverse_scale = 1.0
    if QUANTISED:
        inverse_scale = 1.0 / gl.load(scale)
    stored = as_stored(columns, inverse_scale, dtype, QUANTISED).to(results.dtype)
    results.store(gl.convert_layout(stored, PRODUCT, assert_trivial=True))
    column = gl.arange(0, columns.shape[1], gl.SliceLayout(0, ROW_MAJOR))[None, :]
    head = first_head + column // HEAD_DIM
    heads = heads_in_slots(cache, slot, head, page_stride, slot_stride, head_stride, PAGE_SIZE)
    gl.store(
        heads + column % HEAD_DIM,
        results.load(ROW_MAJOR).to(dtype),
        mask=(slot >= 0) & (slot < num_slots),
    )


@gluon.jit
@no_type_check
def _compute(
    PART: gl.constexpr, rings, results, out, rows, values, angles, slots, num_slots, key_store, value_store,
    Q_TILES: gl.constexpr, K_TILES: gl.constexpr, K: gl.constexpr, HALF: gl.constexpr, HEADS: gl.constexpr, AXES: gl.constexpr,
    INTERLEAVED: gl.constexpr, BIAS: gl.constexpr, NORM: gl.constexpr, WEIGHT: gl.constexpr, CACHE: gl.constexpr,
    PAGE_SIZE: gl.constexpr, QUANTISED: gl.constexpr, GROUP: gl.constexpr, ONE_TILE: gl.constexpr,
):  # fmt: skip
    """Compute the tiles of this program, in each the rows of one PART: multiply, add the bias, norm
    and rotate q and k, store.
    """
    bias, q_weight, k_weight, eps, q_magnitude, k_magnitude = values
    xs, _, _, _, _, _ = rings
    TILE_ROWS: gl.constexpr = xs.shape[1]
    STEPS: gl.constexpr = (K + xs.shape[2] - 1) // xs.shape[2]
    ROWS: gl.constexpr = results.shape[0]
    COLUMNS: gl.constexpr = 2 * HEADS * HALF
    TILES: gl.constexpr = Q_TILES + 2 * K_TILES
    # which thread holds which element: of the product, of its pairs, and of cos and sin, which all
    # heads share
    PRODUCT: gl.constexpr = gl.NVMMADistributedLayout(
        [3, 0], [gl.num_warps(), 1], [16, COLUMNS, 16]
    )
    zeros = gl.full([ROWS, COLUMNS], 0.0, gl.float32, PRODUCT)
    first, second = _pairs(zeros, HEADS, HALF, INTERLEAVED)
    PAIRS: gl.constexpr = first.type.layout
    ANGLES: gl.constexpr = gl.SliceLayout(1, PAIRS)
    ROW_MAJOR: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    QUARTER: gl.constexpr = _first_half(
        _first_half(gl.full([ROWS, HALF], 0.0, gl.float32, ANGLES))
    ).type.layout
    head_in_tile = gl.arange(0, HEADS, gl.SliceLayout(0, gl.SliceLayout(2, PAIRS)))[None, :, None]
    pair = gl.arange(0, HALF, gl.SliceLayout(0, gl.SliceLayout(1, PAIRS)))[None, None, :]
    step = 0
    for tile in range(
        gl.program_id(0), end_of_tiles(rows, TILE_ROWS, TILES, ONE_TILE), gl.num_programs(0)
    ):
        first_of_tile, column_tile = place(tile, rows, TILE_ROWS, TILES, GROUP)
        first_row = first_of_tile + PART * ROWS
        is_query = column_tile < Q_TILES
        norm_weight = q_weight
        if WEIGHT != "":
            norm_weight = gl.where(is_query, q_weight, k_weight)
        product = zeros
        tl.extra.cuda.gdc_wait()
        if ONE_TILE:
            # what comes after the product is computed while its first blocks are being copied
            cos, sin = _angles(first_row, rows, 0, angles, ROWS, HALF, AXES, ANGLES)
            if NORM:
                first_factor, second_factor = norm_factors(
                    norm_weight, pair, HALF, INTERLEAVED, WEIGHT
                )
            if CACHE:
                slot = _slots(slots, first_row, rows, ROWS, ROW_MAJOR)
            multiplied = 0
        else:
            # the matrix instructions of the first four steps hide how long cos and sin take
            product, cos_0, sin_0 = _multiply_with_angles(
                product, rings, step, PART, 0, first_row, rows, angles, HALF // 4, AXES, QUARTER
            )  # fmt: skip
            product, cos_1, sin_1 = _multiply_with_angles(
                product, rings, step, PART, 1, first_row, rows, angles, HALF // 4, AXES, QUARTER
            )  # fmt: skip
            product, cos_2, sin_2 = _multiply_with_angles(
                product, rings, step, PART, 2, first_row, rows, angles, HALF // 4, AXES, QUARTER
            )  # fmt: skip
            product, cos_3, sin_3 = _multiply_with_angles(
                product, rings, step, PART, 3, first_row, rows, angles, HALF // 4, AXES, QUARTER
            )  # fmt: skip
            cos = _side_by_side(_side_by_side(cos_0, cos_1), _side_by_side(cos_2, cos_3))
            sin = _side_by_side(_side_by_side(sin_0, sin_1), _side_by_side(sin_2, sin_3))
            cos, sin = (
                gl.convert_layout(cos, ANGLES, assert_trivial=True),
                gl.convert_layout(sin, ANGLES, assert_trivial=True),
            )
            multiplied = 4
        for i in range(multiplied, STEPS):
            product = multiply(product, rings, step + i, PART)
            product = release_previous(product, rings, step + i, i > 0)
        step += STEPS
        product = warpgroup_mma_wait(0, deps=[product])
        release(rings, step - 1, True)
        if ONE_TILE:
            tl.extra.cuda.gdc_launch_dependents()  # the next kernel may start
        first, second = _pairs(product, HEADS, HALF, INTERLEAVED)
        if BIAS:
            first, second = with_bias(
                first, second, bias, column_tile * HEADS + head_in_tile, pair, HALF, INTERLEAVED
            )
        # norm and rotate the heads of q and of k, which come before those of v
        if column_tile < Q_TILES + K_TILES:
            if NORM:
                if not ONE_TILE:  # for which too few registers are left during the product
                    first_factor, second_factor = norm_factors(
                        norm_weight, pair, HALF, INTERLEAVED, WEIGHT
                    )
                first, second = normed(first, second, first_factor, second_factor, eps, HALF)
            magnitude = gl.where(is_query, q_magnitude, k_magnitude)
            first, second = rotated(
                first, second, (cos * magnitude)[:, None, :], (sin * magnitude)[:, None, :]
            )
        # store k and v in their slots, everything else in `out`
        columns = _columns(first, second, INTERLEAVED)
        tma.store_wait(0)  # until the results of the previous tile are read from shared memory
        if CACHE and column_tile >= Q_TILES:
            if not ONE_TILE:
                slot = _slots(slots, first_row, rows, ROWS, ROW_MAJOR)
            first_head = (column_tile - Q_TILES) * HEADS
            if column_tile < Q_TILES + K_TILES:
                _store_in_slots(
                    columns, results, slot, first_head, num_slots, *key_store,
                    2 * HALF, PAGE_SIZE, QUANTISED, PRODUCT, ROW_MAJOR,
                )  # fmt: skip
            else:
                _store_in_slots(
                    columns, results, slot, first_head - K_TILES * HEADS, num_slots, *value_store,
                    2 * HALF, PAGE_SIZE, QUANTISED, PRODUCT, ROW_MAJOR,
                )  # fmt: skip
        else:
            results.store(gl.convert_layout(columns.to(out.dtype), PRODUCT, assert_trivial=True))
            fence_async_shared()
            tma.async_copy_shared_to_global(out, [first_row, column_tile * COLUMNS], results)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows", "num_slots"])
@no_type_check
def qkv_tiles(
    x, weight, out, bias, q_weight, k_weight, k_cache, v_cache, k_scale, v_scale, positions, slots, steps, axis_of_pair,
    rows, num_slots, eps, q_magnitude, k_magnitude, axis_stride, k_page, k_slot, k_head, v_page, v_slot, v_head,
    Q_TILES: gl.constexpr, K_TILES: gl.constexpr, K: gl.constexpr, HALF: gl.constexpr, HEADS: gl.constexpr, AXES: gl.constexpr,
    INTERLEAVED: gl.constexpr, BIAS: gl.constexpr, NORM: gl.constexpr, WEIGHT: gl.constexpr, CACHE: gl.constexpr,
    PAGE_SIZE: gl.constexpr, QUANTISED: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, X_STAGES: gl.constexpr,
    W_STAGES: gl.constexpr, GROUP: gl.constexpr, ONE_TILE: gl.constexpr,
):  # fmt: skip
    """Store x @ weight^T + bias in `out`, its heads of q and k normed and rotated; with CACHE, k
    and v in their slots instead.

    Arguments as in `kernel.qkv_tiles`. Groups of four warps compute 64 rows of a tile each: its
    PARTS. X_STAGES blocks of x and W_STAGES of the weight are in shared memory; equal numbers share
    their barriers. ONE_TILE: each program has one tile.
    """
    COLUMNS: gl.constexpr = 2 * HEADS * HALF
    TILES: gl.constexpr = Q_TILES + 2 * K_TILES
    PARTS: gl.constexpr = ROWS // 64
    SHARED: gl.constexpr = X_STAGES == W_STAGES
    xs = gl.allocate_shared_memory(x.dtype, [X_STAGES, ROWS, DEPTH], x.layout)
    ws = gl.allocate_shared_memory(x.dtype, [W_STAGES, COLUMNS, DEPTH], weight.layout)
    w_full, w_empty = barriers(W_STAGES, 1), barriers(W_STAGES, PARTS)
    if SHARED:
        x_full, x_empty = w_full, w_empty
    else:
        x_full, x_empty = barriers(X_STAGES, 1), barriers(X_STAGES, PARTS)
    fence_async_shared()
    # grouped so that they fit in the calls below
    rings = (xs, ws, x_full, w_full, x_empty, w_empty)
    values = (bias, q_weight, k_weight, eps, q_magnitude, k_magnitude)
    angles = (positions, steps, axis_of_pair, axis_stride)
    keys, cached_values = (
        (k_cache, k_scale, k_page, k_slot, k_head),
        (v_cache, v_scale, v_page, v_slot, v_head),
    )
    # what each group of warps does; the warps of all but the first group, and the registers of
    # their threads
    if ONE_TILE:
        # the results take the place of the weight's first block, which has their size and is
        # multiplied by then
        gl.static_assert(PARTS == 1 and DEPTH == 64)
        results = ws.index(0)._reinterpret(x.dtype, [64, COLUMNS], out.layout)
        gl.warp_specialize(
            [
                (copy, (x, weight, rings, rows, K, TILES, GROUP, ONE_TILE)),
                (
                    _compute,
                    (
                        0,
                        rings,
                        results,
                        out,
                        rows,
                        values,
                        angles,
                        slots,
                        num_slots,
                        keys,
                        cached_values,
                        Q_TILES,
                        K_TILES,
                        K,
                        HALF,
                        HEADS,
                        AXES,
                        INTERLEAVED,
                        BIAS,
                        NORM,
                        WEIGHT,
                        CACHE,
                        PAGE_SIZE,
                        QUANTISED,
                        GROUP,
                        ONE_TILE,
                    ),
                ),
            ],
            [4],
            # with a norm or bias, fewer spill to memory; without, more are slower
            [216 if NORM or BIAS else 192],
        )
    else:
        results = gl.allocate_shared_memory(x.dtype, [PARTS, 64, COLUMNS], out.layout)
        gl.warp_specialize(
            [
                (copy, (x, weight, rings, rows, K, TILES, GROUP, ONE_TILE)),
                (
                    _compute,
                    (
                        0,
                        rings,
                        results.index(0),
                        out,
                        rows,
                        values,
                        angles,
                        slots,
                        num_slots,
                        keys,
                        cached_values,
                        Q_TILES,
                        K_TILES,
                        K,
                        HALF,
                        HEADS,
                        AXES,
                        INTERLEAVED,
                        BIAS,
                        NORM,
                        WEIGHT,
                        CACHE,
                        PAGE_SIZE,
                        QUANTISED,
                        GROUP,
                        ONE_TILE,
                    ),
                ),
                (
                    _compute,
                    (
                        1,
                        rings,
                        results.index(1),
                        out,
                        rows,
                        values,
                        angles,
                        slots,
                        num_slots,
                        keys,
                        cached_values,
                        Q_TILES,
                        K_TILES,
                        K,
                        HALF,
                        HEADS,
                        AXES,
                        INTERLEAVED,
                        BIAS,
                        NORM,
                        WEIGHT,
                        CACHE,
                        PAGE_SIZE,
                        QUANTISED,
                        GROUP,
                        ONE_TILE,
                    ),
                ),
            ],
            [4, 4],
            [240, 240],
        )
