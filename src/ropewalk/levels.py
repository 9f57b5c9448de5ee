"""Exact cos and sin for array libraries: tables of the digits of a position.

A position of 32 or 64 bits is a sum of digits, each times a power of two. A table holds cos and sin
of every value of one digit, computed from its exact phase, and angle addition combines the digits:
a few float32 products, whatever the position is. The functions take the library's module as `xp`:
`jax.numpy` or `mlx.core`; `array` and `rows_at` also take `torch`. NumPy computes the tables; torch
is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropewalk.caches import cached
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies.formulas import FloatNumbers
from ropewalk.phase import phase_steps
from ropewalk.spec import RopeSpec


@dataclass(frozen=True)
class Digits:
    """The digits of a position: how many bits each has, the lowest digit first, and whether the
    highest digit is signed.
    """

    bits: tuple[int, ...]
    signed: bool = True


#: the bits of each digit of a 32-bit and of a 64-bit position
DIGITS_32, DIGITS_64 = (11, 11, 10), (11, 11, 11, 11, 10, 10)

#: the table of one digit: cos and sin of each of its values, [2^bits, 2, pairs]
Level = np.ndarray


def check_spec(spec: RopeSpec, length: int | None) -> int | None:
    """Raise an error if tables of digits cannot give the cos and sin of a spec; return the checked
    length if the scaling depends on the length, else None.
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


@dataclass(frozen=True)
class Float32Numbers(FloatNumbers):
    """The operations of formulas over NumPy in float32, in the order in which transformers runs
    them; lengths are plain integers. `frequencies.decimals.DecimalNumbers` says what each one does.
    """

    def vector(self, values: Sequence[float]) -> np.ndarray:
        return np.array(values, dtype=np.float32)

    def multiples(self, step: int, count: int) -> np.ndarray:
        return np.arange(0, step * count, step).astype(np.float32)

    def where(self, condition: Any, a: Any, b: Any) -> np.ndarray:
        return np.where(condition, a, b).astype(np.float32)

    def clamp(self, values: np.ndarray, low: float, high: float) -> np.ndarray:
        return values.clip(low, high)

    def exp(self, values: np.ndarray) -> np.ndarray:
        return np.exp(values)

    def sin(self, values: np.ndarray) -> np.ndarray:
        return np.sin(values)

    def real(self, length: int) -> float:
        return float(length)

    def at_least(self, value: float, low: float) -> float:
        return max(value, low)

    def exceeds(self, length: int, limit: int) -> bool:
        return length > limit

    def per_row(self, value: Any) -> Any:
        return value


def float32_radians(spec: RopeSpec, length: int | None = None) -> list[float]:
    """Return the float32 frequency of each pair, by the operations of transformers in their order,
    so that each step rounds as there. NumPy's float32 power may differ from torch's in the last
    bit.

    A ladder is a series of frequencies theta^(-2i/dim), which a scaling may change: one for all
    pairs, or one for each axis. `length` is that of the sequence; None: the trained length.
    """
    ladders = []
    for scaling, dim in spec.scaled_ladders():
        found = scaling._radians(dim, spec.theta, length, Float32Numbers())
        ladders.append([float(value) for value in found])
    return spec.in_pair_order(ladders)


def steps_of(spec: RopeSpec, length: int | None) -> tuple[int, ...]:
    """Return the phase step of each pair along its own axis: its frequency as a 64-bit fraction of
    a turn. `length` is that of the sequence, or None if the scaling does not depend on it.
    """
    if spec.precision == "exact":
        return tuple(phase_steps(spec.ladder_frequencies(length).digits))
    # the other precision with exact angles, "hf_frequencies"
    return tuple(phase_steps(float32_radians(spec, length)))


@cached("tables of digits", entries=64)
def levels(
    steps: tuple[int, ...], magnitude: float, digits: Digits, dtype: str = "float32"
) -> tuple[Level, ...]:
    """Return the table of each digit of a position, [2^bits, 2, pairs]: cos and sin of every value
    that the digit can have.

    steps      the phase step of each pair
    magnitude  multiplies the table of the last digit, and so the product of all
    digits     how the position is divided into digits
    dtype      of the tables, to which they are rounded from float64
    """
    tables, shift = [], 0
    pair_steps = np.array(steps, dtype=np.uint64)
    for index, width in enumerate(digits.bits):
        values = np.arange(1 << width, dtype=np.int64)
        is_last = index == len(digits.bits) - 1
        if is_last and digits.signed:  # two's complement: the upper half of its values are negative
            values = np.where(values < 1 << (width - 1), values, values - (1 << width))
        # products of unsigned numbers wrap modulo 2^64, which is the range reduction
        positions = (values << shift).astype(np.uint64)
        phases = (positions[:, None] * pair_steps).astype(np.int64)
        angles = phases.astype(np.float64) * 2.0**-64 * (2 * np.pi)
        cos_and_sin = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        tables.append((cos_and_sin * magnitude if is_last else cos_and_sin).astype(dtype))
        shift += width
    return tuple(tables)


def magnitude_of(spec: RopeSpec, length: int | None, key: bool) -> float:
    """Return the magnitude in the tables of queries, or in those of keys if `key`; `length` is that
    of the sequence, or None if the scaling does not depend on it.
    """
    magnitude = spec.magnitude(length)
    if spec.magnitude_on == "qk":
        return magnitude
    return magnitude**2 if spec.magnitude_on == "q" and not key else 1.0


def cos_sin(
    xp: Any, spec: RopeSpec, positions: Any, length: int | None, key: bool
) -> tuple[Any, Any]:
    """Return float32 cos and sin [..., S, pairs] of positions [..., S], or of [axes, ..., S] with
    an axis map.

    positions  an array that `integers` returned
    length     of the sequence, as `check_spec` returned it
    key        return the tables of keys, whose magnitude may differ from that of queries
    """
    # dtypes are told apart by their names, because each library has dtype objects of its own
    unsigned = "uint" in str(positions.dtype)
    bits = DIGITS_64 if "64" in str(positions.dtype) else DIGITS_32
    magnitude = magnitude_of(spec, length, key)
    parts, shift = [], 0
    for table in levels(steps_of(spec, length), magnitude, Digits(bits, signed=not unsigned)):
        parts.append(rows_at(xp, array(xp, table), (positions >> shift) & (len(table) - 1), spec))
        shift += len(table).bit_length() - 1  # a table of 2^n rows covers n bits of a position
    return cos_sin_of_sum(parts)


def integers(xp: Any, positions: Any) -> Any:
    """Return positions as an array of integers with 32 or 64 bits, narrower ones as int32; refuse
    values that are no integers, and integers that the library would wrap.
    """
    given = np.asarray(positions) if isinstance(positions, list | tuple | range) else positions
    converted = array(xp, given)
    if not xp.issubdtype(converted.dtype, xp.integer):
        raise RopeError("positions", "must be integers", str(converted.dtype))
    # JAX without its 64-bit numbers wraps integers of 64 bits to 32. Only NumPy arrays, lists and
    # ranges are checked: an array of JAX itself was made with 32 bits before this call
    if isinstance(given, np.ndarray) and given.size and "64" not in str(converted.dtype):
        limits = np.iinfo(np.uint32 if "uint32" in str(converted.dtype) else np.int32)
        least, most = int(given.min()), int(given.max())
        if least < limits.min or most > limits.max:
            rule = (
                "must fit in 32 bits, because the library has no 64-bit integers here; with JAX, "
                'call jax.config.update("jax_enable_x64", True)'
            )
            raise RopeError("positions", rule, most if most > limits.max else least)
    wide = any(name in str(converted.dtype) for name in ("32", "64"))
    return converted if wide else converted.astype(xp.int32)


def cos_sin_of_sum(parts: list[Any]) -> tuple[Any, Any]:
    """Return cos and sin of the sum of several angles; each part holds cos and sin of one, [..., 2,
    pairs].
    """
    cos, sin = parts[0][..., 0, :], parts[0][..., 1, :]
    for part in parts[1:]:
        other_cos, other_sin = part[..., 0, :], part[..., 1, :]
        cos, sin = cos * other_cos - sin * other_sin, sin * other_cos + cos * other_sin
    return cos, sin


def rows_at(xp: Any, table: Any, digits: Any, spec: RopeSpec) -> Any:
    """Return cos and sin [..., S, 2, pairs] from the `table` [2^bits, 2, pairs] of one digit, at
    the values `digits` [..., S] of that digit; [axes, ..., S] with several axes.

    Each pair comes from the row of its own axis: the row of each axis is set to 0 in the pairs of
    other axes, and the rows are added.
    """
    if spec.num_axes == 1:
        return table[digits]
    total = None
    for axis in range(spec.num_axes):
        mask = np.array(
            [axis_of_pair == axis for axis_of_pair in spec.axis_of_pair], dtype=np.float32
        )
        part = table[digits[axis]] * array(xp, mask)
        total = part if total is None else total + part
    return total


def array(xp: Any, values: Any) -> Any:
    """Return a NumPy array, or whatever else the library can convert, as an array of the library."""
    if xp.__name__ == "torch":
        # under torch.export this gives a constant; torch.tensor would give an operation in place
        return xp.from_numpy(values)
    return xp.asarray(values) if hasattr(xp, "asarray") else xp.array(values)


def rotated(xp: Any, x: Any, cos: Any, sin: Any, spec: RopeSpec) -> Any:
    """Return x [..., S, H, D] rotated by cos and sin [..., S, pairs]; computed in float32 and
    rounded once, to the dtype of x.
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

    xp         the array library's module: jax.numpy or mlx.core
    positions  integers, see `check_shapes`; None: 0, 1, 2, ... on every axis
    length     that of the sequences; needed only by length-dependent scalings
    barrier    is applied to cos and sin before they are used; it may keep a compiler from computing
               them again for each head
    """
    length = check_spec(spec, length)
    if positions is None:
        positions = xp.arange(q.shape[-3], dtype=xp.int32)
        if spec.num_axes > 1:
            positions = xp.broadcast_to(positions, (spec.num_axes, *positions.shape))
    positions = integers(xp, positions)
    check_shapes(q, k, positions, spec)
    for name, x in {"q": q, "k": k}.items():
        if x is not None and not xp.issubdtype(x.dtype, xp.floating):
            raise RopeError(name, "must be floating point", str(x.dtype))
    out = []
    for x, key in ((q, False), (k, True)):
        if x is not None:
            cos, sin = barrier(cos_sin(xp, spec, positions, length, key))
            out.append(rotated(xp, x, cos, sin, spec))
    return tuple(out) if k is not None else out[0]


def check_shapes(q: Any, k: Any, positions: Any, spec: RopeSpec) -> None:
    """Refuse tensors that are not [..., S, H, D], and positions that do not have the shape [S] or
    [..., S] of the tokens, after a first dimension for the axes if the spec has several.
    """
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
    # from here on `shape` has no axes; it must be the last of the tokens' dimensions
    if not shape or len(shape) > len(tokens) or tokens[-len(shape) :] != shape:
        raise RopeError(
            "positions",
            f"must be [tokens] or [batch, tokens] of q, {tokens}",
            tuple(positions.shape),
        )
