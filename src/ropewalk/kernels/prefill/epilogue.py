"""What both QKV kernels for many tokens do with a tile after its product. Importing this imports
Triton.

A tile is two tensors [tokens, heads, HALF], the members of all pairs. Callers give the indices of
its tokens [T, 1, 1], heads [1, H, 1] and pairs [1, 1, HALF], so these functions serve kernels in
Triton and in Gluon, which must name its layouts.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.fused.tiles import as_stored, heads_in_slots
from ropewalk.kernels.triton.angles import phase_cos_sin


@triton.jit
@no_type_check
def dims_of(pair, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return the dims of both members of every pair of a head."""
    if INTERLEAVED:
        return 2 * pair, 2 * pair + 1
    else:
        return pair, pair + HALF


@triton.jit
@no_type_check
def with_bias(first, second, bias, head, pair, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Return both members plus the bias of their heads."""
    first_dim, second_dim = dims_of(pair, HALF, INTERLEAVED)
    of_head = bias + head * (2 * HALF)
    return first + tl.load(of_head + first_dim).to(tl.float32), second + tl.load(
        of_head + second_dim
    ).to(tl.float32)


@triton.jit
@no_type_check
def norm_factors(weight, pair, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, WEIGHT: tl.constexpr):
    """Return the factors w or 1 + w of the head norm for both members; 1 without a weight. WEIGHT
    as in tiles.py.
    """
    if WEIGHT == "":
        return 1.0, 1.0
    else:
        first_dim, second_dim = dims_of(pair, HALF, INTERLEAVED)
        first, second = (
            tl.load(weight + first_dim).to(tl.float32),
            tl.load(weight + second_dim).to(tl.float32),
        )
        if WEIGHT == "1+w":
            first, second = first + 1.0, second + 1.0
        return first, second


@triton.jit
@no_type_check
def normed(first, second, first_factor, second_factor, eps, HALF: tl.constexpr):
    """Return the pairs of every head divided by the head's rms, times the factors."""
    total = tl.sum(tl.fma(first, first, second * second), axis=2)
    inverse_rms = tl.rsqrt(total / (2 * HALF) + eps)[:, :, None]
    return first * inverse_rms * first_factor, second * inverse_rms * second_factor


@triton.jit
@no_type_check
def cos_sin(
    row,
    rows,
    pair,
    positions,
    steps,
    axis_of_pair,
    axis_stride,
    AXES: tl.constexpr,
    QUICK: tl.constexpr,
):
    """Return cos and sin of tokens and pairs, indices of any shapes that broadcast."""
    at = positions + row
    if AXES > 1:
        at += tl.load(axis_of_pair + pair) * axis_stride
    position = tl.load(at, mask=row < rows, other=0).to(tl.int64)
    return phase_cos_sin(position * tl.load(steps + pair), QUICK)


@triton.jit
@no_type_check
def store_in_slots(
    first, second, slot, head, pair, cache, scale, num_slots, page_stride, slot_stride, head_stride,
    HALF: tl.constexpr, INTERLEAVED: tl.constexpr, PAGE_SIZE: tl.constexpr, QUANTISED: tl.constexpr,
):  # fmt: skip
    """Store the pairs of every token in the token's cache slot [T, 1, 1] int64; tokens with a
    negative slot are not stored.
    """
    heads = heads_in_slots(cache, slot, head, page_stride, slot_stride, head_stride, PAGE_SIZE)
    inverse_scale = 1.0
    if QUANTISED:
        inverse_scale = 1.0 / tl.load(scale)
    written = (slot >= 0) & (slot < num_slots)
    first_dim, second_dim = dims_of(pair, HALF, INTERLEAVED)
    dtype: tl.constexpr = cache.dtype.element_ty
    first, second = (
        as_stored(first, inverse_scale, dtype, QUANTISED),
        as_stored(second, inverse_scale, dtype, QUANTISED),
    )
    tl.store(heads + first_dim, first, mask=written)
    tl.store(heads + second_dim, second, mask=written)
