"""A call of the library as bytes: pointers, how to read the angles, the two-level table of the spec, and the shapes.

Everything but the pointers is cached between calls. Threads share nothing that is ever written to.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.caches import Cache, cached
from ropewalk.kernels.request import FLOAT32_DTYPES, AnyRequest, Request, token_axes
from ropewalk.spec import RopeSpec
from ropewalk.table import LEVEL_BITS, TABLES, Tables, first_rows, magnitude_on, sides_differ, tables

#: the numbers of cpu.c
DTYPES = {dtype: number for number, dtype in enumerate(FLOAT32_DTYPES)}
LAYOUTS = {"half": 0, "interleaved": 1}

#: x and y of up to two tensors, positions, offset
POINTERS = struct.Struct("=6q")
#: cos, sin and their strides (seq, batch, head) in floats; the strides of positions (seq, batch), and their batch size
ANGLES = struct.Struct("=8q")
#: low cos, low sin, high cos, high sin; the bits of a level; the magnitude
_LEVELS = struct.Struct("=4qqd")
NO_LEVELS = _LEVELS.pack(0, 0, 0, 0, 0, 1.0)


def position_words(positions: Tensor | None) -> bytes:
    """Return the words for angles that the library computes from these positions, or from counted ones."""
    if positions is None:
        return ANGLES.pack(0, 0, 0, 0, 0, 0, 0, 1)
    batches = positions.shape[0] if positions.ndim == 2 else 1
    return ANGLES.pack(0, 0, 0, 0, 0, positions.stride(-1), positions.stride(0), batches)


class Levels(NamedTuple):
    """How the library reads the two-level table of a spec."""

    words: bytes  # empty if the levels and a magnitude do not define all angles
    for_both: bool  # queries and keys have the same angles and magnitude
    tables: Tables  # keeps the memory alive that `words` points to


_LEVELS_OF_SPECS = Cache("cpu levels", entries=1024, holds=TABLES)


def levels_of(spec: RopeSpec, magnitude_power: int, key: bool) -> Levels:
    """Return the levels of a spec; the caller must keep them while the library reads them."""
    which = (spec.fingerprint, magnitude_power, key)
    levels = _LEVELS_OF_SPECS.get(which)
    if levels is not None:
        return levels
    kept, words = tables(spec, torch.device("cpu")), b""
    if kept.frequencies.growth is None and kept.levels is not None and not (spec.needs_length or spec.fractional):
        magnitude = magnitude_on(spec, kept.frequencies.magnitude, key) ** magnitude_power
        words = _LEVELS.pack(*(level.data_ptr() for level in kept.levels), LEVEL_BITS, magnitude)
    levels = Levels(words, not sides_differ(spec, torch.device("cpu")), kept)
    return _LEVELS_OF_SPECS.keep(which, levels)


class Rows(NamedTuple):
    """How the library reads the float32 rows of counted positions."""

    words: bytes
    rows: tuple[Tensor, Tensor]  # keeps the memory alive that `words` points to


_ROWS = Cache("cpu rows", entries=2, holds=TABLES)


def kept_rows(spec: RopeSpec, magnitude_power: int, key: bool, offset: int, seq: int) -> Rows | None:
    """Return the rows of offset ... offset + seq - 1, which every layer of a prefill reads; None if the table has none."""
    which = (spec.fingerprint, key, offset, seq)
    if magnitude_power != 1 or offset < 0:
        return None
    kept = _ROWS.get(which)
    if kept is not None:
        return kept
    rows = first_rows(spec, torch.device("cpu"), offset + seq, key)
    if rows is None:
        return None
    stride = rows[0].stride(0)  # in floats
    cos, sin = (table.data_ptr() + 4 * stride * offset for table in rows)
    return _ROWS.keep(which, Rows(ANGLES.pack(cos, sin, stride, 0, 0, 0, 0, 0) + NO_LEVELS, rows))


def shape_words(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> bytes:
    """Return the words that depend only on shapes, strides and layouts."""
    x, out = xs[0], outs[0]
    if len(xs) == 1:
        shapes = (x.shape, x.stride(), out.stride())
    else:
        shapes = (x.shape, x.stride(), out.stride(), xs[1].shape, xs[1].stride(), outs[1].stride())
    back = type(request) is Request and request.sign < 0
    pairs = (request.layout_in, request.layout_out, back, request.start, request.pairs)
    return _shape_words(*pairs, request.seq_dim, x.dtype, *shapes)


@cached("cpu shapes", entries=512)
def _shape_words(
    layout_in: str,
    layout_out: str,
    back: bool,
    start: int,
    pairs: int,
    seq_dim: int,
    dtype: torch.dtype,
    *shapes: tuple[int, ...],
) -> bytes:
    """`shapes` are the sizes, the strides of x and the strides of y of every tensor."""
    ndim = len(shapes[0])
    axes = (-1 if axis is None else axis for axis in token_axes(ndim, seq_dim))
    words = (len(shapes) // 3, ndim, DTYPES[dtype], LAYOUTS[layout_in], LAYOUTS[layout_out], back, start, pairs, *axes)
    return struct.pack(f"={11 + len(shapes) * ndim}q", *words, *(n for shape in shapes for n in shape))
