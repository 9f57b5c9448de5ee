"""The end of a decode step in Triton: the most likely token of each row, its embedding, and the
next position, in one launch.

Importing this imports Triton.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

#: elements that a program reads at a time
BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def next_token(
    logits, embedding, tokens, x, counters, highest, places, arrived, rows, logits_row, x_row,
    VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Write a row's most likely token, the index of its highest logit, to `tokens`, the token's
    embedding to x, and add 1 to the row's counters.

    Of equal logits the first counts. The logits of a row are divided among SPLITS programs; each
    stores its highest logit and the place of that logit, and the last to arrive compares them.
    `counters` is [positions of all rows, slots of all rows, number of keys]; the program of row 0
    also adds 1 to the number of keys. A row's slot is also the index in `tokens` of its new token.
    logits_row and x_row are strides.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if PDL:
        # let the next kernel start, and wait until the previous one has written the logits
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    at = tl.arange(0, BLOCK)
    # each of BLOCK lanes compares its own elements, then the lanes are compared
    SHARE: tl.constexpr = (VOCABULARY + SPLITS - 1) // SPLITS
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_place = tl.full([BLOCK], VOCABULARY, tl.int32)
    for start in range(0, SHARE, BLOCK):
        place = split * SHARE + start + at
        inside = (start + at < SHARE) & (place < VOCABULARY)
        value = tl.load(logits + row * logits_row + place, mask=inside, other=float("-inf")).to(
            tl.float32
        )
        better = value > best
        best, best_place = tl.where(better, value, best), tl.where(better, place, best_place)
    most = tl.max(best, axis=0)
    first = tl.min(tl.where(best == most, best_place, VOCABULARY), axis=0)
    if SPLITS > 1:
        tl.store(highest + row * SPLITS + split, most)
        tl.store(places + row * SPLITS + split, first)
        tl.debug_barrier()  # both must be stored before the counter is incremented
        if tl.atomic_add(arrived + row, 1, sem="acq_rel") < SPLITS - 1:
            return
        # this is the last program: reset the counter for the next launch, then compare what all
        # have stored
        tl.store(arrived + row, 0)
        each = row * SPLITS + tl.arange(0, SPLITS)
        every, its_place = (
            tl.load(highest + each, cache_modifier=".cg"),
            tl.load(places + each, cache_modifier=".cg"),
        )
        first = tl.min(tl.where(every == tl.max(every, axis=0), its_place, VOCABULARY), axis=0)
    # if every logit is -inf or NaN no place was found, and the first token is as good as any
    chosen = tl.where(first < VOCABULARY, first, 0).to(tl.int64)
    tl.store(tokens + tl.load(counters + rows + row), chosen)
    for counter in tl.static_range(2):
        mine = counters + counter * rows + row
        tl.store(mine, tl.load(mine) + 1)
    if row == 0:
        tl.store(counters + 2 * rows, tl.load(counters + 2 * rows) + 1)
    for start in range(0, WIDTH, BLOCK):
        column = start + at
        value = tl.load(embedding + chosen * WIDTH + column, mask=column < WIDTH, other=0.0)
        tl.store(x + row * x_row + column, value, mask=column < WIDTH)
