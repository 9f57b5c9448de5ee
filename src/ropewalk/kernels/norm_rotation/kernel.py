"""The fused kernels: norm, rotation and cache write in one launch, and the backward. Importing this
imports Triton.

Words of this module (more in tiles.py):
  tile            [tokens, heads, dims]; a head is three tiles: first and second members of its
                  pairs, and the rest, its dims that do not rotate
  HEAD            (head_dim, first rotated dim, pairs, tile width of the pairs, tile width of the
                  rest or 0)
  WEIGHT          the norm multiplies by nothing (""), by w ("w") or by 1 + w ("1+w")
  live            a mask, True for tokens and heads that exist; MASKED and MASK_TOKENS say whether
                  any may be missing
  INTERLEAVED     a pair is two neighbouring dims; otherwise its members are half the rotated dims
                  apart
  steps           the phase step of each pair: its angle per position, as an integer
  EVICT, STORE    cache hints of loads and of stores, "" for none
  PDL             programmatic dependent launch: start before the previous kernel ends
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from ropewalk.kernels.norm_rotation.tiles import (
    as_stored,
    latent_normed,
    load_factors,
    load_head,
    mean_product,
    norm_and_rotate,
    phases,
    store_head,
    weighted,
)
from ropewalk.kernels.rotation.triton.angles import phase_cos_sin, rotated
from ropewalk.kernels.rotation.triton.pairs import load


@triton.jit
@no_type_check
def _slot_rows(cache, slot, head, page_stride, row_stride, head_stride, PAGE_SIZE: tl.constexpr):
    """Return pointers [tokens, heads, 1] to the first dim of each head in a cache; a slot is a row
    of a page. With a PAGE_SIZE of 1 every slot is a page, and its row is 0.

    `slot` is [tokens], `head` [1, heads, 1]; names that end in _stride are strides.
    """
    rows = cache + (slot // PAGE_SIZE * page_stride)[:, None, None] + head * head_stride
    if PAGE_SIZE > 1:
        rows += (slot % PAGE_SIZE * row_stride)[:, None, None]
    return rows


@triton.jit
@no_type_check
def _normed_and_rotated(
    rows, live, weight, magnitude, eps, steps, axis_of_pair, positions, token, token_live, axis_stride,
    MASKED: tl.constexpr, MASK_TOKENS: tl.constexpr, INTERLEAVED: tl.constexpr, HEAD: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr, MAGNITUDE: tl.constexpr, AXES: tl.constexpr,
    SPREAD: tl.constexpr, QUICK: tl.constexpr, EVICT: tl.constexpr, PDL: tl.constexpr, LATENT: tl.constexpr,
):  # fmt: skip
    """Return normalised and rotated heads of q or of k as (first and second members of the pairs,
    dims that do not rotate), in float32.

    `rows` [TOKENS, HEADS, 1] points to the heads in memory, `live` is their mask. `token` are the
    indices of the tokens, `token_live` their mask; the position of a token on an axis is found by
    `axis_stride`, and the axis of a pair in `axis_of_pair`, if there are several (AXES). MAGNITUDE
    multiplies cos and sin by `magnitude`. SPREAD computes the angles once for each head, not once
    for all of them; LATENT norms only the dims that do not rotate, and NORM whole heads. QUICK uses
    the GPU's sine instruction.
    """
    first, second, rest = load_head(rows, live, MASKED, INTERLEAVED, HEAD, EVICT)
    w_first, w_second, w_rest = load_factors(weight, WEIGHT, INTERLEAVED, HEAD, TOKENS, HEADS)
    if LATENT:
        rest = latent_normed(rest, weight, eps, HEAD, TOKENS, HEADS)
    ANGLES: tl.constexpr = HEADS if SPREAD else 1
    phase = phases(
        steps,
        axis_of_pair,
        positions,
        token,
        token_live,
        axis_stride,
        AXES,
        HEAD,
        MASK_TOKENS,
        ANGLES,
    )
    if PDL:
        # everything is loaded, so the next kernel may start
        tl.extra.cuda.gdc_launch_dependents()
    cos, sin = phase_cos_sin(phase, QUICK)
    if MAGNITUDE:
        cos, sin = cos * magnitude, sin * magnitude
    return norm_and_rotate(
        first, second, rest, w_first, w_second, w_rest, cos, sin, eps, NORM, WEIGHT, HEAD
    )


@triton.jit(do_not_specialize=["tokens", "num_slots"])
@no_type_check
def forward(
    q, k, v, q_out, k_out, k_cache, v_cache, q_weight, k_weight, k_scale, v_scale, positions, slots, tokens,
    steps, axis_of_pair, num_slots, axis_stride, eps, q_magnitude, k_magnitude,
    q_token, q_head, k_token, k_head, v_token, v_head, q_out_token, q_out_head, k_out_token, k_out_head,
    k_page, k_row, k_slot_head, v_page, v_row, v_slot_head,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HEAD: tl.constexpr, INTERLEAVED: tl.constexpr,
    INTERLEAVED_OUT: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr, MAGNITUDE: tl.constexpr, AXES: tl.constexpr,
    SPREAD: tl.constexpr, QUICK: tl.constexpr,
    CACHE: tl.constexpr, QUANTISED: tl.constexpr, KEEP_K: tl.constexpr, PAGE_SIZE: tl.constexpr,
    TOKENS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_DIM: tl.constexpr,
    MASK_TOKENS: tl.constexpr, EVICT: tl.constexpr, STORE: tl.constexpr, PDL: tl.constexpr,
    LATENT: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """Normalise and rotate q and k, and store k and v; each program processes TOKENS tokens and a
    group of heads of q, k or v.

    Programs with the same tokens have adjacent ids. A program has heads of one tensor only, so
    every warp reads and writes whole rows, also of a cache with scattered slots. Outputs may alias
    inputs, so the compiler moves no load before a store; therefore all loads are written before the
    first store.

    HEAD, WEIGHT        the sizes of a head and the kind of its weight, as in tiles.py
    BLOCK_Q, BLOCK_K    heads of q, and of k or v, in one program
    KEEP_K              also write k to `k_out`
    VALUES              also store v in its cache
    LATENT              norm only the dims of k that do not rotate
    SPREAD              compute the angles once for each head, not once for all heads
    QUICK               use the GPU's approximate sine instruction
    EVICT, STORE        cache hints of the loads and of the stores
    steps               the phase step of each pair: its angle per position as an integer phase
    axis_stride         the stride of the axes of `positions`
    PDL                 start before the previous kernel ends, and wait for it before the first load
    q_token, k_page ... strides: from one token of q, or page of the k cache, to the next
    """
    Q_GROUPS: tl.constexpr = (Q_HEADS + BLOCK_Q - 1) // BLOCK_Q
    K_GROUPS: tl.constexpr = (K_HEADS + BLOCK_K - 1) // BLOCK_K
    GROUPS: tl.constexpr = Q_GROUPS + (2 if VALUES else 1) * K_GROUPS
    MASK_Q: tl.constexpr = MASK_TOKENS or BLOCK_Q * Q_GROUPS != Q_HEADS
    MASK_K: tl.constexpr = MASK_TOKENS or BLOCK_K * K_GROUPS != K_HEADS
    block, group = tl.program_id(0) // GROUPS, tl.program_id(0) % GROUPS
    token = block * TOKENS + tl.arange(0, TOKENS)
    row = token.to(tl.int64)[:, None, None]
    token_live = token < tokens
    if PDL:
        # the previous kernel may still be writing the memory that is read below
        tl.extra.cuda.gdc_wait()
    if group < Q_GROUPS:
        q_index = (group * BLOCK_Q + tl.arange(0, BLOCK_Q)).to(tl.int64)[None, :, None]
        q_live = token_live[:, None, None] & (q_index < Q_HEADS)
        q_first, q_second, q_rest = _normed_and_rotated(
            q + row * q_token + q_index * q_head,
            q_live,
            q_weight,
            q_magnitude,
            eps,
            steps,
            axis_of_pair,
            positions,
            token,
            token_live,
            axis_stride,
            MASK_Q,
            MASK_TOKENS,
            INTERLEAVED,
            HEAD,
            TOKENS,
            BLOCK_Q,
            NORM,
            WEIGHT,
            MAGNITUDE,
            AXES,
            SPREAD,
            QUICK,
            EVICT,
            PDL,
            False,
        )
        store_head(
            q_out + row * q_out_token + q_index * q_out_head,
            q_first, q_second, q_rest, 1.0, q_live, False, MASK_Q, INTERLEAVED_OUT, HEAD, STORE,
        )  # fmt: skip
    else:
        is_key = group < Q_GROUPS + K_GROUPS
        k_index = ((group - Q_GROUPS) % K_GROUPS * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)[
            None, :, None
        ]
        k_live = token_live[:, None, None] & (k_index < K_HEADS)
        if CACHE:
            slot = load(slots + token, token_live, MASK_TOKENS, "").to(tl.int64)
            written = k_live & ((slot >= 0) & (slot < num_slots))[:, None, None]
        if is_key:
            k_first, k_second, k_rest = _normed_and_rotated(
                k + row * k_token + k_index * k_head,
                k_live,
                k_weight,
                k_magnitude,
                eps,
                steps,
                axis_of_pair,
                positions,
                token,
                token_live,
                axis_stride,
                MASK_K,
                MASK_TOKENS,
                INTERLEAVED,
                HEAD,
                TOKENS,
                BLOCK_K,
                NORM,
                WEIGHT,
                MAGNITUDE,
                AXES,
                SPREAD,
                QUICK,
                EVICT,
                PDL,
                LATENT,
            )
            if CACHE:
                inverse_scale = 1.0
                if QUANTISED:
                    inverse_scale = 1.0 / tl.load(k_scale)
                store_head(
                    _slot_rows(k_cache, slot, k_index, k_page, k_row, k_slot_head, PAGE_SIZE),
                    k_first,
                    k_second,
                    k_rest,
                    inverse_scale,
                    written,
                    QUANTISED,
                    True,
                    INTERLEAVED_OUT,
                    HEAD,
                    STORE,
                )
            if KEEP_K:
                store_head(
                    k_out + row * k_out_token + k_index * k_out_head,
                    k_first,
                    k_second,
                    k_rest,
                    1.0,
                    k_live,
                    False,
                    MASK_K,
                    INTERLEAVED_OUT,
                    HEAD,
                    STORE,
                )
        elif VALUES:
            dim = tl.arange(0, BLOCK_DIM)[None, None, :]
            inside = dim < HEAD[0]
            values = load(
                v + row * v_token + k_index * v_head + dim,
                k_live & inside,
                MASK_K or HEAD[0] != BLOCK_DIM,
                EVICT,
            )
            if PDL:
                tl.extra.cuda.gdc_launch_dependents()
            inverse_scale = 1.0
            if QUANTISED:
                inverse_scale = 1.0 / tl.load(v_scale)
            tl.store(
                _slot_rows(v_cache, slot, k_index, v_page, v_row, v_slot_head, PAGE_SIZE) + dim,
                as_stored(values, inverse_scale, v_cache.dtype.element_ty, QUANTISED),
                mask=written & inside,
                cache_modifier=STORE,
            )


@triton.jit
@no_type_check
def _heads_backward(
    x, grad, dx, weight, cos, sin, eps, live, MASKED: tl.constexpr, INTERLEAVED: tl.constexpr, INTERLEAVED_OUT: tl.constexpr,
    NORM: tl.constexpr, WEIGHT: tl.constexpr, HEAD: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Compute `definition.backward` on the three tiles of a head (see tiles.py): store dx, and
    return each token's and head's part of dw, as three tiles.

    x, grad and dx point to heads [TOKENS, HEADS, 1]; `live` is their mask.
    """
    # first, second and rest are the gradient throughout; x_* is x / rms(x), weight_* the norm's
    # weight, dw_* the contribution to dw, which callers use only if there is a norm
    first, second, rest = load_head(grad, live, MASKED, INTERLEAVED_OUT, HEAD, "")
    first, second, rest = first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)
    # rotated backwards: the gradient of the normed head, which is dx if there is no norm
    first, second = rotated(first, second, cos, -sin)
    dw_first, dw_second, dw_rest = first, second, rest
    if NORM:
        x_first, x_second, x_rest = load_head(x, live, MASKED, INTERLEAVED, HEAD, "")
        x_first, x_second, x_rest = (
            x_first.to(tl.float32),
            x_second.to(tl.float32),
            x_rest.to(tl.float32),
        )
        inverse_rms = tl.rsqrt(
            mean_product(x_first, x_second, x_rest, x_first, x_second, x_rest, HEAD) + eps
        )
        x_first, x_second, x_rest = (
            x_first * inverse_rms,
            x_second * inverse_rms,
            x_rest * inverse_rms,
        )
        dw_first, dw_second, dw_rest = first * x_first, second * x_second, rest * x_rest
        weight_first, weight_second, weight_rest = load_factors(
            weight, WEIGHT, INTERLEAVED, HEAD, TOKENS, HEADS
        )
        first, second, rest = weighted(
            first, second, rest, weight_first, weight_second, weight_rest, WEIGHT
        )
        # dx = (g - x mean(g x)) / rms, with x normed and g the gradient times the weight
        mean = mean_product(first, second, rest, x_first, x_second, x_rest, HEAD)
        first, second, rest = first - x_first * mean, second - x_second * mean, rest - x_rest * mean
        first, second, rest = first * inverse_rms, second * inverse_rms, rest * inverse_rms
    # not scaled (1.0), not quantised (False); no cache hint ("")
    store_head(dx, first, second, rest, 1.0, live, False, MASKED, INTERLEAVED, HEAD, "")
    return dw_first, dw_second, dw_rest


@triton.jit
@no_type_check
def _store_weight_grad(
    out,
    first,
    second,
    rest,
    INTERLEAVED: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Store one program's contribution to dw, the sum over its tokens and heads, where `out` points
    ([1, 1, 1]); first, second and rest are the three tiles of dw of each token and head.
    """
    rows: tl.constexpr = TOKENS * HEADS
    PAIR_BLOCK: tl.constexpr = HEAD[3]
    REST_BLOCK: tl.constexpr = HEAD[4]  # 0 if all dims of a head rotate
    first = tl.sum(tl.reshape(first, [rows, PAIR_BLOCK]), axis=0)[None, None, :]
    second = tl.sum(tl.reshape(second, [rows, PAIR_BLOCK]), axis=0)[None, None, :]
    if REST_BLOCK:
        rest = tl.sum(tl.reshape(rest, [rows, REST_BLOCK]), axis=0)[None, None, :]
    always = tl.full([1, 1, 1], 1, tl.int1)
    # not scaled (1.0), not quantised (False), no head missing (False), no cache hint ("")
    store_head(out, first, second, rest, 1.0, always, False, False, INTERLEAVED, HEAD, "")


@triton.jit(do_not_specialize=["tokens"])
@no_type_check
def backward(
    q, k, q_grad, k_grad, dq, dk, q_weight, k_weight, weight_grads, positions, tokens,
    steps, axis_of_pair, axis_stride, eps, q_magnitude, k_magnitude,
    q_token, q_head, k_token, k_head, q_grad_token, q_grad_head, k_grad_token, k_grad_head,
    dq_token, dq_head, dk_token, dk_head,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HEAD: tl.constexpr, INTERLEAVED: tl.constexpr,
    INTERLEAVED_OUT: tl.constexpr, NORM: tl.constexpr, WEIGHT: tl.constexpr, WEIGHT_GRAD: tl.constexpr, AXES: tl.constexpr,
    TOKENS: tl.constexpr, GROUPS: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, MASK_TOKENS: tl.constexpr,
):  # fmt: skip
    """Compute dq, dk and each program's partial sum of dw.

    A program loops over many tokens, so it can sum dw in registers and write it once. weight_grads
    is float32 [programs, 2, head_dim], for the weights of q and of k.
    """
    # a worker processes every block of tokens whose index is its own plus a multiple of the number
    # of workers
    group, worker = tl.program_id(0) % GROUPS, tl.program_id(0) // GROUPS
    q_index = (group * BLOCK_Q + tl.arange(0, BLOCK_Q)).to(tl.int64)[None, :, None]
    k_index = (group * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :, None]
    MASK_Q: tl.constexpr = MASK_TOKENS or BLOCK_Q * GROUPS != Q_HEADS
    MASK_K: tl.constexpr = MASK_TOKENS or BLOCK_K * GROUPS != K_HEADS
    BLOCK: tl.constexpr = HEAD[3]
    REST: tl.constexpr = HEAD[4] if HEAD[4] else HEAD[3]
    # the sums of dw over the tokens of this program, as the three tiles of a head
    q_first = tl.zeros([TOKENS, BLOCK_Q, BLOCK], tl.float32)
    q_second = tl.zeros([TOKENS, BLOCK_Q, BLOCK], tl.float32)
    q_rest = tl.zeros([TOKENS, BLOCK_Q, REST], tl.float32)
    k_first = tl.zeros([TOKENS, BLOCK_K, BLOCK], tl.float32)
    k_second = tl.zeros([TOKENS, BLOCK_K, BLOCK], tl.float32)
    k_rest = tl.zeros([TOKENS, BLOCK_K, REST], tl.float32)
    block = worker
    while block * TOKENS < tokens:
        token = block * TOKENS + tl.arange(0, TOKENS)
        row = token.to(tl.int64)[:, None, None]
        live = token < tokens
        cos, sin = phase_cos_sin(
            phases(
                steps, axis_of_pair, positions, token, live, axis_stride, AXES, HEAD, MASK_TOKENS, 1
            )
        )
        first, second, rest = _heads_backward(
            q + row * q_token + q_index * q_head,
            q_grad + row * q_grad_token + q_index * q_grad_head,
            dq + row * dq_token + q_index * dq_head,
            q_weight,
            cos * q_magnitude,
            sin * q_magnitude,
            eps,
            live[:, None, None] & (q_index < Q_HEADS),
            MASK_Q,
            INTERLEAVED,
            INTERLEAVED_OUT,
            NORM,
            WEIGHT,
            HEAD,
            TOKENS,
            BLOCK_Q,
        )
        if WEIGHT_GRAD:
            q_first, q_second, q_rest = q_first + first, q_second + second, q_rest + rest
        first, second, rest = _heads_backward(
            k + row * k_token + k_index * k_head,
            k_grad + row * k_grad_token + k_index * k_grad_head,
            dk + row * dk_token + k_index * dk_head,
            k_weight,
            cos * k_magnitude,
            sin * k_magnitude,
            eps,
            live[:, None, None] & (k_index < K_HEADS),
            MASK_K,
            INTERLEAVED,
            INTERLEAVED_OUT,
            NORM,
            WEIGHT,
            HEAD,
            TOKENS,
            BLOCK_K,
        )
        if WEIGHT_GRAD:
            k_first, k_second, k_rest = k_first + first, k_second + second, k_rest + rest
        block += tl.num_programs(0) // GROUPS
    if WEIGHT_GRAD:
        part = weight_grads + tl.program_id(0) * (2 * HEAD[0]) + tl.zeros([1, 1, 1], tl.int32)
        _store_weight_grad(part, q_first, q_second, q_rest, INTERLEAVED, HEAD, TOKENS, BLOCK_Q)
        _store_weight_grad(
            part + HEAD[0], k_first, k_second, k_rest, INTERLEAVED, HEAD, TOKENS, BLOCK_K
        )
