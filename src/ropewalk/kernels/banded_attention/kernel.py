"""The Triton kernel of attention over a band of (query, key) pairs. Importing this imports Triton."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

#: log2(e): exponentials are computed as powers of two
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["q_len", "offset", "low", "high", "blocks"])
@no_type_check
def attend_band(
    q, k, v, out, lse, q_group, k_group, ranges, q_len, offset, low, high, scale, heads, blocks,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token, q_group_batch, k_group_batch,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, CAUSAL: tl.constexpr, LOW: tl.constexpr, HIGH: tl.constexpr, TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write softmax(scale q k^T) v and the log-sum-exp of the scores for ROWS queries of one head.

    GROUP is the number of query heads that share a key head. With LOW or HIGH, a query sees only
    keys with low <= q_group - k_group < high. `ranges` holds the first key and the end of the keys
    of every block of ROWS queries. Names such as q_token are strides.
    """
    # the queries of this program; under causality the last blocks have the most keys, so they start
    # first
    block = blocks - 1 - tl.program_id(0)
    row = tl.program_id(1)
    batch, head = (row // heads).to(tl.int64), row % heads
    k_of_head = (head // GROUP).to(tl.int64)
    q += batch * q_batch + head.to(tl.int64) * q_head
    k += batch * k_batch + k_of_head * k_head
    v += batch * v_batch + k_of_head * v_head
    token = block * ROWS + tl.arange(0, ROWS)
    live = token < q_len
    dim, column = tl.arange(0, DIM_BLOCK), tl.arange(0, WIDTH_BLOCK)
    at = q + token.to(tl.int64)[:, None] * q_token + dim[None, :]
    query = tl.load(at, mask=live[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
    group = tl.load(q_group + batch * q_group_batch + token, mask=live, other=0)
    k_group += batch * k_group_batch
    first, stop = tl.load(ranges + block), tl.load(ranges + blocks + block)
    # one pass over the keys: `highest` is the highest score so far, `total` the sum of 2^(score -
    # highest), `mixed` the sum of the values with these weights; a higher score in a later tile
    # multiplies both sums by `kept`
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, WIDTH_BLOCK], tl.float32)
    # Triton's interpreter cannot loop to a computed bound, so it gets the largest one; keys from
    # `stop` on are masked
    for tile in range(TILES if TILES > 0 else tl.cdiv(stop - first, KEYS).to(tl.int32)):
        key = first + tile * KEYS + tl.arange(0, KEYS)
        inside = key < stop
        key_at = k + key.to(tl.int64)[None, :] * k_token + dim[:, None]
        keys = tl.load(key_at, mask=inside[None, :] & (dim < HEAD_DIM)[:, None], other=0.0)
        value_at = v + key.to(tl.int64)[:, None] * v_token + column[None, :]
        values = tl.load(value_at, mask=inside[:, None] & (column < WIDTH)[None, :], other=0.0)
        # the scores of the keys that each query sees; the others are -inf
        scores = tl.dot(query, keys, input_precision=PRECISION) * (scale * LOG2_E)
        seen = live[:, None] & inside[None, :]
        if CAUSAL:
            seen = seen & (key[None, :] <= (token + offset)[:, None])
        if LOW or HIGH:
            difference = group[:, None] - tl.load(k_group + key, mask=inside, other=0)[None, :]
            if LOW:
                seen = seen & (difference >= low)
            if HIGH:
                seen = seen & (difference < high)
        scores = tl.where(seen, scores, float("-inf"))
        # add this tile to the running sums
        now_highest = tl.maximum(highest, tl.max(scores, axis=1))
        base = tl.where(now_highest == float("-inf"), 0.0, now_highest)  # -inf - -inf would be NaN
        weights = tl.exp2(scores - base[:, None])
        kept = tl.exp2(highest - base)
        total = total * kept + tl.sum(weights, axis=1)
        mixed = tl.dot(
            weights.to(values.dtype), values, mixed * kept[:, None], input_precision=PRECISION
        )
        highest = now_highest
    # a query without keys has a total of 0: its output is 0 and its log-sum-exp -inf
    safe = tl.where(total > 0, total, 1.0)
    place = row.to(tl.int64) * q_len + token
    tl.store(
        lse + place,
        tl.where(total > 0, (highest + tl.log2(safe)) / LOG2_E, float("-inf")),
        mask=live,
    )
    out_at = out + place[:, None] * WIDTH + column[None, :]
    tl.store(out_at, mixed / safe[:, None], mask=live[:, None] & (column < WIDTH)[None, :])
