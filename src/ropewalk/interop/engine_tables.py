"""Exact tables for the rotary modules of vLLM and SGLang: their plug-ins call `with_exact_angles`.

Both engines have a module that computes frequencies in `_compute_inv_freq` and a table [positions, 2 x pairs] of cos and sin,
times the magnitude, from them. Their angles are float32 products. The frequencies stay the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.frequencies import Given
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: the first rows of a table, and how far they may be from the engine's own: float32 angles are that exact there
NEAR, TOLERANCE = 64, 1e-4


def with_exact_angles(module: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Return the table that `compute` makes with the frequencies of `module`, with exact angles.

    A table whose rows are not the positions 0, 1, 2, ... of one rope is returned as it is.
    """
    found: list[Tensor] = []
    original = module._compute_inv_freq
    before = vars(module).get("_compute_inv_freq")

    def remember(*args: Any, **named: Any) -> Tensor:
        found.append(original(*args, **named))
        return found[-1]

    module._compute_inv_freq = remember
    try:
        table = compute()
    finally:
        del module._compute_inv_freq
        if before is not None:
            module._compute_inv_freq = before
    if len(found) != 1:
        return table
    factors = getattr(module, "scaling_factors", [1.0])  # those of linear scaling, which divide the positions
    return exact_table(table, found[0].double() / factors[0]) if len(factors) == 1 else table


def exact_table(table: Tensor, inv_freq: Tensor) -> Tensor:
    """Return a float32 table [positions, 2 x pairs] with exact angles; a table of another form is returned as it is."""
    pairs = inv_freq.numel()
    if table.ndim != 2 or table.shape[1] != 2 * pairs or table.dtype != torch.float32 or len(table) < 2:
        return table
    magnitude = float(table[0, 0])
    if magnitude <= 0:  # not cos 0
        return table
    scaling = Given(tuple(inv_freq.double().flatten().tolist()), magnitude=magnitude)
    rope = Rope(RopeSpec(2 * pairs, scaling=scaling))
    exact = torch.cat(rope.cos_sin(torch.arange(len(table)), torch.float32), dim=-1).to(table)
    return exact if float((exact[:NEAR] - table[:NEAR]).abs().max()) < TOLERANCE else table
