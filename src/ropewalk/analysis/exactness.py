"""How far cos and sin can be trusted at a position: each precision policy, and what other engines do.

The reference takes the spec's own frequencies as they stand (under "exact" the formula in float64, under "hf_frequencies" the
float32 values a checkpoint was trained with) and reduces position * frequency modulo 2 pi in integers of any size, so it
neither rounds nor shares a step with the tables it judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ropewalk.analysis.ladder import Numbers
from ropewalk.errors import choice
from ropewalk.spec import PRECISIONS, RopeSpec
from ropewalk.table import cos_sin

_BITS = 192
# 2 pi times 2^192, cut to an integer
_TWO_PI = 0x6_487ED511_0B4611A6_2633145C_06E0E689_48127044_533E63A0
#: what one bfloat16 value is off by, at most, just below 1
BFLOAT16_ROUNDING = 2.0**-9


def true_angles(radians: Numbers, positions: Sequence[int] | np.ndarray) -> np.ndarray:
    """position * radians modulo 2 pi, float64 [positions, pairs], rounded only at the end."""
    ratios = [float(r).as_integer_ratio() for r in np.asarray(radians, dtype=np.float64)]
    steps = [(top << _BITS) // bottom for top, bottom in ratios]
    return np.array([[(int(position) * step % _TWO_PI) / (1 << _BITS) for step in steps] for position in positions])


def _policy(name: str, spec: RopeSpec, positions: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    if spec.num_axes > 1:
        positions = positions.expand(spec.num_axes, -1)
    # gain 0: a magnitude would scale the errors of all policies alike
    return cos_sin(spec.with_(precision=name), positions, length=length, magnitude_power=0)


def _bfloat16_positions(spec: RopeSpec, positions: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    steps = spec.with_(precision="hf").ladder_frequencies(length).radians.to(torch.float32)
    angles = positions.to(torch.bfloat16).to(torch.float32)[:, None] * steps
    return angles.cos(), angles.sin()


def _stored(dtype: torch.dtype, spec: RopeSpec, positions: Tensor, length: int | None) -> tuple[Tensor, Tensor]:
    cos, sin = _policy("hf", spec, positions, length)
    return cos.to(dtype), sin.to(dtype)


#: cos and sin as a policy of ours or another engine forms them, by name; "hf" is the float32 angle of most engines
WAYS: dict[str, Callable[[RopeSpec, Tensor, int | None], tuple[Tensor, Tensor]]] = {
    **{name: partial(_policy, name) for name in PRECISIONS},
    "float16 table": partial(_stored, torch.float16),
    "bfloat16 table": partial(_stored, torch.bfloat16),
    "bfloat16 positions": _bfloat16_positions,
}

#: who forms cos and sin so, by way
USED_BY: dict[str, str] = {
    "exact": "ropewalk, float64 frequencies",
    "hf_frequencies": "ropewalk, the float32 frequencies of a checkpoint",
    "hf": "float32 angle and table: SGLang, torchtune, MiniMind",
    "float16 table": "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in float16",
    "bfloat16 table": "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in bfloat16",
    "bfloat16 positions": "positions in the tensor's dtype: rotary-embedding-torch in bfloat16",
}


def error_curves(
    spec: RopeSpec,
    positions: Sequence[int] | np.ndarray,
    ways: Iterable[str] = tuple(WAYS),
    *,
    length: int | None = None,
    width: int = 5,
) -> dict[str, np.ndarray]:
    """The largest error of cos and sin over all pairs and the `width` positions up to each given one, by way.

    Errors are against the spec's own frequencies; a magnitude is left out.
    """
    near = np.asarray(positions, dtype=np.int64)[:, None] - np.arange(width)
    near = np.maximum(near, 0)
    angles = true_angles(spec.ladder_frequencies(length).radians.numpy(), near.ravel())
    return {name: _error(WAYS[choice("ways", name, WAYS)], spec, near, angles, length) for name in ways}


def _error(way: Callable, spec: RopeSpec, near: np.ndarray, angles: np.ndarray, length: int | None) -> np.ndarray:
    cos, sin = (part.to(torch.float64).numpy() for part in way(spec, torch.from_numpy(near.ravel()), length))
    worst = np.maximum(np.abs(cos - np.cos(angles)), np.abs(sin - np.sin(angles))).max(axis=-1)
    return worst.reshape(near.shape).max(axis=-1)
