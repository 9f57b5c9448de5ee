"""Encodings that add a vector for each position to the input.

Class attributes (of `Encoding`): `entry` says where positions enter attention, `relative` whether
scores depend only on the difference of positions, `bounded` whether a maximum position exists.
`length` of Sizes is the longest trained sequence.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.checks import INTEGERS
from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.errors import RopeError, number


class LearnedPositions(Encoding):
    """One learned vector per position, as in BERT and GPT-2; positions from `length` on raise an
    error.
    """

    entry: ClassVar[str] = "input"
    relative: ClassVar[bool] = False
    bounded: ClassVar[bool] = True

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.length, sizes.model_dim)
        nn.init.normal_(self.table.weight, std=0.02)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the embeddings x plus the learned vectors of their positions."""
        if positions.dtype not in INTEGERS:
            raise RopeError(
                "positions",
                "must be integers: there is one learned vector for each",
                positions.dtype,
            )
        # on a GPU the embedding kernel itself fails on a bad index; checking here would synchronize
        # with the device
        can_check = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        if can_check and positions.numel():
            first, last = (int(bound) for bound in positions.aminmax())
            if first < 0 or last >= self.sizes.length:
                rule = f"must be at least 0 and below the trained length {self.sizes.length}"
                raise RopeError("positions", rule, first if first < 0 else last)
        return x + self.table(positions.long()).to(x.dtype)


class Sinusoidal(Encoding):
    """Adds sin and cos of position * theta^(-2i/d) to the input, d = model_dim; of the four terms
    of a score, only that of the two position vectors depends on their distance alone.
    """

    entry: ClassVar[str] = "input"
    relative: ClassVar[bool] = False

    def __init__(self, sizes: Sizes, theta: float = 10_000.0) -> None:
        super().__init__(sizes)
        if sizes.model_dim % 2:
            raise RopeError(
                "model_dim",
                "must be even: each frequency needs one sine and one cosine",
                sizes.model_dim,
            )
        self.theta = number("theta", theta, above=0)

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return the embeddings x plus sin and cos of their positions."""
        pairs = self.sizes.model_dim // 2
        frequencies = self.theta ** (
            -torch.arange(pairs, device=x.device, dtype=torch.float64) / pairs
        )
        # in float64, so angles are accurate at any trained length
        angles = positions.unsqueeze(-1) * frequencies
        return x + torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2).to(x.dtype)
