"""Plain torch on any device: separate products and sums, so the result does not depend on strides or on fused multiply-adds."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.kernels import reference
from ropewalk.kernels.request import AnyRequest, align, table_dtype


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """Return None: it rotates every tensor."""
    return None


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each rotated x into its out, which may be x itself."""
    tables: dict[tuple[torch.dtype, bool], tuple[Tensor, Tensor]] = {}
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        which = (table_dtype(x), request.is_key(index) and request.sides_differ(x.device))
        if which not in tables:
            tables[which] = request.rows(x.shape[request.seq_dim], x.device, *which)
        cos, sin = (align(table, x, request.seq_dim) for table in tables[which])
        _rotate_into(x, out, cos, sin, request)


def _rotate_into(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, request: AnyRequest) -> None:
    """Write the rotated x into out: `reference.rotate` with fewer temporaries."""
    stop = request.start + 2 * request.pairs
    a, b = reference.split_pairs(x[..., request.start : stop], request.layout_in)
    first, second = (a * cos).sub_(b * sin), (a * sin).add_(b * cos)
    out_a, out_b = reference.split_pairs(out[..., request.start : stop], request.layout_out)
    out_a.copy_(first)
    out_b.copy_(second)
    if out is not x and 2 * request.pairs < x.shape[-1]:
        out[..., : request.start].copy_(x[..., : request.start])
        out[..., stop:].copy_(x[..., stop:])


def differentiable(x: Tensor, cos: Tensor, sin: Tensor, request: AnyRequest) -> Tensor:
    """Return the rotated x by ordinary autograd operations, for tables that require gradients."""
    stop = request.start + 2 * request.pairs
    rotated = reference.rotate(x[..., request.start : stop], cos, sin, request.layout_in, request.layout_out)
    return torch.cat((x[..., : request.start], rotated, x[..., stop:]), dim=-1)
