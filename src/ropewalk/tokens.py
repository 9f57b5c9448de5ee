"""The public door: every rule about tensors, positions and lengths is checked here, once, and becomes a Turn."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Length
from ropewalk.kernels.turn import Turn, token_axes
from ropewalk.spec import RopeSpec

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def make_turn(
    xs: tuple[Tensor, ...], spec: RopeSpec, positions: Tensor | None, offset: int | Tensor, seq_dim: int, length: Length
) -> Turn:
    """Check everything about one call and say it as a Turn."""
    x = xs[0]
    for name, each in zip(("x", "k"), xs, strict=False):
        check_tensor(name, each, seq_dim, spec.head_dim)
    seq_dim = seq_dim - x.ndim if seq_dim >= 0 else seq_dim
    seq, batch = x.shape[seq_dim], _batch_size(x, seq_dim)
    for other in xs[1:]:
        if (other.shape[seq_dim], _batch_size(other, seq_dim), other.ndim) != (seq, batch, x.ndim) or other.device != x.device:
            raise RopeError("k", "must have q's batch, tokens and device (heads may differ)", [list(x.shape), list(other.shape)])
    return tokens_turn(spec, positions, offset, length, seq_dim, seq, batch, x.device)


def tokens_turn(
    spec: RopeSpec,
    positions: Tensor | None,
    offset: int | Tensor,
    length: Length,
    seq_dim: int,
    seq: int,
    batch: int,
    device: torch.device,
) -> Turn:
    """The Turn of `seq` tokens in `batch` rows, its positions and lengths checked."""
    if isinstance(offset, Tensor):
        if positions is not None:
            raise RopeError("offset", "cannot be combined with positions: add it to them", list(offset.shape))
        positions, offset = _positions_from_offset(offset, seq, batch, device), 0
    elif isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise RopeError("offset", "must be an integer or an integer tensor with one offset a row", offset)
    elif positions is not None and offset:
        raise RopeError("offset", "cannot be combined with positions: add it to them", offset)
    if positions is not None:
        positions = _check_positions(positions, spec, seq, batch, device)
    elif spec.fractional:
        raise RopeError("positions", "must be given: real coordinates cannot be counted", None)
    elif spec.num_axes > 1:
        positions, offset = _same_on_all_axes(torch.arange(offset, offset + seq, device=device), spec), 0
    return Turn(spec, seq_dim, positions, offset, _row_length(spec, positions, offset, seq, batch, length))


def check_tensor(name: str, x: Tensor, seq_dim: int, head_dim: int | None) -> int:
    """The sequence axis counted from the end."""
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        raise RopeError(name, "must be a float16, bfloat16, float32 or float64 tensor", getattr(x, "dtype", type(x)))
    if x.ndim < 2:
        raise RopeError(name, "must have at least [tokens, dimensions]", list(x.shape))
    if isinstance(seq_dim, bool) or not isinstance(seq_dim, int) or not -x.ndim <= seq_dim < x.ndim - 1 or seq_dim == -1:
        raise RopeError("seq_dim", f"must name an axis of x before the last, from {-x.ndim} to -2", seq_dim)
    if head_dim is not None and x.shape[-1] != head_dim:
        raise RopeError(name, f"must have head_dim = {head_dim} as its last dimension", list(x.shape))
    return seq_dim - x.ndim if seq_dim >= 0 else seq_dim


def _batch_size(x: Tensor, seq_dim: int) -> int:
    batch = token_axes(x.ndim, seq_dim)[1]
    return 1 if batch is None else x.shape[batch]


def _positions_from_offset(offset: Tensor, seq: int, batch: int, device: torch.device) -> Tensor:
    if offset.dtype not in INTEGERS or offset.ndim > 1 or (offset.ndim and offset.shape[0] not in (1, batch)):
        raise RopeError("offset", f"must be an integer or integers [{batch}], one a row", [offset.dtype, list(offset.shape)])
    if offset.device != device:
        raise RopeError("offset", f"must be on x's device {device}", str(offset.device))
    return offset.to(torch.int64).reshape(-1, 1) + torch.arange(seq, device=device)


def _check_positions(positions: Tensor, spec: RopeSpec, seq: int, batch: int, device: torch.device) -> Tensor:
    if not isinstance(positions, Tensor):
        raise RopeError("positions", "must be an integer tensor", type(positions))
    allowed = (torch.float32, torch.float64, *INTEGERS) if spec.fractional else INTEGERS
    if positions.dtype not in allowed:
        raise RopeError(
            "positions", f"must be integers{' or float32/64' if spec.fractional else ''}: a float rounds them", positions.dtype
        )
    if positions.device != device:
        raise RopeError("positions", f"must be on x's device {device}; move them once, outside the loop", str(positions.device))
    shape = list(positions.shape)
    rows = shape if len(shape) < 3 else shape[1:]
    if not 1 <= len(shape) <= 3 or rows[-1] != seq or (len(rows) == 2 and rows[0] not in (1, batch)):
        rule = f"must be [{seq}], [{batch}, {seq}]" + (f" or [{spec.num_axes}, {batch}, {seq}]" if spec.num_axes > 1 else "")
        raise RopeError("positions", rule + " for these tokens", shape)
    if len(shape) == 3 and shape[0] != spec.num_axes:
        raise RopeError("positions", f"must be [axes, batch, tokens] with the spec's {spec.num_axes} axes", shape)
    if spec.num_axes > 1 and len(shape) < 3:
        return _same_on_all_axes(positions, spec)
    return positions[0] if len(shape) == 3 and spec.num_axes == 1 else positions


def _same_on_all_axes(positions: Tensor, spec: RopeSpec) -> Tensor:
    """Text under an axis map: every axis counts the same."""
    return (positions if positions.ndim == 2 else positions.unsqueeze(0)).expand(spec.num_axes, -1, -1)


def _row_length(spec: RopeSpec, positions: Tensor | None, offset: int, seq: int, batch: int, length: Length) -> Length:
    """The length each row's frequencies follow: as given, or its own last position + 1, found on the device."""
    if not spec.needs_length:
        return None
    if isinstance(length, Tensor):
        if length.dtype not in INTEGERS or length.ndim > 1 or (length.ndim and length.shape[0] not in (1, batch)):
            raise RopeError("length", f"must be an integer or integers [{batch}], one a row", [length.dtype, list(length.shape)])
        return length
    if length is not None:
        return length if isinstance(length, torch.SymInt) else integer("length", length, low=0)
    if positions is None:
        return offset + seq
    if not positions.numel():
        return 0
    last = positions.amax(dim=-1) + 1
    return last.amax(dim=0) if last.ndim == 2 else last
