"""The three doors a position can enter attention by; an encoding overrides one of them.

input   x + e(position)                        before the projections
q, k    turn(q, position), turn(k, position)   after the projections
scores  q.k + b(position_q, position_k)        before the softmax
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn


@dataclass(frozen=True)
class Sizes:
    """What an encoding may need to know of the attention it serves; `length` is the longest sequence trained on."""

    num_heads: int
    head_dim: int
    model_dim: int
    length: int


class Encoding(nn.Module):
    """No position at all, and the interface of all others.

    Positions are integer [S] or [B, S] (or [axes, B, S] where an encoding has axes). The class attributes declare what
    the comparison table shows; tests measure each of them.
    """

    #: "none", "input", "qk" or "scores"
    door: ClassVar[str] = "none"
    #: scores depend on positions through their difference alone
    relative: ClassVar[bool] = True
    #: meaningful only where a query sees no later key
    causal_only: ClassVar[bool] = False
    #: works where the n x n scores are never formed
    linear: ClassVar[bool] = True
    #: has a position, or a distance, beyond which it knows nothing
    bounded: ClassVar[bool] = False

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """The input door: x [B, S, model_dim]."""
        return x

    def turn(self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None) -> Tensor:
        """The q/k door: x [B, H, S, head_dim]."""
        return x

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """The score door: what to add to the scaled scores, broadcastable to [B, H, Sq, Sk]; None for nothing."""
        return None

    def value_bias(self, weights: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """What relative values add to the output [B, H, Sq, head_dim], from the weights [B, H, Sq, Sk]; None for nothing."""
        return None


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """query position - key position: [Sq, Sk], or [B, 1, Sq, Sk] where rows differ."""
    distance = q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)
    return distance if distance.ndim == 2 else distance.unsqueeze(1)
