"""Table strategies: which cos and sin a `Rope` keeps between calls, and how many bytes they take.

The two-level table has cos and sin of the low and of the high 10 bits of a position, which are
combined by angle addition. The phase step of a pair is its angle at position 1, as an integer in
units of 2^-64 turns.
"""

from __future__ import annotations

from ropewalk.axes import PER_HEAD
from ropewalk.spec import RopeSpec

#: bits of a position that each level of the two-level table covers; rows of a level; the first
#: position beyond the table
LEVEL_BITS = 10
LEVEL = 1 << LEVEL_BITS
TWO_LEVEL_REACH = LEVEL * LEVEL
#: the most bytes of the float32 rows that "auto" keeps for one spec on one device
FIRST_ROWS_BYTES = 2 << 20

#: what is kept for one spec on one device, beside its phase steps. "auto": the two-level table and
#: the first float32 rows. "full": a float32 row for every position up to the largest one used.
#: "two-level": the two-level table alone. "none": nothing. Positions of 2^20 and more have no table
STRATEGIES = ("auto", "full", "two-level", "none")


def strategies(spec: RopeSpec) -> tuple[str, ...]:
    """Return the strategies that can be used with a spec: "auto" and "none" always.

    "full" and "two-level" need one axis of integer positions, and frequencies that are the same in
    all heads, not learned, and independent of the length. "two-level" also needs another precision
    than "hf", whose rounded float32 angles cannot be added.
    """
    possible = {
        "full": keeps_rows(spec) and not spec.learned,
        "two-level": keeps_levels(spec) and not spec.learned,
    }
    return tuple(strategy for strategy in STRATEGIES if possible.get(strategy, True))


def keeps_levels(spec: RopeSpec) -> bool:
    """Return whether a two-level table can hold the angles of a spec."""
    return keeps_rows(spec) and spec.precision != "hf"


def keeps_rows(spec: RopeSpec) -> bool:
    """Return whether a table with one row for each position can hold the angles of a spec."""
    return (
        spec.num_axes == 1 and not spec.needs_length and not spec.fractional and not spec.per_head
    )


def most_rows(spec: RopeSpec, strategy: str) -> int:
    """Return the largest number of float32 rows that "full" or "auto" keeps."""
    # no strategy has a table for positions from 2^20 on; a row has 8 bytes for each pair: float32
    # cos and sin
    return TWO_LEVEL_REACH if strategy == "full" else FIRST_ROWS_BYTES // (8 * spec.pairs)


def rows_for(spec: RopeSpec, count: int, strategy: str) -> int:
    """Return how many rows to compute if `count` are needed: the next power of two, at least 256
    and at most `most_rows`.
    """
    return min(most_rows(spec, strategy), max(256, 1 << (count - 1).bit_length()))


def memory(spec: RopeSpec, length: int) -> dict[str, int]:
    """Return how many bytes each strategy keeps at most on one device once queries at positions 0
    ... length - 1 were rotated.
    """
    # 8 bytes a pair: a row of float32 cos and sin, of float64 cos or sin, or of int64 phase steps
    row = 8 * spec.pairs
    steps = row * spec.axes.num_heads * spec.num_axes if isinstance(spec.axes, PER_HEAD) else row
    levels = 4 * row * LEVEL if keeps_levels(spec) else 0  # cos and sin of two levels
    auto, full = (
        row * rows_for(spec, length, strategy) if keeps_rows(spec) else 0
        for strategy in ("auto", "full")
    )
    # with learned frequencies nothing is kept
    kept = {"auto": levels + auto, "full": full, "two-level": levels, "none": 0}
    return {
        strategy: 0 if spec.learned else steps + kept[strategy] for strategy in strategies(spec)
    }
