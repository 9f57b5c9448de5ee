"""Temperatures by position: each query is multiplied by a factor s(p) of its position p, so that
long contexts stay sharp.

Without it, the attention weights flatten as the number of keys grows. The factor multiplies q
alone; it is not the magnitude of a rotation, which multiplies q and k.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, integer, number


class Temperature:
    """Base class of all temperatures: frozen dataclasses with one formula each."""

    name: ClassVar[str]

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        """Return s(p) in float64 for integer positions of any shape; learned numbers must broadcast
        with them.
        """
        raise NotImplementedError

    def start(self) -> dict[str, float]:
        """Return the learned numbers of each head, by name, and the values they start from; empty
        if nothing is learned.
        """
        return {}


def _log_of_count(positions: Tensor) -> Tensor:
    """Return log(p + 1), the logarithm of the number of keys that a causal query sees; padding may
    have negative positions.
    """
    return (positions.clamp(min=0).to(torch.float64) + 1).log()


@dataclass(frozen=True)
class LogN(Temperature):
    """max(1, log(p + 1) / log(length)): 1 up to the trained length (Su; Qwen's `use_logn_attn`)."""

    name: ClassVar[str] = "log_n"
    length: int = 2048

    def __post_init__(self) -> None:
        integer("length", self.length, low=2)

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        return (_log_of_count(positions) / math.log(self.length)).clamp(min=1)


@dataclass(frozen=True)
class LearnedLog(Temperature):
    """scale log(p + 1), with one learned scale for each head (SSMax); with `bias`, a learned bias
    is added (Mistral Large 4).

    `scale` and `bias` are the values that training starts from; a bias of None is no bias.
    """

    name: ClassVar[str] = "learned_log"
    scale: float = 0.43
    bias: float | None = None

    def __post_init__(self) -> None:
        number("scale", self.scale)
        if self.bias is not None:
            number("bias", self.bias)

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        factor = learned["scale"].to(torch.float64) * _log_of_count(positions)
        return factor if self.bias is None else factor + learned["bias"].to(torch.float64)

    def start(self) -> dict[str, float]:
        return (
            {"scale": self.scale} if self.bias is None else {"scale": self.scale, "bias": self.bias}
        )


@dataclass(frozen=True)
class FloorLog(Temperature):
    """1 + scale log(1 + floor((p + shift) / length)): a step at every multiple of `length`.

    Llama 4 has shift 1, length 8192, and it in layers without positions only; Ministral 3 and
    Mistral 4 have shift 0.
    """

    name: ClassVar[str] = "floor_log"
    scale: float = 0.1
    length: int = 8192
    shift: int = 0

    def __post_init__(self) -> None:
        number("scale", self.scale, low=0)
        integer("length", self.length, low=1)
        integer("shift", self.shift, low=0, high=1)

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        steps = (positions.clamp(min=0) + self.shift) // self.length
        return 1 + self.scale * steps.to(torch.float64).log1p()


@dataclass(frozen=True)
class Power(Temperature):
    """(1 + (p + 1) / length) ^ power (Beam, in layers without positions)."""

    name: ClassVar[str] = "power"
    length: int = 2048
    power: float = 0.1

    def __post_init__(self) -> None:
        integer("length", self.length, low=1)
        number("power", self.power, low=0)

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        return (1 + (positions.clamp(min=0).to(torch.float64) + 1) / self.length) ** self.power


@dataclass(frozen=True)
class LogAbove(Temperature):
    """1 + scale log(max(1, (p + 1) / length)): 1 up to `length`, without steps after it (Inkling,
    in full layers).
    """

    name: ClassVar[str] = "log_above"
    scale: float = 0.1
    length: int = 8192

    def __post_init__(self) -> None:
        number("scale", self.scale, low=0)
        integer("length", self.length, low=1)

    def factor(self, positions: Tensor, **learned: Tensor) -> Tensor:
        return 1 + self.scale * (_log_of_count(positions) - math.log(self.length)).clamp(min=0)


#: every temperature by name
TEMPERATURES: dict[str, type[Temperature]] = {
    each.name: each for each in (LogN, LearnedLog, FloorLog, Power, LogAbove)
}


class QueryTemperature(nn.Module):
    """Multiplies queries by the factors of a temperature; holds its learned numbers, one for each
    head.
    """

    def __init__(self, temperature: Temperature, num_heads: int) -> None:
        super().__init__()
        if not isinstance(temperature, Temperature):
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
                "leave the temperature out for"
            )
            raise RopeError("positions", f"{rule} positions on several axes", list(positions.shape))
        # [H, 1], so that a number of each head broadcasts against positions
        learned = {
            name: parameter.unsqueeze(-1)
            for name, parameter in self.named_parameters(recurse=False)
        }
        positions = positions if positions.ndim == 1 else positions.unsqueeze(-2)
        return multiply(q, self.temperature.factor(positions, **learned))

    def extra_repr(self) -> str:
        return repr(self.temperature)


def multiply(q: Tensor, factor: Tensor) -> Tensor:
    """Return q [B, H, S, D] times a factor [S], [B, 1, S] or [B, H, S], rounded once."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    return (q.to(dtype) * factor.to(dtype).unsqueeze(-1)).to(q.dtype)
