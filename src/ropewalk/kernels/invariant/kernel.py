"""Softmax attention whose bits do not depend on the batch, in Triton. Importing this imports
Triton.

The keys of a row are divided into segments of SEGMENT keys, counted from the row's first key. A
segment is summed from zero, KEYS keys at a time; then the segments are added in their order. Every
program has a tile of the same size, whatever it computes. So the order of all sums is given by the
index of a key within its row, and neither other rows, other queries nor the number of programs
change it. Keys that a query does not see add exact zeros.

For each query, `highest` is its highest score so far, times log2(e); `total` the sum of
2^(score - highest); and `mixed` the sum of the values with these weights. PRECISION says how
float32 operands are multiplied, exactly ("ieee") or as tf32.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode_step.product import wait

#: log2(e): exponentials are computed as powers of two
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _with_keys(query, keys, values, seen, highest, total, mixed, scale, PRECISION: tl.constexpr):
    """Return (highest, total, mixed) of a segment with one more tile of keys.

    query is [queries, dims], keys [dims, KEYS], values [KEYS, dims], and the mask `seen` [queries,
    KEYS]; `scale` is the softmax scale.
    """
    scores = tl.dot(query, keys, input_precision=PRECISION) * (scale * LOG2_E)
    scores = tl.where(seen, scores, float("-inf"))
    now_highest = tl.maximum(highest, tl.max(scores, axis=1))
    # a query that has seen no key yet: -inf - -inf would be NaN
    base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(highest - base)
    total = tl.fma(total, shrink, tl.sum(weights, axis=1))
    mixed = tl.dot(
        weights.to(values.dtype), values, mixed * shrink[:, None], input_precision=PRECISION
    )
    return now_highest, total, mixed


@triton.jit
@no_type_check
def _with_segment(highest, total, mixed, its_highest, its_total, its_mixed):
    """Return (highest, total, mixed), as in `_with_keys`, of all segments so far with one more
    segment, whose own three are its_highest, its_total and its_mixed.
    """
    now_highest = tl.maximum(highest, its_highest)
    # where no segment has a key that the query sees: -inf - -inf would be NaN
    base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
    shrink, its_shrink = tl.exp2(highest - base), tl.exp2(its_highest - base)
    total = tl.fma(total, shrink, its_total * its_shrink)
    mixed = tl.fma(
        mixed,
        tl.broadcast_to(shrink[:, None], mixed.shape),
        its_mixed * its_shrink[:, None],
    )
    return now_highest, total, mixed


@triton.jit
@no_type_check
def attend(
    q, k, v, out, partial, statistics, first_keys, num_keys, queries, scale,
    q_row, q_token, q_head, k_row, k_head, k_token, v_row, v_head, v_token, out_row, out_token, out_head,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, K_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, WINDOW: tl.constexpr,
    APART: tl.constexpr, TILES: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write softmax(scale q k^T) v of a tile of QUERIES queries: tokens x the GROUP heads that
    share a key head.

    The last of the `queries` tokens of a row has the key with index num_keys[0] - 1. A token sees
    the keys from first_keys[row] to its own, and at most the latest WINDOW of them (0: all). With
    APART a program computes one segment of SEGMENTS and stores it in `partial` and `statistics` for
    `join`, otherwise all segments. Names such as k_token are strides.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # let the next kernel start
    wait(PDL)
    row, head = tl.program_id(0) // K_HEADS, tl.program_id(0) % K_HEADS
    place = tl.arange(0, QUERIES)
    TOKENS: tl.constexpr = QUERIES // GROUP_BLOCK
    tile_token = (0 if APART else tl.program_id(1)) * TOKENS
    token, member = tile_token + place // GROUP_BLOCK, place % GROUP_BLOCK
    live = (token < queries) & (member < GROUP)
    dim = tl.arange(0, DIM_BLOCK)[None, :]
    inside = live[:, None] & (dim < HEAD_DIM)
    last = tl.load(num_keys)
    own = last - queries + token  # the index of each query's own key
    row_first = tl.load(first_keys + row)
    first = row_first
    begin = row_first
    end = tl.minimum(last - queries + tile_token + TOKENS, last)
    if WINDOW > 0:
        # tiles before the window would add zeros
        first = tl.maximum(row_first, own - (WINDOW - 1))
        earliest = tl.maximum(last - queries + tile_token - (WINDOW - 1), row_first)
        begin = row_first + (earliest - row_first) // KEYS * KEYS
    if APART:
        segment = tl.program_id(1)
        begin = tl.maximum(begin, row_first + segment * SEGMENT)
        end = tl.minimum(end, row_first + (segment + 1) * SEGMENT)
        if begin >= end:
            return
    q += row.to(tl.int64) * q_row
    k += row.to(tl.int64) * k_row + head.to(tl.int64) * k_head
    v += row.to(tl.int64) * v_row + head.to(tl.int64) * v_head
    heads = (head * GROUP + member)[:, None]
    query = tl.load(
        q + token.to(tl.int64)[:, None] * q_token + heads * q_head + dim, mask=inside, other=0.0
    )
    all_highest = tl.full([QUERIES], float("-inf"), tl.float32)
    all_total = tl.zeros([QUERIES], tl.float32)
    all_mixed = tl.zeros([QUERIES, DIM_BLOCK], tl.float32)
    highest, total, mixed = all_highest, all_total, all_mixed
    # Triton's interpreter cannot loop to a computed bound, so it gets the largest one
    for tile in range(TILES if TILES > 0 else tl.cdiv(end - begin, KEYS)):
        start = begin + tile * KEYS
        if not APART:  # noqa: SIM102 - the first condition is known when the kernel is compiled
            if (start - row_first) % SEGMENT == 0:  # a new segment begins: add the one before it
                all_highest, all_total, all_mixed = _with_segment(
                    all_highest, all_total, all_mixed, highest, total, mixed
                )
                highest = tl.full([QUERIES], float("-inf"), tl.float32)
                total = tl.zeros([QUERIES], tl.float32)
                mixed = tl.zeros([QUERIES, DIM_BLOCK], tl.float32)
        key = start + tl.arange(0, KEYS)
        keys = tl.load(
            k + key.to(tl.int64)[None, :] * k_token + tl.trans(dim),
            mask=(key < end)[None, :] & (tl.trans(dim) < HEAD_DIM),
            other=0.0,
        )
        values = tl.load(
            v + key.to(tl.int64)[:, None] * v_token + dim,
            mask=(key < end)[:, None] & (dim < HEAD_DIM),
            other=0.0,
        )
        if WINDOW > 0:
            seen = (key[None, :] >= first[:, None]) & (key[None, :] <= own[:, None])
        else:
            seen = key[None, :] <= own[:, None]
        seen = seen & (key < end)[None, :]
        highest, total, mixed = _with_keys(
            query, keys, values, seen, highest, total, mixed, scale, PRECISION
        )
    if APART:
        at = tl.program_id(0) * SEGMENTS + tl.program_id(1)
        kept = live & (token == 0)
        tl.store(
            partial + (at * GROUP + member)[:, None] * HEAD_DIM + dim,
            mixed,
            mask=kept[:, None] & (dim < HEAD_DIM),
        )
        statistics += (at * GROUP + member) * 2
        tl.store(statistics, highest, mask=kept)
        tl.store(statistics + 1, total, mask=kept)
    else:
        all_highest, all_total, all_mixed = _with_segment(
            all_highest, all_total, all_mixed, highest, total, mixed
        )
        result = all_mixed / tl.where(all_total == 0.0, 1.0, all_total)[:, None]
        tl.store(
            out
            + row.to(tl.int64) * out_row
            + token.to(tl.int64)[:, None] * out_token
            + heads * out_head
            + dim,
            result.to(out.dtype.element_ty),
            mask=inside,
        )


@triton.jit
@no_type_check
def join(
    partial, statistics, out, first_keys, num_keys, out_row, out_head,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, K_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr,
    SEGMENT: tl.constexpr, SEGMENTS: tl.constexpr, WINDOW: tl.constexpr, AT_ONCE: tl.constexpr,
    MOST_SEGMENTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write DIMS dims of the attention of the one token of a row: the sum of the segments that
    `attend` stored, of which AT_ONCE are on their way at a time. MOST_SEGMENTS is the number of
    segments in Triton's interpreter, which cannot loop to a computed bound; otherwise 0.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    wait(PDL)
    row, head = tl.program_id(0) // K_HEADS, tl.program_id(0) % K_HEADS
    member = tl.arange(0, GROUP_BLOCK)
    dim = tl.program_id(1) * DIMS + tl.arange(0, DIMS)[None, :]
    inside = (member < GROUP)[:, None] & (dim < HEAD_DIM)
    last, row_first = tl.load(num_keys), tl.load(first_keys + row)
    # the first segment with a key that the token sees, and the end of all
    begin = 0
    if WINDOW > 0:
        begin = tl.maximum(last - WINDOW - row_first, 0) // SEGMENT
    end = tl.cdiv(last - row_first, SEGMENT)
    highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    mixed = tl.zeros([GROUP_BLOCK, DIMS], tl.float32)
    for index in tl.range(
        0, MOST_SEGMENTS if MOST_SEGMENTS > 0 else end - begin, num_stages=AT_ONCE
    ):
        segment = begin + index
        there = segment < end
        at = (tl.program_id(0) * SEGMENTS + segment) * GROUP + member
        kept = (member < GROUP) & there
        its_highest = tl.load(statistics + at * 2, mask=kept, other=float("-inf"))
        its_total = tl.load(statistics + at * 2 + 1, mask=kept, other=0.0)
        its_mixed = tl.load(partial + at[:, None] * HEAD_DIM + dim, mask=inside & there, other=0.0)
        highest, total, mixed = _with_segment(
            highest, total, mixed, its_highest, its_total, its_mixed
        )
    result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + row.to(tl.int64) * out_row + (head * GROUP + member)[:, None] * out_head + dim,
        result.to(out.dtype.element_ty),
        mask=inside,
    )
