"""Drop-in for MiniMind's two rotary functions: tables exact at every position; `position_ids`,
which the original ignores, are used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ropewalk import rotation
from ropewalk.errors import RopeError, integer, number
from ropewalk.frequencies import Given
from ropewalk.frequencies.formulas import check_log_theta, periods, turns_to_pair
from ropewalk.rope import Rope
from ropewalk.rotation import table_rows
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import TorchNumbers

__all__ = ["apply_rotary_pos_emb", "precompute_freqs_cis"]


def precompute_freqs_cis(
    dim: int,
    end: int = 32 * 1024,
    rope_base: float = 1e6,
    rope_scaling: Mapping[str, Any] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [end, dim], float32, both halves equal; `rope_base` is theta, `rope_scaling`
    a YaRN config as MiniMind reads it.

    Frequencies are scaled only if `end` exceeds the trained length; `attention_factor`, 1 unless
    given, multiplies cos and sin in any case.
    """
    integer("end", end, low=1)
    radians = 1.0 / periods(
        integer("dim", dim, low=2),
        number("rope_base", rope_base, above=0),
        TorchNumbers(torch.float64),
    )
    magnitude = 1.0
    if rope_scaling is not None:
        length = integer(
            "original_max_position_embeddings",
            rope_scaling.get("original_max_position_embeddings", 2048),
            low=1,
        )
        magnitude = number("attention_factor", rope_scaling.get("attention_factor", 1.0), above=0)
        if end > length:
            radians = radians * _frequency_factors(dim, rope_base, length, rope_scaling)
    spec = RopeSpec(dim, rope_base, Given(tuple(radians.tolist()), magnitude))
    return Rope(spec).cos_sin_hf(torch.arange(end, device="cpu"))


def _frequency_factors(
    dim: int, base: float, length: int, rope_scaling: Mapping[str, Any]
) -> Tensor:
    """Return the factor on each pair's frequency, float64 [pairs]: 1 for the first pair and for
    those that make at least beta_fast turns within the trained `length`, 1 / factor for others that
    make at most beta_slow or are the last, and a linear blend between. `rope_scaling` gives the
    factor, beta_fast and beta_slow.
    """
    check_log_theta(base)
    factor = number("factor", rope_scaling.get("factor", 16), low=1)
    fast, slow = (
        number(name, rope_scaling.get(name, default), above=0)
        for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    low = max(math.floor(turns_to_pair(fast, dim, base, length)), 0)
    # MiniMind bounds `high` by the last pair, transformers by the last dimension
    high = min(math.ceil(turns_to_pair(slow, dim, base, length)), dim // 2 - 1)
    ramp = (
        (torch.arange(dim // 2, dtype=torch.float64, device="cpu") - low) / max(high - low, 0.001)
    ).clamp(0, 1)
    return 1 - ramp + ramp / factor


def apply_rotary_pos_emb(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    unsqueeze_dim: int = 1,
) -> tuple[Tensor, Tensor]:
    """Rotate q and k by tables [S, D], or by the rows `position_ids` [S] or [B, S] of
    longer tables.

    `unsqueeze_dim` is where the tables get an axis for the heads: 1 for q and k [B, S, H, D], 0 for
    [B, H, S, D].
    """
    if position_ids is None:  # the tables have a row for each token
        return rotation.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim)
    if cos.ndim != 2:
        raise RopeError("cos", "must be [positions, D] if position_ids are given", list(cos.shape))
    heads_after = unsqueeze_dim % (cos.ndim + 1) >= 1
    # the selected rows are [S, D] or [B, S, D]; the axis of the heads goes after or before the
    # tokens
    axis = position_ids.ndim if heads_after else position_ids.ndim - 1
    cos, sin = (
        table_rows(name, table, "position_ids", position_ids)
        for name, table in (("cos", cos), ("sin", sin))
    )
    return rotation.apply_rotary_pos_emb(q, k, cos, sin, axis)
