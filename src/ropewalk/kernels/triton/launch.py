"""From tensors and a Turn to a launch: planned once for every kind of call, then only pointers change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from ropewalk.kernels.request import AnyRequest, Request, token_axes
from ropewalk.kernels.triton import backend as triton_backend
from ropewalk.kernels.triton import kernel as device
from ropewalk.kernels.triton import tuning
from ropewalk.kernels.triton.sources import Source, rows_of, source_of

#: CUDA's bound on the second and third axis of a grid
MOST_ROWS = 65535
#: kinds of calls that are remembered
MOST_PLANS = 1024
#: how a compiled kernel is started is Triton's own business; elsewhere its ordinary launch is used
DIRECT = triton.__version__.startswith("3.6.") and not knobs.runtime.interpret
INT32 = (-(1 << 31), (1 << 31) - 1)
#: turn_kernel's arguments that change from call to call: q, k, their outs, positions, angles, gains, offset
CHANGING = 10

Pointers = list[int]
Way = Callable[[tuple[Tensor, ...], tuple[Tensor, ...], AnyRequest, Pointers], None]
_PLANS: dict[tuple, Way] = {}


def launch(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each turned x into its out; nothing is read back, so it can be captured in a CUDA graph."""
    pointers = [t.data_ptr() for t in (*xs, *outs)]
    key = _kind(xs, outs, request, pointers)
    way = _PLANS.get(key)
    if way is None:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        way = _PLANS[key] = _find_way(xs, outs, request)
    way(xs, outs, request, pointers)


def prepare(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request) -> Callable[..., bool] | None:
    """A function (q, k, q_out, k_out, positions, offset) -> started, for calls that differ from this one in pointers alone."""
    plan = _PLANS.get(_kind(xs, outs, request, [t.data_ptr() for t in (*xs, *outs)]))
    if len(xs) != 2 or not isinstance(plan, Plan) or plan.source is None or plan.kernel is None:
        return None
    # everything that does not change is fetched here: a decode step waits for every name that is looked up
    grid_x, grid_y, grid_z = plan.grid
    start, fixed, angles, rest, index = plan.start, plan.fixed, tuple(plan.source.pointers), plan.rest, plan.device_index
    hooks, alone = knobs.runtime.launch_enter_hook, torch.cuda.device_count() == 1
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    lowest, highest = INT32

    # `_alive` holds the memory that `angles` point at
    def run(
        q: Tensor, k: Tensor, q_out: Tensor, k_out: Tensor, positions: Tensor | None, offset: int, _alive: Source = plan.source
    ) -> bool:
        at_q, at_k, to_q, to_k = q.data_ptr(), k.data_ptr(), q_out.data_ptr(), k_out.data_ptr()
        # compiled for pointers that are multiples of 16 bytes and an offset of 32 bits
        if (at_q | at_k | to_q | to_k) & 15 or not lowest <= offset <= highest:
            return False
        if hooks.calls or tuning.forced_config() is not None or not (alone or current_device() == index):
            return False
        where, stream = 0 if positions is None else positions.data_ptr(), current_stream(index)
        start(grid_x, grid_y, grid_z, stream, *fixed, at_q, at_k, to_q, to_k, where, *angles, offset, *rest)
        return True

    return run


def _kind(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> tuple:
    """Everything about a call that its plan and its compiled kernel depend on; exact shapes and strides, no rounding."""
    q, k, q_out, k_out = xs[0], xs[-1], outs[0], outs[-1]
    shapes = (len(xs), q.get_device(), q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride())
    placed = None if q_out is q and k_out is k else (q_out.dtype, q_out.stride(), k_out.dtype, k_out.stride())
    if isinstance(request, Request):
        positions, length = request.positions, request.length
        where = None if positions is None else (positions.dtype, positions.shape, positions.stride())
        rows = length.shape if isinstance(length, Tensor) else length is None
        asked: tuple = (
            request.spec.fingerprint,
            where,
            rows,
            request.sign,
            request.magnitude_power,
            INT32[0] <= request.offset <= INT32[1],
        )
    else:
        cos, sin = request.cos, request.sin
        asked = (
            request.start,
            request.layout_in,
            request.layout_out,
            cos.dtype,
            cos.shape,
            cos.stride(),
            sin.dtype,
            sin.stride(),
        )
        pointers = [*pointers, cos.data_ptr(), sin.data_ptr()]
    # Triton compiles for pointers that are multiples of 16 bytes, each on its own
    odd = 0
    for pointer in pointers:
        odd |= pointer
    alignment = [pointer & 15 == 0 for pointer in pointers] if odd & 15 else ()
    return (shapes, placed, asked, request.seq_dim, request.key, tuning.forced_config(), *alignment)


def _find_way(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> Way:
    if not all(x.numel() for x in xs):
        return _one_by_one if any(x.numel() for x in xs) else _nothing
    if any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in (*xs, *outs)):
        return _through_copies
    if len(xs) == 2 and (xs[0].dtype != xs[1].dtype or request.key):
        return _one_by_one
    if isinstance(request, Request) and (request.spec.precision == "hf" or request.spec.fractional):
        return _through_rows
    return Plan(xs, outs, request)


def _nothing(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> None:
    pass


def _one_by_one(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> None:
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        launch((x,), (out,), replace(request, key=request.key or index == 1))


def _through_rows(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> None:
    """Angles that are no exact phase (float32 ones of transformers, real positions) become rows of a table first."""
    of_query, of_key = rows_of(request, xs[0])  # type: ignore[arg-type]  # a Turn: see _find_way
    if of_query is of_key:
        launch(xs, outs, of_query)
        return
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        launch((x,), (out,), of_key if request.key or index == 1 else of_query)


def _through_copies(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> None:
    """Tensors whose last axis is not contiguous."""
    straight = tuple(x.contiguous() for x in xs)
    rotated = tuple(torch.empty_like(x) for x in straight)
    launch(straight, rotated, request)
    for out, done in zip(outs, rotated, strict=True):
        out.copy_(done)


class Tokens:
    """A tensor as [batch, tokens, heads, dims]: sizes, and the strides of the first three."""

    def __init__(self, x: Tensor, seq_dim: int, merged: bool = False) -> None:
        seq, batch, head = token_axes(x.ndim, seq_dim)
        self.sizes = tuple(1 if axis is None else x.shape[axis] for axis in (batch, seq, head))
        self.strides = tuple(0 if axis is None or x.shape[axis] == 1 else x.stride(axis) for axis in (batch, seq, head))
        if merged:
            self.sizes, self.strides = merge(self.sizes), merge(self.strides, 0)


def merge(sizes: tuple, single: int = 1) -> tuple:
    """Rows of one token each become the tokens of one row."""
    return (single, sizes[0], sizes[2])


class Plan:
    """One kind of call: its grid, its constants and, once compiled, its kernel."""

    def __init__(self, xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
        q = xs[0]
        source = source_of(request, q)
        #: what stays valid from call to call; None where the angles are another call by call
        self.source: Source | None = source if source.lasting else None
        values = self._values(xs, outs, request, source)
        self.rest = tuple(values[name] for name in device.rotate_kernel.arg_names[CHANGING:])
        self.kernel: Any = None
        self.device_index = q.device.index

    def _values(self, xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, source: Source) -> dict[str, Any]:
        """Every argument of the kernel that stays the same for this kind of call, by name."""
        x = xs[0]
        sizes = Tokens(x, request.seq_dim).sizes
        merged = sizes[1] == 1 and sizes[0] > 1 and not source.by_row
        # a lone tensor stands in for the key, which then has no heads
        q, k, q_out, k_out = (Tokens(each, request.seq_dim, merged) for pair in (xs, outs) for each in (pair[0], pair[-1]))
        (batch, tokens, q_heads), k_heads = q.sizes, k.sizes[2] if len(xs) > 1 else 0
        order = "head" if tokens > 1 and q_heads > 1 and q.strides[2] > q.strides[1] else "token"
        head_dim, pairs, start = x.shape[-1], request.pairs, request.start
        copied = 0 if all(out is each for each, out in zip(xs, outs, strict=True)) else head_dim - 2 * pairs
        heads, itemsize = (q_heads, k_heads), x.element_size()
        config = tuning.choose(order, source.mode, pairs, copied, (batch, tokens), heads, itemsize, source.num_axes)
        values = self._blocks(config, order, batch, tokens, q_heads, k_heads)
        for name, tensor in (("q", q), ("k", k), ("q_out", q_out), ("k_out", k_out)):
            values.update(zip((f"{name}_batch", f"{name}_token", f"{name}_head"), tensor.strides, strict=True))
        values.update(source.values(merged, MODE=getattr(device, source.mode.upper()).value))
        values.update(START=start, PAIRS=pairs, TAIL=head_dim - start - 2 * pairs, BLOCK=tuning.power(pairs))
        values.update(START_BLOCK=tuning.power(start), TAIL_BLOCK=tuning.power(values["TAIL"]))
        values.update(
            BACKWARDS=isinstance(request, Request) and request.sign < 0,
            INTERLEAVED_IN=request.layout_in == "interleaved",
            INTERLEAVED_OUT=request.layout_out == "interleaved",
            COPY=copied > 0,
            LOAD_HINT="evict_first" if config.hints else "",
            STORE_HINT=".cs" if config.hints else "",
            PDL=config.pdl and _has_pdl(x.device),
            QUICK=triton_backend.has_sine_unit(x),
        )
        self.options = {"num_warps": config.warps, **({"launch_pdl": True} if values["PDL"] else {})}
        return values

    def _blocks(self, config: tuning.Config, order: str, batch: int, tokens: int, q_heads: int, k_heads: int) -> dict[str, Any]:
        """The grid, and which tokens and heads a program takes."""
        q_block = min(config.heads, tuning.power(q_heads))
        k_block = 0
        q_groups = groups = -(-q_heads // q_block)
        if k_heads and config.together:
            k_block = tuning.power(-(-k_heads // groups))
        elif k_heads:
            groups += -(-k_heads // q_block)
        blocks = -(-tokens // config.tokens)
        columns, rows = (blocks, batch * groups) if order == "head" else (blocks * groups, batch)
        layers = -(-rows // MOST_ROWS)
        self.grid = (columns, min(rows, MOST_ROWS), layers)
        return {
            "tokens": tokens,
            "rows": rows,
            "Q_HEADS": q_heads,
            "K_HEADS": k_heads,
            "TOKENS": config.tokens,
            "Q_BLOCK": q_block,
            "K_BLOCK": k_block,
            "Q_GROUPS": q_groups,
            "GROUPS": groups,
            "TOKENS_FIRST": order == "head",
            "TALL": layers > 1,
            "MASK_TOKENS": tokens % config.tokens != 0,
            "MASK_Q": q_heads % q_block != 0 or (k_block == 0 and k_heads % q_block != 0),
            "MASK_K": k_block * groups != k_heads,
        }

    def __call__(self, xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest, pointers: Pointers) -> None:
        q = xs[0]
        source = self.source or source_of(request, q)
        positions, offset = (request.positions, request.offset) if isinstance(request, Request) else (None, 0)
        if self.kernel is None or knobs.runtime.launch_enter_hook.calls:
            lone = () if len(xs) > 1 else (None,)
            arguments: tuple = (*xs, *lone, *outs, *lone, positions, *source.tensors, offset, *self.rest)
            with torch.cuda.device_of(q):
                kernel = device.rotate_kernel[self.grid](*arguments, **self.options)
            if DIRECT:
                self._keep(kernel)
            return
        if len(xs) == 1:
            pointers = [pointers[0], 0, pointers[1], 0]
        pointers.append(0 if positions is None else positions.data_ptr())
        if torch._C._cuda_getDevice() == self.device_index:
            self._start(pointers, source, offset)
        else:
            with torch.cuda.device(self.device_index):
                self._start(pointers, source, offset)

    def _keep(self, kernel: Any) -> None:
        """The compiled kernel, and the C function behind its launcher: grid, stream, what is fixed, then every argument."""
        launcher = kernel.run
        self.start, self.kernel = launcher.launch, kernel
        hooks = (None, None, None)
        self.fixed = (kernel.function, launcher.launch_cooperative_grid, launcher.launch_pdl, None, None)
        self.fixed += (kernel.packed_metadata, *hooks)
        if launcher.global_scratch_size or launcher.profile_scratch_size:
            # memory of its own for every launch: leave that to the launcher
            self.start, self.fixed = launcher, (kernel.function, kernel.packed_metadata, *hooks)

    def _start(self, pointers: Pointers, source: Source, offset: int) -> None:
        """What Triton's own launch does in the end, without binding, hashing and checking arguments first."""
        stream = torch._C._cuda_getCurrentRawStream(self.device_index)
        self.start(*self.grid, stream, *self.fixed, *pointers, *source.pointers, offset, *self.rest)


def _has_pdl(where: torch.device) -> bool:
    """Programmatic dependent launch: the kernel after may start before this one ends (Hopper and later)."""
    return where.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(where)[0] >= 9
