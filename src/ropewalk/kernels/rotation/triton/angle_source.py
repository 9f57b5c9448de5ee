"""AngleSource: the kernel arguments that define the angles: exact phase steps (the angle of each
pair per position, as an integer in units of 2^-64 turns), or cos and sin tables from the caller.

A stride of 0 stands for an axis that the tensor does not have, or that has size 1: all its entries
then use the same values. The magnitude is a factor on cos and sin, which may differ between q and k
and, if it depends on the length, between batch rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.request import AnyRequest, Request, TableRequest
from ropewalk.spec import RopeSpec
from ropewalk.table import Tables, magnitude_on, tables_at

Magnitude = float | Tensor | None


@dataclass(frozen=True, eq=False)
class AngleSource:
    """The kernel arguments that define the angles of one call.

    mode      "phase": computed from phase steps; "rows": read from tables of cos and sin
    tensors   phase steps and None, or cos and sin; then the magnitudes of q and of k
    pointers  `tensors` with every tensor replaced by its data pointer
    constant  True if all calls with the same spec and shapes use the same tensors

    position_strides, angle_strides  (axis, batch, token) of positions; (batch, token, pair) of
                                     phase steps or of cos and sin
    magnitude_stride                 1 if each batch row has a magnitude of its own, else 0
    axes                             the axis of each pair, or None if all rotate by the same axis
    num_axes                         the number of position axes
    growth, growth_sign, center      xPos: the first tensor is multiplied by exp(growth_sign
                                     (position - center) growth), the second is divided by it
    """

    mode: str
    tensors: tuple[Tensor, Tensor | None, Magnitude, Magnitude]
    position_strides: tuple[int, int, int] = (0, 0, 0)
    angle_strides: tuple[int, int, int] = (0, 0, 1)
    magnitude_stride: int = 0
    axes: Tensor | None = None
    num_axes: int = 1
    growth: Tensor | None = None
    growth_sign: int = 0
    center: int = 0
    constant: bool = False
    pointers: tuple[int | float | None, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Set `pointers`, which are `tensors` with every tensor replaced by its data pointer; a
        field of a frozen dataclass can be set only so.
        """
        object.__setattr__(
            self,
            "pointers",
            tuple(t.data_ptr() if isinstance(t, Tensor) else t for t in self.tensors),
        )

    @property
    def differs_by_row(self) -> bool:
        """Whether phase steps or magnitudes differ between batch rows. If so, a program cannot
        rotate several batch rows, because it loads these for one row alone. Rows of cos and sin may
        differ: they are loaded for each token.
        """
        return self.magnitude_stride > 0 or (self.mode != "rows" and self.angle_strides[0] > 0)

    def values(self, merged: bool, **others: Any) -> dict[str, Any]:
        """Return the kernel's arguments for the angles by name, with those of `others` added; if
        `merged`, batch rows of one token each are treated as the tokens of one batch row.
        """
        axis, batch, token = self.position_strides
        angle_batch, angle_token, angle_pair = self.angle_strides
        if merged:
            batch, token, angle_batch, angle_token = 0, batch, 0, angle_batch
        return others | {
            "position_axis": axis,
            "position_batch": batch,
            "position_token": token,
            "axes": self.axes,
            "AXES": self.num_axes,
            "angle_batch": angle_batch,
            "angle_token": angle_token,
            "angle_pair": angle_pair,
            "magnitude_batch": self.magnitude_stride,
            # the magnitude of q; that of k is a tensor if this one is
            "MAGNITUDE_LOADED": isinstance(self.tensors[2], Tensor),
            "growth": self.growth,
            "GROWTH": self.growth_sign,
            "center": self.center,
        }


def angle_source(request: AnyRequest, x: Tensor) -> AngleSource:
    """Return the kernel arguments that define the angles of `request` on the device of x."""
    return _from_rows(request) if isinstance(request, TableRequest) else _from_phases(request, x)


def _from_rows(request: TableRequest) -> AngleSource:
    """Return the arguments for cos and sin tables; tables with different strides are copied."""
    cos, sin = request.cos, request.sin
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    batch = cos.stride(0) if cos.ndim > 2 and cos.shape[0] > 1 else 0
    token = cos.stride(-2) if cos.shape[-2] > 1 else 0
    # no magnitudes: cos and sin include them
    return AngleSource("rows", (cos, sin, None, None), angle_strides=(batch, token, cos.stride(-1)))


def _from_phases(request: Request, x: Tensor) -> AngleSource:
    """Return the arguments for phases that the kernel computes from positions."""
    # power: 1 multiplies by the magnitude, -1 divides by it, 0 leaves it out
    spec, power = request.spec, request.magnitude_power
    # frequencies that depend on the length may have a row of phase steps for each batch row: [B,
    # pairs]
    spec_tables = tables_at(spec, x.device, request.length, request.tables)
    # the first tensor is q, or k if the request rotates keys alone; the second is always k
    q_magnitude, k_magnitude = (
        _magnitude(spec, spec_tables, key, power) for key in (request.key, True)
    )
    if isinstance(q_magnitude, Tensor) or isinstance(k_magnitude, Tensor):
        q_magnitude, k_magnitude = _as_tensors(q_magnitude, k_magnitude, x.device)
    elif q_magnitude == k_magnitude == 1.0:
        q_magnitude = k_magnitude = None
    # the growth of xPos, whose magnitude grows with the position
    growth = spec_tables.frequencies.growth if power else None
    steps = spec_tables.steps
    return AngleSource(
        "phase",
        # steps of the phase in place of cos, nothing in place of sin
        (steps, None, q_magnitude, k_magnitude),
        position_strides=_position_strides(request.positions),
        # (batch, token, pair)
        angle_strides=(steps.stride(0) if steps.ndim > 1 and len(steps) > 1 else 0, 0, 1),
        magnitude_stride=1 if isinstance(q_magnitude, Tensor) and q_magnitude.numel() > 1 else 0,
        # int32 entries have half the size of int64, so one load reads twice as many
        axes=None if spec_tables.axis_of_pair is None else spec_tables.axis_of_pair.to(torch.int32),
        num_axes=spec.num_axes,
        growth=growth,
        growth_sign=0 if growth is None else (-power if request.key else power),
        center=spec_tables.frequencies.center,
        # whether a later call with the same spec may use these tensors again
        constant=not (spec.needs_length and request.length is not None),
    )


def _magnitude(spec: RopeSpec, spec_tables: Tables, key: bool, power: int) -> float | Tensor:
    """Return magnitude ** power of attention keys if `key`, otherwise of queries: a number, or one
    float32 per batch row.
    """
    magnitude = magnitude_on(spec, spec_tables.frequencies.magnitude, key) ** power
    return (
        magnitude.to(torch.float32).reshape(-1)
        if isinstance(magnitude, Tensor)
        else float(magnitude)
    )


def _as_tensors(
    q: float | Tensor, k: float | Tensor, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the magnitudes of q and k as tensors with one entry per batch row, or one entry for
    all.
    """
    batch = max(magnitude.numel() for magnitude in (q, k) if isinstance(magnitude, Tensor))
    q, k = (m if isinstance(m, Tensor) else torch.full((1,), m, device=device) for m in (q, k))
    return q.to(device).expand(batch).contiguous(), k.to(device).expand(batch).contiguous()


def _position_strides(positions: Tensor | None) -> tuple[int, int, int]:
    """Return the (axis, batch, token) strides. If positions is None they are offset, offset + 1,
    ... in every batch row.
    """
    if positions is None:
        return 0, 0, 1
    strides = [
        0 if size == 1 else stride
        for size, stride in zip(positions.shape, positions.stride(), strict=True)
    ]
    # positions have up to three axes, so these are three numbers
    return tuple([0] * (3 - len(strides)) + strides)  # type: ignore[return-value]


def as_table_requests(request: Request, x: Tensor) -> tuple[TableRequest, TableRequest]:
    """Return (for queries, for attention keys): the request with cos and sin computed; one object
    twice if both are equal, or if the request has no queries.
    """

    def table_request(key: bool) -> TableRequest:  # key: for attention keys
        cos, sin = request.rows(x.shape[request.seq_dim], x.device, torch.float32, key)
        return TableRequest(
            cos, sin, request.seq_dim, request.layout_in, request.layout_out, request.start
        )

    for_keys = table_request(key=True)
    has_queries = not request.key
    # without magnitudes (power 0), queries and keys have the same cos and sin
    differ = has_queries and request.magnitude_power and request.keys_have_own_rows(x.device)
    return (table_request(key=False) if differ else for_keys), for_keys
