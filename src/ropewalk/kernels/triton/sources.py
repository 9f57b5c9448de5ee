"""Where one call's angles come from: exact phase steps, or rows the caller has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.request import AnyRequest, Request, TableRequest, token_axes
from ropewalk.spec import RopeSpec
from ropewalk.table import Tables, magnitude_on, tables, tables_at

Magnitude = float | Tensor | None


@dataclass(frozen=True, eq=False)
class Source:
    """The kernel's arguments about angles. `lasting`: the same tensors serve every call of this kind.

    mode          "phase" or "rows"
    tensors       angles, more angles, the query's gain, the key's gain
    by_row        every batch row has angles or a gain of its own, so rows must stay rows
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
    lasting: bool = False

    @cached_property
    def pointers(self) -> tuple[int | float | None, ...]:
        """`tensors` as a launched kernel takes them."""
        return tuple(t.data_ptr() if isinstance(t, Tensor) else t for t in self.tensors)

    @property
    def by_row(self) -> bool:
        return self.magnitude_stride > 0 or (self.mode != "rows" and self.angle_strides[0] > 0)

    def values(self, merged: bool, **more: Any) -> dict[str, Any]:
        """By the kernel's names; `merged` where rows of one token have become tokens of one row."""
        axis, batch, token = self.position_strides
        row, line, pair = self.angle_strides
        if merged:
            batch, token, row, line = 0, batch, 0, row
        return {
            "position_axis": axis,
            "position_batch": batch,
            "position_token": token,
            "angle_batch": row,
            "angle_token": line,
            "angle_pair": pair,
            "magnitude_batch": self.magnitude_stride,
            "axes": self.axes,
            "AXES": self.num_axes,
            "growth": self.growth,
            "MAGNITUDE_LOADED": isinstance(self.tensors[2], Tensor),
            "GROWTH": self.growth_sign,
            "center": self.center,
            **more,
        }


def source_of(request: AnyRequest, x: Tensor) -> Source:
    """The angles of one call."""
    return _rows(request, x) if isinstance(request, TableRequest) else _phases(request, x)


def _rows(request: TableRequest, x: Tensor) -> Source:
    cos, sin = request.cos, request.sin
    if cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    batch = cos.stride(0) if cos.ndim > 2 and cos.shape[0] > 1 else 0
    token = cos.stride(-2) if cos.shape[-2] > 1 else 0
    return Source("rows", (cos, sin, None, None), angle_strides=(batch, token, cos.stride(-1)))


def _phases(request: Request, x: Tensor) -> Source:
    spec, lasting = request.spec, not (request.spec.needs_length and request.length is not None)
    kept = tables_at(spec, x.device, request.length)
    q_magnitude, k_magnitude = (_magnitude_of(spec, kept, key, request.magnitude_power) for key in (request.key, True))
    if isinstance(q_magnitude, Tensor) or isinstance(k_magnitude, Tensor):
        q_magnitude, k_magnitude = _alike(q_magnitude, k_magnitude, x.device)
    elif q_magnitude == k_magnitude == 1.0:
        q_magnitude = k_magnitude = None
    growth = kept.frequencies.growth if request.magnitude_power else None
    return Source(
        "phase",
        (kept.steps, None, q_magnitude, k_magnitude),
        position_strides=_position_strides(request.positions),
        angle_strides=(kept.steps.stride(0) if kept.steps.ndim > 1 and len(kept.steps) > 1 else 0, 0, 1),
        magnitude_stride=1 if isinstance(q_magnitude, Tensor) and q_magnitude.numel() > 1 else 0,
        # half the bytes, so twice as many in one load
        axes=None if kept.axis_of_pair is None else kept.axis_of_pair.to(torch.int32),
        num_axes=spec.num_axes,
        growth=growth,
        growth_sign=0 if growth is None else (-request.magnitude_power if request.key else request.magnitude_power),
        center=kept.frequencies.center,
        lasting=lasting,
    )


def _magnitude_of(spec: RopeSpec, kept: Tables, key: bool, power: int) -> float | Tensor:
    size = magnitude_on(spec, kept.frequencies.magnitude, key) ** power
    return size.to(torch.float32).reshape(-1) if isinstance(size, Tensor) else float(size)


def _alike(q_magnitude: float | Tensor, k_magnitude: float | Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Both as tensors of one size."""
    rows = max(magnitude_power.numel() for magnitude_power in (q_magnitude, k_magnitude) if isinstance(magnitude_power, Tensor))
    return tuple(  # type: ignore[return-value]  # there are two
        (magnitude_power if isinstance(magnitude_power, Tensor) else torch.full((1,), magnitude_power, device=device))
        .to(device)
        .expand(rows)
        .contiguous()
        for magnitude_power in (q_magnitude, k_magnitude)
    )


def _position_strides(positions: Tensor | None) -> tuple[int, int, int]:
    """(axis, row, token) strides; counted positions step by one from token to token, in every row alike."""
    if positions is None:
        return 0, 0, 1
    strides = [0 if size == 1 else stride for size, stride in zip(positions.shape, positions.stride(), strict=True)]
    return tuple([0] * (3 - len(strides)) + strides)  # type: ignore[return-value]  # there are three


def rows_of(request: Request, x: Tensor) -> tuple[TableRequest, TableRequest]:
    """The turn with its angles written out, for the query and for the key: one and the same where they share them."""
    spec, seq = request.spec, x.shape[token_axes(x.ndim, request.seq_dim)[0]]

    def written_out(key: bool) -> TableRequest:
        cos, sin = request.rows(seq, x.device, torch.float32, key)
        return TableRequest(cos, sin, request.seq_dim, request.layout_in, request.layout_out, request.start)

    of_key = written_out(key=True)
    grows = tables(spec, x.device).frequencies.growth is not None
    differ = request.magnitude_power and not request.key and (grows or spec.magnitude_on == "q")
    return (written_out(key=False) if differ else of_key), of_key
