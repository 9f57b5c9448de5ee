"""Norm and product of one row whose bits are those of the same row among others, in Triton.
Importing this imports Triton.

The terms of a sum are divided into PARTS parts of PART terms. A part is summed from zero, 16 terms
in one matrix instruction; then the parts are added in their order. Several rows are summed so by
`decode_step.product`, one part after another. Here the parts of one row are summed side by side: a
row of the tile is one part of one row of the weight, a column one part of x, and the results that
belong to the same part of both are kept.

The squares of a norm are added as integers, whose sum does not depend on the order, and so not on
how a kernel divides a row among threads.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode_step.product import ADD, GATE, wait

#: the parts of a sum: as many columns as the smallest matrix instruction has
PARTS = tl.constexpr(8)


@triton.jit
@no_type_check
def _inverse_rms(x, eps, K: tl.constexpr):
    """Return 1 / sqrt(mean of x^2 + eps) of one row x of K values, float32 and 0 beyond them; NaN
    if a value is not finite.
    """
    # NaN and infinity have the largest bits
    highest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    # the power of two below the highest value, and 1 / unit, by their exponents
    exponent = highest & 0x7F800000
    unit = exponent.to(tl.float32, bitcast=True)
    scaled = x * (0x7F000000 - exponent).to(tl.float32, bitcast=True)  # between -2 and 2
    # less than 2^42 each, so the sum of 2^21 of them fits into 64 bits
    total = tl.sum((scaled * scaled * 1099511627776.0).to(tl.int64)).to(tl.float32)
    largest = highest.to(tl.float32, bitcast=True)
    mean_and_eps = tl.fma(total * (1.0 / 1099511627776.0 / K) * unit, unit, eps)
    return tl.rsqrt(mean_and_eps) + (largest - largest)


@triton.jit
@no_type_check
def _normed(x, inverse_rms, weight):
    """Return x, normed by its inverse rms and multiplied by the weight of the norm, as float32."""
    return x.to(tl.float32) * inverse_rms * weight.to(tl.float32)


@triton.jit
@no_type_check
def norm(x, weight, out, eps, x_row, out_row, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """Store the RMS norm of each row of x [rows, K], one program per row; BLOCK is K rounded up to
    a power of two.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    # the weight does not come from the previous kernel, so it is loaded before the wait
    factor = tl.load(weight + column, mask=column < K, other=0.0)
    wait(PDL)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    values = tl.load(x + row * x_row + column, mask=column < K, other=0.0).to(tl.float32)
    normed = _normed(values, _inverse_rms(values, eps, K), factor)
    tl.store(out + row * out_row + column, normed.to(out.dtype.element_ty), mask=column < K)


@triton.jit
@no_type_check
def product_of_one_row(
    x, norm_weight, weight, bias, residual, out, eps,
    COUNT: tl.constexpr, K: tl.constexpr, FINISH: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store COUNT columns of norm(x) @ weight^T + bias for one row x [K], finished as FINISH says
    (see `decode_step.product.product`). A program computes COLUMNS of them, DEPTH terms of every
    part at a time; BLOCK is K rounded up to a power of two.
    """
    BLOCKS: tl.constexpr = 2 if FINISH == GATE else 1
    ROWS: tl.constexpr = BLOCKS * COLUMNS * PARTS
    # a row of the tile is (block, column, part)
    index = tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + index // PARTS % COLUMNS
    weight_row = column + index // (PARTS * COLUMNS) * COUNT
    depth = tl.arange(0, DEPTH)
    first_term = (index % PARTS * PART)[:, None] + depth[None, :]
    weights = weight + weight_row.to(tl.int64)[:, None] * K + first_term
    live = (column < COUNT)[:, None] & (depth < PART)[None, :]
    # the first weights do not depend on the previous kernel, so they are loaded while it runs
    a = tl.load(weights, mask=live & (first_term < K), other=0.0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()  # let the next kernel load its weights
    wait(PDL)
    own = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    if FINISH == ADD:
        added = tl.load(residual + own, mask=own < COUNT, other=0.0).to(tl.float32)
    if NORM:
        place = tl.arange(0, BLOCK)
        inverse_rms = _inverse_rms(
            tl.load(x + place, mask=place < K, other=0.0).to(tl.float32), eps, K
        )
    part = tl.arange(0, PARTS)[None, :]
    term = depth[:, None] + part * PART
    total = tl.zeros([ROWS, PARTS], tl.float32)
    for start in range(0, PART, DEPTH):
        after = start + DEPTH
        next_a = a
        if after < PART:
            inside = live & (after + depth < PART)[None, :] & (first_term + after < K)
            next_a = tl.load(weights + after, mask=inside, other=0.0, eviction_policy="evict_first")
        inside = (start + depth < PART)[:, None] & (start + term < K)
        b = tl.load(x + start + term, mask=inside, other=0.0)
        if NORM:
            factor = tl.load(norm_weight + start + term, mask=inside, other=0.0)
            b = _normed(b, inverse_rms, factor).to(b.dtype)
        total = tl.dot(a, b, total)
        a = next_a
    # each sum has one term that is not 0
    sums = tl.sum(tl.where((index % PARTS)[:, None] == part, total, 0.0), axis=1)
    result = _in_order(tl.reshape(sums, [BLOCKS * COLUMNS, PARTS]))
    if FINISH == GATE:
        first, second = tl.split(tl.trans(tl.reshape(result, [2, COLUMNS])))
    else:
        first, second = result, result
    if BIAS:
        first += tl.load(bias + own, mask=own < COUNT, other=0.0).to(tl.float32)
    if FINISH == GATE:
        if BIAS:
            second += tl.load(bias + COUNT + own, mask=own < COUNT, other=0.0).to(tl.float32)
        first = first * tl.sigmoid(first) * second
    if FINISH == ADD:
        first += added
    tl.store(out + own, first.to(out.dtype.element_ty), mask=own < COUNT)


@triton.jit
@no_type_check
def _in_order(parts):
    """Return the sums [C] of parts [C, PARTS], added from the first to the last."""
    C: tl.constexpr = parts.shape[0]
    # the bits of the index of a part are axes; `split` takes the last one off
    even, odd = tl.split(tl.reshape(parts, [C, 2, 2, 2]))
    part04, part26 = tl.split(even)
    part15, part37 = tl.split(odd)
    part0, part4 = tl.split(part04)
    part1, part5 = tl.split(part15)
    part2, part6 = tl.split(part26)
    part3, part7 = tl.split(part37)
    return part0 + part1 + part2 + part3 + part4 + part5 + part6 + part7
