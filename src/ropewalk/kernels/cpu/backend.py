"""The native CPU backend: which tensors it supports, and how it calls the C library.

Words of this module:
  request  what one call rotates: the angles, the pairs, and `seq_dim`, the axis of the tokens
  levels   the two-level table: cos and sin of the low and of the high bits of a position, whose
           angles are added. `levels.words` is empty if it does not define the rotation, and
           `levels.for_both` says whether queries and keys have the same angles and magnitude
  rows     cos and sin themselves, one row for each token
  words    some of the library's arguments, packed as bytes; `shapes` are those of sizes and strides
  key      for attention keys
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ropewalk.kernels.cpu import library
from ropewalk.kernels.cpu.call import (
    DTYPES,
    POINTERS,
    Levels,
    cached_rows,
    levels_of,
    position_words,
    row_words,
    shape_words,
)
from ropewalk.kernels.request import AnyRequest, Request, TableRequest, token_axes

#: the most axes of a tensor that the library takes
MAX_DIMS = 8
#: from this many tokens on, reading cached float32 rows of cos and sin is faster than computing
#: them from the two-level table (of the low and of the high bits of a position)
CACHED_ROWS_FROM = 512

_OUT_OF_RANGE, _NO_MEMORY = 1, 2
_rotate: Callable[[bytes], int] = getattr(library.handle, "ropewalk_rotate", None)  # type: ignore[assignment]


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """Return why this backend cannot rotate x, or None if it can."""
    if not x.is_cpu:
        return "the native kernel runs on the CPU"
    if library.handle is None:
        return library.missing
    if x.dtype not in DTYPES:
        return "the native kernel computes in float32, which is not enough for float64"
    if x.ndim > MAX_DIMS:
        return f"the native kernel takes at most {MAX_DIMS} axes"
    if x.stride(-1) != 1 and x.numel():
        return "the last dimension must have stride 1; call .contiguous()"
    if x._is_zerotensor() or x.is_neg():
        return (
            "x is a zero tensor without memory, or a lazy negative view; call .resolve_neg() or "
            ".clone()"
        )
    if type(request) is TableRequest and not _broadcasts(request.cos, x, request.seq_dim):
        return (
            "the tables must be on the CPU, with one row for each token, and with x's batch size "
            "and number of heads, or 1 of either"
        )
    return None


def _broadcasts(table: Tensor, x: Tensor, seq_dim: int) -> bool:
    """Return whether the library can broadcast a table [S, P], [B, S, P] or [B, H, S, P] over x."""
    seq, batch, head = token_axes(x.ndim, seq_dim)
    x_batch, x_heads = (1 if axis is None else x.shape[axis] for axis in (batch, head))
    table_batch = table.shape[0] if table.ndim > 2 else 1
    table_heads = table.shape[1] if table.ndim > 3 else 1
    return (
        table.is_cpu
        and table.shape[-2] == x.shape[seq]
        and table_batch in (1, x_batch)
        and table_heads in (1, x_heads)
    )


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each rotated x into its out, which may be x itself; xs is (q,) or (q, k)."""
    # the library computes cos and sin from the two-level table, or reads cached rows of them for
    # many consecutive tokens; if neither has all positions, it reads rows computed for this call
    levels = None
    if type(request) is Request and request.tables in ("auto", "two-level"):
        levels = levels_of(request.spec, request.magnitude_power, request.key)
    keys_have_own_rows = (
        request.keys_have_own_rows(xs[0].device) if levels is None else not levels.for_both
    )
    if len(xs) == 2 and (xs[0].dtype is not xs[1].dtype or keys_have_own_rows):
        # one library call has one dtype and the same angles for both tensors
        for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
            run((x,), (out,), request.of_tensor(index))
    elif outs[0] is xs[0] and request.layout_in != request.layout_out:
        # in place with different layouts, writing a pair would overwrite pairs that have not been
        # read yet
        copies = tuple(torch.empty_like(x) for x in xs)
        run(xs, copies, request)
        for x, y in zip(xs, copies, strict=True):
            x.copy_(y)
    else:
        shapes = shape_words(xs, outs, request)
        if (
            levels is None
            or not levels.words
            # only a Request has levels
            or not _run_from_levels_or_cache(xs, outs, request, levels, shapes)  # type: ignore[arg-type]
        ):
            _run_from_rows(xs, outs, request, shapes)


def prepare(
    xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request
) -> Callable[..., bool] | None:
    """Return a function (q, k, q_out, k_out, positions, offset) -> done, for calls with these
    shapes, dtypes and strides.

    The function computes angles from a two-level table: cos and sin of coarse and of fine steps,
    whose angles are added. It returns False and writes nothing if a position is beyond that table,
    or if there is not enough memory. `prepare` returns None if one library call is not enough, if
    both tensors are keys, or if the library cannot compute these angles or read these positions.
    """
    levels = levels_of(request.spec, request.magnitude_power, request.key)
    positions = request.positions
    # one library call rotates two tensors of one dtype by the same angles, computed from the
    # two-level table
    if (
        len(xs) != 2
        or xs[0].dtype is not xs[1].dtype
        or not levels.for_both
        or not levels.words
        or request.key
    ):
        return None
    # in place with different layouts, `run` needs copies
    if outs[0] is xs[0] and request.layout_in != request.layout_out:
        return None
    # the library reads int64 positions, and converting others would allocate at every call
    if positions is not None and positions.dtype is not torch.int64:
        return None
    shapes = shape_words(xs, outs, request)  # packed for the library
    # looked up now, because every lookup inside the function would delay a decode step
    pack, rotate = POINTERS.pack, _rotate
    # the library call's arguments after the pointers: where positions are, the two-level table, and
    # the shapes
    arguments = position_words(positions) + levels.words + shapes
    spec, magnitude_power, seq = request.spec, request.magnitude_power, xs[0].shape[request.seq_dim]
    consecutive = positions is None

    def run_prepared(
        q: Tensor,
        k: Tensor,
        q_out: Tensor,
        k_out: Tensor,
        positions: Tensor | None,
        offset: int,
        _alive: Levels = levels,
    ) -> bool:
        """Rotate q and k by one library call; return False if nothing was written. `prepare` has
        looked up all other values. `_alive` is never read: its default keeps the two-level table
        alive, whose address is among `arguments`.
        """
        position_pointer = 0 if positions is None else positions.data_ptr()
        pointers = pack(
            q.data_ptr(), k.data_ptr(), q_out.data_ptr(), k_out.data_ptr(), position_pointer, offset
        )
        # for many consecutive tokens, cached rows are faster than the two-level table. The argument
        # False asks for the rows of queries; the keys of this call have the same
        rows = (
            cached_rows(spec, magnitude_power, False, offset, seq)
            if consecutive and seq >= CACHED_ROWS_FROM
            else None
        )
        # cached rows of cos and sin take the place of positions and table
        return rotate(pointers + (arguments if rows is None else rows.words + shapes)) == 0

    return run_prepared


def _run_from_levels_or_cache(
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    request: Request,
    levels: Levels,
    shapes: bytes,
) -> bool:
    """Rotate by the two-level table or by cached rows; return False, and write nothing, if a
    position is beyond them.

    shapes  the packed sizes and strides of xs and outs, by `shape_words`
    """
    positions, seq = request.positions, xs[0].shape[request.seq_dim]
    # for many consecutive tokens, cached rows are faster than the two-level table; the strategy
    # "two-level" keeps none
    if positions is None and seq >= CACHED_ROWS_FROM and request.tables == "auto":
        rows = cached_rows(request.spec, request.magnitude_power, request.key, request.offset, seq)
        if rows is not None:
            return (
                _call(xs, outs, positions=None, offset=0, after_pointers=rows.words + shapes)
                != _OUT_OF_RANGE
            )
    if positions is not None and positions.dtype is not torch.int64:
        positions = positions.to(torch.int64)
    return (
        _call(
            xs, outs, positions, request.offset, position_words(positions) + levels.words + shapes
        )
        != _OUT_OF_RANGE
    )


def _run_from_rows(
    xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, shapes: bytes
) -> None:
    """Rotate by tables [S, P], [B, S, P] or [B, H, S, P]; a batch or heads of size 1 broadcast.

    shapes  the packed sizes and strides of xs and outs, by `shape_words`
    """
    x = xs[0]
    # sin is not negated for an inverse rotation, because the library does that
    forwards = (
        replace(request, sign=1) if type(request) is Request and request.sign < 0 else request
    )
    cos, sin = forwards.rows(x.shape[request.seq_dim], x.device, torch.float32, request.key)
    if x.dtype is torch.bfloat16 and type(request) is TableRequest:
        # rounding to bfloat16 would change a NaN with a payload of ones to zero, so replace every
        # NaN by the default NaN
        cos, sin = (table.nan_to_num(math.nan, math.inf, -math.inf) for table in (cos, sin))
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    strides = [
        0 if size == 1 else stride for size, stride in zip(cos.shape, cos.stride(), strict=True)
    ]
    batch_stride = strides[0] if len(strides) > 2 else 0
    head_stride = strides[1] if len(strides) > 3 else 0
    rows = row_words(cos.data_ptr(), sin.data_ptr(), strides[-2], batch_stride, head_stride)
    _call(xs, outs, positions=None, offset=0, after_pointers=rows + shapes)


def _call(
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    positions: Tensor | None,
    offset: int,
    after_pointers: bytes,
) -> int:
    """Call the library and return its status: 0, or _OUT_OF_RANGE if a position is beyond the
    tables of cos and sin.

    positions       None: they are offset, offset + 1, ...; else `offset` has no effect
    after_pointers  the packed arguments after the pointers; the caller must keep the memory alive
                    that they point to
    """
    # for a single tensor, xs[-1] is xs[0]
    tensors = (xs[0].data_ptr(), xs[-1].data_ptr(), outs[0].data_ptr(), outs[-1].data_ptr())
    status = _rotate(
        POINTERS.pack(*tensors, 0 if positions is None else positions.data_ptr(), offset)
        + after_pointers
    )
    if status == _NO_MEMORY:
        raise MemoryError("not enough memory for cos and sin of these positions")
    return status
