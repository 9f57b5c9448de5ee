"""Who observes a call: a compiler, a tracer, a functorch transform, a dispatch mode or a tensor
subclass.

torch has no public functions for most of this, so its private ones are used here and nowhere else.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

# missing from the stubs
_innermost_transform = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined]
_TransformType = torch._C._functorch.TransformType  # type: ignore[attr-defined]
_is_batched = torch._C._functorch.is_legacy_batchedtensor  # type: ignore[attr-defined]


def is_traced(xs: tuple[Tensor, ...]) -> bool:
    """Return whether a rotation of `xs` must be one registered op, because something observes the
    ops that run.
    """
    # torch.compile, or torch.jit.trace
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return True
    # a tensor subclass, such as a DTensor or a fake tensor
    if not all(type(x) in (Tensor, torch.nn.Parameter) for x in xs):
        return True
    # a functorch transform such as vmap, or a TorchDispatchMode
    return _innermost_transform() is not None or torch._C._len_torch_dispatch_stack() > 0


def are_batched_gradients(xs: tuple[Tensor, ...]) -> bool:
    """Return whether these are gradients of `autograd.grad(..., is_grads_batched=True)`, which have
    no storage of their own.
    """
    return any(_is_batched(x) for x in xs)


def in_forward_mode() -> bool:
    """Return whether forward-mode derivatives are being computed."""
    return forward_ad._current_level >= 0


def transforms() -> list:
    """Return the types of the functorch transforms around this call; an empty list under
    torch.compile, which handles them itself.
    """
    if torch.compiler.is_compiling():
        return []
    stack = torch._C._functorch.get_interpreter_stack()  # type: ignore[attr-defined]
    return [interpreter.key() for interpreter in stack or ()]


def is_vmap(transform: object) -> bool:
    """Return whether a functorch transform is vmap."""
    return transform == _TransformType.Vmap
