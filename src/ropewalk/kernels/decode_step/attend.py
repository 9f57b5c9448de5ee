"""Softmax attention of one query token per row over a KV cache, in one launch. Importing this
imports Triton.

For each query, `highest` is its highest score so far, times log2(e); `total` the sum of
2^(score - highest); and `mixed` the sum of the values with these weights.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode_step import config
from ropewalk.kernels.decode_step.product import wait

#: log2(e): exponentials are computed as powers of two
LOG2_E = tl.constexpr(1.4426950408889634)
#: there are more than FEW_PARTS parts only of at least LARGE_PART keys: adding up more takes longer
#: than it saves
FEW_PARTS = tl.constexpr(config.FEW_PARTS)
LARGE_PART = tl.constexpr(config.LARGE_PART)


@triton.jit
@no_type_check
def _added_key(query, key, value, seen, highest, total, mixed, scale):
    """Return (highest, total, mixed) with one more key and its value, both [1, dims]; unchanged if
    not `seen`.

    query is [queries, dims], highest and total are [queries], mixed is [queries, dims]; `scale` is
    the softmax scale.
    """
    score = tl.sum(query.to(tl.float32) * key.to(tl.float32), axis=1) * (scale * LOG2_E)
    score = tl.where(seen, score, float("-inf"))
    now_highest = tl.maximum(highest, score)
    # a query that has seen no key yet: -inf - -inf would be NaN
    base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
    weight, shrink = tl.exp2(score - base), tl.exp2(highest - base)
    return (
        now_highest,
        total * shrink + weight,
        mixed * shrink[:, None] + weight[:, None] * value.to(tl.float32),
    )


@triton.jit
@no_type_check
def attend(
    q, k, v, out, partial, statistics, arrived, first_keys, num_keys, scale,
    q_row, q_head, k_row, k_head, k_token, v_row, v_head, v_token, out_row, out_head,
    GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, K_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, KEYS: tl.constexpr, TILES: tl.constexpr, WINDOW: tl.constexpr, EARLY: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write softmax(scale q k^T) v for the GROUP query heads of one row that share a key head.

    Keys are those with index first_keys[row] ... num_keys[0] - 1, and at most the latest WINDOW of
    them (0: all). They are divided into at most SPLITS parts, one for each program; a program
    without a part ends at once. Each of the others stores its part; the last to arrive adds them up
    in the order of the parts, so the result does not depend on which one is last. Names such as
    k_token are strides: from one token of k to the next.

    With EARLY, only q and the newest key and value come from the previous kernel. The other keys
    are loaded before it ends, and the newest one is added after them.
    """
    row_and_head, split = tl.program_id(0), tl.program_id(1)
    row, head = row_and_head // K_HEADS, row_and_head % K_HEADS
    member = tl.arange(0, GROUP_BLOCK)[:, None]
    dim = tl.arange(0, DIM_BLOCK)[None, :]
    inside = (member < GROUP) & (dim < HEAD_DIM)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # let the next kernel start
    if not EARLY:
        wait(PDL)
    # the keys of this program: from begin, in tiles of KEYS; those before `first` and from `stop`
    # on are masked
    last = tl.load(num_keys).to(tl.int32)
    first = tl.load(first_keys + row).to(tl.int32)
    if WINDOW > 0:
        first = tl.maximum(first, last - WINDOW)
    earliest = first // KEYS * KEYS
    share = tl.cdiv(last - earliest, SPLITS)
    if SPLITS > FEW_PARTS:
        share = tl.maximum(share, tl.minimum(tl.cdiv(last - earliest, FEW_PARTS), LARGE_PART))
    share = tl.maximum(tl.cdiv(share, KEYS) * KEYS, KEYS)
    parts = tl.maximum(tl.cdiv(last - earliest, share), 1)
    if split >= parts:
        return
    begin = earliest + split * share
    end = tl.minimum(begin + share, last)
    newest = tl.maximum(last - 1, 0).to(tl.int64)
    stop = tl.minimum(end, newest) if EARLY else end
    queries = q + row.to(tl.int64) * q_row + (head * GROUP + member) * q_head + dim
    k += row.to(tl.int64) * k_row + head.to(tl.int64) * k_head
    v += row.to(tl.int64) * v_row + head.to(tl.int64) * v_head
    if EARLY:
        # these three are loaded in the first tile
        query = tl.zeros([GROUP_BLOCK, DIM_BLOCK], q.dtype.element_ty)
        new_key, new_value = (
            tl.zeros([1, DIM_BLOCK], k.dtype.element_ty),
            tl.zeros([1, DIM_BLOCK], v.dtype.element_ty),
        )
    else:
        query = tl.load(queries, mask=inside, other=0.0)
    # one pass over the keys: `highest` is the highest score so far, `total` the sum of 2^(score -
    # highest), `mixed` the sum of the values with these weights; a higher score in a later tile
    # multiplies both sums by `shrink`
    highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    mixed = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32)
    # at least one tile, in which the query is loaded. Triton's interpreter cannot loop to a
    # computed bound, so it gets the largest one; keys from `stop` on are masked
    for tile in range(TILES if TILES > 0 else tl.maximum(tl.cdiv(stop - begin, KEYS), 1)):
        key = begin + tile * KEYS + tl.arange(0, KEYS)
        seen = (key >= first) & (key < stop)
        key_tile = tl.load(
            k + key.to(tl.int64)[None, :] * k_token + tl.trans(dim),
            mask=seen[None, :] & (tl.trans(dim) < HEAD_DIM),
            other=0.0,
        )
        if EARLY:  # noqa: SIM102 - the first condition is known when the kernel is compiled
            if tile == 0:
                # the loads of the first tiles are already under way
                wait(PDL)
                query = tl.load(queries, mask=inside, other=0.0)
                new_key = tl.load(k + newest * k_token + dim, mask=dim < HEAD_DIM, other=0.0)
                new_value = tl.load(v + newest * v_token + dim, mask=dim < HEAD_DIM, other=0.0)
        scores = tl.dot(query, key_tile, input_precision=PRECISION) * (scale * LOG2_E)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        now_highest = tl.maximum(highest, tl.max(scores, axis=1))
        # a tile whose keys are all masked leaves the maximum at -inf
        base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(highest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        value_tile = tl.load(
            v + key.to(tl.int64)[:, None] * v_token + dim,
            mask=seen[:, None] & (dim < HEAD_DIM),
            other=0.0,
        )
        mixed = tl.dot(
            weights.to(value_tile.dtype),
            value_tile,
            mixed * shrink[:, None],
            input_precision=PRECISION,
        )
        highest = now_highest
    if EARLY:
        mine = (newest >= begin) & (newest < end)
        highest, total, mixed = _added_key(
            query, new_key, new_value, mine, highest, total, mixed, scale
        )
    heads = tl.arange(0, GROUP_BLOCK)
    if SPLITS > 1:
        # store this program's part: `mixed`, `highest` and `total`
        place = row_and_head * SPLITS + split
        tl.store(partial + (place * GROUP + member) * HEAD_DIM + dim, mixed, mask=inside)
        at = statistics + (place * GROUP + heads) * 2
        tl.store(at, highest, mask=heads < GROUP)
        tl.store(at + 1, total, mask=heads < GROUP)
        # every thread must have stored its part before one of them increments the counter
        tl.debug_barrier()
        if tl.atomic_add(arrived + row_and_head, 1, sem="acq_rel") < parts - 1:
            return
        # this is the last program: reset the counter for the next launch, then add up the parts
        tl.store(arrived + row_and_head, 0)
        highest = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_BLOCK], tl.float32)
        mixed = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32)
        for other in tl.static_range(SPLITS):  # unrolled, so that all loads are under way at once
            place = row_and_head * SPLITS + other
            at = statistics + (place * GROUP + heads) * 2
            there = (heads < GROUP) & (other < parts)
            its_highest = tl.load(at, mask=there, other=float("-inf"), cache_modifier=".cg")
            its_total = tl.load(at + 1, mask=there, other=0.0, cache_modifier=".cg")
            part = tl.load(
                partial + (place * GROUP + member) * HEAD_DIM + dim,
                mask=inside & (other < parts),
                other=0.0,
                cache_modifier=".cg",
            )
            now_highest = tl.maximum(highest, its_highest)
            base = tl.where(now_highest == float("-inf"), 0.0, now_highest)
            shrink, its_shrink = tl.exp2(highest - base), tl.exp2(its_highest - base)
            total = total * shrink + its_total * its_shrink
            mixed = mixed * shrink[:, None] + part * its_shrink[:, None]
            highest = now_highest
    result = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + row.to(tl.int64) * out_row + (head * GROUP + member) * out_head + dim,
        result.to(out.dtype.element_ty),
        mask=inside,
    )
