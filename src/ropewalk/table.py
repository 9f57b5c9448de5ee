"""Tables: cos and sin of a spec's positions, exact at any integer position unless precision "hf"
rounds the angles.

Positions below 2^20 may use a two-level table: cos and sin of the low and the high 10 bits, 1024
float64 rows each, combined by angle addition. Other positions are computed from their phase. The
first rows may also be kept in float32. STRATEGIES says which of these are kept. A row depends on
the spec, its position and the strategy, never on earlier calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.caches import Cache
from ropewalk.spec import RopeSpec
from ropewalk.strategies import (
    LEVEL,
    LEVEL_BITS,
    TWO_LEVEL_REACH,
    keeps_levels,
    keeps_rows,
    most_rows,
    rows_for,
)
from ropewalk.tensor_frequencies import Length, TensorFrequencies, fixed_frequencies, ladder
from ropewalk.tensor_phase import cos_sin_of_phase, cos_sin_of_turns, phase_steps

#: rows that are computed at a time, so that their float64 values take little memory
ROWS_AT_ONCE = 1 << 14
#: all tables and rows, by spec and device
TABLES = Cache("tables", entries=4096, bytes=256 << 20)

#: cos and sin of the low 10 bits, cos and sin of the high 10 bits of a position; float64 [1024,
#: pairs] each
Levels = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Tables:
    """The frequencies, phase steps (frequencies as 64-bit fractions of a turn) and two-level table
    of one spec on one device; nothing in them is ever written to.
    """

    frequencies: TensorFrequencies
    steps: Tensor  # int64 [pairs], or [heads, pairs, axes]
    axis_of_pair: Tensor | None  # int64 [pairs]; None: there is one axis
    levels: Levels | None  # None: there is no two-level table

    @property
    def num_bytes(self) -> int:
        """How many bytes the phase steps and the two-level table take."""
        return sum(t.numel() * t.element_size() for t in (self.steps, *(self.levels or ())))


def _cached_or_built(
    key: Hashable,
    build: Callable[[], Any],
    size: Callable[[Any], int],
    fits: Callable[[Any], bool] = lambda value: True,
) -> Any:
    """Return the cached value of `key` if `fits` accepts it; otherwise call `build`, cache the new
    value as `size(value)` bytes, and return it. Two threads may build the same value.
    """
    value = TABLES.newest(key)
    if value is not None and fits(value):
        return value
    # tensors made under inference_mode could not be saved for a later backward
    with torch.inference_mode(False), torch.no_grad():
        value = build()
    return TABLES.keep(key, value, size(value))


def tables(spec: RopeSpec, device: torch.device, strategy: str = "auto") -> Tables:
    """Return the cached tables of a spec; for a length-dependent scaling, those of the trained
    length. `strategy`, a name of `strategies.STRATEGIES`, says whether they have a two-level table.
    """
    levels = strategy in ("auto", "two-level") and keeps_levels(spec)
    key = (spec.fingerprint, device, "levels" if levels else "phase")
    return _cached_or_built(
        key, lambda: _build(spec, device, levels), lambda cached: cached.num_bytes
    )


def _build(spec: RopeSpec, device: torch.device, keep_levels: bool) -> Tables:
    """Return new tables of a spec on a device, with the two-level table if `keep_levels`; see
    `Tables`.
    """
    frequencies, steps = fixed_frequencies(spec, device)
    axis = None if spec.num_axes == 1 else torch.tensor(spec.axis_of_pair, device=device)
    levels = None
    if keep_levels:
        digits = torch.arange(LEVEL, device=device).unsqueeze(-1)
        levels = (*cos_sin_of_phase(steps, digits), *cos_sin_of_phase(steps, digits << LEVEL_BITS))
    return Tables(frequencies, steps, axis, levels)


def tables_at(
    spec: RopeSpec, device: torch.device, length: Length, strategy: str = "auto"
) -> Tables:
    """Return the tables of one call: the cached ones, or new ones where the scaling of `spec`
    depends on the length.

    length    of the sequences, one for all or a tensor [B]; None: the trained length
    strategy  which tables are kept, a name of `strategies.STRATEGIES`
    """
    cached = tables(spec, device, strategy)
    if not spec.needs_length or length is None:
        return cached
    # a fill on the device, not a copy from the host
    length = length if isinstance(length, Tensor) else torch.full((), length, device=device)
    frequencies = ladder(spec, length)
    return Tables(frequencies, phase_steps(frequencies.radians), cached.axis_of_pair, levels=None)


def cos_sin(
    spec: RopeSpec,
    positions: Tensor,
    *,
    length: Length = None,
    dtype: torch.dtype = torch.float32,
    magnitude_power: int = 1,
    key: bool = False,
    strategy: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return cos and sin [..., S, pairs] of positions [..., S], as new tensors.

    If the spec has several axes, positions are [axes, ..., S]. If its frequencies differ from head
    to head, the result is [B, heads, S, pairs]; with `length` [B], it is [B, S, pairs].

    magnitude_power  1 applies the magnitude, 0 leaves it out (a pure rotation), -1 divides by it
                     (the inverse)
    key              True for the table of keys, where queries and keys have different magnitudes
    length           of the sequences, one for all or a tensor [B], for length-dependent scalings
    dtype            that of the result, to which values are rounded once
    strategy         which tables are kept, a name of `strategies.STRATEGIES`
    """
    cached = tables_at(spec, positions.device, length, strategy)
    if spec.per_head:
        cos, sin = _per_head_cos_sin(spec, cached, positions)
        return with_magnitude(
            spec, cached.frequencies, positions, cos, sin, magnitude_power, key, dtype
        )
    coordinates = _per_pair(cached, positions)
    radians, steps = _per_row(cached.frequencies.radians), _per_row(cached.steps)
    if spec.precision == "hf":
        angles = coordinates.to(torch.float32) * radians.to(torch.float32)
        # every angle twice, as in transformers: the last bit of a vectorised cosine may depend on
        # its neighbours
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos()[..., : spec.pairs], angles.sin()[..., : spec.pairs]
    elif coordinates.is_floating_point():
        angles = coordinates.to(torch.float64) * radians
        cos, sin = angles.cos(), angles.sin()
    elif cached.levels is None:
        cos, sin = cos_sin_of_phase(steps, coordinates)
    else:
        cos, sin = _from_levels(cached.levels, steps, positions, coordinates)
    return with_magnitude(
        spec, cached.frequencies, coordinates, cos, sin, magnitude_power, key, dtype
    )


def _per_pair(cached: Tables, positions: Tensor) -> Tensor:
    """Return the coordinate of each pair's axis, [..., S, pairs], from positions [axes, ..., S]; for
    a spec with one axis [..., S, 1] from [..., S]. `cached` are the tables of the spec.
    """
    if not positions.is_floating_point():
        positions = positions.to(torch.int64)
    if cached.axis_of_pair is None:
        return positions.unsqueeze(-1)
    return positions[cached.axis_of_pair].movedim(0, -1)


def _per_head_cos_sin(spec: RopeSpec, cached: Tables, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin [B, heads, S, pairs] of a spec whose frequencies differ from head to head;
    the angle of a pair is the sum over the axes of coordinate times frequency.

    positions  [axes, B, S] or [axes, S]; without the first dimension if the spec has one axis.
               Angles of integers are summed exactly, as fractions of a turn; those of floats, and
               all with precision "hf", in radians
    """
    positions = positions if spec.num_axes > 1 else positions.unsqueeze(0)
    # [axes, B, 1, S, 1]
    points = (positions if positions.ndim > 2 else positions.unsqueeze(1))[:, :, None, :, None]
    if positions.is_floating_point() or spec.precision == "hf":
        dtype = torch.float32 if spec.precision == "hf" else torch.float64
        factors, points = cached.frequencies.radians.to(dtype), points.to(dtype)
    else:
        factors, points = cached.steps, points.to(torch.int64)
    # for each axis [B, 1, S, 1] times [heads, 1, pairs]
    products = [
        point * factor[:, None] for point, factor in zip(points, factors.unbind(-1), strict=True)
    ]
    angles = sum(products[1:], start=products[0])
    return (angles.cos(), angles.sin()) if angles.is_floating_point() else cos_sin_of_turns(angles)


def _per_row(values: Tensor) -> Tensor:
    """Return [pairs] as it is, and [B, pairs] as [B, 1, pairs], to broadcast against [B, S, pairs]."""
    return values.unsqueeze(-2) if values.ndim > 1 else values


def _from_levels(
    levels: Levels, steps: Tensor, positions: Tensor, coordinates: Tensor
) -> tuple[Tensor, Tensor]:
    """Return cos and sin from the two-level table; for positions that it does not have, from their
    phase. `coordinates` are the positions as [..., S, 1].
    """
    from_table = _two_level(levels, positions)
    if positions.device.type == "cpu" and _within_levels(positions):
        return from_table
    # the table may not have a position; on other devices than the CPU, finding out would need a
    # read-back. So both are computed and selected by position
    from_phase = cos_sin_of_phase(steps, coordinates)
    inside = (coordinates >= 0) & (coordinates < TWO_LEVEL_REACH)
    return torch.where(inside, from_table[0], from_phase[0]), torch.where(
        inside, from_table[1], from_phase[1]
    )


def _within_levels(positions: Tensor) -> bool:
    """Return whether the two-level table has all positions: from 0 to TWO_LEVEL_REACH - 1."""
    if not positions.numel():
        return True
    low, high = positions.aminmax()
    return bool(low >= 0) and bool(high < TWO_LEVEL_REACH)


def _two_level(levels: Levels, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of positions, high * 1024 + low, by the addition theorems from one row of
    each level. For negative positions and those from 2^20 on they are wrong; the caller replaces
    them.
    """
    positions = positions.to(torch.int64)
    # without the clamp, those positions would index outside the table
    low, high = positions & (LEVEL - 1), (positions >> LEVEL_BITS).clamp(0, LEVEL - 1)
    low_cos, low_sin, high_cos, high_sin = (
        levels[0][low],
        levels[1][low],
        levels[2][high],
        levels[3][high],
    )
    return high_cos * low_cos - high_sin * low_sin, high_sin * low_cos + high_cos * low_sin


def with_magnitude(
    spec: RopeSpec,
    frequencies: TensorFrequencies,
    coordinates: Tensor,
    cos: Tensor,
    sin: Tensor,
    magnitude_power: int,
    key: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return cos and sin times factor^`magnitude_power`, rounded once to `dtype`.

    The factor is that of `magnitude_on`. With xPos it is also multiplied by exp(growth * (position
    - center)) for queries, and divided by it for keys.

    frequencies  hold the magnitude, and xPos's growth and center
    coordinates  the positions; only xPos reads them
    key          True for keys, False for queries
    """
    factor = magnitude_on(spec, frequencies.magnitude, key) ** magnitude_power
    if isinstance(factor, Tensor) and factor.ndim:
        factor = factor[:, None, None]  # [B] against [B, S, pairs]
    if isinstance(factor, Tensor) or factor != 1:
        cos, sin = cos * factor, sin * factor
    if magnitude_power and frequencies.growth is not None:
        sign = -magnitude_power if key else magnitude_power
        factor = ((coordinates - frequencies.center) * frequencies.growth * sign).exp()
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def magnitude_on(spec: RopeSpec, magnitude: float | Tensor, key: bool) -> float | Tensor:
    """Return the factor on queries, or on keys if `key` is True: the magnitude on both, or its
    square on queries alone, or 1, as `spec.magnitude_on` says.
    """
    if spec.magnitude_on == "qk":
        return magnitude
    return magnitude**2 if spec.magnitude_on == "q" and not key else 1.0


def keys_have_own_table(spec: RopeSpec, device: torch.device, strategy: str = "auto") -> bool:
    """Return whether queries and keys need different tables, because their magnitudes differ."""
    return spec.magnitude_on == "q" or tables(spec, device, strategy).frequencies.growth is not None


def first_rows(
    spec: RopeSpec, device: torch.device, count: int, key: bool = False, strategy: str = "auto"
) -> tuple[Tensor, Tensor] | None:
    """Return cached float32 cos and sin of positions 0 ... count - 1, or None if the strategy keeps
    fewer rows than that or none at all, or if the angles of the spec are no rows (`keeps_rows`).

    The number of cached rows grows by doubling. Each row of cos is stored beside its row of sin, so
    that a kernel reads one stream of memory. The caller must not write to them or return them to a
    user.
    """
    if (
        strategy not in ("auto", "full")
        or not keeps_rows(spec)
        or count > most_rows(spec, strategy)
    ):
        return None
    # keys share the rows of queries if both have the same magnitude
    key = key and keys_have_own_table(spec, device, strategy)
    rows = _cached_or_built(
        (spec.fingerprint, device, key, strategy),
        build=lambda: _computed_rows(spec, device, rows_for(spec, count, strategy), key, strategy),
        size=lambda rows: 4 * rows.numel(),
        fits=lambda rows: len(rows) >= count,
    )
    return rows[:count, 0], rows[:count, 1]


def rows_at(
    spec: RopeSpec, positions: Tensor, key: bool, strategy: str
) -> tuple[Tensor, Tensor] | None:
    """Return float32 cos and sin of positions (of keys if `key` is True), copied from the rows that
    the strategy "full" keeps; rows that are missing are computed first.

    None with another strategy, on a device other than the CPU, without positions, for a spec
    without such rows (`keeps_rows`), or if a position is negative or 2^20 or more.
    """
    # the largest position says how many rows are needed; on a GPU, reading it would wait for the
    # device
    if strategy != "full" or positions.device.type != "cpu" or not positions.numel():
        return None
    lowest, highest = (int(bound) for bound in positions.aminmax())
    rows = None if lowest < 0 else first_rows(spec, positions.device, highest + 1, key, strategy)
    indices = positions.to(torch.int64)
    return None if rows is None else (rows[0][indices], rows[1][indices])


def _computed_rows(
    spec: RopeSpec, device: torch.device, count: int, key: bool, strategy: str
) -> Tensor:
    """Return float32 cos and sin of positions 0 ... count - 1, [count, 2, pairs]; of keys if `key`
    is True. `strategy` says whether the two-level table may give them.
    """
    rows = torch.empty(count, 2, spec.pairs, dtype=torch.float32, device=device)
    for positions, part in zip(
        torch.arange(count, device=device).split(ROWS_AT_ONCE),
        rows.split(ROWS_AT_ONCE),
        strict=True,
    ):
        part[:, 0], part[:, 1] = cos_sin(spec, positions, key=key, strategy=strategy)
    return rows
