"""Calls of attention over a band, one for each piece of a remapping."""

import torch

from ropewalk.attention.backends import Call
from ropewalk.attention.masks import Visibility


def calls(
    remapping, batch, heads, k_heads, tokens, head_dim, width, dtype=torch.float32
) -> list[Call]:
    torch.manual_seed(0)
    positions = torch.arange(tokens).expand(batch, -1)
    q, k = (
        torch.randn(batch, heads, tokens, head_dim, dtype=dtype),
        torch.randn(batch, k_heads, tokens, head_dim, dtype=dtype),
    )
    v = torch.randn(batch, k_heads, tokens, width, dtype=dtype)
    return [
        Call(q, k, v, 0.3, Visibility(True, band=piece.band))
        for piece in remapping.pieces(positions, positions)
    ]
