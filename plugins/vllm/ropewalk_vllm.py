"""vLLM plug-in: every rotary module takes its table of cos and sin from ropewalk, exact at every position.

vLLM loads it by its entry point in every process. It does nothing unless ROPEWALK_VLLM=1 is set.
"""

from __future__ import annotations

import os
from typing import Any

import torch

#: how far the first rows of a table may be from vLLM's own: float32 angles are that exact there
NEAR, TOLERANCE = 64, 1e-4


def register() -> None:
    """Register a subclass of each of vLLM's rotary classes, if ROPEWALK_VLLM is 1."""
    if os.environ.get("ROPEWALK_VLLM") != "1":
        return
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase

    for original in list(_subclasses(RotaryEmbeddingBase)):
        CustomOp.register_oot(name=original.__name__)(_exact(original))


def _subclasses(kind: type) -> list[type]:
    found = [each for direct in kind.__subclasses__() for each in (direct, *_subclasses(direct))]
    return [each for each in dict.fromkeys(found) if each.__module__.startswith("vllm.")]


def _exact(original: type) -> type:
    """Return a subclass whose table has exact angles; where the table has another form, it stays vLLM's own."""

    def _compute_cos_sin_cache(self: Any) -> torch.Tensor:
        frequencies: list[torch.Tensor] = []
        compute = self._compute_inv_freq

        def remember(*args: Any, **named: Any) -> torch.Tensor:
            frequencies.append(compute(*args, **named))
            return frequencies[-1]

        self._compute_inv_freq = remember
        try:
            table = original._compute_cos_sin_cache(self)
        finally:
            del self._compute_inv_freq
        return _exact_table(table, frequencies[0]) if len(frequencies) == 1 else table

    return type(f"Ropewalk{original.__name__}", (original,), {"_compute_cos_sin_cache": _compute_cos_sin_cache})


def _exact_table(table: torch.Tensor, inv_freq: torch.Tensor) -> torch.Tensor:
    """Return the table [positions, 2 x pairs] with exact angles, or as it is if its rows are not positions in order."""
    from ropewalk import Rope, RopeSpec
    from ropewalk.frequencies import Given

    pairs = inv_freq.numel()
    if table.ndim != 2 or table.shape[1] != 2 * pairs:
        return table
    radians = tuple(inv_freq.double().flatten().tolist())
    rope = Rope(RopeSpec(2 * pairs, scaling=Given(radians, magnitude=float(table[0, 0]))))
    exact = torch.cat(rope.cos_sin(torch.arange(table.shape[0]), torch.float32), dim=-1).to(table)
    near = (exact[:NEAR] - table[:NEAR]).abs().max()
    return exact if float(near) < TOLERANCE else table
