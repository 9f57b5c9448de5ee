"""Two tiles whose columns belong together, such as members of pairs, in one matrix product.
Importing this imports Triton.

One product of a wide tile reads its operands from shared memory less often than two products of
narrow ones. T is the number of rows of a tile, C that of its columns; GROUP divides C.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def together(first, second, GROUP: tl.constexpr):
    """Return [T, 2 C] from two tiles [T, C]: GROUP columns of the first, GROUP of the second, the
    next GROUP of the first, ...

    With a GROUP of 1 or 8, a matrix instruction gives both columns of a pair to the same thread, so
    `apart` and `together` exchange nothing between threads.
    """
    ROWS: tl.constexpr = first.shape[0]
    COLUMNS: tl.constexpr = first.shape[1]
    shape: tl.constexpr = [ROWS, COLUMNS // GROUP, GROUP]
    # `join` adds a last axis of 2 (which tile), which moves before the columns of a group
    both = tl.permute(tl.join(tl.reshape(first, shape), tl.reshape(second, shape)), (0, 1, 3, 2))
    return tl.reshape(both, [ROWS, 2 * COLUMNS])


@triton.jit
@no_type_check
def columns_together(COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """Return two tiles [1, 2 C] about the columns of a tile made by `together`: the index of each
    column in the tile that it came from, and whether that was the second tile.
    """
    column = tl.arange(0, 2 * COLUMNS)[None, :]
    return column // (2 * GROUP) * GROUP + column % GROUP, column // GROUP % 2 != 0


@triton.jit
@no_type_check
def apart(both, GROUP: tl.constexpr):
    """Return the two tiles [T, C] from which `together` made `both` [T, 2 C]."""
    ROWS: tl.constexpr = both.shape[0]
    COLUMNS: tl.constexpr = both.shape[1] // 2
    first, second = tl.split(
        tl.permute(tl.reshape(both, [ROWS, COLUMNS // GROUP, 2, GROUP]), (0, 1, 3, 2))
    )
    return tl.reshape(first, [ROWS, COLUMNS]), tl.reshape(second, [ROWS, COLUMNS])


@triton.jit
@no_type_check
def mask_together(live, GROUP: tl.constexpr):
    """Return the mask of a tile that `together` makes of two tiles with the mask `live`; with a
    GROUP of 0, `live` itself.
    """
    if GROUP:
        live = together(live.to(tl.int32), live.to(tl.int32), GROUP) != 0
    return live
