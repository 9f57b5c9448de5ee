"""The error of cos and sin at a position, for each precision policy and for the methods of other
engines.

The reference uses the spec's own frequencies (with "exact" those with 28 digits, or in float64
where they depend on the length; otherwise the float32 values a checkpoint was trained with) and
reduces position * frequency modulo 2 pi in integers of arbitrary size. So the reference does not
round, and it shares no step with the tables it is compared to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ropewalk.analysis.ladder import Numbers, require_one_series
from ropewalk.errors import RopeError, choice
from ropewalk.spec import PRECISIONS, RopeSpec
from ropewalk.table import cos_sin

# fractional bits of the fixed-point integers below; an error of 2^-192 times a position of 63 bits
# is far below float64's
_BITS = 192
# 2 pi times 2^192, rounded down to an integer
_TWO_PI = 0x6_487ED511_0B4611A6_2633145C_06E0E689_48127044_533E63A0
#: the largest rounding error of a bfloat16 value just below 1
BFLOAT16_ROUNDING = 2.0**-9


def true_angles(
    radians: Numbers, positions: Sequence[int] | np.ndarray, low: Numbers | None = None
) -> np.ndarray:
    """Return position * (radians + low) modulo 2 pi, float64 [positions, pairs], rounded only at
    the end.

    radians  the frequencies, radians per step; they and 2 pi become integers, multiples of
             2^-_BITS, so that products are exact
    low      the rounding errors of `radians`, as in `Frequencies`
    """
    steps = _fixed_point(radians)
    if low is not None:
        steps = [
            high_part + low_part
            for high_part, low_part in zip(steps, _fixed_point(low), strict=True)
        ]
    return np.array(
        [
            [(int(position) * step % _TWO_PI) / (1 << _BITS) for step in steps]
            for position in positions
        ]
    )


def _fixed_point(values: Numbers) -> list[int]:
    """Return float64 values times 2^192, rounded down to integers."""
    ratios = [float(value).as_integer_ratio() for value in np.asarray(values, dtype=np.float64)]
    return [(numerator << _BITS) // denominator for numerator, denominator in ratios]


def _with_precision(
    precision: str, spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, pairs] of a spec with one of our precisions, without the
    magnitude.
    """
    if spec.num_axes > 1:
        positions = positions.expand(spec.num_axes, -1)
    # a magnitude would multiply the errors of all methods by the same number, so it is raised to
    # the power 0
    return cos_sin(spec.with_(precision=precision), positions, length=length, magnitude_power=0)


def _bfloat16_positions(
    spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of float32 angles from positions that were rounded to bfloat16."""
    radians = spec.with_(precision="hf").ladder_frequencies(length).radians.to(torch.float32)
    angles = positions.to(torch.bfloat16).to(torch.float32)[:, None] * radians
    return angles.cos(), angles.sin()


def _cast_table(
    dtype: torch.dtype, spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of float32 angles, rounded to `dtype`, like a table that is kept in the
    dtype of a model.
    """
    cos, sin = _with_precision("hf", spec, positions, length)
    return cos.to(dtype), sin.to(dtype)


#: methods to compute cos and sin: our precision policies and other engines'; "hf" is the float32
#: angle of most engines
COS_SIN_METHODS: dict[str, Callable[[RopeSpec, Tensor, int | None], tuple[Tensor, Tensor]]] = {
    **{precision: partial(_with_precision, precision) for precision in PRECISIONS},
    "float16 table": partial(_cast_table, torch.float16),
    "bfloat16 table": partial(_cast_table, torch.bfloat16),
    "bfloat16 positions": _bfloat16_positions,
}

#: which libraries compute cos and sin by each method
USED_BY: dict[str, str] = {
    "exact": "ropewalk, frequencies with 28 digits",
    "hf_frequencies": "ropewalk, the float32 frequencies of a checkpoint",
    "hf": "float32 angle and table: SGLang, torchtune, MiniMind",
    "float16 table": (
        "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in float16"
    ),
    "bfloat16 table": (
        "float32 angle, table in the model's dtype: transformers, vLLM, flash-attn in bfloat16"
    ),
    "bfloat16 positions": "positions in the tensor's dtype: rotary-embedding-torch in bfloat16",
}


def error_curves(
    spec: RopeSpec,
    positions: Sequence[int] | np.ndarray,
    methods: Iterable[str] = tuple(COS_SIN_METHODS),
    *,
    length: int | None = None,
    width: int = 5,
) -> dict[str, np.ndarray]:
    """Return, by method, the largest error of cos and sin over all pairs and the last `width`
    positions up to each position.

    The error varies from position to position, so a curve shows the largest of several neighbours.
    The reference uses the spec's own frequencies, with 28 digits where precision is "exact";
    magnitudes are left out.
    """
    require_one_series(spec)
    ends = np.asarray(positions, dtype=np.int64)
    if (ends < 0).any():
        raise RopeError("positions", "must be at least 0", int(ends.min()))
    window = ends[:, None] - np.arange(width)  # [positions, width]
    window = np.maximum(window, 0)
    frequencies = (
        spec.ladder_frequencies(length) if spec.needs_length else spec.exact_ladder_frequencies()
    )
    low = None if frequencies.low is None else frequencies.low.numpy()
    angles = true_angles(frequencies.radians.numpy(), window.ravel(), low)
    errors = {}
    for name in methods:
        compute = COS_SIN_METHODS[choice("methods", name, COS_SIN_METHODS)]
        cos, sin = (
            t.to(torch.float64).numpy()
            for t in compute(spec, torch.from_numpy(window.ravel()), length)
        )
        error_at_position = np.maximum(
            np.abs(cos - np.cos(angles)), np.abs(sin - np.sin(angles))
        ).max(axis=-1)
        errors[name] = error_at_position.reshape(window.shape).max(axis=-1)
    return errors
