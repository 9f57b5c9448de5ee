"""Exact tables for the rotary modules of vLLM and SGLang: their plug-ins call `with_exact_angles`.

Both engines have a module that computes frequencies in `_compute_inv_freq` and a table [positions,
2 x pairs] of cos and sin, times the magnitude, from them. Their angles are float32 products. The
frequencies stay the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.frequencies import Given
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: the first rows of a table, and how far they may be from the engine's own: float32 angles are that
#: exact there
NEAR, TOLERANCE = 64, 1e-4


def with_exact_angles(module: Any, compute: Callable[[], Tensor]) -> Tensor:
    """Return the table [positions, 2 x pairs] of cos and sin that `compute` makes, with exact
    angles instead of the engine's.

    A table whose rows are not the positions 0, 1, 2, ... of one rope, and a result that is no
    tensor (the several tables of dual chunk attention), are returned as they are.
    """
    recorded: list[Tensor] = []
    original = module._compute_inv_freq
    instance_attribute = vars(module).get(
        "_compute_inv_freq"
    )  # None: only the class has this method

    def compute_and_record(*args: Any, **named: Any) -> Tensor:
        """Return the frequencies that the module computes, and keep them in `recorded`."""
        recorded.append(original(*args, **named))
        return recorded[-1]

    module._compute_inv_freq = compute_and_record
    try:
        table = compute()
    finally:
        del module._compute_inv_freq
        if instance_attribute is not None:
            module._compute_inv_freq = instance_attribute
    # linear scaling divides the positions by a factor; with several factors, the table holds a part
    # for each
    factors = getattr(module, "scaling_factors", [1.0])
    if not isinstance(table, Tensor) or len(recorded) != 1 or len(factors) != 1:
        return table
    return exact_table(table, recorded[0].double() / factors[0])


def exact_table(table: Tensor, inv_freq: Tensor) -> Tensor:
    """Return the float32 table [positions, 2 x pairs] of cos and sin with exact angles position x
    `inv_freq` (radians).

    The magnitude is the first entry of `table`, which is magnitude x cos 0. `table` itself is
    returned if it has another form, or if its first NEAR rows differ from the exact ones by
    TOLERANCE or more: then it holds something else.
    """
    pairs = inv_freq.numel()
    if (
        table.ndim != 2
        or table.shape[1] != 2 * pairs
        or table.dtype != torch.float32
        or len(table) < 2
    ):
        return table
    magnitude = float(table[0, 0])
    if magnitude <= 0:
        return table
    scaling = Given(tuple(inv_freq.double().flatten().tolist()), magnitude=magnitude)
    rope = Rope(RopeSpec(2 * pairs, scaling=scaling))
    exact = torch.cat(rope.cos_sin(torch.arange(len(table)), torch.float32), dim=-1).to(table)
    return exact if float((exact[:NEAR] - table[:NEAR]).abs().max()) < TOLERANCE else table
