"""spec x positions -> cos, sin, exact at any integer position.

A frequency is kept as a 64-bit fixed-point fraction of a turn. position * step wraps modulo 2^64, and the wrap is the range
reduction: no angle ever grows, so no position is far. Positions below 2^20 read a two-level table (angle addition of
1024 + 1024 rows, float64), the first rows also a float32 one; a row's value depends on its position alone, never on
which calls came before.
"""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.frequencies import Frequencies, Length
from ropewalk.spec import RopeSpec

LEVEL_BITS = 10
LEVEL = 1 << LEVEL_BITS
TWO_LEVEL_REACH = LEVEL * LEVEL
#: the float32 rows kept for one spec on one device, in bytes
FULL_TABLE_BYTES = 2 << 20
#: all tables together, in bytes; the least recently used go first
CACHE_BYTES = 256 << 20

# 1 / (2 pi) as an unevaluated sum of two doubles, good to 107 bits
_INVERSE_TWO_PI = 0.15915494309189535
_INVERSE_TWO_PI_REST = -9.839338337591243e-18


def phase_steps(radians: Tensor) -> Tensor:
    """round(radians / (2 pi) * 2^64) modulo 2^64, as int64; on the tensor's own device, no host arithmetic."""
    high, low = _product_with_inverse_two_pi(radians.to(torch.float64))
    part = high - high.trunc()  # exact for either sign; 1 - tiny, as floor would leave it, is not
    upper = (part * 2.0**32).floor()
    lower = (part * 2.0**32 - upper) * 2.0**32 + low * 2.0**64
    return (upper.to(torch.int64) << 32) + lower.round().to(torch.int64)


def _product_with_inverse_two_pi(x: Tensor) -> tuple[Tensor, Tensor]:
    """x / (2 pi) as high + low. The halves have 26 bits each, so every partial product is exact."""
    x_top = _top_half(x)
    x_rest = x - x_top
    high = x * _INVERSE_TWO_PI
    low = ((x_top * _C_TOP - high) + x_top * _C_REST + x_rest * _C_TOP) + x_rest * _C_REST
    return high, low + x * _INVERSE_TWO_PI_REST


def _top_half(x: Tensor) -> Tensor:
    # masking bits instead of Veltkamp's products: a compiler that contracts to fma cannot spoil it
    return (x.view(torch.int64) & -(1 << 27)).view(torch.float64)


_C_TOP = float(_top_half(torch.tensor(_INVERSE_TWO_PI, dtype=torch.float64, device="cpu")))
_C_REST = _INVERSE_TWO_PI - _C_TOP


def cos_sin_of_phase(steps: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, float64, of integer positions times steps; any size, any sign."""
    turns = (positions * steps).to(torch.float64) * 2.0**-64
    angles = turns * (2 * math.pi)
    return angles.cos(), angles.sin()


#: cos, sin of the low digit and cos, sin of the high digit of a position; float64 [1024, pairs] each
Levels = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Tables:
    """What is kept for one spec on one device; every member is written once and never changed."""

    frequencies: Frequencies
    steps: Tensor  # int64 [pairs]
    axis_of_pair: Tensor | None  # int64 [pairs]
    levels: Levels | None

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.steps, *(self.levels or ())))


class TableCache:
    """Tables and rows by (spec, device): bounded in memory, safe under threads, empty in a forked child."""

    def __init__(self, limit: int = CACHE_BYTES) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple, tuple[Any, int]] = OrderedDict()

    def get(
        self,
        key: tuple,
        build: Callable[[], Any],
        size: Callable[[Any], int],
        enough: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """The kept value if it is `enough`, else `build()`; two threads may build the same value, never another."""
        with self._lock:
            if key in self._kept and enough(self._kept[key][0]):
                self._kept.move_to_end(key)
                return self._kept[key][0]
        # tensors made under inference_mode could not be saved for a backward later
        with torch.inference_mode(False), torch.no_grad():
            value = build()
        with self._lock:
            self._kept[key] = (value, size(value))
            while len(self._kept) > 1 and self.bytes > self.limit:
                self._kept.popitem(last=False)
        return value

    @property
    def bytes(self) -> int:
        """Memory of everything kept."""
        return sum(size for _, size in list(self._kept.values()))

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forget everything; the next call builds it again."""
        with self._lock:
            self._kept.clear()

    def _after_fork(self) -> None:
        # the parent may have forked while another thread held the lock
        self._lock = threading.Lock()


CACHE = TableCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CACHE._after_fork)


def tables(spec: RopeSpec, device: torch.device) -> Tables:
    """The kept tables of a spec whose frequencies are the same for every call."""
    return CACHE.get((spec.fingerprint, device), lambda: _build(spec, device), lambda kept: kept.bytes)


def _build(spec: RopeSpec, device: torch.device) -> Tables:
    found = spec.ladder_frequencies()
    found = replace(found, radians=found.radians.to(device), growth=None if found.growth is None else found.growth.to(device))
    steps = phase_steps(found.radians)
    axis = None if spec.num_axes == 1 else torch.tensor(spec.axis_of_pair, device=device)
    levels = None
    if _keeps_levels(spec):
        digits = torch.arange(LEVEL, device=device).unsqueeze(-1)
        levels = (*cos_sin_of_phase(steps, digits), *cos_sin_of_phase(steps, digits << LEVEL_BITS))
    return Tables(found, steps, axis, levels)


def _keeps_levels(spec: RopeSpec) -> bool:
    return _keeps_rows(spec) and spec.precision != "hf"


def _keeps_rows(spec: RopeSpec) -> bool:
    return spec.num_axes == 1 and not spec.needs_length and not spec.fractional


def tables_at(spec: RopeSpec, device: torch.device, length: Length) -> Tables:
    """The tables for one call: kept ones, or those of the given length where the scaling follows it."""
    kept = tables(spec, device)
    if not spec.needs_length or length is None:
        return kept
    # a fill on the device, not a copy from the host
    length = length if isinstance(length, Tensor) else torch.full((), length, device=device)
    found = spec.ladder_frequencies(length)
    return Tables(found, phase_steps(found.radians), kept.axis_of_pair, None)


def cos_sin(
    spec: RopeSpec,
    positions: Tensor,
    *,
    length: Length = None,
    dtype: torch.dtype = torch.float32,
    magnitude_power: int = 1,
    key: bool = False,
) -> tuple[Tensor, Tensor]:
    """cos and sin [..., S, pairs] of positions [..., S], or [axes, ..., S] with an axis map.

    `gain` is the power of the magnitude: 1 as the spec says, 0 pure rotation, -1 for the inverse. `key` picks the
    side for magnitudes that differ between queries and keys.
    """
    kept = tables_at(spec, positions.device, length)
    coordinates = _per_pair(kept, positions)
    radians, steps = _per_row(kept.frequencies.radians), _per_row(kept.steps)
    if spec.precision == "hf":
        angles = coordinates.to(torch.float32) * radians.to(torch.float32)
        # doubled as transformers doubles it: a vectorised cosine may differ in the last bit with its neighbours
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos()[..., : spec.pairs], angles.sin()[..., : spec.pairs]
    elif coordinates.is_floating_point():
        angles = coordinates.to(torch.float64) * radians
        cos, sin = angles.cos(), angles.sin()
    elif kept.levels is None:
        cos, sin = cos_sin_of_phase(steps, coordinates)
    else:
        cos, sin = _near_or_far(kept.levels, steps, positions, coordinates)
    return _grown(spec, kept.frequencies, coordinates, cos, sin, magnitude_power, key, dtype)


def _per_pair(kept: Tables, positions: Tensor) -> Tensor:
    """The coordinate each pair listens to: [..., S, pairs], or [..., S, 1] where all listen to the same one."""
    if not positions.is_floating_point():
        positions = positions.to(torch.int64)
    if kept.axis_of_pair is None:
        return positions.unsqueeze(-1)
    return positions[kept.axis_of_pair].movedim(0, -1)


def _per_row(values: Tensor) -> Tensor:
    """[pairs], or [B, pairs] ready to meet [B, S, pairs]."""
    return values.unsqueeze(-2) if values.ndim > 1 else values


def _near_or_far(levels: Levels, steps: Tensor, positions: Tensor, coordinates: Tensor) -> tuple[Tensor, Tensor]:
    near = _two_level(levels, positions)
    if positions.device.type == "cpu" and _all_near(positions):
        return near
    # elsewhere looking would cost a read-back: both are computed and each position takes its own
    far = cos_sin_of_phase(steps, coordinates)
    inside = (coordinates >= 0) & (coordinates < TWO_LEVEL_REACH)
    return torch.where(inside, near[0], far[0]), torch.where(inside, near[1], far[1])


def _all_near(positions: Tensor) -> bool:
    if not positions.numel():
        return True
    low, high = positions.aminmax()
    return bool(low >= 0) and bool(high < TWO_LEVEL_REACH)


def _two_level(levels: Levels, positions: Tensor) -> tuple[Tensor, Tensor]:
    positions = positions.to(torch.int64)
    low, high = positions & (LEVEL - 1), (positions >> LEVEL_BITS).clamp(0, LEVEL - 1)
    low_cos, low_sin, high_cos, high_sin = (level[i] for level, i in zip(levels, (low, low, high, high), strict=True))
    return high_cos * low_cos - high_sin * low_sin, high_sin * low_cos + high_cos * low_sin


def _grown(
    spec: RopeSpec,
    found: Frequencies,
    coordinates: Tensor,
    cos: Tensor,
    sin: Tensor,
    magnitude_power: int,
    key: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """cos and sin times the magnitude to the power `gain`, rounded once to `dtype`."""
    factor = magnitude_on(spec, found.magnitude, key) ** magnitude_power
    if isinstance(factor, Tensor) and factor.ndim:
        factor = factor[:, None, None]  # [B] against [B, S, pairs]
    if isinstance(factor, Tensor) or factor != 1:
        cos, sin = cos * factor, sin * factor
    if magnitude_power and found.growth is not None:
        factor = ((coordinates - found.center) * found.growth * (-magnitude_power if key else magnitude_power)).exp()
        cos, sin = cos * factor, sin * factor
    return cos.to(dtype), sin.to(dtype)


def magnitude_on(spec: RopeSpec, magnitude: float | Tensor, key: bool) -> float | Tensor:
    """The magnitude that one side carries."""
    if spec.magnitude_on == "qk":
        return magnitude
    return magnitude**2 if spec.magnitude_on == "q" and not key else 1.0


def sides_differ(spec: RopeSpec, device: torch.device) -> bool:
    """Whether queries and keys have tables of their own."""
    return spec.magnitude_on == "q" or tables(spec, device).frequencies.growth is not None


def first_rows(spec: RopeSpec, device: torch.device, count: int, key: bool = False) -> tuple[Tensor, Tensor] | None:
    """float32 cos and sin of positions 0 ... count - 1, kept and grown by doubling; None where they would be too large.

    Each row of cos lies beside its row of sin: one stream of memory instead of two. The caller must not write to them or
    hand them out.
    """
    most = _most_rows(spec)
    if not _keeps_rows(spec) or count > most:
        return None
    key = key and sides_differ(spec, device)
    reach = _reach(spec, count)
    rows = CACHE.get(
        (spec.fingerprint, device, key),
        lambda: torch.stack(cos_sin(spec, torch.arange(reach, device=device), key=key), dim=1),
        lambda rows: 4 * rows.numel(),
        lambda rows: len(rows) >= count,
    )
    return rows[:count, 0], rows[:count, 1]


def _most_rows(spec: RopeSpec) -> int:
    return FULL_TABLE_BYTES // (8 * spec.pairs)


def _reach(spec: RopeSpec, count: int) -> int:
    return min(_most_rows(spec), max(256, 1 << (count - 1).bit_length()))


def memory(spec: RopeSpec, length: int) -> dict[str, int]:
    """Bytes that cos and sin of `length` positions take in each form, and what is kept automatically for one side."""
    row = 8 * spec.pairs  # one float32 cos and sin, or one float64 of either
    levels, phase = 2 * 2 * row * LEVEL, row
    automatic = phase + levels * _keeps_levels(spec) + row * _reach(spec, length) * _keeps_rows(spec)
    return {"full": row * length, "two_level": levels, "phase": phase, "automatic": automatic}
