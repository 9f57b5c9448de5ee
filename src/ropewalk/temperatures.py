"""Temperatures by position: each query is multiplied by a factor s(p) of its position p, so that
attention stays sharp in long contexts.

Without the factor, attention weights flatten as the number of keys grows. The factor multiplies q
alone; it is not the magnitude of a rotation, which multiplies cos and sin. Here are the numbers of
each formula; `ropewalk.attention.temperature` computes the factors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ropewalk.errors import integer, number


class Temperature:
    """Base class of all temperatures: frozen dataclasses with the numbers of one formula each."""

    name: ClassVar[str]

    def start(self) -> dict[str, float]:
        """Return the learned numbers of each head, by name, and the values they start from; empty
        if nothing is learned.
        """
        return {}


@dataclass(frozen=True)
class LogN(Temperature):
    """max(1, log(p + 1) / log(length)): 1 up to the trained length (Su; Qwen's `use_logn_attn`)."""

    name: ClassVar[str] = "log_n"
    length: int = 2048

    def __post_init__(self) -> None:
        integer("length", self.length, low=2)


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

    def start(self) -> dict[str, float]:
        return (
            {"scale": self.scale} if self.bias is None else {"scale": self.scale, "bias": self.bias}
        )


@dataclass(frozen=True)
class FloorLog(Temperature):
    """1 + scale log(1 + floor((p + shift) / length)), which changes where p + shift is a multiple
    of `length`.

    Llama 4 has shift 1 and length 8192, and uses it only in layers without positions; Ministral 3
    and Mistral 4 have shift 0.
    """

    name: ClassVar[str] = "floor_log"
    scale: float = 0.1
    length: int = 8192
    shift: int = 0

    def __post_init__(self) -> None:
        number("scale", self.scale, low=0)
        integer("length", self.length, low=1)
        integer("shift", self.shift, low=0, high=1)


@dataclass(frozen=True)
class Power(Temperature):
    """(1 + (p + 1) / length) ^ power (the model family Beam, only in layers without positions)."""

    name: ClassVar[str] = "power"
    length: int = 2048
    power: float = 0.1

    def __post_init__(self) -> None:
        integer("length", self.length, low=1)
        number("power", self.power, low=0)


@dataclass(frozen=True)
class LogAbove(Temperature):
    """1 + scale log(max(1, (p + 1) / length)): 1 up to `length`, then rising smoothly (the model
    family Inkling, only in full-attention layers).
    """

    name: ClassVar[str] = "log_above"
    scale: float = 0.1
    length: int = 8192

    def __post_init__(self) -> None:
        number("scale", self.scale, low=0)
        integer("length", self.length, low=1)


#: every temperature by name
TEMPERATURES: dict[str, type[Temperature]] = {
    each.name: each for each in (LogN, LearnedLog, FloorLog, Power, LogAbove)
}
