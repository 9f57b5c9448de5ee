"""The QKV product of many tokens in Triton: product, bias, head norm, rotation and cache write in
one launch, for Hopper.

Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.prefill.epilogue import (
    cos_sin,
    norm_factors,
    normed,
    store_in_slots,
    with_bias,
)
from ropewalk.kernels.triton.angles import rotated


@triton.jit(do_not_specialize=["rows", "num_slots"])
@no_type_check
def qkv_tiles(
    x, weight, out, bias, q_weight, k_weight, k_cache, v_cache, k_scale, v_scale, positions, slots, steps, axis_of_pair,
    rows, num_slots, eps, q_magnitude, k_magnitude, axis_stride, k_page, k_slot, k_head, v_page, v_slot, v_head,
    Q_TILES: tl.constexpr, K_TILES: tl.constexpr, K: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, AXES: tl.constexpr,
    INTERLEAVED: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr, CACHE: tl.constexpr,
    PAGE_SIZE: tl.constexpr, QUANTISED: tl.constexpr, QUICK: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr,
    GROUP: tl.constexpr, PROGRAMS: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store x @ weight^T + bias in `out`, its heads of q and k normed and rotated; with CACHE, k
    and v also in their slots.

    `x`, `weight` and `out` are tensor descriptors. Each of PROGRAMS programs computes tiles of ROWS
    tokens and HEADS heads, one after the other; COUNT is the number of tiles in the interpreter,
    which has one program, and 0 otherwise. The descriptor of the weight reads its rows so that both
    members of a pair are neighbouring columns of the product. Neighbouring columns are in one
    thread, so the rotation exchanges nothing between threads. Names such as k_page and k_slot are
    strides.
    """
    TILES: tl.constexpr = Q_TILES + 2 * K_TILES
    row_tiles = tl.cdiv(rows, ROWS)
    count = row_tiles * TILES
    # Triton's interpreter cannot loop to a computed bound
    for tile in tl.range(
        0 if COUNT > 0 else tl.program_id(0), COUNT if COUNT > 0 else count, PROGRAMS, flatten=True
    ):
        # GROUP tiles of rows at a time, so that a block of the weight is read by programs that run
        # together
        first_row_tile = tile // (GROUP * TILES) * GROUP
        size = tl.minimum(row_tiles - first_row_tile, GROUP)
        row_tile = first_row_tile + tile % (GROUP * TILES) % size
        column_tile = tile % (GROUP * TILES) // size
        # the product of this tile, DEPTH terms of the sums at a time
        product = tl.zeros((ROWS, 2 * HEADS * HALF), tl.float32)
        for start in range(0, K, DEPTH):
            a = x.load([row_tile * ROWS, start])
            b = weight.load([column_tile * HEADS, 0, 0, start]).reshape(2 * HEADS * HALF, DEPTH)
            product = tl.dot(a, b.T, product, input_precision=PRECISION)
        first, second = tl.split(product.reshape(ROWS, HEADS, HALF, 2))
        row = row_tile * ROWS + tl.arange(0, ROWS)[:, None, None]
        head = column_tile * HEADS + tl.arange(0, HEADS)[None, :, None]
        pair = tl.arange(0, HALF)[None, None, :]
        if BIAS:
            first, second = with_bias(first, second, bias, head, pair, HALF, INTERLEAVED)
        # norm and rotate the heads of q and of k, which come before those of v
        is_query = column_tile < Q_TILES
        if column_tile < Q_TILES + K_TILES:
            if NORM:
                norm_weight = q_weight
                if WEIGHT != "":
                    norm_weight = tl.where(is_query, q_weight, k_weight)
                first_factor, second_factor = norm_factors(
                    norm_weight, pair, HALF, INTERLEAVED, WEIGHT
                )
                first, second = normed(first, second, first_factor, second_factor, eps, HALF)
            cos, sin = cos_sin(
                row, rows, pair, positions, steps, axis_of_pair, axis_stride, AXES, QUICK
            )
            magnitude = tl.where(is_query, q_magnitude, k_magnitude)
            first, second = rotated(first, second, cos * magnitude, sin * magnitude)
        # store k and v in their slots, then everything in `out`
        if CACHE:  # noqa: SIM102 - the first condition is known when the kernel is compiled
            if column_tile >= Q_TILES:
                slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
                key_head = head - Q_TILES * HEADS
                if column_tile < Q_TILES + K_TILES:
                    store_in_slots(
                        first,
                        second,
                        slot,
                        key_head,
                        pair,
                        k_cache,
                        k_scale,
                        num_slots,
                        k_page,
                        k_slot,
                        k_head,
                        HALF,
                        INTERLEAVED,
                        PAGE_SIZE,
                        QUANTISED,
                    )
                else:
                    store_in_slots(
                        first,
                        second,
                        slot,
                        key_head - K_TILES * HEADS,
                        pair,
                        v_cache,
                        v_scale,
                        num_slots,
                        v_page,
                        v_slot,
                        v_head,
                        HALF,
                        INTERLEAVED,
                        PAGE_SIZE,
                        QUANTISED,
                    )
        first, second = first.to(out.dtype), second.to(out.dtype)
        if INTERLEAVED:
            out.store(
                [row_tile * ROWS, column_tile * HEADS * 2 * HALF],
                tl.join(first, second).reshape(ROWS, 2 * HEADS * HALF),
            )
        else:
            out.store(
                [row_tile * ROWS, column_tile * HEADS, 0, 0], first.reshape(ROWS, HEADS, 1, HALF)
            )
            out.store(
                [row_tile * ROWS, column_tile * HEADS, 1, 0], second.reshape(ROWS, HEADS, 1, HALF)
            )
