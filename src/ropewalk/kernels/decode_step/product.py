"""Matrix products of a decode step in Triton, with the steps before and after them inside.
Importing this imports Triton.

A decode step has few rows and reads every weight once, so it is limited by memory bandwidth. One
launch norms the input, multiplies it, and finishes the output: adds the residual or applies the
gate.

A tile has ROWS x COLUMNS results, which are sums of K terms, DEPTH at a time. MASKED says whether
columns or terms may be missing at the end of a tile. GROUP orders the columns of two blocks of
weight rows in one tile, as in columns.py; 0 means that there is one block.

`live` [1, COLUMNS] is the mask of the columns, row_live [ROWS, 1] that of the rows. x_row, out_row,
residual_row and packed_row are strides from one row to the next. PDL: programmatic dependent
launch, by which a kernel starts before the previous one ends. PRECISION says how float32 operands
are multiplied, exactly ("ieee") or as tf32. `load` and `store` take a mask, whether to use it, and
a cache hint, "" for none.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.decode_step.columns import apart, mask_together, together
from ropewalk.kernels.rotation.triton.pairs import load, store

#: values of FINISH: store the product; add the residual to it; multiply silu(first half) by the
#: second half
STORE = tl.constexpr(0)
ADD = tl.constexpr(1)
GATE = tl.constexpr(2)
#: how many weights of each row are moved to the L2 cache before the previous kernel ends; none, or
#: four times as many, are slower
EARLY_WEIGHTS = tl.constexpr(128)
#: the rows that one matrix instruction of a Hopper GPU computes
INSTRUCTION_ROWS = tl.constexpr(64)


@triton.jit
@no_type_check
def begin(
    weight, first_row, second_row, live,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, MASKED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Return what `products` begins with: for a single row of x the first DEPTH weights of each
    weight row, of the first block and of the second; otherwise twice the pointers [1, columns] to
    the weight rows of both blocks together, of which `products` uses the first.

    first_row and second_row are the indices [1, COLUMNS] of two blocks of weight rows; with a GROUP
    of 0 there is only the first. With PDL (programmatic dependent launch) this kernel starts before
    the previous one ends. The weights do not depend on the previous kernel, so the first of them
    are loaded while it still runs; after this call the kernel must call `wait`.
    """
    if ROWS == 1:
        if PDL:
            # let the next kernel start: its programs can load weights while these compute
            tl.extra.cuda.gdc_launch_dependents()
        depth = tl.arange(0, DEPTH)[None, :]
        inside = tl.reshape(live, [COLUMNS, 1]) & (depth < K)
        first = load(_rows_of_weight(weight, first_row, K) + depth, inside, MASKED, "evict_first")
        second = (
            load(_rows_of_weight(weight, second_row, K) + depth, inside, MASKED, "evict_first")
            if GROUP
            else first
        )
        return first, second
    else:
        index = together(first_row, second_row, GROUP) if GROUP else first_row
        weights = weight + index.to(tl.int64) * K
        if PDL and K >= EARLY_WEIGHTS:
            # one prefetch for each cache line of 128 bytes; `line` is how many weights it holds
            line: tl.constexpr = 128 * 8 // weight.dtype.element_ty.primitive_bitwidth
            early = (
                tl.reshape(weights, [index.shape[1], 1])
                + tl.arange(0, EARLY_WEIGHTS // line)[None, :] * line
            )
            if MASKED:
                early = tl.where(
                    tl.reshape(mask_together(live, GROUP), [index.shape[1], 1]), early, weight
                )
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
                "=r,l",
                [early],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
        return weights, weights


@triton.jit
@no_type_check
def _rows_of_weight(weight, row, K: tl.constexpr):
    """Return pointers [C, 1] to the weight rows with the indices [1, C]."""
    return weight + tl.reshape(row, [row.shape[1], 1]).to(tl.int64) * K


@triton.jit
@no_type_check
def wait(PDL: tl.constexpr):
    """Wait until the previous kernel has ended and what it wrote can be read; without PDL this is
    so from the start.
    """
    if PDL:
        tl.extra.cuda.gdc_wait()


@triton.jit
@no_type_check
def rows_of_x(x, row, rows, x_row, ROWS: tl.constexpr):
    """Return pointers [ROWS, 1] to the rows of x with the indices `row`; rows of the tile after the
    last of the `rows` rows of x read rows of x again. x_row is the stride of rows.

    The results of these rows are not stored. Reading rows of x again takes less time than a mask,
    unless many rows of the tile read the same one.
    """
    if ROWS > 1:
        row = row % rows
    return x + row.to(tl.int64) * x_row


@triton.jit
@no_type_check
def _vector_products(
    x, norm_weight, weights, more_weights, first_rows, second_rows, live, eps,
    K: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BOTH: tl.constexpr, NORM: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return one row x [K] times two blocks of weight rows, float32 [COLUMNS] each; without BOTH
    the second is the first.

    `weights` and `more_weights` are the first DEPTH of each weight row, already loaded; the
    pointers `first_rows` and `second_rows` [COLUMNS, 1] give the others, and `live` is here
    [COLUMNS, 1]. Products are summed in registers: one row would leave most of a matrix instruction
    unused. With NORM x is RMS-normed: the weight of the norm multiplies x before the product, and
    the inverse rms multiplies the result.
    """
    first = tl.zeros([COLUMNS, DEPTH], tl.float32)
    second = tl.zeros([COLUMNS, DEPTH], tl.float32)
    squares = tl.zeros([1, DEPTH], tl.float32)
    depth = tl.arange(0, DEPTH)[None, :]
    for start in range(0, K, DEPTH):
        # load the next weights before these are used, so that the loads overlap with the arithmetic
        after = start + DEPTH
        next_weights, next_more = weights, more_weights
        if after < K:
            inside = live & (after + depth < K)
            next_weights = load(first_rows + after + depth, inside, MASKED, "evict_first")
            next_more = (
                load(second_rows + after + depth, inside, MASKED, "evict_first")
                if BOTH
                else next_weights
            )
        a = load(x + start + depth, start + depth < K, MASKED, "").to(tl.float32)
        if NORM:
            squares = tl.fma(a, a, squares)
            a *= load(norm_weight + start + depth, start + depth < K, MASKED, "").to(tl.float32)
        first = tl.fma(weights.to(tl.float32), a, first)
        if BOTH:
            second = tl.fma(more_weights.to(tl.float32), a, second)
        weights, more_weights = next_weights, next_more
    first = tl.sum(first, axis=1)
    second = tl.sum(second, axis=1) if BOTH else first
    if NORM:
        inverse_rms = tl.rsqrt(tl.sum(squares) / K + eps)
        first, second = first * inverse_rms, second * inverse_rms
    return first, second


@triton.jit
@no_type_check
def _matrix_products(
    x, weights, row_live, live,
    K: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, MASKED: tl.constexpr, ROWS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr, PART: tl.constexpr = 0,
):  # fmt: skip
    """Return x [ROWS, K] times C weight rows, float32 [ROWS, C]: one block of COLUMNS weight rows,
    or with a GROUP both blocks together, so C is twice as many. With a PART, a multiple of DEPTH,
    every PART terms are summed from zero, and these sums are added in their order.

    x and `weights` are pointers to the beginnings of rows, [ROWS, 1] and [1, C]; row_live and live
    are their masks. MASKED or ROWS_MASKED hides the rows that are not `row_live`; without both each
    of them reads a row of x, see `rows_of_x`. PDL: let the next kernel start, after the loop.
    """
    COLUMNS: tl.constexpr = weights.shape[1]  # C, so with a GROUP both blocks
    # where x has too few rows for a matrix instruction, the weights may have enough
    SWAPPED: tl.constexpr = ROWS < INSTRUCTION_ROWS and COLUMNS >= INSTRUCTION_ROWS
    total = tl.zeros([COLUMNS, ROWS] if SWAPPED else [ROWS, COLUMNS], tl.float32)
    earlier = total  # the sum of the parts before this one
    depth = tl.arange(0, DEPTH)
    for start in range(0, K, DEPTH):
        if PART:
            # not a branch, behind which the matrix instructions could not be scheduled
            begins = start % PART == 0
            earlier += tl.where(begins, total, 0.0)
            total = tl.where(begins, 0.0, total)
        inside = start + depth < K
        if MASKED:
            a = tl.load(x + start + depth[None, :], mask=row_live & inside[None, :], other=0.0)
        else:
            a = load(x + start + depth[None, :], row_live, ROWS_MASKED, "")
        b = load(weights + start + depth[:, None], live & inside[:, None], MASKED, "")
        if SWAPPED:
            total = tl.dot(tl.trans(b), tl.trans(a), total, input_precision=PRECISION)
        else:
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if PDL:
        # not earlier: programs of the next kernel would all start on the multiprocessors with free
        # shared memory
        tl.extra.cuda.gdc_launch_dependents()
    if PART:
        total += earlier
    return tl.trans(total) if SWAPPED else total


@triton.jit
@no_type_check
def products(
    x, norm_weight, weight, first_row, second_row, begun, more_begun, row_live, live, eps,
    K: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GROUP: tl.constexpr, NORM: tl.constexpr,
    MASKED: tl.constexpr, ROWS_MASKED: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr, PART: tl.constexpr = 0,
):  # fmt: skip
    """Return x times two blocks of weight rows, float32 [ROWS, COLUMNS] each; with a GROUP of 0 the
    second is the first.

    `x` points to [ROWS, 1] rows; `begun` and `more_begun` are what `begin` returned for the same
    weight, indices and GROUP. A gate needs both blocks, and so do the two members of pairs that
    will rotate. NORM, the RMS norm of x inside the product, needs ROWS = 1; PART, as in
    `_matrix_products`, needs more ROWS.
    """
    if ROWS == 1:
        first, second = _vector_products(
            x,
            norm_weight,
            begun,
            more_begun,
            _rows_of_weight(weight, first_row, K),
            _rows_of_weight(weight, second_row, K),
            tl.reshape(live, [COLUMNS, 1]),
            eps,
            K,
            COLUMNS,
            DEPTH,
            GROUP > 0,
            NORM,
            MASKED,
        )
        return first[None, :], second[None, :]
    else:
        tl.static_assert(not NORM, "only a single row can be normed inside the product")
        total = _matrix_products(
            x,
            begun,
            row_live,
            mask_together(live, GROUP),
            K,
            ROWS,
            DEPTH,
            MASKED,
            ROWS_MASKED,
            PRECISION,
            PDL,
            PART,
        )
        first, second = apart(total, GROUP) if GROUP else (total, total)
        return first, second


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def product(
    x, norm_weight, weight, bias, residual, out, rows, eps, x_row, residual_row, out_row,
    COUNT: tl.constexpr, K: tl.constexpr, FINISH: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PART: tl.constexpr, ROWS_MASKED: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Store COUNT columns of norm(x) @ weight^T + bias, finished as FINISH says.

    FINISH is STORE; ADD, which adds the residual; or GATE, which reads 2 COUNT rows of the weight
    and stores silu(first half) * second half. A program computes a tile of ROWS x COLUMNS, DEPTH of
    the K terms at a time. x_row, residual_row and out_row are strides.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    row_live, live = row < rows, column < COUNT
    MASKED: tl.constexpr = COUNT % COLUMNS != 0 or K % DEPTH != 0
    # with GATE, `first` are the columns of the gate and `second` the columns that it multiplies
    GROUP: tl.constexpr = 0 if FINISH != GATE else 8 if COLUMNS >= 8 else 1
    first, second = begin(
        weight, column, COUNT + column, live, K, ROWS, COLUMNS, DEPTH, GROUP, MASKED, PDL
    )
    wait(PDL)
    if FINISH == ADD:
        # before the product, which hides how long this load takes
        added = tl.load(
            residual + row.to(tl.int64) * residual_row + column, mask=row_live & live, other=0.0
        )
    first, second = products(
        rows_of_x(x, row, rows, x_row, ROWS),
        norm_weight,
        weight,
        column,
        COUNT + column,
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
        PART,
    )
    if BIAS:
        first += tl.load(bias + column, mask=live, other=0.0).to(tl.float32)
    if FINISH == GATE:
        if BIAS:
            second += tl.load(bias + COUNT + column, mask=live, other=0.0).to(tl.float32)
        first = first * tl.sigmoid(first) * second
    if FINISH == ADD:
        first += added.to(tl.float32)
    tl.store(
        out + row.to(tl.int64) * out_row + column,
        first.to(out.dtype.element_ty),
        mask=row_live & live,
    )


@triton.jit
@no_type_check
def norm(
    x, weight, out, eps, x_row, out_row, K: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Store the RMS norm of each row of x [rows, K], one program per row; BLOCK is K rounded up to
    a power of two.
    """
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    # the weight does not come from the previous kernel, so it is loaded before the wait
    factor = load(weight + column, column < K, BLOCK != K, "").to(tl.float32)
    wait(PDL)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    wide = load(x + row * x_row + column, column < K, BLOCK != K, "").to(tl.float32)
    inverse_rms = tl.rsqrt(tl.sum(wide * wide) / K + eps)
    store(
        out + row * out_row + column,
        (wide * inverse_rms * factor).to(out.dtype.element_ty),
        column < K,
        BLOCK != K,
        "",
    )


@triton.jit
@no_type_check
def gated(
    packed, out, packed_row, out_row, COUNT: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Store silu(first half) * second half of each row of packed [rows, 2 COUNT], BLOCK results in
    each program.
    """
    column, row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1).to(tl.int64)
    wait(PDL)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    first = load(packed + row * packed_row + column, column < COUNT, COUNT % BLOCK != 0, "").to(
        tl.float32
    )
    second = load(
        packed + row * packed_row + COUNT + column, column < COUNT, COUNT % BLOCK != 0, ""
    ).to(tl.float32)
    result = first * tl.sigmoid(first) * second
    store(
        out + row * out_row + column,
        result.to(out.dtype.element_ty),
        column < COUNT,
        COUNT % BLOCK != 0,
        "",
    )
