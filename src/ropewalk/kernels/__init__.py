"""Which kernel: BACKENDS by name, each with the reason why it cannot take a tensor, or None if it can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice
from ropewalk.kernels import eager, reference
from ropewalk.kernels.cpu import backend as cpu
from ropewalk.kernels.request import AnyRequest, Request, align, table_dtype
from ropewalk.kernels.triton import backend as triton


@dataclass(frozen=True)
class Backend:
    """`why_not(x, turn)` says why x cannot be turned here; `run(xs, outs, turn)` writes every turned x into its out.

    The first x is a query, the second a key. An out may be its x, or share no memory with it. `prepare(xs, outs, turn)`
    may give a function that runs other calls of the same kind without planning them again (see `shortcut.py`).
    """

    why_not: Callable[[Tensor, AnyRequest], str | None]
    run: Callable[[tuple[Tensor, ...], tuple[Tensor, ...], AnyRequest], None]
    prepare: Callable[[tuple[Tensor, ...], tuple[Tensor, ...], Request], Callable[..., bool] | None] | None = None


def _run_reference(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        cos, sin = request.rows(x.shape[request.seq_dim], x.device, table_dtype(x), key=request.key or index == 1)
        out.copy_(eager.differentiable(x, align(cos, x, request.seq_dim), align(sin, x, request.seq_dim), request))


#: fastest first; `pick` takes the first that has no reason against it
BACKENDS: dict[str, Backend] = {
    "triton": Backend(triton.why_not, triton.run, triton.prepare),
    "cpu": Backend(cpu.why_not, cpu.run, cpu.prepare),
    "eager": Backend(eager.why_not, eager.run),
    "reference": Backend(eager.why_not, _run_reference),
}


def pick(xs: tuple[Tensor, ...], request: AnyRequest, name: str | None = None) -> Backend:
    """The named backend, or the first that takes all of `xs`."""
    if name is None:
        return next(b for b in BACKENDS.values() if not any(b.why_not(x, request) for x in xs))
    backend = BACKENDS[choice("backend", name, BACKENDS)]
    for x in xs:
        if reason := backend.why_not(x, request):
            raise RopeError("backend", f"{name!r} cannot turn this tensor: {reason}; pass backend=None", list(x.shape))
    return backend


def available(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Every backend with the reason why it does not run on `device`, or None if it does."""
    from ropewalk.kernels.request import TableRequest

    x = torch.zeros(1, 1, 1, 2, device=device)
    table = torch.zeros(1, 1, device=device)
    return {name: b.why_not(x, TableRequest(table, table, -2, "half", "half")) for name, b in BACKENDS.items()}


__all__ = ["BACKENDS", "Backend", "available", "pick", "reference"]
