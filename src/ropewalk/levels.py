"""Exact cos and sin for array libraries without 64-bit numbers: tables of the digits of a position.

A position of 32 bits is a sum of digits, each times a power of two. A table holds cos and sin of
every value of one digit, computed from its exact phase, and angle addition combines the digits: a
few float32 products, whatever the position is. The functions take the library's module as `xp`:
`rotate` and `rotated` take `jax.numpy` or `mlx.core`, the others also `torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ropewalk.caches import cached
from ropewalk.errors import RopeError, integer
from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin as exact_cos_sin
from ropewalk.table import magnitude_on

#: bits of the digits, the lowest first; the highest digit has the sign
DIGITS = (11, 11, 10)

#: cos and sin of the values of one digit, [2^bits, 2, pairs]
Level = np.ndarray


def check_spec(spec: RopeSpec, length: int | None) -> int | None:
    """Refuse specs without tables of digits; return the checked length if the scaling depends on
    it, else None.
    """
    if spec.learned or spec.fractional:
        raise RopeError(
            "spec",
            "must have fixed frequencies and integer positions",
            spec.scaling if spec.learned else spec.axes,
        )
    if spec.per_head:
        raise RopeError(
            "axes", "must be the same for all heads: a table of digits has no heads", spec.axes
        )
    if spec.precision == "hf":
        raise RopeError(
            "precision",
            'must be "exact" or "hf_frequencies": "hf" rounds angles in float32',
            spec.precision,
        )
    if spec.has_growth:
        raise RopeError(
            "scaling", "must have the same magnitude at every position, unlike xPos", spec.scaling
        )
    if not spec.needs_length:
        return None
    if length is None:
        raise RopeError(
            "length",
            f"must be given, because {spec.scaling.name} depends on the length of the sequence",
            None,
        )
    return integer("length", length, low=1)


@cached("tables of digits", entries=64)
def levels(
    spec: RopeSpec,
    length: int | None,
    key: bool,
    bits: tuple[int, ...] = DIGITS,
    dtype: str = "float32",
) -> tuple[Level, ...]:
    """Return the table of each digit of a position, [2^bits, 2, pairs]: cos and sin of every value
    that the digit can have.

    key   True for the tables of keys, where queries and keys have different magnitudes
    bits  the number of bits of each digit, the lowest digit first; the table of the last one
          includes the magnitude
    """
    tables, shift = [], 0
    for index, width in enumerate(bits):
        digits = torch.arange(1 << width, device="cpu")
        is_last = index == len(bits) - 1
        if is_last:  # two's complement: the upper half of its values are negative
            digits = torch.where(digits < 1 << (width - 1), digits, digits - (1 << width))
        positions = digits << shift
        if spec.num_axes > 1:
            positions = positions.expand(spec.num_axes, 1, -1)  # the same on every axis
        options = {
            "length": length,
            "dtype": torch.float64,
            "key": key,
            "magnitude_power": int(is_last),
            "strategy": "none",
        }
        cos, sin = (
            each.reshape(1 << width, spec.pairs)
            for each in exact_cos_sin(spec, positions, **options)
        )
        tables.append(torch.stack((cos, sin), dim=1).numpy().astype(dtype))
        shift += width
    return tuple(tables)


def magnitude_of(spec: RopeSpec, key: bool) -> float:
    """Return the magnitude in the tables of queries, or of keys."""
    return float(magnitude_on(spec, spec.magnitude(), key))


def cos_sin(
    xp: Any, spec: RopeSpec, positions: Any, length: int | None, key: bool
) -> tuple[Any, Any]:
    """Return float32 cos and sin [..., S, pairs] of positions [..., S], or of [axes, ..., S] with
    an axis map.
    """
    parts, shift = [], 0
    # without a magnitude on q alone, keys have the table of queries, which a compiler then computes
    # once
    for table in levels(spec, length, key and spec.magnitude_on == "q"):
        parts.append(rows_at(xp, array(xp, table), (positions >> shift) & (len(table) - 1), spec))
        shift += len(table).bit_length() - 1  # a table of 2^n rows covers n bits of a position
    return cos_sin_of_sum(parts)


def cos_sin_of_sum(parts: list[Any]) -> tuple[Any, Any]:
    """Return cos and sin of the sum of several angles; each part holds cos and sin of one, [..., 2,
    pairs].
    """
    cos, sin = parts[0][..., 0, :], parts[0][..., 1, :]
    for part in parts[1:]:
        other_cos, other_sin = part[..., 0, :], part[..., 1, :]
        cos, sin = cos * other_cos - sin * other_sin, sin * other_cos + cos * other_sin
    return cos, sin


def rows_at(xp: Any, rows: Any, digits: Any, spec: RopeSpec) -> Any:
    """Return the rows of a table at these digits, [..., S, 2, pairs]; with several axes, `digits`
    is [axes, ..., S].

    Each pair is taken from the row of its own axis: the rows of every axis are added, masked to the
    pairs of that axis.
    """
    if spec.num_axes == 1:
        return rows[digits]
    total = None
    for axis in range(spec.num_axes):
        mask = np.array(
            [axis_of_pair == axis for axis_of_pair in spec.axis_of_pair], dtype=np.float32
        )
        part = rows[digits[axis]] * array(xp, mask)
        total = part if total is None else total + part
    return total


def array(xp: Any, values: Any) -> Any:
    """Return a NumPy array, or whatever else the library can convert, as an array of the library."""
    if (
        xp is torch
    ):  # under torch.export this gives a constant; torch.tensor would give an operation in place
        return torch.from_numpy(values)
    return xp.asarray(values) if hasattr(xp, "asarray") else xp.array(values)


def rotated(xp: Any, x: Any, cos: Any, sin: Any, spec: RopeSpec) -> Any:
    """Return x [..., S, H, D] rotated by cos and sin [..., S, pairs]; computed in float32 and
    rounded once.
    """
    start, width = spec.rotary_start, 2 * spec.pairs
    cos, sin = cos[..., None, :], sin[..., None, :]  # the same for all heads
    rotary_slice = x[..., start : start + width].astype(xp.float32)
    if spec.layout == "half":
        a, b = rotary_slice[..., : spec.pairs], rotary_slice[..., spec.pairs :]
    else:
        a, b = rotary_slice[..., 0::2], rotary_slice[..., 1::2]
    first, second = (a * cos - b * sin).astype(x.dtype), (b * cos + a * sin).astype(x.dtype)
    if spec.output_layout == "half":
        joined = xp.concatenate([first, second], axis=-1)
    else:
        joined = xp.stack([first, second], axis=-1).reshape(rotary_slice.shape)
    if width == spec.head_dim:
        return joined
    return xp.concatenate([x[..., :start], joined, x[..., start + width :]], axis=-1)


def rotate(
    xp: Any,
    q: Any,
    k: Any,
    positions: Any,
    spec: RopeSpec,
    length: int | None,
    barrier: Callable[[tuple[Any, Any]], tuple[Any, Any]] = lambda tables: tables,
) -> Any:
    """Return q and k [..., S, H, D] rotated by their tokens' angles; q alone if k is None.

    xp       the array library's module: jax.numpy or mlx.core
    barrier  is applied to cos and sin before they are used; it may keep a compiler from computing
             them again for each head
    """
    length = check_spec(spec, length)
    if positions is None:
        positions = xp.arange(q.shape[-3], dtype=xp.int32)
        if spec.num_axes > 1:
            positions = xp.broadcast_to(positions, (spec.num_axes, *positions.shape))
    positions = array(xp, positions)
    if not xp.issubdtype(positions.dtype, xp.integer):
        raise RopeError("positions", "must be integers", str(positions.dtype))
    check_shapes(q, k, positions, spec)
    positions = positions.astype(xp.int32)
    out = []
    for x, key in ((q, False), (k, True)):
        if x is not None:
            cos, sin = barrier(cos_sin(xp, spec, positions, length, key))
            out.append(rotated(xp, x, cos, sin, spec))
    return tuple(out) if k is not None else out[0]


def check_shapes(q: Any, k: Any, positions: Any, spec: RopeSpec) -> None:
    """Refuse tensors that are not [..., S, H, D], and positions that are not one for each token."""
    for name, x in {"q": q, "k": k}.items():
        if x is None:
            continue
        if x.ndim < 3 or x.shape[-1] != spec.head_dim:
            raise RopeError(name, f"must be [..., tokens, heads, {spec.head_dim}]", tuple(x.shape))
        if x.shape[:-2] != q.shape[:-2]:
            raise RopeError(
                name, f"must have the batch and tokens of q, {tuple(q.shape[:-2])}", tuple(x.shape)
            )
    tokens = tuple(q.shape[:-2])
    shape = tuple(positions.shape)
    if spec.num_axes > 1:
        if not shape or shape[0] != spec.num_axes:
            raise RopeError(
                "positions", f"must be [{spec.num_axes} axes, ...] for this spec", shape
            )
        shape = shape[1:]
    if not shape or len(shape) > len(tokens) or tokens[-len(shape) :] != shape:
        raise RopeError(
            "positions",
            f"must be [tokens] or [batch, tokens] of q, {tokens}",
            tuple(positions.shape),
        )
