"""The QKV product of a decode step in Triton: norm, product, head norm, rotation and cache write in
one launch.

A head has HEAD_DIM dims, of which PAIRS pairs rotate, from dim START on; here all dims of a head
form pairs, HEAD_DIM / 2 of them. Importing this imports Triton.

A program computes COLUMNS pairs of one head, of ROWS rows of x, and PARTS programs share a head.
`pair` [1, pairs] are indices of pairs, and `row` [rows, 1] of rows of x; `live` and row_live are
the masks of those that exist. INTERLEAVED: a pair is two neighbouring dims, otherwise the dims
START + i and START + PAIRS + i. QUICK uses the GPU's approximate sine instruction.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode_step.columns import columns_together, together
from ropewalk.kernels.decode_step.product import begin, products, rows_of_x, wait
from ropewalk.kernels.norm_rotation.tiles import as_stored, heads_in_slots
from ropewalk.kernels.rotation.triton.angles import phase_cos_sin, rotated


@triton.jit
@no_type_check
def _pair_dims(
    pair,
    HEAD_DIM: tl.constexpr,
    START: tl.constexpr,
    PAIRS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Return the dims of both members of each pair, of the shape of `pair`; pairs from PAIRS on are
    made of the dims that are not rotated.

    Those are the dims before START and the dims after the rotated ones, taken two by two.
    """
    if INTERLEAVED:
        first, second = START + 2 * pair, START + 2 * pair + 1
    else:
        first, second = START + pair, START + PAIRS + pair
    # if all dims rotate they stay contiguous, and the compiler stores several at once
    if 2 * PAIRS < HEAD_DIM:
        rest = 2 * (pair - PAIRS)
        first = tl.where(pair < PAIRS, first, tl.where(rest < START, rest, rest + 2 * PAIRS))
        second = tl.where(
            pair < PAIRS, second, tl.where(rest + 1 < START, rest + 1, rest + 1 + 2 * PAIRS)
        )
    return first, second


@triton.jit
@no_type_check
def _norm_factors(
    weight, pair, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    PLUS_ONE: tl.constexpr,
):  # fmt: skip
    """Return the factors of the head norm, w or 1 + w (PLUS_ONE), for both members of each pair."""
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
    """Return cos and sin [rows, pairs] of `row` [rows, 1] and `pair` [1, pairs], times the
    magnitude; pairs from PAIRS on have cos 1 and sin 0.

    `steps` has the phase of position 1 for each pair; `axis_stride` is that of the axes of
    `positions`, of which there are AXES, and axis_of_pair says on which one a pair rotates.
    """
    at = positions + row
    if AXES > 1:
        at += tl.load(axis_of_pair + pair, mask=pair < PAIRS, other=0) * axis_stride
    position = tl.load(at, mask=row_live, other=0).to(tl.int64)
    # the phase is the product of position and step; a pair that does not rotate has step 0
    cos, sin = phase_cos_sin(position * tl.load(steps + pair, mask=pair < PAIRS, other=0), QUICK)
    magnitude = tl.where(pair < PAIRS, magnitude, 1.0)
    return cos * magnitude, sin * magnitude


@triton.jit
@no_type_check
def _store_pairs(
    heads, first, second, start, written, inverse_scale,
    COLUMNS: tl.constexpr, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr,
    GROUP: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """Store COLUMNS pairs, from pair `start` on, in the heads [T, 1] that are `written`; first and
    second are their members [T, COLUMNS].

    GROUP 0: one store for the first members of the pairs and one for the second. Otherwise one
    store of both, GROUP columns of the first and GROUP of the second in turn, as `together` orders
    them.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    MASKED: tl.constexpr = HALF % COLUMNS != 0
    dtype: tl.constexpr = heads.dtype.element_ty
    first, second = (
        as_stored(first, inverse_scale, dtype, QUANTISED),
        as_stored(second, inverse_scale, dtype, QUANTISED),
    )
    if GROUP:
        column, is_second = columns_together(COLUMNS, GROUP)
        pair = start + column
        first_dim, second_dim = _pair_dims(pair, HEAD_DIM, START, PAIRS, INTERLEAVED)
        dim = tl.where(is_second, second_dim, first_dim)
        if (
            2 * PAIRS == HEAD_DIM
            and PAIRS % 8 == 0
            and COLUMNS >= 8
            and (GROUP == 1) == INTERLEAVED
        ):
            # the compiler does not see that eight dims follow each other, and would store one at a
            # time
            dim = tl.max_contiguous(tl.multiple_of(dim, [1, 8]), [1, 8])
        tl.store(
            heads + dim,
            together(first, second, GROUP),
            mask=written & (pair < HALF) if MASKED else written,
        )
    else:
        pair = start + tl.arange(0, COLUMNS)[None, :]
        first_dim, second_dim = _pair_dims(pair, HEAD_DIM, START, PAIRS, INTERLEAVED)
        live = written & (pair < HALF) if MASKED else written
        tl.store(heads + first_dim, first, mask=live)
        tl.store(heads + second_dim, second, mask=live)


@triton.jit
@no_type_check
def _give(squares, sums, part, PARTS: tl.constexpr):
    """Store this program's sums of squares [ROWS] for each of the other PARTS - 1 programs of the
    head.

    `sums` is [reader, writer, row], and `part` this program's index among the PARTS. 0 means that
    nothing is stored, so 1 is added to the bits of a sum. ".cg" stores to the L2 cache, where the
    other programs see it.
    """
    ROWS: tl.constexpr = squares.shape[0]
    for i in tl.static_range(1, PARTS):
        places = sums + ((part + i) % PARTS * PARTS + part) * ROWS + tl.arange(0, ROWS)
        tl.store(places, squares.to(tl.int32, bitcast=True) + 1, cache_modifier=".cg")


@triton.jit
@no_type_check
def _take(squares, sums, part, PARTS: tl.constexpr):
    """Wait for the sums of squares that the other programs of the head give, set their places to 0
    for the next launch, and return these sums added to `squares` [ROWS].

    `sums` is int32 [reader, writer, row]: the bits of a sum plus 1, and 0 before it is there.
    `part` is this program's index among the PARTS.
    """
    ROWS: tl.constexpr = squares.shape[0]
    nothing = tl.zeros([ROWS], tl.int32)
    for i in tl.static_range(1, PARTS):
        places = sums + (part * PARTS + (part + i) % PARTS) * ROWS + tl.arange(0, ROWS)
        bits = tl.atomic_xchg(places, nothing, sem="relaxed")
        # until every row has arrived; a row that has arrived keeps its bits
        while tl.min((bits != 0).to(tl.int32), axis=0) == 0:
            bits = tl.where(bits != 0, bits, tl.atomic_xchg(places, nothing, sem="relaxed"))
        squares += (bits - 1).to(tl.float32, bitcast=True)
    return squares


@triton.jit(do_not_specialize=["rows", "num_slots"])
@no_type_check
def qkv_product(
    x, norm_weight, weight, bias, partial, arrived, sums, rows, eps, x_row,
    q_weight, k_weight, q_out, k_cache, v_cache, k_scale, v_scale, positions, slots, steps, axis_of_pair, num_slots, head_eps,
    q_magnitude, k_magnitude, q_row, q_head, axis_stride, k_page, k_slot, k_head, v_page, v_slot, v_head,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, K: tl.constexpr, HEAD_DIM: tl.constexpr, START: tl.constexpr,
    PAIRS: tl.constexpr, AXES: tl.constexpr, INTERLEAVED: tl.constexpr, INTERLEAVED_OUT: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, HEAD_NORM: tl.constexpr, HEAD_WEIGHT: tl.constexpr, PLUS_ONE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    QUANTISED: tl.constexpr, QUICK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, HALF_BLOCK: tl.constexpr,
    DEPTH: tl.constexpr, EARLY: tl.constexpr, CONCURRENT: tl.constexpr, ROWS_MASKED: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Multiply x by the packed q, k, v weights; norm and rotate q and k; store q in `q_out`, k and
    v in their cache slots.

    A program computes COLUMNS pairs of one head, so the rotation exchanges nothing between
    programs. HEAD_NORM needs all pairs of a head. If all programs run at the same time
    (CONCURRENT), each waits for the sums of squares of the others. Otherwise each stores its pairs
    in `partial`, and the last one to arrive finishes. Names such as q_row and k_page are strides:
    from one row of q, or page of the k cache, to the next. With EARLY, positions and slots do not
    come from the previous kernel, and are read before it ends.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    PARTS: tl.constexpr = (HALF + COLUMNS - 1) // COLUMNS
    LAST: tl.constexpr = HEAD_NORM and PARTS > 1 and not CONCURRENT
    # `together` orders pairs so that dims which follow each other in the output do so in a tile
    GROUP: tl.constexpr = 1 if INTERLEAVED_OUT or COLUMNS < 8 else 8
    STORED: tl.constexpr = GROUP if ROWS > 1 and not LAST else 0
    head, part = tl.program_id(0) // PARTS, tl.program_id(0) % PARTS
    pair = part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    row_live, live = row < rows, pair < HALF
    first_dim, second_dim = _pair_dims(pair, HEAD_DIM, START, PAIRS, INTERLEAVED)
    MASKED: tl.constexpr = HALF % COLUMNS != 0 or K % DEPTH != 0
    first_row, second_row = head * HEAD_DIM + first_dim, head * HEAD_DIM + second_dim
    first, second = begin(
        weight, first_row, second_row, live, K, ROWS, COLUMNS, DEPTH, GROUP, MASKED, PDL
    )
    # what the end of the kernel needs is loaded before the product, which hides how long these
    # loads take. cos and sin are among it only with EARLY, while the previous kernel runs;
    # otherwise the product would wait for the positions. With LAST any program may rotate all pairs
    # of the head
    rotated_pair = tl.arange(0, HALF_BLOCK)[None, :] if LAST else pair
    is_query = head < Q_HEADS
    if not EARLY:
        wait(PDL)
    if HEAD_WEIGHT:
        first_factor, second_factor = _norm_factors(
            tl.where(is_query, q_weight, k_weight),
            rotated_pair,
            HEAD_DIM,
            START,
            PAIRS,
            INTERLEAVED,
            PLUS_ONE,
        )
    slot = tl.load(slots + row, mask=row_live, other=-1).to(tl.int64)
    magnitude = tl.where(is_query, q_magnitude, k_magnitude)
    if EARLY:
        cos, sin = _cos_sin(
            rotated_pair,
            row,
            row_live,
            positions,
            steps,
            axis_of_pair,
            axis_stride,
            magnitude,
            PAIRS,
            AXES,
            QUICK,
        )
        wait(PDL)
    first, second = products(
        rows_of_x(x, row, rows, x_row, ROWS),
        norm_weight,
        weight,
        first_row,
        second_row,
        first,
        second,
        row_live,
        live,
        eps,
        K,
        ROWS,
        COLUMNS,
        DEPTH,
        GROUP,
        NORM,
        MASKED,
        ROWS_MASKED,
        PRECISION,
        PDL,
    )
    if BIAS:
        first += tl.load(bias + first_row, mask=live, other=0.0).to(tl.float32)
        second += tl.load(bias + second_row, mask=live, other=0.0).to(tl.float32)
    in_slot = row_live & (slot >= 0) & (slot < num_slots)
    if head >= Q_HEADS + K_HEADS:
        values = heads_in_slots(
            v_cache, slot, head - Q_HEADS - K_HEADS, v_page, v_slot, v_head, PAGE_SIZE
        )
        scale = 1.0 / tl.load(v_scale) if QUANTISED else 1.0
        _store_pairs(
            values,
            first,
            second,
            part * COLUMNS,
            in_slot,
            scale,
            COLUMNS,
            HEAD_DIM,
            START,
            PAIRS,
            INTERLEAVED,
            STORED,
            QUANTISED,
        )
        return
    place = tl.program_id(1) * (Q_HEADS + K_HEADS) + head
    if LAST:
        # store this program's pairs, and let the last program of the head continue with all of them
        rows_of_head = partial + (place * ROWS + tl.arange(0, ROWS)[:, None]) * HEAD_DIM
        tl.store(rows_of_head + pair, first, mask=live)
        tl.store(rows_of_head + HALF + pair, second, mask=live)
        # every thread must have stored its part before one of them increments the counter
        tl.debug_barrier()
        if tl.atomic_add(arrived + place, 1, sem="acq_rel") < PARTS - 1:
            return
        tl.store(arrived + place, 0)
        first = tl.load(
            rows_of_head + rotated_pair, mask=rotated_pair < HALF, other=0.0, cache_modifier=".cg"
        )
        second = tl.load(
            rows_of_head + HALF + rotated_pair,
            mask=rotated_pair < HALF,
            other=0.0,
            cache_modifier=".cg",
        )
    if HEAD_NORM:
        squares = tl.sum(tl.fma(first, first, second * second), axis=1)
        if CONCURRENT:
            _give(squares, sums + place * PARTS * PARTS * ROWS, part, PARTS)
    if HEAD_WEIGHT:
        first, second = first * first_factor, second * second_factor
    if not EARLY:
        cos, sin = _cos_sin(
            rotated_pair,
            row,
            row_live,
            positions,
            steps,
            axis_of_pair,
            axis_stride,
            magnitude,
            PAIRS,
            AXES,
            QUICK,
        )
    first, second = rotated(first, second, cos, sin)
    if HEAD_NORM:
        if CONCURRENT:  # after the rotation, so that the sums of the others arrive meanwhile
            squares = _take(squares, sums + place * PARTS * PARTS * ROWS, part, PARTS)
        inverse_rms = tl.rsqrt(squares / HEAD_DIM + head_eps)[:, None]
        first, second = first * inverse_rms, second * inverse_rms
    # q and k are stored in the output layout
    WIDTH: tl.constexpr = HALF_BLOCK if LAST else COLUMNS
    start = 0 if LAST else part * COLUMNS
    if is_query:
        queries = q_out + row.to(tl.int64) * q_row + head * q_head
        _store_pairs(
            queries,
            first,
            second,
            start,
            row_live,
            1.0,
            WIDTH,
            HEAD_DIM,
            START,
            PAIRS,
            INTERLEAVED_OUT,
            STORED,
            False,
        )
    else:
        keys = heads_in_slots(k_cache, slot, head - Q_HEADS, k_page, k_slot, k_head, PAGE_SIZE)
        scale = 1.0 / tl.load(k_scale) if QUANTISED else 1.0
        _store_pairs(
            keys,
            first,
            second,
            start,
            in_slot,
            scale,
            WIDTH,
            HEAD_DIM,
            START,
            PAIRS,
            INTERLEAVED_OUT,
            STORED,
            QUANTISED,
        )
