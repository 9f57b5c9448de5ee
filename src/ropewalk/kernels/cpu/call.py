"""The arguments of a library call, packed as bytes: pointers, strides of the angles, the two-level
table, and shapes.

The library takes one array of 64-bit words; a function or a field called `words` holds some of
them, as bytes. Everything but the pointers is cached between calls. Nothing that threads share is
ever written to.

The angles come either from rows, cos and sin of each token, or from positions and a two-level
table (levels): cos and sin of the low and of the high bits of a position. What is not used is 0.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.caches import Cache, cached
from ropewalk.kernels.request import COMPUTED_IN_FLOAT32, AnyRequest, Request, token_axes
from ropewalk.spec import RopeSpec
from ropewalk.strategies import LEVEL_BITS
from ropewalk.table import TABLES, Tables, first_rows, keys_have_own_table, magnitude_on, tables

#: the enum values of cpu.c
DTYPES = {dtype: number for number, dtype in enumerate(COMPUTED_IN_FLOAT32)}
LAYOUTS = {"half": 0, "interleaved": 1}

#: pointers to x of up to two tensors, to y of the same, and to positions; the offset
POINTERS = struct.Struct("=6q")
#: cos, sin and their strides (seq, batch, head) in floats; the strides of positions (seq, batch),
#: and their batch size
_ANGLES = struct.Struct("=8q")
#: pointers to low cos, low sin, high cos and high sin; the number of bits of a level; the magnitude
_LEVELS = struct.Struct("=4qqd")
_NO_LEVELS = _LEVELS.pack(0, 0, 0, 0, 0, 1.0)


def row_words(
    cos: int, sin: int, token_stride: int, batch_stride: int = 0, head_stride: int = 0
) -> bytes:
    """Return the packed arguments for rows of cos and sin, given by their pointers and strides (in
    floats; 0 broadcasts): no positions, no levels.
    """
    return _ANGLES.pack(cos, sin, token_stride, batch_stride, head_stride, 0, 0, 0) + _NO_LEVELS


def position_words(positions: Tensor | None) -> bytes:
    """Return the packed arguments (_ANGLES) with which the library computes angles from positions
    [S] or [B, S]; None means offset, offset + 1, ...

    Five words describe given cos and sin; they are 0 here. The others are the token stride and the
    batch stride of the positions, and their batch size. With batch size 1 the batch stride has no
    effect.
    """
    no_table = (0, 0, 0, 0, 0)
    if positions is None:
        return _ANGLES.pack(*no_table, 0, 0, 1)
    batches = positions.shape[0] if positions.ndim == 2 else 1
    return _ANGLES.pack(*no_table, positions.stride(-1), positions.stride(0), batches)


class Levels(NamedTuple):
    """The two-level table of a spec (cos and sin of the low and of the high bits of a position),
    packed for the library.
    """

    words: bytes  # empty if the two-level table and one magnitude do not define the rotation
    for_both: bool  # whether queries and keys have the same angles and magnitude
    tables: Tables  # keeps the memory alive that `words` points to


_LEVELS_OF_SPECS = Cache("cpu levels", entries=1024, points_into=TABLES)


def levels_of(spec: RopeSpec, magnitude_power: int, key: bool) -> Levels:
    """Return the packed two-level table of a spec; its `words` are empty if that table and one
    magnitude do not define the rotation. The caller must keep it alive during the call.

    magnitude_power  1 applies the magnitude, 0 leaves it out, -1 divides by it
    key              True: the magnitude of keys, which may differ from that of queries
    """
    signature = (spec.fingerprint, magnitude_power, key)
    levels = _LEVELS_OF_SPECS.get(signature)
    if levels is not None:
        return levels
    spec_tables, words = tables(spec, torch.device("cpu")), b""
    # one table and one magnitude are not enough for frequencies that depend on the length, for
    # positions that are no integers, and for xPos, whose magnitude grows with the position; some
    # specs have no such table
    if (
        spec_tables.frequencies.growth is None
        and spec_tables.levels is not None
        and not (spec.needs_length or spec.fractional)
    ):
        magnitude = magnitude_on(spec, spec_tables.frequencies.magnitude, key) ** magnitude_power
        words = _LEVELS.pack(
            *(level.data_ptr() for level in spec_tables.levels), LEVEL_BITS, magnitude
        )
    levels = Levels(
        words,
        for_both=not keys_have_own_table(spec, torch.device("cpu")),
        tables=spec_tables,
    )
    return _LEVELS_OF_SPECS.keep(signature, levels)


class Rows(NamedTuple):
    """Cached float32 cos and sin of consecutive positions, packed for the library."""

    words: bytes
    rows: tuple[Tensor, Tensor]  # keeps the memory alive that `words` points to


_ROWS = Cache("cpu rows", entries=2, points_into=TABLES)


def cached_rows(
    spec: RopeSpec, magnitude_power: int, key: bool, offset: int, seq: int
) -> Rows | None:
    """Return packed cos and sin of positions offset ... offset + seq - 1, of keys if `key` is True;
    all layers of a model share them.

    None if no table has them, if the offset is negative, or if the magnitude is not applied as it
    is (magnitude_power != 1).
    """
    signature = (spec.fingerprint, key, offset, seq)
    if magnitude_power != 1 or offset < 0:
        return None
    packed = _ROWS.get(signature)
    if packed is not None:
        return packed
    rows = first_rows(spec, torch.device("cpu"), offset + seq, key)
    if rows is None:
        return None
    stride = rows[0].stride(0)  # in floats, of 4 bytes each
    cos, sin = (table.data_ptr() + 4 * stride * offset for table in rows)
    return _ROWS.keep(signature, Rows(row_words(cos, sin, stride), rows))


def shape_words(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> bytes:
    """Return the packed arguments that depend only on shapes, strides and layouts."""
    x, out = xs[0], outs[0]
    if len(xs) == 1:
        shapes = (x.shape, x.stride(), out.stride())
    else:
        shapes = (x.shape, x.stride(), out.stride(), xs[1].shape, xs[1].stride(), outs[1].stride())
    # a TableRequest for an inverse rotation has its sin negated already
    inverse = type(request) is Request and request.sign < 0
    rotation = (request.layout_in, request.layout_out, inverse, request.start, request.pairs)
    return _shape_words(*rotation, request.seq_dim, x.dtype, *shapes)


@cached("cpu shapes", entries=512)
def _shape_words(
    layout_in: str,
    layout_out: str,
    inverse: bool,
    start: int,
    pairs: int,
    seq_dim: int,
    dtype: torch.dtype,
    *shapes: tuple[int, ...],
) -> bytes:
    """Return the packed arguments, in the order in which cpu.c reads them; `shapes` holds, for each
    tensor, the sizes and strides of x and the strides of its out.
    """
    tensors, ndim = len(shapes) // 3, len(shapes[0])
    axes = (-1 if axis is None else axis for axis in token_axes(ndim, seq_dim))
    words = [
        tensors,
        ndim,
        DTYPES[dtype],
        LAYOUTS[layout_in],
        LAYOUTS[layout_out],
        inverse,
        start,
        pairs,
        *axes,
    ]
    for shape in shapes:
        words += shape
    return struct.pack(f"={len(words)}q", *words)
