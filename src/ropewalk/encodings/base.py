"""The interface of an encoding. Positions can enter attention at three entry points; an encoding
overrides the method of at least one.

input   embed   x + e(position)                            before the projections
q, k    rotate  rotate(q, position), rotate(k, position)   after the projections
scores  bias    q.k + b(position_q, position_k)            before the softmax

`value_bias` can also add a term of positions to the output of attention; only NEZHA does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import integer


@dataclass(frozen=True)
class Sizes:
    """Sizes of the attention layer an encoding belongs to; `length` is the longest trained
    sequence.
    """

    num_heads: int
    head_dim: int
    model_dim: int
    length: int

    def __post_init__(self) -> None:
        for name in ("num_heads", "head_dim", "model_dim", "length"):
            integer(name, getattr(self, name), low=1)


class Encoding(nn.Module):
    """Base class of all encodings; used directly, it adds no position information.

    Positions are integer [S] or [B, S] (or [axes, B, S] for an encoding with several axes). The
    class attributes from `entry` to `bounded` are columns of the table that compares all encodings;
    all of them but `causal_only` are also measured.
    """

    #: the entry point: "none", "input", "qk" or "scores"
    entry: ClassVar[str] = "none"
    #: scores depend only on the difference of positions
    relative: ClassVar[bool] = True
    #: defined only if no query attends to a later key
    causal_only: ClassVar[bool] = False
    #: works with linear attention, which never forms the n x n scores
    linear: ClassVar[bool] = True
    #: raises an error beyond a maximum position
    bounded: ClassVar[bool] = False
    #: how many query heads `rotate` makes of each one; the input of the output projection is wider
    #: by this factor
    query_copies: ClassVar[int] = 1

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return x [B, S, model_dim] with positions added (entry point "input")."""
        return x

    def rotate(
        self, x: Tensor, positions: Tensor, *, key: bool, length: int | Tensor | None = None
    ) -> Tensor:
        """Return q, or k if `key`, [B, H, S, head_dim], with positions applied (entry point "qk").

        `length`: that of the whole sequence, one for all rows or [B], for frequencies that depend
        on it; None: it follows from the positions.
        """
        return x

    def bias(self, q: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """Return what to add to the scaled scores, broadcastable to [B, H, Sq, Sk], or None (entry
        point "scores").
        """
        return None

    def why_not(self, what: str) -> str | None:
        """Return why the encoding does not support `what`, or None if it does: "linear", attention
        without scores, or "rerotate", moving cached keys to other positions.
        """
        return (
            None
            if what != "linear" or self.linear
            else "a bias on the scores is no inner product of q and k"
        )

    def value_bias(
        self, weights: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> Tensor | None:
        """Return a position-dependent term to add to the output [B, H, Sq, head_dim], or None if
        the encoding has none; `weights` [B, H, Sq, Sk] are those after the softmax.
        """
        return None


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Return query position - key position: [Sq, Sk], or [B, 1, Sq, Sk] if positions are [B,
    S].
    """
    # in int64, or in a float dtype as given: unsigned integers would wrap below 0
    q_positions, k_positions = (
        each.to(torch.promote_types(each.dtype, torch.int64)) for each in (q_positions, k_positions)
    )
    distance = q_positions.unsqueeze(-1) - k_positions.unsqueeze(-2)
    return distance if distance.ndim == 2 else distance.unsqueeze(1)
