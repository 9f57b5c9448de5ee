"""Frequencies as tensors: the formulas of the scalings over torch.

In float32 their operations run in the order in which transformers runs them, so precision "hf" and
"hf_frequencies" reproduce a checkpoint's own frequencies bit for bit. Lengths given as a tensor,
one for each row, stay on their device. Fixed frequencies of precision "exact" are not computed by
these formulas: they come from their 40 digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.caches import cached
from ropewalk.frequencies import Frequencies, Scaling
from ropewalk.frequencies.formulas import FloatNumbers
from ropewalk.phase import phase_steps
from ropewalk.spec import RopeSpec
from ropewalk.tensor_phase import phase_steps as steps_of_tensor

#: a length for all rows, a tensor with one for each row, or None, which stands for the trained
#: length
Length = int | Tensor | None

# always passed explicitly: under `torch.device("meta")` the default device would give frequencies
# without values
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class TensorFrequencies:
    """What `Frequencies` holds, as tensors, without its `digits`.

    radians    [pairs], or [rows, pairs] where the length is given per row; [heads, pairs, axes] if
               axes differ from head to head
    magnitude  the factor on cos and sin, or [rows] where it depends on a length given per row
    growth     [pairs], xPos's logarithm of the magnitude per position away from `center`; None for
               other scalings
    """

    radians: Tensor
    magnitude: float | Tensor = 1.0
    growth: Tensor | None = None
    center: int = 0


@dataclass(frozen=True)
class TorchNumbers(FloatNumbers):
    """The operations of formulas over torch; `frequencies.decimals.DecimalNumbers` says what each
    one does.
    """

    dtype: torch.dtype
    device: torch.device = CPU

    def vector(self, values: Sequence[float]) -> Tensor:
        if self.device == CPU:
            return torch.tensor(values, dtype=self.dtype, device=CPU)
        # cached, because a CUDA graph must not wait for a copy from the host
        return _device_copy(tuple(values), self.dtype, self.device)

    def multiples(self, step: int, count: int) -> Tensor:
        return torch.arange(0, step * count, step, device=self.device).to(self.dtype)

    def where(self, condition: Tensor, a: Any, b: Any) -> Tensor:
        return torch.where(condition, a, b)

    def clamp(self, values: Tensor, low: float, high: float) -> Tensor:
        return values.clamp(low, high)

    def exp(self, values: Tensor) -> Tensor:
        return values.exp()

    def sin(self, values: Tensor) -> Tensor:
        return values.sin()

    def real(self, length: Tensor) -> Tensor:
        return length.to(self.dtype)

    def at_least(self, value: Tensor, low: float) -> Tensor:
        return value.clamp(min=low)

    def exceeds(self, length: Tensor, limit: int) -> Tensor:
        return self.per_row(length > limit)

    def per_row(self, value: Any) -> Any:
        # [rows] becomes [rows, 1], to broadcast against [pairs]
        return value.unsqueeze(-1) if isinstance(value, Tensor) else value

    def as_float(self, value: Any) -> Any:
        return value


@cached("scaling constants", entries=256)
def _device_copy(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor of `values` on a GPU, which must not be written to.

    It is cached, so the copy from the host is made before a CUDA graph is captured: a capture must
    not wait for the host.
    """
    with torch.inference_mode(False):
        return torch.tensor(values, dtype=dtype, device=device)


def ladder(spec: RopeSpec, length: Length = None) -> TensorFrequencies:
    """Return the frequency of each pair along its own axis, [pairs] or [rows, pairs] for a length
    per row, and the magnitude, by the scalings' formulas over torch. torch.compile can trace it.
    """
    dtype = torch.float64 if spec.precision == "exact" else torch.float32
    scaled = spec.scaled_ladders()
    found = [formula(scaling, dim, spec.theta, length, dtype) for scaling, dim in scaled]
    # the magnitude is that of the first ladder with the spec's own scaling, or of the very first;
    # a list, because torch 2.6 cannot compile next() with a default
    with_scaling = [
        each for each, (scaling, _) in zip(found, scaled, strict=True) if scaling is spec.scaling
    ]
    first = with_scaling[0] if with_scaling else found[0]
    radians, growth = first.radians, first.growth
    if len(found) > 1:
        by_pair = [each.radians.unbind(-1) for each in found]
        radians = torch.stack(spec.in_pair_order(by_pair), dim=-1)
        if growth is not None:
            rates = [each.growth.unbind(-1) for each in found]  # type: ignore[union-attr]
            growth = torch.stack(spec.in_pair_order(rates), dim=-1)
    return TensorFrequencies(radians.to(torch.float64), first.magnitude, growth, first.center)


def formula(
    scaling: Scaling,
    dim: int,
    theta: float,
    length: Length = None,
    dtype: torch.dtype = torch.float64,
) -> TensorFrequencies:
    """Return the frequencies of a scaling by its formula over torch, in `dtype`; a length of None
    stands for the trained length.
    """
    if isinstance(length, int | np.integer):
        length = torch.tensor(int(length), dtype=torch.int64, device=CPU)
    ops = TorchNumbers(dtype, CPU if length is None else length.device)
    radians = scaling._radians(dim, theta, length, ops)
    # a formula of the user's may return a list
    radians = radians if isinstance(radians, Tensor) else ops.vector(radians)
    scaling.check_count(radians.shape[-1] if radians.ndim else 0, dim)
    growth, center = scaling._growth(dim)
    if growth is not None:
        growth = torch.tensor(growth, dtype=torch.float64, device=CPU)
    return TensorFrequencies(radians, scaling._magnitude(length, ops), growth, center)


def fixed_frequencies(spec: RopeSpec, device: torch.device) -> tuple[TensorFrequencies, Tensor]:
    """Return the frequencies of a spec on a device, for the trained length, and their phase steps,
    int64.

    With precision "exact", both are rounded from frequencies with 40 digits, unless the scaling
    depends on the length. torch.compile cannot trace it.
    """
    if spec.precision == "exact" and not spec.needs_length:
        found = spec.frequencies() if spec.per_head else spec.ladder_frequencies()
        frequencies, steps = as_tensors(found), _steps(found.digits)
    else:
        frequencies = ladder(spec)
        if spec.per_head:
            directions = torch.tensor(spec.axes.directions(), dtype=torch.float64, device=CPU)  # type: ignore[union-attr]
            frequencies = TensorFrequencies(
                frequencies.radians[:, None] * directions, frequencies.magnitude
            )
        steps = steps_of_tensor(frequencies.radians)
    growth = None if frequencies.growth is None else frequencies.growth.to(device)
    moved = TensorFrequencies(
        frequencies.radians.to(device), frequencies.magnitude, growth, frequencies.center
    )
    return moved, steps.to(device)


def as_tensors(frequencies: Frequencies) -> TensorFrequencies:
    """Return frequencies as tensors on the CPU."""
    radians = torch.tensor(frequencies.radians, dtype=torch.float64, device=CPU)
    growth = None
    if frequencies.growth is not None:
        growth = torch.tensor(frequencies.growth, dtype=torch.float64, device=CPU)
    return TensorFrequencies(radians, frequencies.magnitude, growth, frequencies.center)


def _steps(digits: tuple[Any, ...]) -> Tensor:
    """Return the phase steps of exact frequencies as int64, in the shape of `digits`."""

    def nested(part: Any) -> Any:
        """Return lists of phase steps, nested as the tuples of `part` are."""
        if isinstance(part[0], tuple):
            return [nested(each) for each in part]
        # a phase of half a turn and more is negative in two's complement
        return [step - (1 << 64) if step >= 1 << 63 else step for step in phase_steps(part)]

    return torch.tensor(nested(digits), dtype=torch.int64, device=CPU)
