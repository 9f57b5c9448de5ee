"""Angles inside Triton kernels: cos and sin of an exact phase. Importing this imports Triton."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def phase_cos_sin(phase, QUICK: tl.constexpr = False):
    """Return float32 cos and sin of an int64 phase in units of 2^-64 turns, with an error of at
    most 1.2e-7 for any phase.

    Every multiply-add is an explicit fma: otherwise the compiler decides which ones to fuse, and
    kernels that divide their work differently would round the same angle differently.

    QUICK uses the GPU's sine instruction: an error of at most 4.5e-7, far below the rounding of a
    16-bit result, with a fifth of the instructions. It is accurate because the phase wraps, so the
    angle is between -pi and pi.
    """
    # the top 32 bits, a signed number in units of 2^-32 turns, are enough: a unit is 1.5e-9 radians
    turns = (phase >> 32).to(tl.int32)
    if QUICK:
        angle = turns.to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32
        cos = tl.inline_asm_elementwise(
            "cos.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
        sin = tl.inline_asm_elementwise(
            "sin.approx.f32 $0, $1;", "=f,f", [angle], dtype=tl.float32, is_pure=True, pack=1
        )
        return cos, sin
    # the index of the nearest quarter turn, modulo 4; an overflow of the sum does not change it
    quarter = (turns + 0x20000000) >> 30
    # the number is 2 pi / 2^32; the angle is between -pi/4 and pi/4
    angle = (turns - (quarter << 30)).to(tl.float32) * 1.4629180792671596e-09
    # polynomials for angles between -pi/4 and pi/4: sin = angle + angle^3 (...), cos = 1 - angle^2
    # / 2 + angle^4 (...)
    square = angle * angle
    sin_tail = tl.fma(square, tl.fma(square, -1.9515295891e-4, 8.3321608736e-3), -1.6666654611e-1)
    sin = tl.fma(angle * square, sin_tail, angle)
    cos_tail = tl.fma(
        square, tl.fma(square, 2.443315711809948e-5, -1.388731625493765e-3), 4.166664568298827e-2
    )
    cos = tl.fma(square, tl.fma(square, cos_tail, -0.5), 1.0)
    # add the quarter turns: an odd number of them exchanges cos and sin, and two of them change
    # both signs
    odd = (quarter & 1) != 0
    rotated_cos = tl.where(odd, sin, cos)
    rotated_sin = tl.where(odd, cos, sin)
    return (
        tl.where(((quarter + 1) & 2) != 0, -rotated_cos, rotated_cos),
        tl.where((quarter & 2) != 0, -rotated_sin, rotated_sin),
    )


@triton.jit
@no_type_check
def rotated(first, second, cos, sin):
    """Return the rotated pair; each member is one product and one fma, in the same order in every
    kernel.
    """
    return tl.fma(first, cos, -(second * sin)), tl.fma(first, sin, second * cos)
