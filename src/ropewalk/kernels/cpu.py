"""The native CPU kernel: cpu.c, a plain shared library called through ctypes.

Angles of near positions are made inside the call from the kept two-level table; everything else arrives as rows. One
bytes object describes a call, so nothing is shared between threads.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from pathlib import Path

import torch
from torch import Tensor

from ropewalk.errors import choice
from ropewalk.kernels.turn import AnyTurn, TableTurn, Turn, token_axes
from ropewalk.table import LEVEL_BITS, Tables, first_rows, magnitude_on, tables

ABI = 1
MAX_DIMS = 8
#: from this many counted tokens on, reading the kept float32 rows is cheaper than making them
KEPT_ROWS_FROM = 64
#: narrower floats first round in float32
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


def _join_pool(library: ctypes.CDLL) -> str:
    """Hand torch's own threads to the library; the name of the pool."""
    try:
        runtime = ctypes.CDLL(str(next((Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*"))))
    except (OSError, StopIteration):
        return "serial"
    if hasattr(runtime, "torch_parallel_for"):
        library.ropewalk_use_torch(runtime.torch_parallel_for)
        return "torch"
    if hasattr(runtime, "GOMP_parallel"):
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads", "omp_get_max_threads")
        library.ropewalk_use_openmp(*(getattr(runtime, name) for name in names))
        return "openmp"
    return "serial"


def isas() -> tuple[str, ...]:
    """The instruction sets this machine can run, widest first."""
    return tuple(_isa_indices())


def _isa_indices() -> dict[str, int]:
    found: dict[str, int] = {}
    if _library is not None:
        for index in range(8):
            name = _library.ropewalk_isa(index)
            if name is None:
                break
            if name:
                found[name.decode()] = index
    return found


def choose_isa(name: str | None = None) -> str:
    """Use the named instruction set, or the widest; the choice holds for the whole process."""
    indices = _isa_indices()
    name = choice("ROPEWALK_ISA", name, indices) if name else next(iter(indices))
    _library.ropewalk_choose_isa(indices[name])  # type: ignore[union-attr]  # there are indices
    return name


_library, _missing = _load()
pool = "serial"
if _library is not None:
    pool = _join_pool(_library)
    choose_isa(os.environ.get("ROPEWALK_ISA"))
    _call = _library.ropewalk_turn
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_library.ropewalk_serial)


def why_not(x: Tensor, turn: AnyTurn) -> str | None:
    """Strided float32, bfloat16 or float16 on the CPU whose dimensions lie side by side."""
    if not x.is_cpu:
        return "the native kernel runs on the CPU"
    if _library is None:
        return _missing
    if x.dtype not in DTYPES:
        return "the native kernel computes in float32, which would round float64"
    if x.ndim > MAX_DIMS:
        return f"the native kernel walks at most {MAX_DIMS} axes"
    if x.numel() and x.stride(-1) != 1:
        return "the last dimension must have stride 1; call .contiguous()"
    if type(turn) is TableTurn and not _fits(turn.cos, x, turn.seq_dim):
        return "the table must be on the CPU, with x's batch and heads or 1"
    return None


def _fits(table: Tensor, x: Tensor, seq_dim: int) -> bool:
    seq, batch, head = _axes(x.ndim, seq_dim)
    sizes = (*(1,) * (4 - table.ndim), *table.shape) if table.ndim != 3 else (table.shape[0], 1, *table.shape[1:])
    return (
        table.is_cpu
        and sizes[0] in (1, x.shape[batch] if batch >= 0 else 1)
        and sizes[1] in (1, x.shape[head] if head >= 0 else 1)
        and sizes[2] == x.shape[seq]
    )


def run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], turn: AnyTurn) -> None:
    """Write each turned x into its out, which may be x itself."""
    if outs[0] is xs[0] and turn.layout_in != turn.layout_out:
        # pairs land where others have yet to be read
        apart = tuple(torch.empty_like(x) for x in xs)
        run(xs, apart, turn)
        for x, y in zip(xs, apart, strict=True):
            x.copy_(y)
        return
    kept = tables(turn.spec, xs[0].device) if type(turn) is Turn else None
    if len(xs) == 2 and (xs[0].dtype is not xs[1].dtype or not _shared(turn, kept)):
        _run(xs[:1], outs[:1], turn, kept, turn.key)
        _run(xs[1:], outs[1:], turn, kept, True)
    else:
        _run(xs, outs, turn, kept, turn.key)


def _shared(turn: AnyTurn, kept: Tables | None) -> bool:
    """Whether queries and keys turn by the same cos and sin."""
    return kept is None or (turn.spec.magnitude_on != "q" and kept.frequencies.growth is None)  # type: ignore[union-attr]


def _run(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], turn: AnyTurn, kept: Tables | None, key: bool) -> None:
    """Turn tensors that share their angles, by the cheapest source of them."""
    if type(turn) is Turn and kept is not None:
        seq, offset = xs[0].shape[turn.seq_dim], turn.offset
        near = kept.levels is not None and kept.frequencies.growth is None and not (turn.spec.needs_length or turn.spec.fractional)
        if (seq >= KEPT_ROWS_FROM or not near) and turn.positions is None and offset >= 0 and turn.gain == 1:
            rows = first_rows(turn.spec, xs[0].device, offset + seq, key)
            if rows is not None:
                _send(xs, outs, turn, turn.sign < 0, _rows(rows[0][offset:], rows[1][offset:]))
                return
        if near and _send(xs, outs, turn, turn.sign < 0, _made(turn, kept, key)) != _FAR:
            return
    # these rows have sin negated for a turn backwards
    _send(xs, outs, turn, False, _rows(*turn.rows(xs[0].shape[turn.seq_dim], xs[0].device, torch.float32, key)))


# A description of the angles: the tensors behind the pointers, to keep them alive, and the words after the axes in
# `struct call` of cpu.c: cos, sin, their steps (seq, batch, head); positions, their steps (seq, batch), offset, rows of
# them, the four levels, level bits, and the magnitude.
_Angles = tuple[tuple[Tensor, ...], tuple]
_NOT_MADE = (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)


def _made(turn: Turn, kept: Tables, key: bool) -> _Angles:
    """Angles that the library makes from positions and the two-level table."""
    levels: tuple[Tensor, ...] = kept.levels  # type: ignore[assignment]  # the caller has looked
    magnitude = magnitude_on(turn.spec, kept.frequencies.magnitude, key) ** turn.gain
    low_cos, low_sin, high_cos, high_sin = levels
    where, positions = (0, 0, 0, turn.offset, 1), turn.positions
    if positions is not None:
        if positions.dtype is not torch.int64:
            positions = positions.to(torch.int64)
        steps = positions.stride()
        batches = positions.shape[0] if len(steps) == 2 else 1
        where = (positions.data_ptr(), steps[-1], steps[0], 0, batches)
        levels = (*levels, positions)
    pointers = (low_cos.data_ptr(), low_sin.data_ptr(), high_cos.data_ptr(), high_sin.data_ptr())
    return levels, (0, 0, 0, 0, 0, *where, *pointers, LEVEL_BITS, magnitude)


def _rows(cos: Tensor, sin: Tensor) -> _Angles:
    """Angles as rows [S, P], [B, S, P] or [B, H, S, P]; a batch or head of one serves all."""
    if cos.stride(-1) != 1 or cos.stride() != sin.stride():
        cos, sin = cos.contiguous(), sin.contiguous()
    steps = [0 if size == 1 else step for size, step in zip(cos.shape, cos.stride(), strict=True)]
    batch_step = steps[0] if cos.ndim > 2 else 0
    head_step = steps[1] if cos.ndim > 3 else 0
    return (cos, sin), (cos.data_ptr(), sin.data_ptr(), steps[-2], batch_step, head_step, *_NOT_MADE)


def _send(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], turn: AnyTurn, back: bool, angles: _Angles) -> int:
    """Describe the call in one bytes object and make it."""
    x = xs[0]
    ndim = x.ndim
    described = []
    for each, out in zip(xs, outs, strict=True):
        described += (each.data_ptr(), out.data_ptr(), *each.shape, *each.stride(), *out.stride())
    layouts = LAYOUTS[turn.layout_in], LAYOUTS[turn.layout_out]
    axes = _axes(ndim, turn.seq_dim)
    words = _words(len(xs), ndim).pack(
        len(xs), ndim, DTYPES[x.dtype], *layouts, back, turn.start, turn.pairs, *axes, *angles[1], *described
    )
    status = _call(words)
    if status == _NO_MEMORY:
        raise MemoryError("no memory for the cos and sin of these positions")
    return status


@functools.cache
def _axes(ndim: int, seq_dim: int) -> tuple[int, int, int]:
    """(seq, batch, head) axes, -1 for one that is not there."""
    seq, batch, head = token_axes(ndim, seq_dim)
    return seq, -1 if batch is None else batch, -1 if head is None else head


@functools.cache
def _words(tensors: int, ndim: int) -> struct.Struct:
    return struct.Struct(f"=8q3q5q5q4qqd{tensors * (2 + 3 * ndim)}q")
