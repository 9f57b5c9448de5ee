"""The native CPU kernel: cpu.c, a plain shared library called through ctypes.

A call is one bytes object: where the tensors and positions are, how the angles are read, the two-level table of the spec,
and the plan that follows from shapes alone. All but the first are kept between calls; nothing mutable is shared between
threads.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import choice
from ropewalk.kernels.request import AnyRequest, Request, TableRequest, token_axes
from ropewalk.spec import RopeSpec, spec_of
from ropewalk.table import LEVEL_BITS, Tables, first_rows, magnitude_on, sides_differ, tables

#: of `struct call` in cpu.c
ABI = 2
MAX_DIMS = 8
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
LAYOUTS = {"half": 0, "interleaved": 1}

_FAR, _NO_MEMORY = 1, 2
_LIBRARY = Path(__file__).with_name("_cpu.so")
_REBUILD = "install a C compiler (gcc or clang), then: pip install --force-reinstall --no-cache-dir --no-binary ropewalk ropewalk"


def _load() -> tuple[ctypes.CDLL | None, str]:
    """The library, or None and why there is none."""
    if not _LIBRARY.exists():
        return None, f"the native library was not built when ropewalk was installed; {_REBUILD}"
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        if library.ropewalk_abi() != ABI:
            return None, f"the native library belongs to another version of ropewalk; {_REBUILD}"
    except (OSError, AttributeError) as error:
        return None, f"the native library does not load ({error}); {_REBUILD}"
    library.ropewalk_isa.restype = ctypes.c_char_p
    library.ropewalk_turn.argtypes = [ctypes.c_char_p]
    return library, ""


#: whose threads may share the work, best first: how the library is told, and the functions it then calls.
#: Linking OpenMP instead could load a second runtime beside torch's.
POOLS = {
    "torch": ("ropewalk_use_torch", ("torch_parallel_for",)),
    "openmp": (
        "ropewalk_use_openmp",
        ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads"),
    ),
}


def join_pool(*names: str) -> str:
    """Share the work with the first of the named pools that torch has here; "serial" if it has none."""
    library: ctypes.CDLL = _library  # type: ignore[assignment]  # only called where there is one
    library.ropewalk_serial()
    try:
        runtime = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
    except (OSError, StopIteration):
        return "serial"
    for name in names:
        join, functions = POOLS[name]
        if all(hasattr(runtime, function) for function in functions):
            getattr(library, join)(*(getattr(runtime, function) for function in functions))
            return name
    return "serial"


def isas() -> dict[str, int]:
    """The instruction sets this machine can run, widest first, with their numbers in the library."""
    found: dict[str, int] = {}
    while _library is not None and (name := _library.ropewalk_isa(len(found))) is not None:
        found[name.decode() or f"not here {len(found)}"] = len(found)
    return {name: index for name, index in found.items() if not name.startswith("not here")}


def choose_isa(name: str | None = None) -> str:
    """Use the named instruction set, or the widest, in the whole process; its name."""
    indices = isas()
    name = choice("ROPEWALK_ISA", name, indices) if name else next(iter(indices))
    _library.ropewalk_choose_isa(indices[name])  # type: ignore[union-attr]  # it gave the indices
    return name


_library, _missing = _load()
#: the pool that was joined
pool = "serial"
if _library is not None:
    pool = join_pool(*POOLS)
    choose_isa(os.environ.get("ROPEWALK_ISA"))
    _turn = _library.ropewalk_turn
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_library.ropewalk_serial)


def why_not(x: Tensor, request: AnyRequest) -> str | None:
    """None for float32, bfloat16 and float16 on the CPU whose dimensions lie side by side."""
    if not x.is_cpu:
        return "the native kernel runs on the CPU"
    if _library is None:
        return _missing
    if x.dtype not in DTYPES:
        return "the native kernel computes in float32, too coarse for float64"
    if x.ndim > MAX_DIMS:
        return f"the native kernel walks at most {MAX_DIMS} axes"
    if x.stride(-1) != 1 and x.numel():
        return "the last dimension must have stride 1; call .contiguous()"
    if x._is_zerotensor() or x.is_neg():
        return "x has no memory of its own or stands for its negative; call .resolve_neg() or .clone()"
    if type(request) is TableRequest and not _fits(request.cos, x, request.seq_dim):
        return "the tables must be on the CPU, with x's batch and heads, or 1 of either"
    return None


def _fits(table: Tensor, x: Tensor, seq_dim: int) -> bool:
    seq, batch, head = _axes(x.ndim, seq_dim)
    batches = table.shape[0] if table.ndim > 2 else 1
    heads = table.shape[1] if table.ndim > 3 else 1
    return (
        table.is_cpu
        and table.shape[-2] == x.shape[seq]
        and batches in (1, x.shape[batch] if batch >= 0 else 1)
        and heads in (1, x.shape[head] if head >= 0 else 1)
    )


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each turned x into its out, which may be x itself."""
    source, _alive = _source(request.spec, request.magnitude_power, request.key) if type(request) is Request else (None, None)
    if len(xs) == 2 and (xs[0].dtype is not xs[1].dtype or (source is not None and not source.serves_both)):
        run(xs[:1], outs[:1], request)
        run(xs[1:], outs[1:], replace(request, key=True))
        return
    plan, mixed = _plan_of(xs, outs, request)
    if mixed and outs[0] is xs[0]:
        # pairs land where others have yet to be read
        apart = tuple(torch.empty_like(x) for x in xs)
        run(xs, apart, request)
        for x, y in zip(xs, apart, strict=True):
            x.copy_(y)
    elif source is None or not source.levels or not _run_near(xs, outs, request, source.levels, plan):  # type: ignore[arg-type]
        _run_rows(xs, outs, request, plan)


def prepare(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request) -> Callable[..., bool] | None:
    """A function (q, k, q_out, k_out, positions, offset) -> done, for calls that differ from this one in pointers alone.

    False where positions lie beyond the levels.
    """
    source, alive = _source(request.spec, request.magnitude_power, request.key)
    plan, mixed = _plan_of(xs, outs, request)
    positions = request.positions
    if len(xs) != 2 or xs[0].dtype is not xs[1].dtype or not source.serves_both or not source.levels:
        return None
    if (mixed and outs[0] is xs[0]) or (positions is not None and positions.dtype is not torch.int64) or request.key:
        return None
    tail, pack = _reading(positions) + source.levels + plan, _MOVING.pack
    counted, seq, fingerprint, magnitude_power = (
        positions is None,
        xs[0].shape[request.seq_dim],
        request.spec.fingerprint,
        request.magnitude_power,
    )

    # `_alive` holds the tables whose memory the levels point at
    def run(
        q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, positions: Tensor | None, offset: int, _alive: Tables = alive
    ) -> bool:
        where = 0 if positions is None else positions.data_ptr()
        head = pack(q.data_ptr(), k.data_ptr(), q_out.data_ptr(), k_out.data_ptr(), where, offset)
        kept = _kept_rows(fingerprint, magnitude_power, False, offset, seq) if counted and seq >= KEPT_FROM else None
        return _turn(head + (tail if kept is None else kept.tail + plan)) == 0

    return run


def _run_near(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request, levels: bytes, plan: bytes) -> bool:
    """Let the library make the rows from the levels; False where these do not reach."""
    positions, seq = request.positions, xs[0].shape[request.seq_dim]
    kept = (
        _kept_rows(request.spec.fingerprint, request.magnitude_power, request.key, request.offset, seq)
        if positions is None and seq >= KEPT_FROM
        else None
    )
    if kept is not None:
        return _send(xs, outs, None, 0, kept.tail + plan) != _FAR
    if positions is not None and positions.dtype is not torch.int64:
        positions = positions.to(torch.int64)
    return _send(xs, outs, positions, request.offset, _reading(positions) + levels + plan) != _FAR


def _run_rows(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, plan: bytes) -> None:
    """Turn by rows [S, P], [B, S, P] or [B, H, S, P]; one batch or head serves all."""
    x = xs[0]
    # the plan turns backwards itself, so the rows are those of the turn forwards
    forth = replace(request, sign=1) if type(request) is Request and request.sign < 0 else request
    cos, sin = forth.rows(x.shape[request.seq_dim], x.device, torch.float32, request.key)
    if x.dtype is torch.bfloat16 and type(request) is TableRequest:
        # rounding to bfloat16 carries a NaN with a full payload into zero; this gives every NaN an empty one
        cos, sin = (table.nan_to_num(math.nan, math.inf, -math.inf) for table in (cos, sin))
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    steps = [0 if size == 1 else step for size, step in zip(cos.shape, cos.stride(), strict=True)]
    batch_step = steps[0] if len(steps) > 2 else 0
    head_step = steps[1] if len(steps) > 3 else 0
    angles = _ANGLES.pack(cos.data_ptr(), sin.data_ptr(), steps[-2], batch_step, head_step, 0, 0, 0)
    _send(xs, outs, None, 0, angles + _NO_LEVELS + plan)


# x, y of up to two tensors, positions, offset
_MOVING = struct.Struct("=6q")
# cos, sin and their steps (seq, batch, head), in floats; the steps of positions (seq, batch), their batches
_ANGLES = struct.Struct("=8q")
# low cos, low sin, high cos, high sin; the bits of a level; the magnitude
_LEVELS = struct.Struct("=4qqd")
_NO_LEVELS = _LEVELS.pack(0, 0, 0, 0, 0, 1.0)


def _reading(positions: Tensor | None) -> bytes:
    """Angles that are to be made from levels, for these positions or a count."""
    if positions is None:
        return _ANGLES.pack(0, 0, 0, 0, 0, 0, 0, 1)
    batches = positions.shape[0] if positions.ndim == 2 else 1
    return _ANGLES.pack(0, 0, 0, 0, 0, positions.stride(-1), positions.stride(0), batches)


def _send(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], positions: Tensor | None, offset: int, tail: bytes) -> int:
    """Make the call. What `tail` points at is alive in the caller."""
    where = 0 if positions is None else positions.data_ptr()
    head = _MOVING.pack(xs[0].data_ptr(), xs[-1].data_ptr(), outs[0].data_ptr(), outs[-1].data_ptr(), where, offset)
    status = _turn(head + tail)
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the cos and sin of these positions")
    return status


#: tokens of a call from which kept rows are worth finding: fewer are made sooner, as a step of speculative decoding wants
KEPT_FROM = 512


class _Kept(NamedTuple):
    """Rows of counted positions, and how the library reads them."""

    rows: tuple[Tensor, Tensor]
    tail: bytes


@functools.lru_cache(maxsize=2)
def _kept_rows(fingerprint: str, magnitude_power: int, key: bool, offset: int, seq: int) -> _Kept | None:
    """The rows of offset ... offset + seq - 1, which every layer of a prefill asks for; None where they are not kept."""
    spec = spec_of(fingerprint)
    rows = first_rows(spec, torch.device("cpu"), offset + seq, key) if magnitude_power == 1 and offset >= 0 else None
    if rows is None:
        return None
    step = rows[0].stride(0)  # in floats
    cos, sin = (table.data_ptr() + 4 * step * offset for table in rows)
    return _Kept(rows, _ANGLES.pack(cos, sin, step, 0, 0, 0, 0, 0) + _NO_LEVELS)


class _Source(NamedTuple):
    """How the library reads a spec's tables, good for as long as the cache keeps them."""

    tables: weakref.ref[Tables]
    serves_both: bool  # queries and keys alike
    levels: bytes  # empty if levels and magnitude do not say everything


#: by spec, gain and key
_SOURCES: dict[tuple[str, int, bool], _Source] = {}


def _source(spec: RopeSpec, magnitude_power: int, key: bool) -> tuple[_Source, Tables]:
    """The source, and its tables for the caller to keep alive."""
    name = (spec.fingerprint, magnitude_power, key)
    source = _SOURCES.get(name)
    if source is not None and (alive := source.tables()) is not None:
        return source, alive
    found = tables(spec, torch.device("cpu"))
    plain = found.frequencies.growth is None
    levels = b""
    if plain and found.levels is not None and not (spec.needs_length or spec.fractional):
        magnitude = magnitude_on(spec, found.frequencies.magnitude, key) ** magnitude_power
        levels = _LEVELS.pack(*(level.data_ptr() for level in found.levels), LEVEL_BITS, magnitude)
    _SOURCES[name] = _Source(weakref.ref(found), not sides_differ(spec, torch.device("cpu")), levels)
    return _SOURCES[name], found


def _plan_of(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> tuple[bytes, bool]:
    x, out = xs[0], outs[0]
    if len(xs) == 1:
        shapes = (x.shape, x.stride(), out.stride())
    else:
        shapes = (x.shape, x.stride(), out.stride(), xs[1].shape, xs[1].stride(), outs[1].stride())
    if type(request) is Request:
        return _request_plan(request.spec.fingerprint, request.sign, request.seq_dim, x.dtype, *shapes)
    return _plan(request.layout_in, request.layout_out, False, request.start, request.pairs, request.seq_dim, x.dtype, *shapes)


@functools.lru_cache(maxsize=512)
def _request_plan(fingerprint: str, sign: int, seq_dim: int, dtype: torch.dtype, *shapes: tuple[int, ...]) -> tuple[bytes, bool]:
    request = Request(spec_of(fingerprint), seq_dim, sign=sign)
    return _plan(request.layout_in, request.layout_out, sign < 0, request.start, request.pairs, seq_dim, dtype, *shapes)


@functools.lru_cache(maxsize=512)
def _plan(
    layout_in: str,
    layout_out: str,
    back: bool,
    start: int,
    pairs: int,
    seq_dim: int,
    dtype: torch.dtype,
    *shapes: tuple[int, ...],
) -> tuple[bytes, bool]:
    """The part of a call that follows from shapes, and whether the layouts differ.

    `shapes` are the size, the strides of x and the strides of y of every tensor.
    """
    ndim = len(shapes[0])
    layouts = LAYOUTS[layout_in], LAYOUTS[layout_out]
    words = (len(shapes) // 3, ndim, DTYPES[dtype], *layouts, back, start, pairs, *_axes(ndim, seq_dim))
    return struct.pack(f"={11 + len(shapes) * ndim}q", *words, *(n for shape in shapes for n in shape)), layout_in != layout_out


@functools.cache
def _axes(ndim: int, seq_dim: int) -> tuple[int, int, int]:
    """(seq, batch, head) axes, -1 for one that is not there."""
    seq, batch, head = token_axes(ndim, seq_dim)
    return seq, -1 if batch is None else batch, -1 if head is None else head
