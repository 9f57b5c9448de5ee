"""Known kinds of calls: a decode step repeats one kind of call, so its checks and its plan are made once and remembered.

The first call of a kind takes the long way, through every check. If a kernel then has a `prepare`, later calls of the
same kind go straight to it. Whether a call is of a kind is asked of torch's own guard, the one behind torch.compile: in
one step it compares type, dtype, device, sizes, strides, requires_grad and every dispatch key, so also whether a mode, a
transform or a tracer watches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from torch.nn.modules import module as torch_module

from ropewalk.kernels import pick
from ropewalk.kernels.request import Request
from ropewalk.spec import RopeSpec

#: a prepared kernel: (q, k, q_out, k_out, positions, offset) -> whether it could; False sends the call the long way
Prepared = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], bool]


class Known(NamedTuple):
    """One kind of call."""

    fits: Callable[..., bool]  # asked of (q, k) or (q, k, positions)
    run: Prepared | None  # None where no kernel prepares it: only the long way leads there
    graded: bool  # q or k requires a gradient, so it is this kind only while none is taken
    apart: int  # bytes from the start of k to that of q in the call that was checked
    q_span: int  # bytes from end to end
    k_span: int
    new_q: Callable[[], Tensor]  # memory for the outs
    new_k: Callable[[], Tensor]


#: by what tells most of them apart and is quickly asked for
_KNOWN: dict[tuple, list[Known]] = {}
MOST_KNOWN = 1024
#: kinds that share a name: other strides, types or devices
MOST_OF_A_NAME = 8

_functorch_depth = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]  # missing from the stubs
#: what torch.compile's own calls are made of; a torch that has moved the guard knows no shortcut
_compiled = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
_Guard = getattr(_compiled, "TensorGuards", None)
#: hooks of every module, in dicts that torch keeps as long as the process lives
_before_any, _after_any = torch_module._global_forward_pre_hooks, torch_module._global_forward_hooks
_before_any_backward, _after_any_backward = torch_module._global_backward_pre_hooks, torch_module._global_backward_hooks


def rotate_known(
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
    """The turned q and k if this kind of call is known, its kernel takes it and nobody watches the module, else None."""
    own, given = module.__dict__, positions is not None
    if own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]:
        return None
    if _before_any or _after_any or _before_any_backward or _after_any_backward or torch.compiler.is_compiling():
        return None
    # somebody put a forward in its place, or compiled it
    if "forward" in own or "_compiled_call_impl" in own:
        return None
    # derivatives taken forwards are the one thing the guard does not see
    if type(q) is not Tensor or type(offset) is not int or type(seq_dim) is not int or forward_ad._current_level >= 0:
        return None
    for known in _KNOWN.get((spec.fingerprint, backend, q.shape, given, seq_dim, inplace), ()):
        if known.fits(q, k, positions) if given else known.fits(q, k):
            break
    else:
        return None
    if known.run is None or (known.graded and torch.is_grad_enabled()) or (given and offset) or offset.bit_length() > 62:
        return None
    if not inplace:
        q_out, k_out = known.new_q(), known.new_k()
        return (q_out, k_out) if known.run(q, k, q_out, k_out, positions, offset) else None
    # shapes and strides are those of the checked call, so q and k can only overlap if they now lie closer together
    apart = q.data_ptr() - k.data_ptr()
    if (apart != known.apart and -known.q_span < apart < known.k_span) or not known.run(q, k, q, k, positions, offset):
        return None
    increment_version((q, k))
    return q, k


def remember(
    request: Request,
    backend: str | None,
    xs: tuple[Tensor, ...],
    outs: tuple[Tensor, ...],
    positions: Tensor | None,
    seq_dim: int,
) -> None:
    """Keep what the kernel prepares for this kind of call, which has just gone the long way."""
    tensors = xs if positions is None else (*xs, positions)
    if (
        _Guard is None
        or len(xs) != 2
        or request.positions is not positions
        or torch.compiler.is_compiling()
        or not _plain(tensors)
    ):
        return
    graded = any(x.requires_grad for x in xs)
    if graded and torch.is_grad_enabled():
        return
    name = (request.spec.fingerprint, backend, xs[0].shape, positions is not None, seq_dim, outs[0] is xs[0])
    kinds = _KNOWN.get(name, [])
    if any(kind.fits(*tensors) for kind in kinds):
        return
    if len(_KNOWN) >= MOST_KNOWN:
        _KNOWN.clear()
    prepare = None if request.spec.needs_length or request.spec.learned else pick(xs, request, backend).prepare
    sizes, strides = [list(tensor.shape) for tensor in tensors], [list(tensor.stride()) for tensor in tensors]
    guard = _Guard(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    run, (q, k) = None if prepare is None else prepare(xs, outs, request), xs
    makers = (_maker(out) for out in outs)
    known = Known(guard.check, run, graded, q.data_ptr() - k.data_ptr(), _span(q), _span(k), *makers)
    _KNOWN[name] = [known, *kinds[: MOST_OF_A_NAME - 1]]


def _maker(out: Tensor) -> Callable[[], Tensor]:
    """What makes a tensor like this one; torch.compile's allocator takes half the time of empty_like."""
    quick = getattr(_compiled, f"_empty_strided_{out.device.type}", None)
    if quick is None:
        return partial(torch.empty_strided, tuple(out.shape), out.stride(), dtype=out.dtype, device=out.device)
    return partial(quick, tuple(out.shape), out.stride(), out.dtype)


def _plain(tensors: tuple[Tensor, ...]) -> bool:
    """Whether these are tensors and nothing more, and nobody watches what is done to them."""
    if any(type(tensor) is not Tensor or tensor.is_neg() for tensor in tensors) or forward_ad._current_level >= 0:
        return False
    return _functorch_depth() is None and not torch._C._len_torch_dispatch_stack() and torch._C._get_tracing_state() is None


def _span(x: Tensor) -> int:
    """Bytes from the first element to the end of the last."""
    return (1 + sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))) * x.element_size()
