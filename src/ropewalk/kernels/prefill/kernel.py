"""The QKV product of many tokens in Triton: product, bias, head norm, rotation and cache write in one launch, for Hopper.

Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.fused.tiles import as_stored
from ropewalk.kernels.triton.angles import phase_cos_sin, rotated


@triton.jit
@no_type_check
def _normed(first, second, weight, eps, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, WEIGHT: tl.constexpr):
    """Return the pairs of every head [tokens, heads, HALF] divided by the head's rms, times w or 1 + w; WEIGHT as in tiles.py."""
    total = tl.sum(tl.fma(first, first, second * second), axis=2)
    inverse_rms = tl.rsqrt(total / (2 * HALF) + eps)[:, :, None]
    first, second = first * inverse_rms, second * inverse_rms
    if WEIGHT != "":
        first_dim, second_dim = _dims(HALF, INTERLEAVED)
        first_factor, second_factor = tl.load(weight + first_dim).to(tl.float32), tl.load(weight + second_dim).to(tl.float32)
        if WEIGHT == "1+w":
            first_factor, second_factor = first_factor + 1.0, second_factor + 1.0
        first, second = first * first_factor, second * second_factor
    return first, second


@triton.jit
@no_type_check
def _dims(HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the dims of both members of every pair of a head, [1, 1, HALF]."""
    pair = tl.arange(0, HALF)[None, None, :]
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1
    else:
        return pair, pair + HALF


@triton.jit
@no_type_check
def _store_in_slots(first, second, slots, cache, scale, row, live, head, num_slots, page_stride, slot_stride, head_stride,
                    HALF: tl.constexpr, HEADS: tl.constexpr, INTERLEAVED: tl.constexpr, PAGE_SIZE: tl.constexpr,
                    QUANTISED: tl.constexpr):  # fmt: skip
    """Store the pairs of HEADS heads of every token, from head `head` on, in the token's cache slot.

    A slot is a row of a page, and `slot_stride` the stride of these rows; tokens with a negative slot are not stored.
    """
    slot = tl.load(slots + row, mask=live, other=-1).to(tl.int64)[:, None, None]
    heads = head + tl.arange(0, HEADS)[None, :, None]
    rows_of_cache = cache + slot // PAGE_SIZE * page_stride + slot % PAGE_SIZE * slot_stride + heads * head_stride
    inverse_scale = 1.0
    if QUANTISED:
        inverse_scale = 1.0 / tl.load(scale)
    written = (slot >= 0) & (slot < num_slots)
    first_dim, second_dim = _dims(HALF, INTERLEAVED)
    dtype: tl.constexpr = cache.dtype.element_ty
    tl.store(rows_of_cache + first_dim, as_stored(first, inverse_scale, dtype, QUANTISED), mask=written)
    tl.store(rows_of_cache + second_dim, as_stored(second, inverse_scale, dtype, QUANTISED), mask=written)


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
    """Store x @ weight^T + bias in `out`, its heads of q and k normed and rotated; with CACHE, k and v also in their slots.

    `x`, `weight` and `out` are tensor descriptors. Each of PROGRAMS programs computes tiles of ROWS tokens and HEADS heads, one
    after the other; COUNT is the number of tiles in the interpreter, which has one program, and 0 otherwise. The descriptor of
    the weight reads its rows so that both members of a pair are neighbouring columns of the product. Neighbouring columns are
    in one thread, so the rotation exchanges nothing between threads. Names such as k_page and k_slot are strides.
    """
    TILES: tl.constexpr = Q_TILES + 2 * K_TILES
    row_tiles = tl.cdiv(rows, ROWS)
    count = row_tiles * TILES
    # Triton's interpreter cannot loop to a computed bound
    for tile in tl.range(0 if COUNT > 0 else tl.program_id(0), COUNT if COUNT > 0 else count, PROGRAMS, flatten=True):
        # GROUP tiles of rows at a time, so that a block of the weight is read by programs that run together
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
        row = row_tile * ROWS + tl.arange(0, ROWS)
        live = row < rows
        if BIAS:
            first_dim, second_dim = _dims(HALF, INTERLEAVED)
            of_head = bias + (column_tile * HEADS + tl.arange(0, HEADS)[None, :, None]) * (2 * HALF)
            first += tl.load(of_head + first_dim).to(tl.float32)
            second += tl.load(of_head + second_dim).to(tl.float32)
        # norm and rotate the heads of q and of k, which come before those of v
        is_query = column_tile < Q_TILES
        if column_tile < Q_TILES + K_TILES:
            if NORM:
                norm_weight = q_weight
                if WEIGHT != "":
                    norm_weight = tl.where(is_query, q_weight, k_weight)
                first, second = _normed(first, second, norm_weight, eps, HALF, INTERLEAVED, WEIGHT)
            pair = tl.arange(0, HALF)[None, None, :]
            at = positions + row[:, None, None]
            if AXES > 1:
                at += tl.load(axis_of_pair + pair) * axis_stride
            position = tl.load(at, mask=live[:, None, None], other=0).to(tl.int64)
            cos, sin = phase_cos_sin(position * tl.load(steps + pair), QUICK)
            magnitude = tl.where(is_query, q_magnitude, k_magnitude)
            first, second = rotated(first, second, cos * magnitude, sin * magnitude)
        # store k and v in their slots, then everything in `out`
        if CACHE:  # noqa: SIM102 - the first condition is known when the kernel is compiled
            if column_tile >= Q_TILES:
                head = (column_tile - Q_TILES) * HEADS
                if head < K_TILES * HEADS:
                    _store_in_slots(
                        first, second, slots, k_cache, k_scale, row, live, head, num_slots, k_page, k_slot, k_head,
                        HALF, HEADS, INTERLEAVED, PAGE_SIZE, QUANTISED,
                    )  # fmt: skip
                else:
                    _store_in_slots(
                        first, second, slots, v_cache, v_scale, row, live, head - K_TILES * HEADS, num_slots,
                        v_page, v_slot, v_head, HALF, HEADS, INTERLEAVED, PAGE_SIZE, QUANTISED,
                    )  # fmt: skip
        first, second = first.to(out.dtype), second.to(out.dtype)
        if INTERLEAVED:
            out.store([row_tile * ROWS, column_tile * HEADS * 2 * HALF], tl.join(first, second).reshape(ROWS, 2 * HEADS * HALF))
        else:
            out.store([row_tile * ROWS, column_tile * HEADS, 0, 0], first.reshape(ROWS, HEADS, 1, HALF))
            out.store([row_tile * ROWS, column_tile * HEADS, 1, 0], second.reshape(ROWS, HEADS, 1, HALF))
