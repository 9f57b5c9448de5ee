"""The rotation in plain torch, for any device. It uses no fused multiply-add, so the result does
not depend on strides.

A request says what one call rotates: `start` and `pairs`, the pairs of a head; the layouts in and
out; `seq_dim`, the axis of the tokens; and `rows`, cos and sin of the tokens, which may differ for
attention keys. `align` makes cos and sin broadcast against x.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.kernels.request import AnyRequest, align, table_dtype
from ropewalk.kernels.rotation import definition


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """Return None: this backend can rotate every tensor."""
    return None


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each rotated x into its out, which may be x itself."""
    tables: dict[tuple[torch.dtype, bool], tuple[Tensor, Tensor]] = {}
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        # q and k share a table unless only one is float64 or keys have rows of their own
        dtype_and_key = (
            table_dtype(x),
            request.is_key(index) and request.keys_have_own_rows(x.device),
        )
        if dtype_and_key not in tables:
            tables[dtype_and_key] = request.rows(x.shape[request.seq_dim], x.device, *dtype_and_key)
        cos, sin = (align(table, x, request.seq_dim) for table in tables[dtype_and_key])
        _rotate_into(x, out, cos, sin, request)


def _rotate_into(x: Tensor, out: Tensor, cos: Tensor, sin: Tensor, request: AnyRequest) -> None:
    """Write the rotated x into out, as `definition.rotate` does with more temporaries, and copy the
    dims that do not rotate. cos and sin broadcast against the pairs of x.
    """
    stop = request.start + 2 * request.pairs
    a, b = definition.split_pairs(x[..., request.start : stop], request.layout_in)
    # both members are computed before either is written, because out may be x
    first, second = (a * cos).sub_(b * sin), (a * sin).add_(b * cos)
    out_a, out_b = definition.split_pairs(out[..., request.start : stop], request.layout_out)
    out_a.copy_(first)
    out_b.copy_(second)
    # in place, the dims that do not rotate are where they belong
    if out is not x and 2 * request.pairs < x.shape[-1]:
        out[..., : request.start].copy_(x[..., : request.start])
        out[..., stop:].copy_(x[..., stop:])


def differentiable(x: Tensor, cos: Tensor, sin: Tensor, request: AnyRequest) -> Tensor:
    """Return the rotated x, by autograd operations: cos and sin, which broadcast against the pairs
    of x, may require gradients.
    """
    width = 2 * request.pairs
    before, rotary_slice, after = x.split(
        [request.start, width, x.shape[-1] - request.start - width], dim=-1
    )
    rotated = definition.rotate(rotary_slice, cos, sin, request.layout_in, request.layout_out)
    return torch.cat((before, rotated, after), dim=-1)
