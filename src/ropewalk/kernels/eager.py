"""Plain torch on any device: separate products and sums, so the result does not depend on strides or on fusing."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.kernels import reference
from ropewalk.kernels.turn import AnyTurn, align, table_dtype


def why_not(x: Tensor, turn: AnyTurn) -> str | None:
    """Runs everywhere."""
    return None


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], turn: AnyTurn) -> None:
    """Write each turned x into its out, which may be x itself."""
    made: dict[tuple[torch.dtype, bool], tuple[Tensor, Tensor]] = {}
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        kind = (table_dtype(x), (turn.key or index == 1) and turn.sides_differ(x.device))
        if kind not in made:
            made[kind] = turn.rows(x.shape[turn.seq_dim], x.device, *kind)
        cos, sin = (align(table, x, turn.seq_dim) for table in made[kind])
        turn_into(x, out, cos, sin, turn)


def turn_into(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, turn: AnyTurn) -> None:
    """The reference's two lines with fewer temporaries."""
    stop = turn.start + 2 * turn.pairs
    a, b = reference.split_pairs(x[..., turn.start : stop], turn.layout_in)
    first, second = (a * cos).sub_(b * sin), (a * sin).add_(b * cos)
    out_a, out_b = reference.split_pairs(out[..., turn.start : stop], turn.layout_out)
    out_a.copy_(first)
    out_b.copy_(second)
    if out is not x and 2 * turn.pairs < x.shape[-1]:
        out[..., : turn.start].copy_(x[..., : turn.start])
        out[..., stop:].copy_(x[..., stop:])


def differentiable(x: Tensor, cos: Tensor, sin: Tensor, turn: AnyTurn) -> Tensor:
    """The same by ordinary autograd, for tables that are trained."""
    stop = turn.start + 2 * turn.pairs
    turned = reference.turn(x[..., turn.start : stop], cos, sin, turn.layout_in, turn.layout_out)
    return torch.cat((x[..., : turn.start], turned, x[..., stop:]), dim=-1)
