"""Encodings at the input door: a vector for each position is added to the token's."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.errors import RopeError


class Learned(Encoding):
    """One trained vector a position, as BERT and GPT-2 have it; nothing beyond `length`."""

    door: ClassVar[str] = "input"
    relative: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.length, sizes.model_dim)
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        # on a GPU an index out of range stops the kernel by itself; looking at it here would wait for the device
        readable = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        if readable and positions.numel() and int(positions.max()) >= self.sizes.length:
            raise RopeError("positions", f"must be below the {self.sizes.length} trained ones", int(positions.max()))
        return x + self.table(positions).to(x.dtype)


class Sinusoidal(Encoding):
    """sin and cos of position * theta^(-2i/d), added: relative only approximately, since x meets them by sums."""

    door: ClassVar[str] = "input"
    relative: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, theta: float = 10_000.0) -> None:
        super().__init__(sizes)
        if sizes.model_dim % 2:
            raise RopeError("model_dim", "must be even: one sine and one cosine a frequency", sizes.model_dim)
        self.theta = theta

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        pairs = self.sizes.model_dim // 2
        radians = self.theta ** (-torch.arange(pairs, device=x.device, dtype=torch.float64) / pairs)
        angles = positions.unsqueeze(-1) * radians  # float64: exact enough at any trained length
        return x + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(x.dtype)
