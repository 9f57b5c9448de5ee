"""Functions of the fused kernels: load, normalise and store heads as tiles, and compute angles.
Importing this imports Triton.

Tiles are [tokens, heads, dims]. A head is three tiles: the first members of its pairs, the second
members, and the rest: the dims that are normalised but not rotated. HEAD is (head_dim, start,
pairs, tile width of the pairs, tile width of the rest or 0); widths are powers of two, and dims of
a tile that a head does not have are loaded as 0.

`heads` are pointers to the first dim of each head, `live` is True for tokens and heads that exist,
and MASKED says whether any may be missing. EVICT and STORE are cache hints, "" for none; TOKENS and
HEADS are the sizes of a tile. WEIGHT says by what the norm multiplies: "" nothing, "w", or "1+w".
INTERLEAVED: a pair is two neighbouring dims, otherwise dims i and pairs + i of the rotated ones.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.rotation.triton.angles import rotated
from ropewalk.kernels.rotation.triton.pairs import load, load_pairs, store, store_pairs

#: the largest finite e4m3 value: definition.FP8_MAX as a tl.constexpr
FP8_MAX = tl.constexpr(448.0)


@triton.jit
@no_type_check
def _rest_dims(HEAD: tl.constexpr):
    """Return the indices of the dims that are not rotated, contiguous if possible so that loads are
    wide, and a mask of those that a head has, [1, 1, HEAD[4]] each.
    """
    HEAD_DIM: tl.constexpr = HEAD[0]
    START: tl.constexpr = HEAD[1]
    ROTATED: tl.constexpr = 2 * HEAD[2]
    index = tl.arange(0, HEAD[4])[None, None, :]  # HEAD[4] is the width of a tile of these dims
    if START == 0:  # all after the rotated dims
        dim = index + ROTATED
    elif HEAD_DIM == START + ROTATED:  # all before them
        dim = index
    else:
        dim = index + tl.where(index < START, 0, ROTATED)
    return dim, index < HEAD_DIM - ROTATED


@triton.jit
@no_type_check
def load_head(
    heads, live, MASKED: tl.constexpr, INTERLEAVED: tl.constexpr, HEAD: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """Return (first members, second members, dims that do not rotate) of the heads at `heads`
    [tokens, heads, 1].

    If all dims rotate there is no third tile, and the first stands in its place, unused.
    """
    START: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    PAIR_BLOCK: tl.constexpr = HEAD[3]
    REST_BLOCK: tl.constexpr = HEAD[4]  # 0 if all dims of a head rotate
    first, second = load_pairs(heads + START, live, PAIRS, PAIR_BLOCK, INTERLEAVED, MASKED, EVICT)
    rest = first
    if REST_BLOCK:
        dim, inside = _rest_dims(HEAD)
        rest = load(heads + dim, live & inside, MASKED or HEAD[0] - 2 * PAIRS != REST_BLOCK, EVICT)
    return first, second, rest


@triton.jit
@no_type_check
def heads_in_slots(
    cache, slot, head, page_stride, slot_stride, head_stride, PAGE_SIZE: tl.constexpr
):
    """Return pointers to heads of a cache; `slot` and `head` are indices that broadcast. A slot is
    a row of a page, and `slot_stride` the stride of these rows.
    """
    return (
        cache
        + slot // PAGE_SIZE * page_stride
        + slot % PAGE_SIZE * slot_stride
        + head * head_stride
    )


@triton.jit
@no_type_check
def as_stored(value, inverse_scale, dtype: tl.constexpr, QUANTISED: tl.constexpr):
    """Return the value rounded once, to the dtype of the memory; if QUANTISED, times
    `inverse_scale` and limited to the range of e4m3 before.
    """
    if QUANTISED:
        value = tl.clamp(
            value.to(tl.float32) * inverse_scale, -FP8_MAX, FP8_MAX, tl.PropagateNan.ALL
        )
    return value.to(dtype)


@triton.jit
@no_type_check
def store_head(
    heads, first, second, rest, inverse_scale, live, QUANTISED: tl.constexpr, MASKED: tl.constexpr, INTERLEAVED: tl.constexpr,
    HEAD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Round the three tiles of every head, if QUANTISED after multiplying by `inverse_scale`, and
    store them where `heads` points.
    """
    START: tl.constexpr = HEAD[1]
    PAIRS: tl.constexpr = HEAD[2]
    PAIR_BLOCK: tl.constexpr = HEAD[3]
    REST_BLOCK: tl.constexpr = HEAD[4]  # 0 if all dims of a head rotate
    dtype: tl.constexpr = heads.dtype.element_ty
    first = as_stored(first, inverse_scale, dtype, QUANTISED)
    second = as_stored(second, inverse_scale, dtype, QUANTISED)
    store_pairs(heads + START, first, second, live, PAIRS, PAIR_BLOCK, INTERLEAVED, MASKED, STORE)
    if REST_BLOCK:
        dim, inside = _rest_dims(HEAD)
        rest = as_stored(rest, inverse_scale, dtype, QUANTISED)
        store(heads + dim, rest, live & inside, MASKED or HEAD[0] - 2 * PAIRS != REST_BLOCK, STORE)


@triton.jit
@no_type_check
def load_factors(
    weight,
    WEIGHT: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Return the norm's weight w as the three tiles of a head, or 1.0 three times if there is no
    weight. With "1+w" it is w too: `weighted` adds the 1.

    The weight is loaded once per head (from L1), so it has the register layout of x and needs no
    shared memory or barrier.
    """
    if WEIGHT != "":
        # the same pointer for each token and head, and a mask that is true
        everywhere = tl.zeros([TOKENS, HEADS, 1], tl.int32)
        return load_head(weight + everywhere, everywhere == 0, False, INTERLEAVED, HEAD, "")
    else:
        return 1.0, 1.0, 1.0


@triton.jit
@no_type_check
def weighted(first, second, rest, w_first, w_second, w_rest, WEIGHT: tl.constexpr):
    """Return x * w, x * (1 + w), or x if there is no weight; x and w are given as the three tiles
    of a head.
    """
    if WEIGHT != "":
        w_first, w_second, w_rest = (
            w_first.to(tl.float32),
            w_second.to(tl.float32),
            w_rest.to(tl.float32),
        )
        if WEIGHT == "1+w":
            w_first, w_second, w_rest = w_first + 1.0, w_second + 1.0, w_rest + 1.0
        first, second, rest = first * w_first, second * w_second, rest * w_rest
    return first, second, rest


@triton.jit
@no_type_check
def sum_of_dims(x, WIDTH: tl.constexpr):
    """Return the sum [tokens, heads] over the last axis of x [tokens, heads, WIDTH], as a tree:
    neighbours first, then sums of neighbours. WIDTH is a power of two.

    tl.sum adds in an order that depends on how the axis is divided among threads, so its rounding
    would depend on that too.
    """
    TOKENS: tl.constexpr = x.shape[0]
    HEADS: tl.constexpr = x.shape[1]
    for level in tl.static_range(WIDTH.bit_length() - 1):
        x = tl.sum(x.reshape(TOKENS, HEADS, WIDTH >> (level + 1), 2), axis=3)
    return x.reshape(TOKENS, HEADS)


@triton.jit
@no_type_check
def mean_product(a_first, a_second, a_rest, b_first, b_second, b_rest, HEAD: tl.constexpr):
    """Return mean(a b) over a head's dims, [tokens, heads, 1]; a and b are given as the three tiles
    of a head.
    """
    PAIR_BLOCK: tl.constexpr = HEAD[3]
    REST_BLOCK: tl.constexpr = HEAD[4]
    total = sum_of_dims(tl.fma(a_first, b_first, a_second * b_second), PAIR_BLOCK)
    if REST_BLOCK:
        total += sum_of_dims(a_rest * b_rest, REST_BLOCK)
    return (total / HEAD[0])[:, :, None]


@triton.jit
@no_type_check
def latent_normed(rest, weight, eps, HEAD: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr):
    """Return x / rms(x) * w, float32, of the dims that are not rotated, which are the first of the
    head; their weight has one entry for each.
    """
    WIDTH: tl.constexpr = HEAD[0] - 2 * HEAD[2]
    rest = rest.to(tl.float32)
    inverse_rms = tl.rsqrt((tl.sum(rest * rest, axis=2) / WIDTH)[:, :, None] + eps)
    dim, inside = _rest_dims(HEAD)
    # the same pointer for each token and head, and a mask that is true
    everywhere = tl.zeros([TOKENS, HEADS, 1], tl.int32)
    w_rest = load(weight + everywhere + dim, (everywhere == 0) & inside, HEAD[4] != WIDTH, "")
    return rest * inverse_rms * w_rest.to(tl.float32)


@triton.jit
@no_type_check
def norm_and_rotate(
    first,
    second,
    rest,
    w_first,
    w_second,
    w_rest,
    cos,
    sin,
    eps,
    NORM: tl.constexpr,
    WEIGHT: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Return the three tiles of a head normalised (if NORM) and rotated, float32, as
    `definition.norm_and_rotate` does with a QKNorm or without a norm.
    """
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    if NORM:
        inverse_rms = tl.rsqrt(mean_product(first, second, rest, first, second, rest, HEAD) + eps)
        first, second, rest = first * inverse_rms, second * inverse_rms, rest * inverse_rms
        first, second, rest = weighted(first, second, rest, w_first, w_second, w_rest, WEIGHT)
    first, second = rotated(first, second, cos, sin)
    return first, second, rest


@triton.jit
@no_type_check
def phases(
    steps, axis_of_pair, positions, token, live, axis_stride, AXES: tl.constexpr, HEAD: tl.constexpr, MASK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """Return the exact phase of every pair, int64 [tokens, HEADS, pairs] in units of 2^-64 turns,
    from the position on the pair's own axis. The product overflows by whole turns, which is right.

    `steps` has the phase of position 1 for each pair; `axis_stride` is that of the axes of
    `positions`, of which there are AXES, and axis_of_pair says on which one a pair rotates. `token`
    and `live` are the indices [tokens] and their mask, used if MASK_TOKENS.

    HEADS > 1 if a program has no more threads than pairs: recomputing the same angles for every
    head is then cheaper than sharing them through shared memory.
    """
    PAIRS: tl.constexpr = HEAD[2]
    BLOCK: tl.constexpr = HEAD[3]  # PAIRS rounded up to a power of two
    MASKED: tl.constexpr = BLOCK != PAIRS
    pair = tl.arange(0, BLOCK)[None, None, :] + tl.zeros([1, HEADS, 1], tl.int32)
    pointers = positions + token[:, None, None]
    if AXES > 1:
        pointers += load(axis_of_pair + pair, pair < PAIRS, MASKED, "") * axis_stride
    position = load(pointers, live[:, None, None], MASK_TOKENS, "").to(tl.int64)
    return position * load(steps + pair, pair < PAIRS, MASKED, "")
