"""Rotation by cos and sin tables of any shape that broadcasts against the tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.kernels.rotation.definition import split_pairs
from ropewalk.rotation import rotate_by


def rotate_broadcast(x: Tensor, cos: Tensor, sin: Tensor, layout: str, start: int = 0) -> Tensor:
    """Return x [..., D] with P pairs, from dimension `start` on, rotated by cos and sin [..., P],
    whose leading axes broadcast against those of x. `layout` is "half" or "interleaved".

    The axes from the first to the last along which the tables vary are token axes, those before
    them rows, those after them heads: [B, H, S, D] by [S, P], [B, S, H, D] by [S, 1, P], an image
    [B, height, width, D] by [height, width, P].
    """
    leading = x.shape[:-1]
    # the leading axes of the tables, as many as x has
    sizes = (1,) * (len(leading) + 1 - cos.ndim) + cos.shape[:-1]
    if len(sizes) != len(leading) or any(
        size not in (1, of_x) for size, of_x in zip(sizes, leading, strict=True)
    ):
        raise RopeError(
            "freqs",
            f"must broadcast against the leading axes {list(leading)} of x",
            list(cos.shape),
        )
    varying = [axis for axis, size in enumerate(sizes) if size != 1]
    # the token axes are first ... stop - 1; for a table that does not vary, the last leading axis
    first, stop = (varying[0], varying[-1] + 1) if varying else (len(leading) - 1, len(leading))
    tokens = leading[first:stop]
    # one token axis for x and tables: x becomes [rows, tokens, heads, D], the tables [tokens, P]
    pairs = cos.shape[-1]
    tables = [
        table.reshape(*sizes, pairs).expand(*sizes[:first], *tokens, *sizes[stop:], pairs)
        for table in (cos, sin)
    ]
    cos, sin = (table.reshape(math.prod(tokens), pairs) for table in tables)
    x_4d = x.reshape(
        math.prod(leading[:first]), math.prod(tokens), math.prod(leading[stop:]), x.shape[-1]
    )
    return rotate_by(x_4d, cos, sin, layout=layout, start=start, seq_dim=-3).reshape(x.shape)


def pair_entries(name: str, table: Tensor) -> Tensor:
    """Return one entry for each pair, [..., P], of a table [..., 2P] that has every entry twice in
    succession: [a, a, b, b] gives [a, b]. Raise an error if two of them differ; this is checked
    only on a CPU and outside torch.compile, because it reads the entries.
    """
    if table.shape[-1] % 2:
        raise RopeError(
            name,
            "must have an even last dimension: two equal entries for each pair",
            list(table.shape),
        )
    first, second = split_pairs(table, "interleaved")
    can_check = table.device.type == "cpu" and not torch.compiler.is_compiling()
    if can_check and not bool((first == second).all()):
        raise RopeError(
            name,
            "must repeat each entry for the neighbouring dimension, otherwise it is not a rotation",
            "unequal",
        )
    return first
