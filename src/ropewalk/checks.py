"""The rules about tensors, positions and lengths, checked once at the public API; a checked call
becomes a Request.
"""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor

from ropewalk.axes import PER_HEAD, MixedAxes
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.request import Request, token_axes
from ropewalk.spec import RopeSpec
from ropewalk.strategies import STRATEGIES, strategies
from ropewalk.tensor_frequencies import Length

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)


def make_request(
    xs: tuple[Tensor, ...],
    spec: RopeSpec,
    positions: Tensor | None,
    offset: int | Tensor,
    seq_dim: int,
    length: Length,
    tables: str = "auto",
    name: str = "x",
) -> Request:
    """Return a call as a Request after checking its arguments; `length` is checked only if the
    frequencies depend on it.

    xs      (q, k), or a tuple of one tensor; for `positions`, `offset`, `seq_dim` and `length` see
            `Rope.forward`
    tables  which tables are kept, a name of `strategies.STRATEGIES`
    name    what an error calls the tensor if there is only one
    """
    x = xs[0]
    for field, each in zip(("q", "k") if len(xs) == 2 else (name,), xs, strict=True):
        check_tensor(field, each, seq_dim, spec.head_dim)
        if isinstance(spec.axes, MixedAxes):
            _check_heads_of_mixed_axes(field, each, seq_dim, spec.axes.num_heads)
        elif isinstance(spec.axes, PER_HEAD):
            _check_multiple_of_heads(field, each, seq_dim, spec.axes.num_heads)
    seq_dim = seq_dim - x.ndim if seq_dim >= 0 else seq_dim
    seq, batch = x.shape[seq_dim], _batch_size(x, seq_dim)
    for other in xs[1:]:
        same_axes = other.ndim == x.ndim and (
            other.shape[seq_dim],
            _batch_size(other, seq_dim),
        ) == (seq, batch)
        if not same_axes or other.device != x.device:
            raise RopeError(
                "k",
                "must have q's batch, tokens and device (heads may differ)",
                [list(x.shape), list(other.shape)],
            )
    return request_for_tokens(
        spec, positions, offset, length, seq_dim, seq, batch, x.device, tables
    )


def request_for_tokens(
    spec: RopeSpec,
    positions: Tensor | None,
    offset: int | Tensor,
    length: Length,
    seq_dim: int,
    seq: int,
    batch: int,
    device: torch.device,
    tables: str = "auto",
) -> Request:
    """Return the Request for `batch` rows of `seq` tokens on a device, its positions and length
    checked.

    seq_dim  the axis of the tokens, as a negative number; only stored
    device   that of the tensors, on which the positions must be too

    The other arguments are those of `make_request`.
    """
    if isinstance(offset, Tensor):
        if positions is not None:
            raise RopeError(
                "offset", "cannot be combined with positions: add it to them", list(offset.shape)
            )
        positions, offset = _positions_from_offset(offset, seq, batch, device), 0
    # torch.compile has a SymInt for an int that may change from call to call. It is not
    # compared with the bounds: the comparison would become a guard of the compiled graph
    elif isinstance(offset, bool) or not isinstance(offset, (int, torch.SymInt)):
        if isinstance(offset, bool) or not isinstance(offset, Integral):
            raise RopeError(
                "offset",
                "must be an integer or an integer tensor with one offset for each row",
                offset,
            )
        # an integer of another type, such as NumPy's
        return request_for_tokens(
            spec, positions, int(offset), length, seq_dim, seq, batch, device, tables
        )
    elif isinstance(offset, int) and not -(2**62) < offset < 2**62:
        raise RopeError("offset", "must be between -2^62 and 2^62", offset)
    elif positions is not None and offset:
        raise RopeError("offset", "cannot be combined with positions: add it to them", offset)
    if positions is not None:
        positions = _check_positions(positions, spec, seq, batch, device)
    elif spec.fractional:
        raise RopeError(
            "positions",
            "must be given: these axes have real coordinates, which have no default",
            None,
        )
    elif spec.num_axes > 1:
        # tokens of text: without positions the offset is that of every axis
        positions, offset = (
            _same_on_all_axes(torch.arange(offset, offset + seq, device=device), spec),
            0,
        )
    length = _length_per_row(spec, positions, offset, seq, batch, device, length)
    return Request(spec, seq_dim, positions, offset, length, tables=check_strategy(tables, spec))


def check_strategy(tables: str, spec: RopeSpec) -> str:
    """Return `tables`, the name of a table strategy; raise a RopeError if it is unknown or cannot
    be used with the spec.
    """
    if tables == "auto":
        return tables
    choice("tables", tables, STRATEGIES)
    possible = strategies(spec)
    if tables not in possible:
        reason = (  # if the spec can have no table
            "tables need one axis of integer positions, and frequencies that are the same in all "
            "heads, not learned, and independent of the length"
        )
        if "full" in possible:  # then the one that it cannot have is "two-level"
            reason = "precision 'hf' rounds angles, which then cannot be added from two levels"
        raise RopeError(
            "tables", f"must be one of {', '.join(possible)} for this spec: {reason}", tables
        )
    return tables


def check_tensor(name: str, x: Tensor, seq_dim: int, head_dim: int | None) -> int:
    """Check the tensor that errors call `name`, and return the axis of its tokens as a negative
    number: -2 or less. `head_dim` is the size that its last axis must have; None: any.
    """
    if not isinstance(x, Tensor) or x.dtype not in FLOATS:
        raise RopeError(
            name,
            "must be a float16, bfloat16, float32 or float64 tensor",
            getattr(x, "dtype", type(x)),
        )
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else x.layout
        raise RopeError(
            name,
            "must be a dense tensor; pad or pack rows of different lengths, see ropewalk.positions",
            kind,
        )
    if x.ndim < 2:
        raise RopeError(name, "must have at least the axes [tokens, dimensions]", list(x.shape))
    if (
        isinstance(seq_dim, bool)
        or not isinstance(seq_dim, int)
        or not -x.ndim <= seq_dim < x.ndim - 1
        or seq_dim == -1
    ):
        raise RopeError(
            "seq_dim",
            f"must be an axis of x before the last: {-x.ndim} to -2, or 0 to {x.ndim - 2}",
            seq_dim,
        )
    if head_dim is not None and x.shape[-1] != head_dim:
        raise RopeError(
            name, f"must have head_dim = {head_dim} as its last dimension", list(x.shape)
        )
    return seq_dim - x.ndim if seq_dim >= 0 else seq_dim


def check_tokens(tokens: Tensor, axes: tuple[str, ...] = ("batch", "tokens")) -> None:
    """Raise an error unless `tokens` is an int32 or int64 tensor with as many axes as `axes`
    names.
    """
    if not isinstance(tokens, Tensor) or tokens.ndim != len(axes):
        got = list(tokens.shape) if isinstance(tokens, Tensor) else type(tokens)
        raise RopeError("tokens", f"must be [{', '.join(axes)}]", got)
    if tokens.dtype not in (torch.int32, torch.int64):
        raise RopeError("tokens", "must be int32 or int64; pass tokens.long()", tokens.dtype)


def check_tables(x: Tensor, cos: Tensor, sin: Tensor, start: int, seq_dim: int) -> None:
    """Raise an error unless the tables match x: its tokens, batch rows, heads, device and width;
    `start` is the first dimension that rotates, `seq_dim` the axis of the tokens.
    """
    _, batch_axis, head_axis = token_axes(x.ndim, seq_dim)
    rows, heads = (1 if axis is None else x.shape[axis] for axis in (batch_axis, head_axis))
    for name, table in (("cos", cos), ("sin", sin)):
        if (
            not table.is_floating_point()
            or table.ndim not in (2, 3, 4)
            or table.shape[-2] != x.shape[seq_dim]
        ):
            raise RopeError(
                name,
                f"must be a float table [tokens, pairs] of x's {x.shape[seq_dim]} tokens, or [batch, "
                "tokens, pairs], or [batch, heads, tokens, pairs]",
                [str(table.dtype), *table.shape],
            )
        # a table is [S, P], [B, S, P] or [B, H, S, P], where B and H may be 1
        if any(
            size not in (1, of_x)
            for size, of_x in zip(table.shape[:-2], (rows, heads)[: table.ndim - 2], strict=True)
        ):
            raise RopeError(
                name,
                f"must have one row or x's {rows} rows, and one head or x's {heads} heads",
                list(table.shape),
            )
        if table.device != x.device:
            raise RopeError(name, f"must be on x's device {x.device}", str(table.device))
    if cos.shape != sin.shape:
        raise RopeError("sin", f"must have the shape of cos, {list(cos.shape)}", list(sin.shape))
    if not cos.shape[-1]:
        raise RopeError("cos", "must have at least one pair", list(cos.shape))
    width = start + 2 * cos.shape[-1]
    if width > x.shape[-1]:
        raise RopeError(
            "x",
            f"must have a last axis of at least {width} dimensions for these tables",
            list(x.shape),
        )


def check_no_overlap(xs: tuple[Tensor, ...], addresses: bool) -> None:
    """Refuse tensors whose memory overlaps: in place, every element must be written once.

    addresses  whether memory addresses can be read, which a tracer does not allow; without them,
               memory that q and k share is found only if q and k are the same tensor
    """
    for x in xs:
        if not x.is_contiguous() and _may_overlap_itself(x):
            raise RopeError(
                "inplace",
                "needs memory of its own for every element; call .contiguous() first",
                list(x.stride()),
            )
    if len(xs) == 2 and (xs[0] is xs[1] or (addresses and _share_elements(*xs))):
        raise RopeError(
            "inplace",
            "q and k must not share memory: it would be rotated twice",
            [list(x.shape) for x in xs],
        )


def _may_overlap_itself(x: Tensor) -> bool:
    """Return whether two indices may address the same element; also True for a few harmless views."""
    reach = 0  # the offset of the last element along the axes so far, those with smaller strides
    for stride, size in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n != 1):
        if stride <= reach and x.numel():
            return True
        reach += stride * (size - 1)
    return False


def _share_elements(q: Tensor, k: Tensor) -> bool:
    """Return whether q and k, neither of which overlaps itself, have a byte of memory in common."""
    if (
        not q.numel()
        or not k.numel()
        or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr()
    ):
        return False
    # in bytes, because q and k may have elements of different sizes. Byte i of q is byte j of k if
    # sum(q_stride * i) - sum(k_stride * j) is the distance between their starts. A step is one term
    # of it: (stride, least count, most count); an axis with equal strides gives one step, whose count
    # is i - j. The last axis is that of the bytes of an element
    q_strides, k_strides = ([n * x.element_size() for n in x.stride()] + [1] for x in (q, k))
    q_sizes, k_sizes = ((*x.shape, x.element_size()) for x in (q, k))
    steps = []
    for q_stride, q_size, k_stride, k_size in zip(
        q_strides, q_sizes, k_strides, k_sizes, strict=True
    ):
        if q_stride == k_stride:
            steps.append((q_stride, 1 - k_size, q_size - 1))
        else:
            steps += [(q_stride, 0, q_size - 1), (k_stride, 1 - k_size, 0)]
    starts = [int(x.storage_offset()) * x.element_size() for x in (q, k)]
    return _can_sum_to(starts[1] - starts[0], sorted(steps, reverse=True))


def _can_sum_to(distance: int, steps: list[tuple[int, int, int]]) -> bool:
    """Return whether sum(stride * count) can be `distance`, where each step is (stride, least
    count, most count).

    The steps are sorted, the largest stride first, so that the bounds of the later steps leave few
    counts to try.
    """
    if not steps:
        return distance == 0
    (stride, least, most), *later = steps
    if stride == 0:  # so are all later strides
        return distance == 0
    low = sum(later_stride * later_least for later_stride, later_least, _ in later)
    high = sum(later_stride * later_most for later_stride, _, later_most in later)
    # the counts for which the later steps can make up the difference: low <= distance - stride *
    # count <= high. Both bounds are divided by the stride, the lower one rounded up by -(-a // b)
    counts = range(
        max(least, -((high - distance) // stride)), min(most, (distance - low) // stride) + 1
    )
    return any(_can_sum_to(distance - stride * count, later) for count in counts)


def _check_heads_of_mixed_axes(name: str, x: Tensor, seq_dim: int, num_heads: int) -> None:
    """Raise an error unless x has `num_heads` heads: MixedAxes has frequencies for that many."""
    _, _, head_axis = token_axes(x.ndim, seq_dim)
    if head_axis is None or x.shape[head_axis] != num_heads:
        rule = (
            f"must have the {num_heads} heads of MixedAxes, which has frequencies for each of them"
        )
        raise RopeError(name, rule, list(x.shape))


def _check_multiple_of_heads(name: str, x: Tensor, seq_dim: int, num_heads: int) -> None:
    """Raise an error if the number of heads of x is not a multiple of `num_heads`."""
    _, _, head_axis = token_axes(x.ndim, seq_dim)
    if head_axis is None or x.shape[head_axis] % num_heads:
        rule = (
            f"must have {num_heads} heads or a multiple of them: the axes of the spec differ from "
            "head to head"
        )
        raise RopeError(name, rule, list(x.shape))


def _batch_size(x: Tensor, seq_dim: int) -> int:
    _, batch_axis, _ = token_axes(x.ndim, seq_dim)
    return 1 if batch_axis is None else x.shape[batch_axis]


def _positions_from_offset(offset: Tensor, seq: int, batch: int, device: torch.device) -> Tensor:
    return _per_row("offset", offset, batch, device).reshape(-1, 1) + torch.arange(
        seq, device=device
    )


def _per_row(name: str, value: Tensor, batch: int, device: torch.device) -> Tensor:
    """Check an integer tensor with one number for all rows or one for each, and return it as int64."""
    if (
        value.dtype not in INTEGERS
        or value.ndim > 1
        or (value.ndim and value.shape[0] not in (1, batch))
    ):
        raise RopeError(
            name,
            f"must be an integer or integers [{batch}], one for each row",
            [value.dtype, list(value.shape)],
        )
    if value.device != device:
        raise RopeError(name, f"must be on x's device {device}", str(value.device))
    return value.to(torch.int64)


def _check_positions(
    positions: Tensor, spec: RopeSpec, seq: int, batch: int, device: torch.device
) -> Tensor:
    """Return checked positions, int32, int64 or floating: [S] or [B, S]; [axes, B, S] if the spec
    has several axes. They must be those of `batch` rows of `seq` tokens on `device`; one row, or
    positions without rows, are those of all rows.
    """
    if not isinstance(positions, Tensor):
        raise RopeError("positions", "must be a tensor", type(positions))
    allowed = (torch.float32, torch.float64, *INTEGERS) if spec.fractional else INTEGERS
    if positions.dtype not in allowed:
        floats = (
            ", or float32/64" if spec.fractional else "; a float cannot hold every position exactly"
        )
        rule = f"must be integers, uint8 or int8 to int64{floats}"
        raise RopeError("positions", rule, positions.dtype)
    if positions.device != device:
        raise RopeError(
            "positions",
            f"must be on x's device {device}; move them once, outside the loop",
            str(positions.device),
        )
    shape = list(positions.shape)
    rows = shape if len(shape) < 3 else shape[1:]
    if (
        not 1 <= len(shape) <= 3
        or rows[-1] != seq
        or (len(rows) == 2 and rows[0] not in (1, batch))
    ):
        rule = f"must be [{seq}], [{batch}, {seq}]" + (
            f" or [{spec.num_axes}, {batch}, {seq}]" if spec.num_axes > 1 else ""
        )
        raise RopeError("positions", rule + " for these tokens", shape)
    if len(shape) == 3 and shape[0] != spec.num_axes:
        raise RopeError(
            "positions",
            f"must be [axes, batch, tokens] with the spec's {spec.num_axes} axes",
            shape,
        )
    if positions.dtype not in (torch.int32, torch.float32, torch.float64):
        positions = positions.to(torch.int64)  # kernels support two integer widths, not five
    if spec.num_axes > 1 and len(shape) < 3:
        return _same_on_all_axes(positions, spec)
    # with one axis, [1, B, S] stands for [B, S]
    return positions[0] if len(shape) == 3 and spec.num_axes == 1 else positions


def _same_on_all_axes(positions: Tensor, spec: RopeSpec) -> Tensor:
    """Return positions [S] or [B, S] as [axes, B, S]: text has the same position on every axis."""
    return (positions if positions.ndim == 2 else positions.unsqueeze(0)).expand(
        spec.num_axes, -1, -1
    )


def _length_per_row(
    spec: RopeSpec,
    positions: Tensor | None,
    offset: int,
    seq: int,
    batch: int,
    device: torch.device,
    length: Length,
) -> Length:
    """Return the length that each row's frequencies depend on. None if frequencies do not depend on
    a length.

    positions, offset  as checked: None for positions from `offset` on
    length             as given; None: the row's largest position + 1, computed on the device
    """
    if not spec.needs_length:
        return None
    if isinstance(length, Tensor):
        return _per_row("length", length, batch, device)
    if length is not None:
        # torch.compile has a SymInt for an int that may change from call to call
        return length if isinstance(length, torch.SymInt) else integer("length", length, low=0)
    if positions is None:
        return offset + seq
    if not positions.numel():
        return 0
    # int64 first: one past the last int32 position does not fit in an int32
    last = positions.amax(dim=-1)
    last = (last if last.is_floating_point() else last.to(torch.int64)) + 1
    return last.amax(dim=0) if last.ndim == 2 else last  # [axes, B]: the largest over the axes
