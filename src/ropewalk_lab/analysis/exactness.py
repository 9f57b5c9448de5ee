"""The error of cos and sin at a position, measured on the tables that torch computes.

The reference uses the spec's own frequencies: with precision "exact" those with 40 digits, or
float64 ones where they depend on the length; with the other precisions the float32 values that a
checkpoint was trained with.
`ropewalk.analysis.exactness` has the same methods by their definition, without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ropewalk.analysis.ladder import require_one_series
from ropewalk.errors import RopeError, choice, integer
from ropewalk.spec import PRECISIONS, RopeSpec
from ropewalk.table import cos_sin
from ropewalk.tensor_frequencies import ladder
from ropewalk_lab.analysis.arrays import finite, true_angles


def _with_precision(
    precision: str, spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, pairs] of a spec at positions [positions], with one of our
    precisions (a name of PRECISIONS), without the magnitude.
    """
    if spec.num_axes > 1:  # a token has the same position on every axis
        positions = positions.expand(spec.num_axes, -1)
    # a magnitude would multiply the errors of all methods by the same number, so it is raised to
    # the power 0
    return cos_sin(spec.with_(precision=precision), positions, length=length, magnitude_power=0)


def _bfloat16_positions(
    spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, pairs] of float32 angles from positions that were rounded to
    bfloat16.
    """
    radians = ladder(spec.with_(precision="hf"), length).radians.to(torch.float32)
    angles = positions.to(torch.bfloat16).to(torch.float32)[:, None] * radians
    return angles.cos(), angles.sin()


def _cast_table(
    dtype: torch.dtype, spec: RopeSpec, positions: Tensor, length: int | None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [positions, pairs] of float32 angles, rounded to `dtype`, like a table
    that is kept in the dtype of a model.
    """
    cos, sin = _with_precision("hf", spec, positions, length)
    return cos.to(dtype), sin.to(dtype)


#: methods to compute cos and sin: our precision policies and the tables of other engines; "hf" is
#: the float32 angle of most engines. Each is a function of (spec, positions, length)
MEASURED: dict[str, Callable[[RopeSpec, Tensor, int | None], tuple[Tensor, Tensor]]] = {
    **{precision: partial(_with_precision, precision) for precision in PRECISIONS},
    "float16 table": partial(_cast_table, torch.float16),
    "bfloat16 table": partial(_cast_table, torch.bfloat16),
    "bfloat16 positions": _bfloat16_positions,
}


def error_curves(
    spec: RopeSpec,
    positions: Sequence[int] | np.ndarray,
    methods: Iterable[str] = tuple(MEASURED),
    *,
    length: int | None = None,
    width: int = 5,
) -> dict[str, np.ndarray]:
    """Return, by method, the largest error of cos and sin over all pairs and the last `width`
    positions up to each position.

    The error varies from position to position, so a curve shows the largest of several neighbours.
    The reference uses the spec's own frequencies, as the module describes; magnitudes are left out.
    """
    require_one_series(spec)  # no frequencies that are learned, or differ from head to head
    ends = finite("positions", positions, ndim=1)
    if (ends % 1).any():
        raise RopeError("positions", "must be whole numbers", float(ends[ends % 1 != 0][0]))
    # from the integers that were given: float64 has no odd ones beyond 2^53
    ends = np.asarray(positions).astype(np.int64)
    if (ends < 0).any():
        raise RopeError("positions", "must be at least 0", int(ends.min()))
    integer("width", width, low=1)
    if length is not None:
        integer("length", length, low=0)
    window = ends[:, None] - np.arange(width)  # [positions, width]
    window = np.maximum(window, 0)  # there are no negative positions
    # frequencies that depend on the length are not known to 40 digits
    if spec.precision == "exact" and not spec.needs_length:
        radians = spec.ladder_frequencies().digits
    else:
        radians = ladder(spec, length).radians.tolist()
    angles = true_angles(radians, window.ravel())
    errors = {}
    for name in methods:
        compute = MEASURED[choice("methods", name, MEASURED)]
        cos, sin = (
            t.to(torch.float64).numpy()
            for t in compute(spec, torch.from_numpy(window.ravel()), length)
        )
        error_at_position = np.maximum(
            np.abs(cos - np.cos(angles)), np.abs(sin - np.sin(angles))
        ).max(axis=-1)
        errors[name] = error_at_position.reshape(window.shape).max(axis=-1)
    return errors
