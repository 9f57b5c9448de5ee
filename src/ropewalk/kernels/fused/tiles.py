"""The parts of the fused kernels: heads as tiles, their norm, their angles. Import only where Triton is wanted.

Tiles are [tokens, heads, dims]. A head is three of them: the first and the second members of its pairs, and the rest,
which is normed but not turned. HEAD says how: (head_dim, start, pairs, block of pairs, block of the rest or 0).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

#: the largest finite e4m3 value; fused_definition.FP8_MAX as a constant Triton can see
FP8_MAX = tl.constexpr(448.0)


@triton.jit
@no_type_check
def load(pointers, live, MASKED: tl.constexpr, EVICT: tl.constexpr):
    """A load that has a mask only where something is to be masked: a mask costs wide accesses."""
    if MASKED:
        return tl.load(pointers, mask=live, other=0.0, eviction_policy=EVICT)
    else:
        return tl.load(pointers, eviction_policy=EVICT)


@triton.jit
@no_type_check
def _store(pointers, value, live, MASKED: tl.constexpr, STORE: tl.constexpr):
    if MASKED:
        tl.store(pointers, value, mask=live, cache_modifier=STORE)
    else:
        tl.store(pointers, value, cache_modifier=STORE)


@triton.jit
@no_type_check
def _rest_dims(HEAD: tl.constexpr):
    """The dims that do not turn, adjacent where they can be, and which of the tile's are real."""
    START: tl.constexpr = HEAD[1]
    TURNING: tl.constexpr = 2 * HEAD[2]
    index = tl.arange(0, HEAD[4])[None, None, :]
    if START == 0:
        dim = index + TURNING
    elif HEAD[0] == START + TURNING:
        dim = index
    else:
        dim = index + tl.where(index < START, 0, TURNING)
    return dim, index < HEAD[0] - TURNING


@triton.jit
@no_type_check
def load_head(
    heads, live, MASKED: tl.constexpr, INTERLEAVED: tl.constexpr, HEAD: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """(first, second, rest) of the heads whose start `heads` [TOKENS, HEADS, 1] points to; rest is first if all dims turn."""
    PAIRS: tl.constexpr = HEAD[2]
    BLOCK: tl.constexpr = HEAD[3]
    MASK: tl.constexpr = MASKED or BLOCK != PAIRS
    turning = heads + HEAD[1]
    if INTERLEAVED:
        dim = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = load(turning + dim, live & (dim < 2 * PAIRS), MASK, EVICT)
        first, second = tl.split(tl.reshape(both, [TOKENS, HEADS, BLOCK, 2]))
    else:
        pair = tl.arange(0, BLOCK)[None, None, :]
        first = load(turning + pair, live & (pair < PAIRS), MASK, EVICT)
        second = load(turning + PAIRS + pair, live & (pair < PAIRS), MASK, EVICT)
    rest = first
    if HEAD[4]:
        dim, inside = _rest_dims(HEAD)
        rest = load(heads + dim, live & inside, MASKED or HEAD[4] != HEAD[0] - 2 * PAIRS, EVICT)
    return first, second, rest


@triton.jit
@no_type_check
def as_stored(value, inverse_scale, dtype: tl.constexpr, QUANTISED: tl.constexpr):
    """The one rounding."""
    if QUANTISED:
        value = tl.clamp(value.to(tl.float32) * inverse_scale, -FP8_MAX, FP8_MAX, tl.PropagateNan.ALL)
    return value.to(dtype)


@triton.jit
@no_type_check
def store_head(
    heads, first, second, rest, inverse_scale, live, QUANTISED: tl.constexpr, MASKED: tl.constexpr, INTERLEAVED: tl.constexpr,
    HEAD: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Round the three tiles of every head and put them where `heads` points."""
    PAIRS: tl.constexpr = HEAD[2]
    BLOCK: tl.constexpr = HEAD[3]
    MASK: tl.constexpr = MASKED or BLOCK != PAIRS
    dtype: tl.constexpr = heads.dtype.element_ty
    turning = heads + HEAD[1]
    first = as_stored(first, inverse_scale, dtype, QUANTISED)
    second = as_stored(second, inverse_scale, dtype, QUANTISED)
    if INTERLEAVED:
        dim = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = tl.reshape(tl.join(first, second), [TOKENS, HEADS, 2 * BLOCK])
        _store(turning + dim, both, live & (dim < 2 * PAIRS), MASK, STORE)
    else:
        pair = tl.arange(0, BLOCK)[None, None, :]
        _store(turning + pair, first, live & (pair < PAIRS), MASK, STORE)
        _store(turning + PAIRS + pair, second, live & (pair < PAIRS), MASK, STORE)
    if HEAD[4]:
        dim, inside = _rest_dims(HEAD)
        rest = as_stored(rest, inverse_scale, dtype, QUANTISED)
        _store(heads + dim, rest, live & inside, MASKED or HEAD[4] != HEAD[0] - 2 * PAIRS, STORE)


@triton.jit
@no_type_check
def load_factors(
    weight, WEIGHT: tl.constexpr, INTERLEAVED: tl.constexpr, HEAD: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr
):
    """The norm's weight as the three tiles of a head; WEIGHT is "", "w" or "1+w".

    Every head reads its own copy (from the first-level cache): it then lies in the registers as x does, and needs no
    shared memory and no barrier to get there.
    """
    if WEIGHT != "":
        everywhere = tl.zeros([TOKENS, HEADS, 1], tl.int32)
        return load_head(weight + everywhere, everywhere == 0, False, INTERLEAVED, HEAD, TOKENS, HEADS, "")
    else:
        return 1.0, 1.0, 1.0


@triton.jit
@no_type_check
def weighted(first, second, rest, w_first, w_second, w_rest, WEIGHT: tl.constexpr):
    """x * w or x * (1 + w)."""
    if WEIGHT != "":
        w_first, w_second, w_rest = w_first.to(tl.float32), w_second.to(tl.float32), w_rest.to(tl.float32)
        if WEIGHT == "1+w":
            w_first, w_second, w_rest = w_first + 1.0, w_second + 1.0, w_rest + 1.0
        first, second, rest = first * w_first, second * w_second, rest * w_rest
    return first, second, rest


@triton.jit
@no_type_check
def mean_product(a_first, a_second, a_rest, b_first, b_second, b_rest, HEAD: tl.constexpr):
    """mean(a b) over a head's dims, [tokens, heads, 1]."""
    total = tl.sum(a_first * b_first + a_second * b_second, axis=2)
    if HEAD[4]:
        total += tl.sum(a_rest * b_rest, axis=2)
    return (total / HEAD[0])[:, :, None]


@triton.jit
@no_type_check
def norm_and_rotate(
    first, second, rest, w_first, w_second, w_rest, cos, sin, eps, NORM: tl.constexpr, WEIGHT: tl.constexpr, HEAD: tl.constexpr
):
    """fused_definition.norm_and_turn on tiles."""
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(mean_product(first, second, rest, first, second, rest, HEAD) + eps)
        first, second, rest = first * inverse, second * inverse, rest * inverse
        first, second, rest = weighted(first, second, rest, w_first, w_second, w_rest, WEIGHT)
    return first * cos - second * sin, first * sin + second * cos, rest


@triton.jit
@no_type_check
def phases(
    steps, axis_of_pair, positions, token, live, axis_stride, AXES: tl.constexpr, HEAD: tl.constexpr, MASK_TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """The exact phase of every pair, int64 [tokens, HEADS, pairs]; each pair listens to its own axis.

    HEADS > 1 where a program has no more threads than pairs: every head then finds the same angles for itself, which
    costs less than handing them round through shared memory.
    """
    PAIRS: tl.constexpr = HEAD[2]
    MASKED: tl.constexpr = HEAD[3] != PAIRS
    pair = tl.arange(0, HEAD[3])[None, None, :] + tl.zeros([1, HEADS, 1], tl.int32)
    where = positions + token[:, None, None]
    if AXES > 1:
        where += load(axis_of_pair + pair, pair < PAIRS, MASKED, "") * axis_stride
    position = load(where, live[:, None, None], MASK_TOKENS, "").to(tl.int64)
    return position * load(steps + pair, pair < PAIRS, MASKED, "")
