"""Launches of the rotation kernel: a launch plan is made once for each combination of shapes and
then reused.

xs is (q,) or (q, k), and outs are the tensors for their results, which may be xs themselves;
`pointers` are the data pointers of both, which a runner need not use. A request says what one call
rotates, and by which angles. `plan.source` holds the kernel arguments of the angles, None if they
change from call to call; a phase is an angle as an integer, in units of 2^-64 turns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.caches import Cache
from ropewalk.kernels.launch_plan import launch_hooks
from ropewalk.kernels.request import AnyRequest, Request
from ropewalk.kernels.rotation.triton.angle_source import as_table_requests
from ropewalk.kernels.rotation.triton.config import RotationConfig
from ropewalk.kernels.rotation.triton.plan import RotationPlan
from ropewalk.table import TABLES

INT32 = (-(1 << 31), (1 << 31) - 1)

Runner = Callable[[tuple[Tensor, ...], tuple[Tensor, ...], AnyRequest, list[int]], None]
#: launch plans and the functions of `_runner`, by call signature: everything a launch depends on
#: except pointers
_RUNNERS = Cache("triton launch plans", entries=1024, points_into=TABLES)


def launch(
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    request: AnyRequest,
    config: RotationConfig | None = None,
) -> None:
    """Write each rotated x into its out. The first call of a kind compiles the kernel and makes its
    tables; later calls do not synchronise with the GPU, so a CUDA graph can capture them.

    `config` overrides how the kernel divides its work; only sweeps over configurations pass it.
    """
    pointers = [t.data_ptr() for t in (*xs, *outs)]
    signature = _signature(xs, outs, request, pointers, config)
    run = _RUNNERS.get(signature)
    if run is None:
        run = _RUNNERS.keep(signature, _runner(xs, outs, request, config))
    run(xs, outs, request, pointers)


def prepare(
    xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: Request
) -> Callable[..., bool] | None:
    """Return a function (q, k, q_out, k_out, positions, offset) -> started, for calls with these
    shapes, dtypes and strides.

    The function returns False and starts nothing if it does not support a call. `prepare` returns
    None if no compiled kernel can be started.
    """
    plan = _RUNNERS.get(_signature(xs, outs, request, [t.data_ptr() for t in (*xs, *outs)], None))
    if (
        len(xs) != 2
        or not isinstance(plan, RotationPlan)
        or plan.source is None
        or plan.launcher is None
    ):
        return None
    # look up all constants now, because every lookup inside the function would delay a decode step
    grid_x, grid_y, grid_z = plan.grid
    start, launcher_arguments, constants, index = (
        plan.launcher,
        plan.launcher_arguments,
        plan.constants,
        plan.device_index,
    )
    angles, hooks, one_gpu = plan.source.pointers, launch_hooks(), torch.cuda.device_count() == 1
    current_device, current_stream = torch._C._cuda_getDevice, torch._C._cuda_getCurrentRawStream
    lowest, highest = INT32

    def run_prepared(
        q: Tensor,
        k: Tensor,
        q_out: Tensor,
        k_out: Tensor,
        positions: Tensor | None,
        offset: int,
        _alive=plan.source,
    ) -> bool:
        """Start the compiled kernel; return False, and start nothing, if it does not support this
        call. `prepare` has looked up all other values. `_alive` is never read: its default keeps
        the memory alive that `angles` points to.
        """
        from_q, from_k, to_q, to_k = q.data_ptr(), k.data_ptr(), q_out.data_ptr(), k_out.data_ptr()
        # the kernel was compiled for pointers that are multiples of 16 bytes and for an offset of
        # 32 bits
        if (from_q | from_k | to_q | to_k) & 15 or not lowest <= offset <= highest:
            return False
        # a launch hook, such as a profiler's, must see the launch, and the kernel is loaded on one
        # device only
        if hooks.calls or not (one_gpu or current_device() == index):
            return False
        position = 0 if positions is None else positions.data_ptr()
        arguments = (from_q, from_k, to_q, to_k, position, *angles, offset, *constants)
        start(grid_x, grid_y, grid_z, current_stream(index), *launcher_arguments, *arguments)
        return True

    return run_prepared


def _signature(
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    request: AnyRequest,
    pointers: list[int],
    config: RotationConfig | None,
) -> tuple:
    """Return everything that the launch plan and the compiled kernel depend on, with exact shapes
    and strides. `pointers` are the data pointers of xs and outs.
    """
    q, k, q_out, k_out = xs[0], xs[-1], outs[0], outs[-1]
    inputs = (len(xs), q.get_device(), q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride())
    outputs = (
        None
        if q_out is q and k_out is k
        else (q_out.dtype, q_out.stride(), k_out.dtype, k_out.stride())
    )
    if isinstance(request, Request):
        positions, length = request.positions, request.length
        of_positions = (
            None if positions is None else (positions.dtype, positions.shape, positions.stride())
        )
        # the plan does not depend on how long the sequences are
        of_length = length.shape if isinstance(length, Tensor) else length is None
        # Triton compiles separate kernels for offsets of 32 and of 64 bits
        fits_int32 = INT32[0] <= request.offset <= INT32[1]
        signs = (request.sign, request.magnitude_power)
        # request.tables is the name of a table strategy
        angles: tuple = (
            request.spec.fingerprint,
            request.tables,
            of_positions,
            of_length,
            *signs,
            fits_int32,
        )
    else:
        cos, sin = request.cos, request.sin
        layouts = (request.start, request.layout_in, request.layout_out)
        angles = (*layouts, cos.dtype, cos.shape, cos.stride(), sin.dtype, sin.stride())
        pointers = [*pointers, cos.data_ptr(), sin.data_ptr()]
    # Triton compiles a separate kernel for each combination of pointers that are multiples of 16
    # bytes; usually all are
    all_bits = 0
    for pointer in pointers:
        all_bits |= pointer
    alignment = [pointer & 15 == 0 for pointer in pointers] if all_bits & 15 else ()
    return (inputs, outputs, angles, request.seq_dim, request.key, config, *alignment)


def _runner(
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    request: AnyRequest,
    config: RotationConfig | None,
) -> Runner:
    """Return the function that runs calls like this one: a launch plan, or a function that divides
    them into simpler calls.
    """

    def nothing(xs, outs, request, pointers) -> None:
        """Do nothing: all tensors are empty."""
        pass

    def one_by_one(xs, outs, request, pointers) -> None:
        """Rotate each tensor by its own launch."""
        for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
            launch((x,), (out,), request.of_tensor(index), config)

    def through_tables(xs, outs, request, pointers) -> None:
        """Compute cos and sin first, then rotate by them: the kernel itself computes only exact
        phases of integer positions. This request rounds its angles as transformers does, may have
        fractional positions, or takes its angles from a table.
        """
        for_queries, for_keys = as_table_requests(request, xs[0])
        # the same object, if queries and keys have the same cos and sin
        if for_queries is for_keys:
            launch(xs, outs, for_keys, config)
            return
        for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
            launch((x,), (out,), for_keys if request.is_key(index) else for_queries, config)

    def through_copies(xs, outs, request, pointers) -> None:
        """Rotate contiguous copies: the kernel needs a last dimension with stride 1."""
        copies = tuple(x.contiguous() for x in xs)
        rotated = tuple(torch.empty_like(x) for x in copies)
        launch(copies, rotated, request, config)
        for out, result in zip(outs, rotated, strict=True):
            out.copy_(result)

    if not all(x.numel() for x in xs):
        return one_by_one if any(x.numel() for x in xs) else nothing
    if any(t.stride(-1) != 1 and t.shape[-1] > 1 for t in (*xs, *outs)):
        return through_copies
    # one launch has one dtype and takes its second tensor as keys; with `request.key` both are keys
    if len(xs) == 2 and (xs[0].dtype != xs[1].dtype or request.key):
        return one_by_one
    if isinstance(request, Request) and (
        request.spec.precision == "hf" or request.spec.fractional or _has_table(request)
    ):
        return through_tables
    return RotationPlan(xs, outs, request, config)


def _has_table(request: Request) -> bool:
    """Return whether the angles come from a table that the caller chose: always with "two-level";
    with "full" only if no positions are given, since those on a GPU are not looked up.
    """
    return request.tables == "two-level" or (request.tables == "full" and request.positions is None)
