"""The Triton kernel: one launch rotates the heads of q and of k, whose last dimension is
contiguous, in place or not.

A head has START dims that do not rotate, PAIRS pairs that do, and TAIL dims that do not. BLOCK is a
number of pairs or dims rounded up to a power of two, the size of a tile. `live` masks the tokens
and heads that exist, and MASKED says whether any may be missing; HINT is a cache hint, "" for none.
INTERLEAVED: a pair is two neighbouring dims, otherwise the dims START + i and START + PAIRS + i.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.rotation.triton.angles import phase_cos_sin, rotated
from ropewalk.kernels.rotation.triton.pairs import load, load_pairs, store, store_pairs

#: values of MODE: angles from exact phases, or from tables of cos and sin
PHASE = tl.constexpr(0)
ROWS = tl.constexpr(1)


@triton.jit
@no_type_check
def head_rows(x, batch, token, head, batch_stride, token_stride, head_stride):
    """Return pointers [tokens, heads, 1] to the first dim of every head; offsets are int64, for
    more than 2^31 elements.

    Tokens are the first axis because Triton distributes that over the threads first, and heads only
    over threads that are left. So where one thread has several heads of a token, it computes their
    common angle once.
    """
    row = x + batch.to(tl.int64) * batch_stride
    return (
        row
        + (token.to(tl.int64) * token_stride)[:, None, None]
        + (head.to(tl.int64) * head_stride)[None, :, None]
    )


@triton.jit
@no_type_check
def store_rotated(
    rows, first, second, cos, sin, live,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, MASKED: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """Rotate the pairs (first, second), in float32, and store them, rounded once, where the
    pointers `rows` point.
    """
    first, second = rotated(first.to(tl.float32), second.to(tl.float32), cos, sin)
    dtype: tl.constexpr = rows.dtype.element_ty
    store_pairs(
        rows, first.to(dtype), second.to(dtype), live, PAIRS, BLOCK, INTERLEAVED, MASKED, HINT
    )


@triton.jit
@no_type_check
def load_dims(
    rows, live, COUNT: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr, HINT: tl.constexpr
):
    """Return COUNT dimensions that are not rotated, from the pointers `rows` [tokens, heads, 1] on,
    as [tokens, heads, BLOCK].
    """
    dim = tl.arange(0, BLOCK)[None, None, :]
    return load(rows + dim, live & (dim < COUNT), MASKED or COUNT != BLOCK, HINT)


@triton.jit
@no_type_check
def store_dims(
    rows,
    dims,
    live,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
    HINT: tl.constexpr,
):
    """Store a block of COUNT dimensions that are not rotated, as `load_dims` returned it."""
    dim = tl.arange(0, BLOCK)[None, None, :]
    store(rows + dim, dims, live & (dim < COUNT), MASKED or COUNT != BLOCK, HINT)


@triton.jit
@no_type_check
def token_positions(at, token_live, MASKED: tl.constexpr):
    """Return the int64 positions that the pointers `at` [tokens, 1, 1] point to: those of a
    program's tokens on one axis.
    """
    return load(at, token_live[:, None, None], MASKED, "").to(tl.int64)


@triton.jit
@no_type_check
def cos_sin_tile(
    positions, angles, more_angles, axes, offset, batch, token, token_live,
    position_axis, position_batch, position_token, angle_batch, angle_token, angle_pair,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, HEADS: tl.constexpr, AXES: tl.constexpr, MODE: tl.constexpr, MASKED: tl.constexpr,
    QUICK: tl.constexpr,
):  # fmt: skip
    """Return cos and sin, float32 [tokens, 1 or HEADS, BLOCK], and the positions.

    MODE   ROWS: `angles` points to cos and `more_angles` to sin, one row for each token, and a
           token's index is its position; PHASE: `angles` points to each pair's phase step, its
           angle per position as an integer
    QUICK  use the GPU's approximate sine instruction

    Tables are read once per head (from L1), by the threads that hold the pair: sharing one read
    between heads would need shared memory.
    """
    pair = tl.arange(0, BLOCK)[None, None, :]
    pair_live = pair < PAIRS
    live = token_live[:, None, None] & pair_live
    if MODE == ROWS:
        place = pair + tl.zeros([1, HEADS, 1], tl.int32)  # the pair, once for each head
        at = (
            batch.to(tl.int64) * angle_batch
            + (token.to(tl.int64) * angle_token)[:, None, None]
            + place * angle_pair
        )
        cos = load(angles + at, live, MASKED or PAIRS != BLOCK, "").to(tl.float32)
        sin = load(more_angles + at, live, MASKED or PAIRS != BLOCK, "").to(tl.float32)
        position = token[:, None, None]
    else:
        step = load(angles + batch.to(tl.int64) * angle_batch + pair, pair_live, PAIRS != BLOCK, "")
        if positions is None:
            position = (offset.to(tl.int64) + token.to(tl.int64) * position_token)[:, None, None]
        else:
            at = (
                positions
                + batch.to(tl.int64) * position_batch
                + (token.to(tl.int64) * position_token)[:, None, None]
            )
            position = token_positions(at, token_live, MASKED)
            if AXES > 1:
                # load positions once per token and axis, then select one for each pair: far fewer
                # loads than one per pair
                axis = tl.load(axes + pair, mask=pair_live, other=0)
                for other in tl.static_range(1, AXES):
                    position = tl.where(
                        axis == other,
                        token_positions(at + other * position_axis, token_live, MASKED),
                        position,
                    )
        cos, sin = phase_cos_sin(position * step, QUICK)
    return cos, sin, position


@triton.jit
@no_type_check
def scaled(
    cos,
    sin,
    magnitude,
    exponent,
    batch,
    magnitude_batch,
    MAGNITUDE_LOADED: tl.constexpr,
    GROWTH: tl.constexpr,
):
    """Return cos and sin times the magnitude and, unless GROWTH is 0, times exp(exponent), the
    growth of xPos.

    The magnitude is a number or None; if MAGNITUDE_LOADED, a pointer to one number, or to one for
    each batch row, `magnitude_batch` apart.
    """
    if magnitude is not None:
        if MAGNITUDE_LOADED:
            factor = tl.load(magnitude + batch * magnitude_batch)
        else:
            factor = magnitude
        cos *= factor
        sin *= factor
    if GROWTH != 0:
        factor = tl.exp(exponent)
        cos *= factor
        sin *= factor
    return cos, sin


@triton.jit(
    do_not_specialize=["offset", "tokens", "rows", "center"],
    do_not_specialize_on_alignment=["positions", "q_magnitude", "k_magnitude"],
)
@no_type_check
def rotate_kernel(
    q, k, q_out, k_out, positions, angles, more_angles, q_magnitude, k_magnitude, offset,
    axes, growth, tokens, rows, center,
    q_batch, q_token, q_head, k_batch, k_token, k_head,
    q_out_batch, q_out_token, q_out_head, k_out_batch, k_out_token, k_out_head,
    position_axis, position_batch, position_token, angle_batch, angle_token, angle_pair, magnitude_batch,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, TAIL: tl.constexpr,
    AXES: tl.constexpr, MODE: tl.constexpr, BACKWARDS: tl.constexpr, MAGNITUDE_LOADED: tl.constexpr, GROWTH: tl.constexpr,
    INTERLEAVED_IN: tl.constexpr, INTERLEAVED_OUT: tl.constexpr, COPY: tl.constexpr,
    TOKENS: tl.constexpr, Q_BLOCK: tl.constexpr, K_BLOCK: tl.constexpr, Q_GROUPS: tl.constexpr, GROUPS: tl.constexpr,
    TOKENS_FIRST: tl.constexpr, TALL: tl.constexpr, MASK_TOKENS: tl.constexpr, MASK_Q: tl.constexpr, MASK_K: tl.constexpr,
    BLOCK: tl.constexpr, START_BLOCK: tl.constexpr, TAIL_BLOCK: tl.constexpr,
    LOAD_HINT: tl.constexpr, STORE_HINT: tl.constexpr, PDL: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """Rotate Q_BLOCK heads of q and K_BLOCK heads of k, of TOKENS tokens of one batch row.

    With K_BLOCK 0 a program rotates Q_BLOCK heads of either q or k. Programs with adjacent ids run
    at the same time and should use adjacent memory: with TOKENS_FIRST they take the next block of
    tokens of the same heads, otherwise the next group of heads of the same tokens. COPY also copies
    the dimensions that are not rotated. A name with "live" is the mask of the tokens, heads or
    pairs that exist: blocks have sizes that are powers of two, so their ends may be empty. Names
    such as q_token are strides: from one token of q to the next. `angles` and `more_angles` are
    described in `cos_sin_tile`; GROWTH is the sign of xPos's exponent on q, 0 without xPos.
    """
    column = tl.program_id(0)
    row = tl.program_id(1)
    if TALL:
        # more rows than the second axis of a grid allows, so the third axis continues them
        row += tl.program_id(2) * tl.num_programs(1)
        if row >= rows:
            return
    if TOKENS_FIRST:
        block, group, batch = column, row % GROUPS, row // GROUPS
    else:
        block, group, batch = column // GROUPS, column % GROUPS, row
    # the tokens and the heads of this program
    token = block * TOKENS + tl.arange(0, TOKENS)
    token_live = token < tokens
    exponent_sign = GROWTH
    head = group * Q_BLOCK + tl.arange(0, Q_BLOCK)
    head_live = head < Q_HEADS
    if K_HEADS > 0 and K_BLOCK == 0:
        # the first Q_GROUPS groups are heads of q, the others heads of k; from here on, a program
        # with heads of k calls them q
        is_key = group >= Q_GROUPS
        head = tl.where(is_key, head - Q_GROUPS * Q_BLOCK, head)
        head_live = head < tl.where(is_key, K_HEADS, Q_HEADS)
        q, q_out = tl.where(is_key, k, q), tl.where(is_key, k_out, q_out)
        q_batch, q_out_batch = (
            tl.where(is_key, k_batch, q_batch),
            tl.where(is_key, k_out_batch, q_out_batch),
        )
        q_token, q_out_token = (
            tl.where(is_key, k_token, q_token),
            tl.where(is_key, k_out_token, q_out_token),
        )
        q_head, q_out_head = (
            tl.where(is_key, k_head, q_head),
            tl.where(is_key, k_out_head, q_out_head),
        )
        if q_magnitude is not None:
            q_magnitude = tl.where(is_key, k_magnitude, q_magnitude)
        if GROWTH != 0:
            exponent_sign = tl.where(is_key, -GROWTH, GROWTH)
    q_live = token_live[:, None, None] & head_live[None, :, None]
    q_rows = head_rows(q + START, batch, token, head, q_batch, q_token, q_head)
    q_out_rows = head_rows(q_out + START, batch, token, head, q_out_batch, q_out_token, q_out_head)
    MASKED_Q: tl.constexpr = MASK_TOKENS or MASK_Q
    MASKED_K: tl.constexpr = MASK_TOKENS or MASK_K
    if PDL:
        # the previous kernel may still be writing the memory that is read below
        tl.extra.cuda.gdc_wait()
    # all loads come before the first store: in place they alias, so the compiler cannot move a load
    # before a store
    q_first, q_second = load_pairs(
        q_rows, q_live, PAIRS, BLOCK, INTERLEAVED_IN, MASKED_Q, LOAD_HINT
    )
    if COPY and START > 0:
        q_before = load_dims(q_rows - START, q_live, START, START_BLOCK, MASKED_Q, LOAD_HINT)
    if COPY and TAIL > 0:
        q_after = load_dims(q_rows + 2 * PAIRS, q_live, TAIL, TAIL_BLOCK, MASKED_Q, LOAD_HINT)
    if K_BLOCK > 0:
        k_head_index = group * K_BLOCK + tl.arange(0, K_BLOCK)
        k_live = token_live[:, None, None] & (k_head_index < K_HEADS)[None, :, None]
        k_rows = head_rows(k + START, batch, token, k_head_index, k_batch, k_token, k_head)
        k_out_rows = head_rows(
            k_out + START, batch, token, k_head_index, k_out_batch, k_out_token, k_out_head
        )
        k_first, k_second = load_pairs(
            k_rows, k_live, PAIRS, BLOCK, INTERLEAVED_IN, MASKED_K, LOAD_HINT
        )
        if COPY and START > 0:
            k_before = load_dims(k_rows - START, k_live, START, START_BLOCK, MASKED_K, LOAD_HINT)
        if COPY and TAIL > 0:
            k_after = load_dims(k_rows + 2 * PAIRS, k_live, TAIL, TAIL_BLOCK, MASKED_K, LOAD_HINT)
    HEADS: tl.constexpr = Q_BLOCK if K_BLOCK == 0 else 1
    cos, sin, position = cos_sin_tile(
        positions, angles, more_angles, axes, offset, batch, token, token_live,
        position_axis, position_batch, position_token, angle_batch, angle_token, angle_pair,
        PAIRS, BLOCK, HEADS, AXES, MODE, MASK_TOKENS, QUICK,
    )  # fmt: skip
    if PDL:
        # x and the angles are loaded, so the next kernel may start
        tl.extra.cuda.gdc_launch_dependents()
    if BACKWARDS:
        sin = -sin
    # rotate and store the heads of q, then those of k
    exponent = 0.0
    if GROWTH != 0:
        pair = tl.arange(0, BLOCK)[None, None, :]
        exponent = (position - center).to(tl.float32) * tl.load(
            growth + pair, mask=pair < PAIRS, other=0.0
        ).to(tl.float32)
    q_cos, q_sin = scaled(
        cos,
        sin,
        q_magnitude,
        exponent * exponent_sign,
        batch,
        magnitude_batch,
        MAGNITUDE_LOADED,
        GROWTH,
    )
    store_rotated(
        q_out_rows,
        q_first,
        q_second,
        q_cos,
        q_sin,
        q_live,
        PAIRS,
        BLOCK,
        INTERLEAVED_OUT,
        MASKED_Q,
        STORE_HINT,
    )
    if COPY and START > 0:
        store_dims(q_out_rows - START, q_before, q_live, START, START_BLOCK, MASKED_Q, STORE_HINT)
    if COPY and TAIL > 0:
        store_dims(q_out_rows + 2 * PAIRS, q_after, q_live, TAIL, TAIL_BLOCK, MASKED_Q, STORE_HINT)
    if K_BLOCK > 0:
        k_cos, k_sin = scaled(
            cos,
            sin,
            k_magnitude,
            exponent * -GROWTH,
            batch,
            magnitude_batch,
            MAGNITUDE_LOADED,
            GROWTH,
        )
        store_rotated(
            k_out_rows,
            k_first,
            k_second,
            k_cos,
            k_sin,
            k_live,
            PAIRS,
            BLOCK,
            INTERLEAVED_OUT,
            MASKED_K,
            STORE_HINT,
        )
        if COPY and START > 0:
            store_dims(
                k_out_rows - START, k_before, k_live, START, START_BLOCK, MASKED_K, STORE_HINT
            )
        if COPY and TAIL > 0:
            store_dims(
                k_out_rows + 2 * PAIRS, k_after, k_live, TAIL, TAIL_BLOCK, MASKED_K, STORE_HINT
            )
