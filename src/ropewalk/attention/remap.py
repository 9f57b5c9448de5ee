"""Remapped distances: longer contexts without training, because far keys are scored at distances
that a model was trained with.

Plain RoPE scores query i and key j by their distance i - j. A remapping replaces it by a smaller
distance for far keys. It consists of pieces: each piece is attention between some of the (query,
key) pairs, with queries and keys rotated at positions of its own.

Words of this module:
  Band(q, k, low, high)  the pairs of a piece: those of a query and a key whose groups, the integers
                         q and k, have low <= q - k < high; groups are positions or chunks of them
  trained, served        the longest sequence that a model was trained with, and the one that it
                         shall take
  q_positions, k_positions  those of the queries and of the keys, integer [S] or [B, S]
  window                 distances below it stay as they are
  slowdown               the distances of a piece are divided by it
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.attention.masks import Band
from ropewalk.attention.temperature import factor
from ropewalk.errors import integer
from ropewalk.temperatures import LogAbove, LogN


@dataclass(frozen=True, eq=False)
class Piece:
    """Attention between the pairs of tokens in `band`, with q rotated at `q_positions` and k at
    `k_positions`, integer [S] or [B, S].

    The frequencies are divided by `slowdown`, so the distance of a pair is (q_positions -
    k_positions) / slowdown.
    """

    q_positions: Tensor
    k_positions: Tensor
    band: Band
    slowdown: int = 1


class Remapping:
    """Base class of all remappings: frozen dataclasses whose `pieces` hold every pair of tokens
    exactly once.
    """

    name: ClassVar[str]

    def pieces(self, q_positions: Tensor, k_positions: Tensor) -> list[Piece]:
        """Return the pieces for queries and keys at these positions, integer [S] or [B, S]."""
        raise NotImplementedError

    def query_factor(self, positions: Tensor) -> Tensor | None:
        """Return a factor for each query, float64 with the shape of `positions`; None if there is
        none.
        """
        return None

    def distances(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the distance by which each query and key are scored, that of the one piece which
        holds the pair: float64 [Sq, Sk] or [B, Sq, Sk]. Keys after the query, which causality hides
        from it, have an entry too.
        """
        total = torch.zeros((), dtype=torch.float64, device=q_positions.device)
        for piece in self.pieces(q_positions, k_positions):
            distance = (
                piece.q_positions.unsqueeze(-1) - piece.k_positions.unsqueeze(-2)
            ).double() / piece.slowdown
            in_piece = piece.band.allowed()
            total = total + torch.where(
                in_piece if in_piece.ndim == 2 else in_piece.squeeze(1), distance, 0.0
            )
        return total

    @classmethod
    def for_length(cls, trained: int, served: int) -> Remapping:
        """Return the remapping that takes a model from its trained length to a served length."""
        raise NotImplementedError


def _near_and_far(
    q: Tensor, k: Tensor, window: int, far_q: Tensor, far_k: Tensor, slowdown: int = 1
) -> list[Piece]:
    """Return a piece with the true distances below `window`, of queries at q and keys at k, and a
    piece with the positions far_q and far_k for the rest, whose distances are divided by
    `slowdown`.
    """
    return [
        Piece(q, k, Band(q, k, high=window)),
        Piece(far_q, far_k, Band(q, k, low=window), slowdown),
    ]


def _slowdown(trained: int, served: int, window: int) -> int:
    """Return by how much to divide the distances beyond `window`, at least 2, so that all stay
    within two thirds of the trained length, if that is 3 tokens or more.

    The last third is not used, because distances near the trained length are rare in training.
    """
    room = max(1, 2 * trained // 3 - window)
    return max(2, math.ceil((served - window) / room))


@dataclass(frozen=True)
class ReRope(Remapping):
    """ReRoPE: distances stop growing at `window`.

    With `log_n_length`, queries are also multiplied by max(1, log(position + 1) /
    log(log_n_length)); its author uses the trained length. `for_length` takes a quarter of the
    trained length as the window, and the trained length as `log_n_length`.
    """

    name: ClassVar[str] = "rerope"
    window: int = 512
    log_n_length: int | None = None

    def __post_init__(self) -> None:
        integer("window", self.window, low=1)
        if self.log_n_length is not None:
            integer("log_n_length", self.log_n_length, low=2)

    def pieces(self, q_positions: Tensor, k_positions: Tensor) -> list[Piece]:
        # all far keys are at the distance `window`
        far_q, far_k = torch.full_like(q_positions, self.window), torch.zeros_like(k_positions)
        return _near_and_far(q_positions, k_positions, self.window, far_q, far_k)

    def query_factor(self, positions: Tensor) -> Tensor | None:
        return None if self.log_n_length is None else factor(LogN(self.log_n_length), positions)

    @classmethod
    def for_length(cls, trained: int, served: int) -> ReRope:
        return cls(max(1, trained // 4), max(2, trained))


@dataclass(frozen=True)
class LeakyReRope(Remapping):
    """Leaky ReRoPE: beyond `window`, distances grow `slowdown` times more slowly: they are window +
    (distance - window) / slowdown.

    With `log_n_length`, queries are also multiplied by max(1, log(position + 1) /
    log(log_n_length)). `for_length` takes a quarter of the trained length as the window, the
    trained length as `log_n_length`, and a slowdown with which no distance exceeds two thirds of
    the trained length.
    """

    name: ClassVar[str] = "leaky_rerope"
    window: int = 512
    slowdown: int = 16
    log_n_length: int | None = None

    def __post_init__(self) -> None:
        integer("window", self.window, low=1)
        integer("slowdown", self.slowdown, low=1)
        if self.log_n_length is not None:
            integer("log_n_length", self.log_n_length, low=2)

    def pieces(self, q_positions: Tensor, k_positions: Tensor) -> list[Piece]:
        # (i + window (slowdown - 1) - j) / slowdown = window + (i - j - window) / slowdown
        far_q = q_positions + self.window * (self.slowdown - 1)
        return _near_and_far(
            q_positions, k_positions, self.window, far_q, k_positions, self.slowdown
        )

    def query_factor(self, positions: Tensor) -> Tensor | None:
        return None if self.log_n_length is None else factor(LogN(self.log_n_length), positions)

    @classmethod
    def for_length(cls, trained: int, served: int) -> LeakyReRope:
        window = max(1, trained // 4)
        return cls(window, _slowdown(trained, served, window), max(2, trained))


@dataclass(frozen=True)
class SelfExtend(Remapping):
    """Self-Extend: at distances of `window` and more, positions are grouped, `group` neighbouring
    tokens at one position.
    """

    name: ClassVar[str] = "self_extend"
    group: int = 8
    window: int = 1024

    def __post_init__(self) -> None:
        integer("group", self.group, low=1)
        integer("window", self.window, low=1)

    def pieces(self, q_positions: Tensor, k_positions: Tensor) -> list[Piece]:
        # so that the first far distance, about window / group in groups, becomes about `window`
        shift = self.window - self.window // self.group
        far_q, far_k = q_positions // self.group + shift, k_positions // self.group
        return _near_and_far(q_positions, k_positions, self.window, far_q, far_k)

    @classmethod
    def for_length(cls, trained: int, served: int) -> SelfExtend:
        """Return a SelfExtend with a quarter of the trained length as window and the group that
        `served` tokens need.
        """
        window = max(1, trained // 4)
        group = _slowdown(trained, served, window)
        # the window is rounded down to a multiple of the group, so that dividing it by the group
        # leaves no remainder; a window smaller than the group stays as it is, since rounding it up
        # would lead to distances beyond the trained length
        return cls(group, window // group * group or window)


@dataclass(frozen=True)
class DualChunk(Remapping):
    """Dual chunk attention (DCA): keys are at their positions inside chunks of `chunk` - `local`
    tokens.

    For the keys of its own chunk, a query is at its position inside that chunk; for the keys of the
    chunk before, one chunk further, but at most at `chunk`; for the keys of all older chunks, at
    the farthest of these positions. Distances inside a chunk are exact, and so are distances up to
    the smaller of `local` and `chunk` - `local`; none exceeds `chunk`.

    With `length`, the trained one, scores are also multiplied by m^2, m = max(1, 1 + 0.1 log(n /
    length)), where n counts the tokens up to the query. vLLM multiplies q and k by m each, with the
    n of the whole prompt for all of its tokens.
    """

    name: ClassVar[str] = "dca"
    chunk: int = 8192
    local: int = 1024
    length: int | None = None

    def __post_init__(self) -> None:
        integer("chunk", self.chunk, low=2)
        integer("local", self.local, low=1, high=self.chunk - 1)
        if self.length is not None:
            integer("length", self.length, low=1)

    def pieces(self, q_positions: Tensor, k_positions: Tensor) -> list[Piece]:
        """Return three pieces: keys in the query's own chunk, in the chunk before it, and in all
        older chunks.
        """
        # `chunk` is the largest position that a query may have; a chunk has fewer tokens, `size`
        size = self.chunk - self.local
        q_chunk, k_chunk = q_positions // size, k_positions // size
        q, k = q_positions % size, k_positions % size
        before, older = (
            (q + size).clamp(max=self.chunk),
            torch.full_like(q, min(2 * size - 1, self.chunk)),
        )
        # the positions of the queries, and the bounds low <= query chunk - key chunk < high
        pieces = ((q, None, 1), (before, 1, 2), (older, 2, None))
        return [
            Piece(positions, k, Band(q_chunk, k_chunk, low, high))
            for positions, low, high in pieces
        ]

    def query_factor(self, positions: Tensor) -> Tensor | None:
        # m^2 on a query multiplies its scores by m^2
        return (
            None if self.length is None else factor(LogAbove(0.1, self.length), positions).square()
        )

    @classmethod
    def for_length(cls, trained: int, served: int) -> DualChunk:
        """Return a DualChunk whose `chunk` is three quarters of the trained length and whose
        `local` is an eighth of it, whatever the served length is.
        """
        return cls(max(2, 3 * trained // 4), max(1, trained // 8))


#: every remapping by the name that `extend` knows it by
REMAPPINGS: dict[str, type[Remapping]] = {
    each.name: each for each in (ReRope, LeakyReRope, SelfExtend, DualChunk)
}
