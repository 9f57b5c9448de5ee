"""Angles inside Triton kernels: cos and sin of an exact phase, of two small tables, or of rows the caller has.

Import this only where Triton is wanted; `import ropewalk` does without.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

#: a position's low digit of the two-level tables; table.LEVEL_BITS, as a constant Triton can see
LEVEL_BITS = tl.constexpr(10)
LEVEL = tl.constexpr(1024)


@triton.jit
@no_type_check
def phase_cos_sin(phase):
    """cos and sin, float32, of an int64 phase in units of 2^-64 turns; off by at most 1.2e-7 whatever the phase."""
    # the top 32 bits are enough: 2^-32 turns are 1.5e-9 radians
    turns = (phase >> 32).to(tl.int32)
    # nearest quarter turn; the sum may wrap, which is the same quarter
    quarter = (turns + 0x20000000) >> 30
    angle = (turns - (quarter << 30)).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / 2^32; at most pi/4 either way
    square = angle * angle
    sin = angle + angle * square * (-1.6666654611e-1 + square * (8.3321608736e-3 + square * -1.9515295891e-4))
    cos_tail = 4.166664568298827e-2 + square * (-1.388731625493765e-3 + square * 2.443315711809948e-5)
    cos = 1.0 + square * (-0.5 + square * cos_tail)
    odd = (quarter & 1) != 0
    turned_cos = tl.where(odd, sin, cos)
    turned_sin = tl.where(odd, cos, sin)
    return (
        tl.where(((quarter + 1) & 2) != 0, -turned_cos, turned_cos),
        tl.where((quarter & 2) != 0, -turned_sin, turned_sin),
    )


@triton.jit
@no_type_check
def two_level_cos_sin(levels, position, pair, live, PAIRS: tl.constexpr, MASKED: tl.constexpr):
    """cos and sin of a position in [0, LEVEL^2) by angle addition; `levels` is float32 [2, LEVEL, 2, PAIRS], low digit first.

    One row holds cos and then sin, so a digit costs one stretch of memory.
    """
    low = levels + (position & (LEVEL - 1)) * (2 * PAIRS) + pair
    high = levels + (LEVEL + (position >> LEVEL_BITS)) * (2 * PAIRS) + pair
    if MASKED:
        low_cos, low_sin = tl.load(low, mask=live, other=1.0), tl.load(low + PAIRS, mask=live, other=0.0)
        high_cos, high_sin = tl.load(high, mask=live, other=1.0), tl.load(high + PAIRS, mask=live, other=0.0)
    else:
        low_cos, low_sin = tl.load(low), tl.load(low + PAIRS)
        high_cos, high_sin = tl.load(high), tl.load(high + PAIRS)
    return high_cos * low_cos - high_sin * low_sin, high_sin * low_cos + high_cos * low_sin
