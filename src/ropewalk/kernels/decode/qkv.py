"""The QKV product of a decode step in Triton: norm, product, head norm, rotation and cache write in one launch.

Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode.product import begin, products, rows_of_x, wait
from ropewalk.kernels.fused.tiles import as_stored
from ropewalk.kernels.triton.angles import phase_cos_sin, rotated


@triton.jit
@no_type_check
def _pair_dims(pair, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the dims of both members of each pair; pairs from PAIRS on are made of the dims that are not rotated.

    Those are the dims before START and the dims after the rotated ones, taken two by two.
    """
    if INTERLEAVED:
        first, second = START + 2 * pair, START + 2 * pair + 1
    else:
        first, second = START + pair, START + PAIRS + pair
    if 2 * PAIRS < HEAD_DIM:  # otherwise the dims stay contiguous, and the compiler stores several at once
        rest = 2 * (pair - PAIRS)
        first = tl.where(pair < PAIRS, first, tl.where(rest < START, rest, rest + 2 * PAIRS))
        second = tl.where(pair < PAIRS, second, tl.where(rest + 1 < START, rest + 1, rest + 1 + 2 * PAIRS))
    return first, second


@triton.jit
@no_type_check
def _norm_factors(
    weight, pair, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Return the factors of the head norm for both members of each pair."""
    first_dim, second_dim = _pair_dims(pair, HEAD_DIM, START, PAIRS, INTERLEAVED)
    first = tl.load(weight + first_dim, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)
    second = tl.load(weight + second_dim, mask=pair < HEAD_DIM // 2, other=0.0).to(tl.float32)
    if PLUS_ONE:
        first, second = first + 1.0, second + 1.0
    return first, second


@triton.jit
@no_type_check
def _cos_sin(
    pair, row, row_live, positions, steps, axis_of_pair, axis_stride, magnitude,
    PAIRS: tl.constexpr, AXES: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Return cos and sin of every pair and row, times the magnitude; pairs from PAIRS on have cos 1 and sin 0."""
    at = positions + row
    if AXES > 1:
        at += tl.load(axis_of_pair + pair, mask=pair < PAIRS, other=0) * axis_stride
    position = tl.load(at, mask=row_live, other=0).to(tl.int64)
    # the phase is the product of position and step
    cos, sin = phase_cos_sin(position * tl.load(steps + pair, mask=pair < PAIRS, other=0), QUICK)
    magnitude = tl.where(pair < PAIRS, magnitude, 1.0)
    return cos * magnitude, sin * magnitude


@triton.jit
@no_type_check
def _store_in_slot(
    first, second, first_dim, second_dim, live, cache, scale, head, slot, num_slots, page_stride, slot_stride, head_stride,
    PAGE_SIZE: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """Store pairs of one head of k or v in their cache slots; slots outside 0 ... num_slots - 1 are skipped."""
    written = live & (slot >= 0) & (slot < num_slots)
    head_in_slot = cache + slot // PAGE_SIZE * page_stride + slot % PAGE_SIZE * slot_stride + head * head_stride
    inverse_scale = 1.0
    if QUANTISED:
        inverse_scale = 1.0 / tl.load(scale)
    dtype: tl.constexpr = cache.dtype.element_ty
    tl.store(head_in_slot + first_dim, as_stored(first, inverse_scale, dtype, QUANTISED), mask=written)
    tl.store(head_in_slot + second_dim, as_stored(second, inverse_scale, dtype, QUANTISED), mask=written)


@triton.jit(do_not_specialize=["rows", "num_slots"])
@no_type_check
def qkv_product(
    x, norm_weight, weight, bias, partial, arrived, rows, eps, x_row,
    q_weight, k_weight, q_out, k_cache, v_cache, k_scale, v_scale, positions, slots, steps, axis_of_pair, num_slots, head_eps,
    q_magnitude, k_magnitude, q_row, q_head, axis_stride, k_page, k_slot, k_head, v_page, v_slot, v_head,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, K: tl.constexpr, HEAD_DIM: tl.constexpr, START: tl.constexpr,
    PAIRS: tl.constexpr, AXES: tl.constexpr, INTERLEAVED: tl.constexpr, INTERLEAVED_OUT: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, HEAD_NORM: tl.constexpr, HEAD_WEIGHT: tl.constexpr, PLUS_ONE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    QUANTISED: tl.constexpr, QUICK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF_BLOCK: tl.constexpr,
    DEPTH: tl.constexpr, EARLY: tl.constexpr, ROWS_MASKED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Multiply x by the packed q, k, v weights; norm and rotate q and k; store q in `q_out`, k and v in their cache slots.

    A program computes COLUMNS pairs of one head, both members in two accumulators, so the rotation exchanges nothing between
    threads. HEAD_NORM needs all pairs of a head: each program stores its own in `partial`, and the last one to arrive finishes.
    Names such as q_row and k_page are strides: from one row of q, or page of the k cache, to the next. With EARLY, positions and
    slots do not come from the previous kernel, and are read before it ends.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    PARTS: tl.constexpr = (HALF + COLUMNS - 1) // COLUMNS
    EXCHANGE: tl.constexpr = HEAD_NORM and PARTS > 1
    head = tl.program_id(0) // PARTS
    pair = tl.program_id(0) % PARTS * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    row_live, live = row < rows, pair < HALF
    first_dim, second_dim = _pair_dims(pair, HEAD_DIM, START, PAIRS, INTERLEAVED)
    MASKED: tl.constexpr = HALF % COLUMNS != 0 or K % DEPTH != 0
    first_rows = weight + (head * HEAD_DIM + first_dim).to(tl.int64) * K
    second_rows = weight + (head * HEAD_DIM + second_dim).to(tl.int64) * K
    first, second = begin(first_rows, second_rows, live, K, ROWS, COLUMNS, DEPTH, True, MASKED, PDL)
    # what the end of the kernel needs is loaded before the product, which hides how long these loads take; cos and sin only with
    # EARLY, because the product would wait for the positions. The last program of a head with EXCHANGE rotates all pairs of the
    # head, and any program may be the last one
    rotated_pair = tl.arange(0, HALF_BLOCK)[None, :] if EXCHANGE else pair
    is_query = head < Q_HEADS
    if HEAD_WEIGHT:
        first_factor, second_factor = _norm_factors(
            tl.where(is_query, q_weight, k_weight), rotated_pair, HEAD_DIM, START, PAIRS, INTERLEAVED, PLUS_ONE
        )
    if not EARLY:
        wait(PDL)
    slot = tl.load(slots + row, mask=row_live, other=-1).to(tl.int64)
    magnitude = tl.where(is_query, q_magnitude, k_magnitude)
    if EARLY:
        cos, sin = _cos_sin(
            rotated_pair, row, row_live, positions, steps, axis_of_pair, axis_stride, magnitude, PAIRS, AXES, QUICK
        )
        wait(PDL)
    first, second = products(
        rows_of_x(x, row, rows, x_row, ROWS), norm_weight, first, second, first_rows, second_rows, row_live, live, eps,
        K, ROWS, COLUMNS, DEPTH, NORM, True, MASKED, ROWS_MASKED, PRECISION, PDL,
    )  # fmt: skip
    if BIAS:
        first += tl.load(bias + head * HEAD_DIM + first_dim, mask=live, other=0.0).to(tl.float32)
        second += tl.load(bias + head * HEAD_DIM + second_dim, mask=live, other=0.0).to(tl.float32)
    if head >= Q_HEADS + K_HEADS:
        _store_in_slot(
            first, second, first_dim, second_dim, live, v_cache, v_scale, head - Q_HEADS - K_HEADS, slot, num_slots,
            v_page, v_slot, v_head, PAGE_SIZE, QUANTISED,
        )  # fmt: skip
        return
    if EXCHANGE:
        # store this program's pairs, and let the last program of the head continue with all of them
        place = tl.program_id(1) * (Q_HEADS + K_HEADS) + head
        rows_of_head = partial + (place * ROWS + tl.arange(0, ROWS)[:, None]) * HEAD_DIM
        tl.store(rows_of_head + pair, first, mask=live)
        tl.store(rows_of_head + HALF + pair, second, mask=live)
        tl.debug_barrier()  # every thread must have stored its part before one of them increments the counter
        if tl.atomic_add(arrived + place, 1, sem="acq_rel") < PARTS - 1:
            return
        tl.store(arrived + place, 0)
        first = tl.load(rows_of_head + rotated_pair, mask=rotated_pair < HALF, other=0.0, cache_modifier=".cg")
        second = tl.load(rows_of_head + HALF + rotated_pair, mask=rotated_pair < HALF, other=0.0, cache_modifier=".cg")
    if HEAD_NORM:
        inverse_rms = tl.rsqrt(tl.sum(tl.fma(first, first, second * second), axis=1) / HEAD_DIM + head_eps)[:, None]
        first, second = first * inverse_rms, second * inverse_rms
    if HEAD_WEIGHT:
        first, second = first * first_factor, second * second_factor
    if not EARLY:
        cos, sin = _cos_sin(
            rotated_pair, row, row_live, positions, steps, axis_of_pair, axis_stride, magnitude, PAIRS, AXES, QUICK
        )
    first, second = rotated(first, second, cos, sin)
    # q and k are stored in the output layout
    first_dim, second_dim = _pair_dims(rotated_pair, HEAD_DIM, START, PAIRS, INTERLEAVED_OUT)
    live = rotated_pair < HALF
    if is_query:
        queries = q_out + row.to(tl.int64) * q_row + head * q_head
        tl.store(queries + first_dim, first.to(q_out.dtype.element_ty), mask=row_live & live)
        tl.store(queries + second_dim, second.to(q_out.dtype.element_ty), mask=row_live & live)
    else:
        _store_in_slot(
            first, second, first_dim, second_dim, live, k_cache, k_scale, head - Q_HEADS, slot, num_slots,
            k_page, k_slot, k_head, PAGE_SIZE, QUANTISED,
        )  # fmt: skip
