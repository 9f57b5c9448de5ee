"""The Triton kernels of linear attention: features, rotation, sums and division without
intermediate tensors.

A sequence is divided into segments, one program each. The first kernel computes each segment's
sums. After a cumulative sum over the segments, the second kernel starts each segment from its state
and computes the outputs chunk by chunk: a segment has CHUNKS chunks of CHUNK tokens. A state holds
two sums over all earlier keys: `mixed`, of rotated features times values, with a row for each
feature; and `total`, of the features of the denominator.

A head has PAIRS pairs, a value WIDTH dims; BLOCK and WIDTH_BLOCK are these rounded up to powers of
two. FORM is the feature. `token` [tokens] are indices, `live` is the mask of those that are used,
and `stride` is from one token to the next. QUICK uses the GPU's approximate sine instruction.
INTERLEAVED: a pair is two neighbouring dims, otherwise dims i and PAIRS + i.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.rotation.triton.angles import phase_cos_sin, rotated

#: values of FORM
ELU = tl.constexpr(0)
RELU = tl.constexpr(1)
COSINE = tl.constexpr(2)


@triton.jit
@no_type_check
def load_features(
    x, token, stride, live, magnitude, cos, sin,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, FORM: tl.constexpr,
):  # fmt: skip
    """Return the features of a head's tokens as four tiles, float32 [tokens, BLOCK] each: the first
    and the second members of the pairs, unrotated, then the same two rotated. Features of tokens
    that are not `live` are 0.

    x points to one head, `token` [tokens] has indices, and `stride` is from one token to the next.
    The magnitude multiplies rotated features alone.
    """
    rows = x + (token.to(tl.int64) * stride)[:, None]
    pair = tl.arange(0, BLOCK)[None, :]
    valid = live[:, None] & (pair < PAIRS)
    if INTERLEAVED:
        dim = tl.arange(0, 2 * BLOCK)[None, :]
        both = tl.load(rows + dim, mask=live[:, None] & (dim < 2 * PAIRS), other=0.0).to(tl.float32)
        a, b = tl.split(tl.reshape(both, [both.shape[0], BLOCK, 2]))
    else:
        a = tl.load(rows + pair, mask=valid, other=0.0).to(tl.float32)
        b = tl.load(rows + PAIRS + pair, mask=valid, other=0.0).to(tl.float32)
    if FORM == COSINE:
        norm = tl.sqrt(tl.sum(a * a + b * b, axis=1))
        scale = (1.0 / tl.maximum(norm, 1e-12))[:, None]
        a, b = a * scale, b * scale
    elif FORM == ELU:
        # elu(0) + 1 of a masked element would be 1, not 0
        a = tl.where(valid, tl.where(a > 0, a + 1.0, tl.exp(tl.minimum(a, 0.0))), 0.0)
        b = tl.where(valid, tl.where(b > 0, b + 1.0, tl.exp(tl.minimum(b, 0.0))), 0.0)
    else:
        a, b = tl.maximum(a, 0.0), tl.maximum(b, 0.0)
    first, second = rotated(a, b, cos, sin)
    return a, b, first * magnitude, second * magnitude


@triton.jit
@no_type_check
def chunk_angles(
    positions,
    steps,
    token,
    stride,
    live,
    PAIRS: tl.constexpr,
    BLOCK: tl.constexpr,
    QUICK: tl.constexpr,
):
    """Return float32 cos and sin [tokens, BLOCK] of exact phases: position times step, where
    `steps` has the phase of position 1 for each pair, as an integer.
    """
    pair = tl.arange(0, BLOCK)
    step = tl.load(steps + pair, mask=pair < PAIRS, other=0)
    position = tl.load(positions + token.to(tl.int64) * stride, mask=live, other=0).to(tl.int64)
    return phase_cos_sin(position[:, None] * step[None, :], QUICK)


@triton.jit
@no_type_check
def load_values(v, token, stride, live, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr):
    """Return the values of one chunk, float32 [tokens, WIDTH_BLOCK], 0 where `token` is not `live`
    and beyond WIDTH.
    """
    column = tl.arange(0, WIDTH_BLOCK)[None, :]
    at = v + (token.to(tl.int64) * stride)[:, None] + column
    return tl.load(at, mask=live[:, None] & (column < WIDTH), other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def state_rows(
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, FORM: tl.constexpr
):
    """Return the indices of the state's rows for the first and for the second members of the pairs;
    in the cosine form, row 0 is for the constant 1.
    """
    pair = tl.arange(0, BLOCK)
    before: tl.constexpr = 1 if FORM == COSINE else 0
    if INTERLEAVED:
        return before + 2 * pair, before + 2 * pair + 1
    else:
        return before + pair, before + PAIRS + pair


@triton.jit(do_not_specialize=["tokens", "segments"])
@no_type_check
def segment_sums(
    k, v, positions, steps, real, mixed, total, tokens, heads, segments, magnitude,
    k_batch, k_head, k_token, v_batch, v_head, v_token, position_batch, position_token, real_batch,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, INTERLEAVED: tl.constexpr, FORM: tl.constexpr, QUICK: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the sums of one segment of one head: `mixed` [row, segment, ROWS, WIDTH] and `total`
    [row, segment, ROWS].

    A row is one head of one batch row, and ROWS the number of features. `mixed` sums rotated
    features times values; `total` sums the features of the denominator. The cosine form has the
    constant 1 as one more feature, whose sums are `value_sum` and `count`. `steps` are the angles
    of the pairs per position, as integers; `real` is 0 for padding. Names such as k_token are
    strides.
    """
    row, segment = tl.program_id(0) // segments, tl.program_id(0) % segments
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    positions += batch * position_batch
    first_sum = tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32)
    second_sum = tl.zeros([BLOCK, WIDTH_BLOCK], tl.float32)
    first_total = tl.zeros([BLOCK], tl.float32)
    second_total = tl.zeros([BLOCK], tl.float32)
    value_sum = tl.zeros([WIDTH_BLOCK], tl.float32)
    count = 0.0
    for index in range(CHUNKS):
        token = (segment * CHUNKS + index) * CHUNK + tl.arange(0, CHUNK)
        live = token < tokens
        if real is not None:
            live = live & (tl.load(real + batch * real_batch + token, mask=live, other=0) != 0)
        cos, sin = chunk_angles(positions, steps, token, position_token, live, PAIRS, BLOCK, QUICK)
        a, b, first, second = load_features(
            k, token, k_token, live, magnitude, cos, sin, PAIRS, BLOCK, INTERLEAVED, FORM
        )
        value = load_values(v, token, v_token, live, WIDTH, WIDTH_BLOCK)
        factor = value.to(OPERAND)  # the operand type of the matrix products
        first_sum += tl.dot(tl.trans(first.to(OPERAND)), factor, input_precision=PRECISION)
        second_sum += tl.dot(tl.trans(second.to(OPERAND)), factor, input_precision=PRECISION)
        if FORM == COSINE:
            a, b = first, second  # the denominator of this form has rotated features
            value_sum += tl.sum(value, axis=0)
            count += tl.sum(live.to(tl.float32), axis=0)
        first_total += tl.sum(a, axis=0)
        second_total += tl.sum(b, axis=0)
    place = (row.to(tl.int64) * segments + segment) * ROWS
    mixed += place * WIDTH
    total += place
    pair = tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH_BLOCK)
    first_row, second_row = state_rows(PAIRS, BLOCK, INTERLEAVED, FORM)
    valid = (pair < PAIRS)[:, None] & (column < WIDTH)[None, :]
    tl.store(mixed + first_row[:, None] * WIDTH + column[None, :], first_sum, mask=valid)
    tl.store(mixed + second_row[:, None] * WIDTH + column[None, :], second_sum, mask=valid)
    tl.store(total + first_row, first_total, mask=pair < PAIRS)
    tl.store(total + second_row, second_total, mask=pair < PAIRS)
    if FORM == COSINE:
        tl.store(mixed + column, value_sum, mask=column < WIDTH)
        tl.store(total, count)


@triton.jit(do_not_specialize=["tokens", "segments"])
@no_type_check
def segment_out(
    q, k, v, out, positions, steps, real, mixed, total, scales, tokens, heads, segments, q_magnitude, k_magnitude, eps,
    q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token, out_batch, out_head, out_token,
    position_batch, position_token, real_batch, state_row,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, WIDTH_BLOCK: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, INTERLEAVED: tl.constexpr, FORM: tl.constexpr, QUICK: tl.constexpr,
    OPERAND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Store the outputs of one segment of one head, starting from the state before the segment.

    A chunk's output is (queries times the sums of earlier chunks + its own scores times its values)
    / denominator; then its keys are added to the sums. `mixed` and `total` point to the states of
    all segments, with `state_row` rows for each head; `steps` are the angles of the pairs per
    position, as integers; `real` is 0 for padding. Names such as q_token are strides.
    """
    row, segment = tl.program_id(0) // segments, tl.program_id(0) % segments
    batch, head = (row // heads).to(tl.int64), (row % heads).to(tl.int64)
    q += batch * q_batch + head * q_head
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    out += batch * out_batch + head * out_head
    positions += batch * position_batch
    place = row.to(tl.int64) * state_row + segment * ROWS
    mixed += place * WIDTH
    total += place
    pair = tl.arange(0, BLOCK)
    column = tl.arange(0, WIDTH_BLOCK)
    first_row, second_row = state_rows(PAIRS, BLOCK, INTERLEAVED, FORM)
    valid = (pair < PAIRS)[:, None] & (column < WIDTH)[None, :]
    # the state before the segment
    first_sum = tl.load(mixed + first_row[:, None] * WIDTH + column[None, :], mask=valid, other=0.0)
    second_sum = tl.load(
        mixed + second_row[:, None] * WIDTH + column[None, :], mask=valid, other=0.0
    )
    first_total = tl.load(total + first_row, mask=pair < PAIRS, other=0.0)
    second_total = tl.load(total + second_row, mask=pair < PAIRS, other=0.0)
    if FORM == COSINE:
        scale = tl.load(scales + row)
        value_sum = tl.load(mixed + column, mask=column < WIDTH, other=0.0)
        count = tl.load(total)
    order = tl.arange(0, CHUNK)
    for index in range(CHUNKS):
        token = (segment * CHUNKS + index) * CHUNK + order
        inside = token < tokens
        live = inside
        if real is not None:
            live = live & (tl.load(real + batch * real_batch + token, mask=inside, other=0) != 0)
        cos, sin = chunk_angles(
            positions, steps, token, position_token, inside, PAIRS, BLOCK, QUICK
        )
        # qa and qb are the members of unrotated pairs of q, for the denominator; q1 and q2 of
        # rotated ones, for the numerator
        qa, qb, q1, q2 = load_features(
            q, token, q_token, inside, q_magnitude, cos, sin, PAIRS, BLOCK, INTERLEAVED, FORM
        )
        ka, kb, k1, k2 = load_features(
            k, token, k_token, live, k_magnitude, cos, sin, PAIRS, BLOCK, INTERLEAVED, FORM
        )
        value = load_values(v, token, v_token, live, WIDTH, WIDTH_BLOCK)
        factor = value.to(OPERAND)
        first, second = q1.to(OPERAND), q2.to(OPERAND)
        first_key, second_key = k1.to(OPERAND), k2.to(OPERAND)
        weights = tl.dot(first, tl.trans(first_key), input_precision=PRECISION)
        weights = tl.dot(second, tl.trans(second_key), weights, input_precision=PRECISION)
        # the keys of earlier chunks are in the sums; `weights` are the scores within this chunk
        numerator = tl.dot(first, first_sum.to(OPERAND), input_precision=PRECISION)
        numerator = tl.dot(second, second_sum.to(OPERAND), numerator, input_precision=PRECISION)
        seen = (order[:, None] >= order[None, :]) & live[None, :]
        if FORM == COSINE:
            weights = tl.where(seen, 1.0 + scale * weights, 0.0)
            numerator = scale * numerator + value_sum[None, :]
            denominator = count + scale * tl.sum(
                q1 * first_total[None, :] + q2 * second_total[None, :], axis=1
            )
            denominator += tl.sum(weights, axis=1)
            value_sum += tl.sum(value, axis=0)
            count += tl.sum(live.to(tl.float32), axis=0)
            first_total += tl.sum(k1, axis=0)
            second_total += tl.sum(k2, axis=0)
        else:
            weights = tl.where(seen, weights, 0.0)
            plain = tl.dot(qa.to(OPERAND), tl.trans(ka.to(OPERAND)), input_precision=PRECISION)
            plain = tl.dot(
                qb.to(OPERAND), tl.trans(kb.to(OPERAND)), plain, input_precision=PRECISION
            )
            denominator = tl.sum(qa * first_total[None, :] + qb * second_total[None, :], axis=1)
            denominator += tl.sum(tl.where(seen, plain, 0.0), axis=1)
            first_total += tl.sum(ka, axis=0)
            second_total += tl.sum(kb, axis=0)
        numerator = tl.dot(weights.to(OPERAND), factor, numerator, input_precision=PRECISION)
        defined = tl.abs(denominator) > eps  # elsewhere the output is 0, as if no key were seen
        result = tl.where(
            defined[:, None], numerator / tl.where(defined, denominator, 1.0)[:, None], 0.0
        )
        at = out + (token.to(tl.int64) * out_token)[:, None] + column[None, :]
        tl.store(
            at, result.to(out.dtype.element_ty), mask=inside[:, None] & (column < WIDTH)[None, :]
        )
        first_sum += tl.dot(tl.trans(first_key), factor, input_precision=PRECISION)
        second_sum += tl.dot(tl.trans(second_key), factor, input_precision=PRECISION)
