"""The fast path of `Rope(q, k)`: a decode step repeats the same call, so its checks and its launch
plan are made once.

The first call of a kind runs every check. If its kernel has a `prepare`, later calls of the same
kind go directly to the prepared kernel. torch's own guard, the one behind torch.compile, decides
whether a call is of the same kind: in one step it compares type, dtype, device, sizes, strides,
requires_grad and all dispatch keys. The dispatch keys also reveal modes, transforms and tracers,
all but forward-mode derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import increment_version
from torch.nn.modules import module as torch_module

from ropewalk.caches import Cache
from ropewalk.kernels import pick
from ropewalk.kernels.request import Request
from ropewalk.spec import RopeSpec
from ropewalk.table import TABLES
from ropewalk.tracing import in_forward_mode, is_traced

#: a prepared kernel: (q, k, q_out, k_out, positions, offset) -> whether it ran; if not, the call
#: runs without the fast path
Prepared = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], bool]


class PreparedCall(NamedTuple):
    """One kind of call whose checks have passed."""

    matches: Callable[..., bool]  # the guard of (q, k) or (q, k, positions)
    run: Prepared | None  # None: this kind has no fast path
    # q or k requires a gradient, so the fast path is valid only while gradients are disabled
    needs_no_grad: bool
    distance: int  # bytes from the start of k to the start of q in the checked call
    q_span: int  # bytes from the first element of q to the end of its last
    k_span: int
    new_q: Callable[[], Tensor]  # allocates the rotated q
    new_k: Callable[[], Tensor]


#: prepared calls, keyed by call attributes that are cheap to read; a prepared kernel holds the
#: tables it points into
PREPARED = Cache("prepared calls", entries=1024, points_into=TABLES)
#: the most prepared calls under one key; they differ in strides, dtypes or devices
MOST_PER_KEY = 8

#: torch's module with the guards and allocators of torch.compile; without its guards there is no
#: fast path
_compiled = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guard = getattr(_compiled, "TensorGuards", None)
#: the hooks that torch runs for every module; torch never replaces these dicts
_GLOBAL_HOOKS = tuple(
    getattr(torch_module, f"_global_{kind}_hooks")
    for kind in ("forward_pre", "forward", "backward_pre", "backward")
)
_global_forward_pre, _global_forward, _global_backward_pre, _global_backward = _GLOBAL_HOOKS


def rotate_prepared(
    module: nn.Module,
    spec: RopeSpec,
    backend: str | None,
    q: Tensor,
    k: Tensor,
    positions: Tensor | None,
    offset: int | Tensor,
    seq_dim: int,
    inplace: bool,
) -> tuple[Tensor, Tensor] | None:
    """Return the rotated q and k, or None if the full call is needed: for example, because this
    kind of call was not prepared, hooks have to run, or autograd or torch.compile observes it.

    module         the Rope that is called, for its hooks; `spec` and `backend` are its own
    q ... inplace  the arguments of the call, as in `Rope.forward`

    This function runs in nearly every call with q and k, so it reads attributes directly and calls
    few functions.
    """
    state, has_positions = module.__dict__, positions is not None
    # hooks of this module
    if (
        state["_forward_pre_hooks"]
        or state["_forward_hooks"]
        or state["_backward_pre_hooks"]
        or state["_backward_hooks"]
    ):
        return None
    # hooks for every module, and torch.compile
    if (
        _global_forward_pre
        or _global_forward
        or _global_backward_pre
        or _global_backward
        or torch.compiler.is_compiling()
    ):
        return None
    # the instance has a forward of its own, or was compiled
    if "forward" in state or "_compiled_call_impl" in state:
        return None
    # forward-mode derivatives are tested here because the guard does not see them
    if (
        type(q) is not Tensor
        or type(offset) is not int
        or type(seq_dim) is not int
        or in_forward_mode()
    ):
        return None
    for call in PREPARED.get(
        (spec.fingerprint, backend, q.shape, has_positions, seq_dim, inplace), ()
    ):
        if call.matches(q, k, positions) if has_positions else call.matches(q, k):
            break
    else:
        return None
    if call.run is None or (call.needs_no_grad and torch.is_grad_enabled()):
        return None
    # the full call raises an error for an offset given with positions, and for an offset whose
    # absolute value is 2^62 or more
    if (has_positions and offset) or offset.bit_length() > 62:
        return None
    if not inplace:
        q_out, k_out = call.new_q(), call.new_k()
        return (q_out, k_out) if call.run(q, k, q_out, k_out, positions, offset) else None
    # q and k have the shapes and strides of the checked call, which shared no memory. At another
    # distance from each other, they can share memory only if their spans overlap
    distance = q.data_ptr() - k.data_ptr()
    if (distance != call.distance and -call.q_span < distance < call.k_span) or not call.run(
        q, k, q, k, positions, offset
    ):
        return None
    increment_version((q, k))
    return q, k


def prepare(
    request: Request,
    backend: str | None,
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    positions: Tensor | None,
    seq_dim: int,
) -> None:
    """Prepare the fast path for calls like this one, which has just run with all checks; do nothing
    for a kind that cannot have one, such as a call under torch.compile.

    request             the checked call
    xs, outs            its tensors and the rotated ones, which are the same in place
    positions, seq_dim  as the caller gave them
    """
    tensors = xs if positions is None else (*xs, positions)
    # a prepared kernel reads the caller's positions, so none is prepared if the checks had to
    # convert or make them. Without torch's guards, and for q alone, there is no fast path
    if (
        _Guard is None
        or len(xs) != 2
        or request.positions is not positions
        or not _is_plain(tensors)
    ):
        return
    requires_grad = any(x.requires_grad for x in xs)
    if requires_grad and torch.is_grad_enabled():  # a prepared kernel records nothing for autograd
        return
    key = (
        request.spec.fingerprint,
        backend,
        xs[0].shape,
        positions is not None,
        seq_dim,
        outs[0] is xs[0],  # whether the call is in place
    )
    earlier_calls = PREPARED.get(key, [])
    if any(call.matches(*tensors) for call in earlier_calls):
        return
    # a call with None as `run` is kept too, so that calls like it are not examined again
    run, spec = None, request.spec
    # angles that depend on the length, are learned or differ from head to head are computed anew in
    # every call
    if not (spec.needs_length or spec.learned or spec.per_head):
        prepare_kernel = pick(xs, request, backend).prepare
        run = None if prepare_kernel is None else prepare_kernel(xs, outs, request)
    sizes, strides = (
        [list(tensor.shape) for tensor in tensors],
        [list(tensor.stride()) for tensor in tensors],
    )
    guard = _Guard(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    q, k = xs
    distance, new_q, new_k = q.data_ptr() - k.data_ptr(), _allocator(outs[0]), _allocator(outs[1])
    call = PreparedCall(guard.check, run, requires_grad, distance, _span(q), _span(k), new_q, new_k)
    PREPARED.keep(key, [call, *earlier_calls[: MOST_PER_KEY - 1]])


def _allocator(out: Tensor) -> Callable[[], Tensor]:
    """Return a function that allocates a tensor with the shape, strides, dtype and device of `out`.

    torch.compile's allocator takes half the time of empty_like. It allocates on the current GPU; if
    that is not the one of `out`, the prepared kernel refuses the call.
    """
    fast_allocator = getattr(_compiled, f"_empty_strided_{out.device.type}", None)
    if fast_allocator is None:
        return partial(
            torch.empty_strided, tuple(out.shape), out.stride(), dtype=out.dtype, device=out.device
        )
    return partial(fast_allocator, tuple(out.shape), out.stride(), out.dtype)


def _is_plain(tensors: tuple[Tensor, ...]) -> bool:
    """Return whether nothing traces the call and each of these is a plain tensor: no subclass, no
    parameter and no lazy negative view.
    """
    if is_traced(tensors) or in_forward_mode():
        return False
    # a lazy negative view holds the values before the change of sign, and a kernel would read those
    return all(type(tensor) is Tensor and not tensor.is_neg() for tensor in tensors)


def _span(x: Tensor) -> int:
    """Return the bytes from the first element to the end of the last."""
    return (
        1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    ) * x.element_size()
