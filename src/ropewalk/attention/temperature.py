"""The factor that a temperature gives a query by its position, and the module that multiplies
queries by it. `ropewalk.temperatures` has the formulas, in which p is the position of the query.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.temperatures import (
    TEMPERATURES,
    FloorLog,
    LearnedLog,
    LogAbove,
    LogN,
    Power,
    Temperature,
)


def _log_of_count(positions: Tensor) -> Tensor:
    """Return log(p + 1), the logarithm of the number of keys that a causal query at position p
    sees; negative positions, which padding may have, are taken as 0.
    """
    return (positions.clamp(min=0).to(torch.float64) + 1).log()


def _log_n(temperature: LogN, positions: Tensor) -> Tensor:
    return (_log_of_count(positions) / math.log(temperature.length)).clamp(min=1)


def _learned_log(
    temperature: LearnedLog, positions: Tensor, *, scale: Tensor, bias: Tensor | None = None
) -> Tensor:
    result = scale.to(torch.float64) * _log_of_count(positions)
    return result if bias is None else result + bias.to(torch.float64)


def _floor_log(temperature: FloorLog, positions: Tensor) -> Tensor:
    steps = (positions.clamp(min=0) + temperature.shift) // temperature.length
    return 1 + temperature.scale * steps.to(torch.float64).log1p()


def _power(temperature: Power, positions: Tensor) -> Tensor:
    count = positions.clamp(min=0).to(torch.float64) + 1
    return (1 + count / temperature.length) ** temperature.power


def _log_above(temperature: LogAbove, positions: Tensor) -> Tensor:
    excess = (_log_of_count(positions) - math.log(temperature.length)).clamp(min=0)
    return 1 + temperature.scale * excess


#: the formula of each temperature
FACTORS: dict[type[Temperature], Callable[..., Tensor]] = {
    LogN: _log_n,
    LearnedLog: _learned_log,
    FloorLog: _floor_log,
    Power: _power,
    LogAbove: _log_above,
}


def factor(temperature: Temperature, positions: Tensor, **learned: Tensor) -> Tensor:
    """Return the factors of queries at integer `positions` of any shape, in float64. `learned` has
    the learned numbers of the temperature by name, which must broadcast with the positions.
    """
    return FACTORS[type(temperature)](temperature, positions, **learned)


class QueryTemperature(nn.Module):
    """Multiplies queries by the factors of a temperature; holds the temperature's learned numbers,
    each as a parameter [num_heads].
    """

    def __init__(self, temperature: Temperature, num_heads: int) -> None:
        super().__init__()
        if type(temperature) not in FACTORS:
            raise RopeError(
                "temperature", f"must be one of {', '.join(TEMPERATURES)}, or None", temperature
            )
        self.temperature = temperature
        # start() names the learned numbers of a temperature and their first values; many
        # temperatures have none
        for name in temperature.start():
            self.register_parameter(name, nn.Parameter(torch.empty(num_heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the learned numbers to their first values."""
        for name, value in self.temperature.start().items():
            nn.init.constant_(self.get_parameter(name), value)

    def forward(self, q: Tensor, positions: Tensor) -> Tensor:
        """Return q [B, H, S, D], each query times the factor of its position; positions are integer
        [S] or [B, S].
        """
        if positions.ndim > 2:
            rule = (
                "must be [S] or [B, S] with a temperature, which has one factor for each token; "
                "leave the temperature out for positions on several axes"
            )
            raise RopeError("positions", rule, list(positions.shape))
        # [H, 1], so that a number of each head broadcasts against positions
        learned = {
            name: parameter.unsqueeze(-1)
            for name, parameter in self.named_parameters(recurse=False)
        }
        positions = positions if positions.ndim == 1 else positions.unsqueeze(-2)
        return multiply(q, factor(self.temperature, positions, **learned))

    def extra_repr(self) -> str:
        return repr(self.temperature)


def multiply(q: Tensor, by: Tensor) -> Tensor:
    """Return q [B, H, S, D] times factors `by` [S], [B, 1, S] or [B, H, S], rounded once."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return (q.to(dtype) * by.to(dtype).unsqueeze(-1)).to(q.dtype)
