"""The public door: every rule about tensors, positions and lengths is checked here, once, and becomes a Turn."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.axes import MixedAxes
from ropewalk.errors import RopeError, integer
from ropewalk.frequencies import Length
from ropewalk.kernels.request import Request, token_axes
from ropewalk.spec import RopeSpec

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def make_request(
    xs: tuple[Tensor, ...], spec: RopeSpec, positions: Tensor | None, offset: int | Tensor, seq_dim: int, length: Length
) -> Request:
    """Check everything about one call and say it as a Turn."""
    x = xs[0]
    for name, each in zip(("x", "k"), xs, strict=False):
        check_tensor(name, each, seq_dim, spec.head_dim)
        if isinstance(spec.axes, MixedAxes):
            _check_heads(name, each, seq_dim, spec.axes.num_heads)
    seq_dim = seq_dim - x.ndim if seq_dim >= 0 else seq_dim
    seq, batch = x.shape[seq_dim], _batch_size(x, seq_dim)
    for other in xs[1:]:
        if (other.shape[seq_dim], _batch_size(other, seq_dim), other.ndim) != (seq, batch, x.ndim) or other.device != x.device:
            raise RopeError("k", "must have q's batch, tokens and device (heads may differ)", [list(x.shape), list(other.shape)])
    return request_for_tokens(spec, positions, offset, length, seq_dim, seq, batch, x.device)


def request_for_tokens(
    spec: RopeSpec,
    positions: Tensor | None,
    offset: int | Tensor,
    length: Length,
    seq_dim: int,
    seq: int,
    batch: int,
    device: torch.device,
) -> Request:
    """The Turn of `seq` tokens in `batch` rows, its positions and lengths checked."""
    if isinstance(offset, Tensor):
        if positions is not None:
            raise RopeError("offset", "cannot be combined with positions: add it to them", list(offset.shape))
        positions, offset = _positions_from_offset(offset, seq, batch, device), 0
    elif isinstance(offset, bool) or not isinstance(offset, int | torch.SymInt):
        raise RopeError("offset", "must be an integer or an integer tensor with one offset a row", offset)
    elif isinstance(offset, int) and not -(2**62) < offset < 2**62:
        raise RopeError("offset", "must lie within 62 bits either way", offset)
    elif positions is not None and offset:
        raise RopeError("offset", "cannot be combined with positions: add it to them", offset)
    if positions is not None:
        positions = _check_positions(positions, spec, seq, batch, device)
    elif spec.fractional:
        raise RopeError("positions", "must be given: real coordinates cannot be counted", None)
    elif spec.num_axes > 1:
        positions, offset = _same_on_all_axes(torch.arange(offset, offset + seq, device=device), spec), 0
    return Request(spec, seq_dim, positions, offset, _row_length(spec, positions, offset, seq, batch, device, length))


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


def check_tables(x: Tensor, cos: Tensor, sin: Tensor, start: int, seq_dim: int) -> None:
    """Tables must cover the tokens, rows and heads of x, and x the pairs of the tables."""
    _, batch, head = token_axes(x.ndim, seq_dim)
    rows, heads = (1 if axis is None else x.shape[axis] for axis in (batch, head))
    for name, table in (("cos", cos), ("sin", sin)):
        if not table.is_floating_point() or table.ndim not in (2, 3, 4) or table.shape[-2] != x.shape[seq_dim]:
            raise RopeError(name, f"must be a float table [..., {x.shape[seq_dim]} tokens, pairs]", list(table.shape))
        if any(size not in (1, most) for size, most in zip(table.shape[:-2], (rows, heads), strict=False)):
            raise RopeError(name, f"must have 1 or x's {rows} rows, and 1 or x's {heads} heads", list(table.shape))
        if table.device != x.device:
            raise RopeError(name, f"must be on x's device {x.device}", str(table.device))
    if cos.shape != sin.shape:
        raise RopeError("sin", f"must have the shape of cos, {list(cos.shape)}", list(sin.shape))
    if start + 2 * cos.shape[-1] > x.shape[-1]:
        raise RopeError("x", f"must have at least {start + 2 * cos.shape[-1]} dimensions for these tables", list(x.shape))


def check_own_memory(xs: tuple[Tensor, ...], addresses: bool) -> None:
    """In place, every element must be written once: no x may lie on itself, nor q on k where `addresses` can be read."""
    for x in xs:
        if not x.is_contiguous() and _may_lie_on_itself(x):
            raise RopeError("inplace", "needs memory of its own for every element; call .contiguous() first", list(x.stride()))
    if len(xs) == 2 and (xs[0] is xs[1] or (addresses and _share_elements(*xs))):
        raise RopeError("inplace", "q and k must not share memory: it would turn twice", [list(x.shape) for x in xs])


def _may_lie_on_itself(x: Tensor) -> bool:
    """Whether some stride does not step over all that the smaller ones reach; a few odd views are refused in vain."""
    reach = 0
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride <= reach and x.numel():
            return True
        reach += stride * (size - 1)
    return False


def _share_elements(q: Tensor, k: Tensor) -> bool:
    """Whether two tensors that do not lie on themselves lie on each other; slices of one fused projection do not."""
    if not q.numel() or not k.numel() or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        return False
    # element i of q is element j of k where sum(q_stride * i) - sum(k_stride * j) is the distance between their starts
    steps = []
    for q_stride, q_size, k_stride, k_size in zip(q.stride(), q.shape, k.stride(), k.shape, strict=True):
        if q_stride == k_stride:
            steps.append((q_stride, 1 - k_size, q_size - 1))
        else:
            steps += [(q_stride, 0, q_size - 1), (k_stride, 1 - k_size, 0)]
    return _reached(int(k.storage_offset() - q.storage_offset()), sorted(steps, reverse=True))


def _reached(distance: int, steps: list[tuple[int, int, int]]) -> bool:
    """Whether stride * count summed over (stride, least, most) can be `distance`; largest strides first."""
    if not steps or not steps[0][0]:
        return distance == 0
    (stride, least, most), rest = steps[0], steps[1:]
    low, high = (sum(step[0] * step[end] for step in rest) for end in (1, 2))
    counts = range(max(least, -((high - distance) // stride)), min(most, (distance - low) // stride) + 1)
    return any(_reached(distance - stride * count, rest) for count in counts)


def _check_heads(name: str, x: Tensor, seq_dim: int, num_heads: int) -> None:
    head = token_axes(x.ndim, seq_dim)[2]
    if head is None or x.shape[head] != num_heads:
        raise RopeError(name, f"must have the {num_heads} heads of MixedAxes: each turns by its own frequencies", list(x.shape))


def _batch_size(x: Tensor, seq_dim: int) -> int:
    batch = token_axes(x.ndim, seq_dim)[1]
    return 1 if batch is None else x.shape[batch]


def _positions_from_offset(offset: Tensor, seq: int, batch: int, device: torch.device) -> Tensor:
    return _one_a_row("offset", offset, batch, device).reshape(-1, 1) + torch.arange(seq, device=device)


def _one_a_row(name: str, value: Tensor, batch: int, device: torch.device) -> Tensor:
    """An int64 tensor with one number for all rows or one for each."""
    if value.dtype not in INTEGERS or value.ndim > 1 or (value.ndim and value.shape[0] not in (1, batch)):
        raise RopeError(name, f"must be an integer or integers [{batch}], one a row", [value.dtype, list(value.shape)])
    if value.device != device:
        raise RopeError(name, f"must be on x's device {device}", str(value.device))
    return value.to(torch.int64)


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
    if positions.dtype not in (torch.int32, torch.float32, torch.float64):
        positions = positions.to(torch.int64)  # kernels meet two integer widths, not five
    if spec.num_axes > 1 and len(shape) < 3:
        return _same_on_all_axes(positions, spec)
    return positions[0] if len(shape) == 3 and spec.num_axes == 1 else positions


def _same_on_all_axes(positions: Tensor, spec: RopeSpec) -> Tensor:
    """Text under an axis map: every axis counts the same."""
    return (positions if positions.ndim == 2 else positions.unsqueeze(0)).expand(spec.num_axes, -1, -1)


def _row_length(
    spec: RopeSpec, positions: Tensor | None, offset: int, seq: int, batch: int, device: torch.device, length: Length
) -> Length:
    """The length each row's frequencies follow: as given, or its own last position + 1, found on the device."""
    if not spec.needs_length:
        return None
    if isinstance(length, Tensor):
        return _one_a_row("length", length, batch, device)
    if length is not None:
        return length if isinstance(length, torch.SymInt) else integer("length", length, low=0)
    if positions is None:
        return offset + seq
    if not positions.numel():
        return 0
    # int64 first: one past the last int32 position does not fit in an int32
    last = positions.amax(dim=-1)
    last = (last if last.is_floating_point() else last.to(torch.int64)) + 1
    return last.amax(dim=0) if last.ndim == 2 else last
