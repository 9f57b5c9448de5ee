"""Load and store the pairs of heads as Triton tiles [tokens, heads, pairs], in either layout.
Importing this imports Triton.

HINT is the eviction policy of a load, or the cache modifier of a store; "" is none. INTERLEAVED: a
pair is two neighbouring dims, otherwise dims i and PAIRS + i.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def load(pointers, live, MASKED: tl.constexpr, HINT: tl.constexpr):
    """Return the loaded values; the mask `live` is used only if MASKED, because masked loads are
    narrower and slower.
    """
    if MASKED:
        return tl.load(pointers, mask=live, other=0.0, eviction_policy=HINT)
    else:
        return tl.load(pointers, eviction_policy=HINT)


@triton.jit
@no_type_check
def store(pointers, value, live, MASKED: tl.constexpr, HINT: tl.constexpr):
    """Store the values; the mask `live` is used only if MASKED."""
    if MASKED:
        tl.store(pointers, value, mask=live, cache_modifier=HINT)
    else:
        tl.store(pointers, value, cache_modifier=HINT)


@triton.jit
@no_type_check
def load_pairs(
    rows, live, PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, MASKED: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """Return the first and the second members of the pairs, [tokens, heads, BLOCK] each, in the
    dtype of the memory.

    `rows` [tokens, heads, 1] points to the first rotated dim of each head; BLOCK is PAIRS rounded
    up to a power of two. `live` is the mask of the rows that exist; MASKED says whether any may be
    missing.
    """
    MASK: tl.constexpr = MASKED or PAIRS != BLOCK
    if INTERLEAVED:
        dim = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = load(rows + dim, live & (dim < 2 * PAIRS), MASK, HINT)
        first, second = tl.split(tl.reshape(both, [both.shape[0], both.shape[1], BLOCK, 2]))
    else:
        pair = tl.arange(0, BLOCK)[None, None, :]
        first = load(rows + pair, live & (pair < PAIRS), MASK, HINT)
        second = load(rows + PAIRS + pair, live & (pair < PAIRS), MASK, HINT)
    return first, second


@triton.jit
@no_type_check
def store_pairs(
    rows, first, second, live,
    PAIRS: tl.constexpr, BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, MASKED: tl.constexpr, HINT: tl.constexpr,
):  # fmt: skip
    """Store the first and the second members of the pairs, which have the dtype of the memory,
    where `load_pairs` would read them: from the first rotated dim of each head on, to which `rows`
    points. BLOCK is PAIRS rounded up to a power of two; MASKED says whether `live` may be False.
    """
    MASK: tl.constexpr = MASKED or PAIRS != BLOCK
    if INTERLEAVED:
        dim = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = tl.reshape(tl.join(first, second), [first.shape[0], first.shape[1], 2 * BLOCK])
        store(rows + dim, both, live & (dim < 2 * PAIRS), MASK, HINT)
    else:
        pair = tl.arange(0, BLOCK)[None, None, :]
        store(rows + pair, first, live & (pair < PAIRS), MASK, HINT)
        store(rows + PAIRS + pair, second, live & (pair < PAIRS), MASK, HINT)
