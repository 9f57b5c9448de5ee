"""Known kinds of calls: a decode step repeats one kind of call, so its checks and its plan are made once and remembered.

The first call of a kind takes the long way, through every check. If a kernel then has a `prepare`, later calls of the
same kind (same shapes, strides and types, nobody watching) go straight to it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ropewalk.kernels import pick
from ropewalk.kernels.turn import Turn
from ropewalk.spec import RopeSpec

#: a prepared kernel: (q, k, q_out, k_out, positions, offset) -> whether it could; False sends the call the long way
Prepared = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, int], bool]
#: kinds that are remembered; None for one that no kernel prepares
_KNOWN: dict[tuple, Prepared | None] = {}
MOST_KNOWN = 1024

_functorch_depth = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]  # missing from the stubs
_modes = torch._C._len_torch_dispatch_stack


def kind_of(
    spec: RopeSpec,
    backend: str | None,
    q: Tensor,
    k: Tensor,
    positions: Tensor | None,
    offset: object,
    seq_dim: int,
    inplace: bool,
) -> tuple | None:
    """Everything a checked call depends on; None for a call that must take the long way."""
    if type(q) is not Tensor or type(k) is not Tensor or type(offset) is not int or not -(2**62) < offset < 2**62:
        return None
    if (q.requires_grad or k.requires_grad) and torch.is_grad_enabled():
        return None
    if _functorch_depth() is not None or _modes() or forward_ad._current_level >= 0 or q.is_neg() or k.is_neg():
        return None
    where = None
    if positions is not None:
        if type(positions) is not Tensor:
            return None
        where = (positions.dtype, positions.shape, positions.stride(), positions.is_cpu, positions.get_device(), offset)
    # whether q and k overlap depends on where they lie in a memory they share
    apart = None
    if inplace and (memory := q.untyped_storage().data_ptr()) == k.untyped_storage().data_ptr():
        apart = (memory, q.storage_offset() - k.storage_offset())
    tensors = (q.dtype, q.shape, q.stride(), k.dtype, k.shape, k.stride(), q.is_cpu, k.is_cpu, q.get_device(), k.get_device())
    return (spec.key, backend, where, tensors, seq_dim, inplace, apart)


def turn_known(
    kind: tuple, q: Tensor, k: Tensor, positions: Tensor | None, offset: int, inplace: bool
) -> tuple[Tensor, Tensor] | None:
    """The turned q and k if the kind is known and its kernel takes this call, else None."""
    prepared = _KNOWN.get(kind)
    if prepared is None:
        return None
    q_out, k_out = (q, k) if inplace else (torch.empty_like(q), torch.empty_like(k))
    return (q_out, k_out) if prepared(q, k, q_out, k_out, positions, offset) else None


def remember(kind: tuple, turn: Turn, backend: str | None, xs: tuple[Tensor, ...], outs: tuple[Tensor, ...]) -> None:
    """Keep what the kernel prepares for this kind; called after the long way succeeded."""
    if kind in _KNOWN or turn.spec.needs_length or turn.spec.learned or any(out.stride(-1) != 1 for out in outs):
        return
    if len(_KNOWN) >= MOST_KNOWN:
        _KNOWN.clear()
    prepare = pick(xs, turn, backend).prepare
    _KNOWN[kind] = None if prepare is None else prepare(xs, outs, turn)
