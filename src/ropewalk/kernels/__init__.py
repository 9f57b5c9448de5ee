"""BACKENDS: the rotation kernels by name, fastest first. Each can say why it does not support a
tensor.

One folder for each operation, with its definition in plain torch beside its kernels:

rotation          the rotation of q and k; its CPU kernel is in `cpu`
norm_rotation     head norm, rotation and cache write
qkv               the QKV product, then head norm, rotation and cache write
decode_step       the other products of a decode step, its attention, and the next token
linear_attention  causal linear attention with rotated features
banded_attention  attention over a band of (query, key) pairs, with its log-sum-exp
invariant         norm, product and attention whose bits do not depend on the batch
cpu               the native library: the rotation, and causal attention

A request says what one call rotates: the angles, the pairs and `seq_dim`, the axis of the tokens;
`request.rows` are cos and sin of these tokens, and `align` makes them broadcast against x.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice
from ropewalk.kernels import cpu
from ropewalk.kernels.request import AnyRequest, Request, TableRequest, align, table_dtype
from ropewalk.kernels.rotation import eager, triton


@dataclass(frozen=True)
class Backend:
    """The functions of one rotation kernel. A request (request.py) says what one call rotates: the
    spec, the positions or given tables, and the dimension of the tokens.

    why_not  (x, request) -> why this backend cannot rotate x, or None if it can
    run      (xs, outs, request): write each rotated x into its out, which is x itself or shares no
             memory with it. xs is (q,) or (q, k)
    prepare  (xs, outs, request) -> a function (q, k, q_out, k_out, positions, offset) for later
             calls with the same shapes (`fast_path.py`), which returns whether it ran; `run` is
             called if it did not. `prepare` returns None if it cannot prepare such calls; the field
             is None if the backend prepares none
    """

    why_not: Callable[[Tensor, AnyRequest], str | None]
    run: Callable[[tuple[Tensor, ...], tuple[Tensor, ...], AnyRequest], None]
    prepare: (
        Callable[[tuple[Tensor, ...], tuple[Tensor, ...], Request], Callable[..., bool] | None]
        | None
    ) = None


def _run_reference(xs: tuple[Tensor, ...], outs: tuple[Tensor, ...], request: AnyRequest) -> None:
    """Write each rotated x into its out, computed by the definition in `rotation/definition.py`:
    the backend "reference".
    """
    for index, (x, out) in enumerate(zip(xs, outs, strict=True)):
        cos, sin = request.rows(
            x.shape[request.seq_dim], x.device, table_dtype(x), key=request.is_key(index)
        )
        # `differentiable` calls the definition for the rotated dims, and copies the others
        out.copy_(
            eager.differentiable(
                x, align(cos, x, request.seq_dim), align(sin, x, request.seq_dim), request
            )
        )


#: fastest first; `pick` uses the first that supports all tensors
BACKENDS: dict[str, Backend] = {
    "triton": Backend(triton.why_not, triton.run, triton.prepare),
    "cpu": Backend(cpu.why_not, cpu.run, cpu.prepare),
    "eager": Backend(eager.why_not, eager.run),
    "reference": Backend(eager.why_not, _run_reference),
}


def pick(xs: tuple[Tensor, ...], request: AnyRequest, name: str | None = None) -> Backend:
    """Return the backend called `name`, or without a name the first that can rotate all of `xs`;
    raise an error if the named one cannot.
    """
    if name is None:
        # "eager" can rotate every tensor, so one is always found
        return next(
            backend
            for backend in BACKENDS.values()
            if not any(backend.why_not(x, request) for x in xs)
        )
    backend = BACKENDS[choice("backend", name, BACKENDS)]
    for x in xs:
        if reason := backend.why_not(x, request):
            raise RopeError(
                "backend",
                f"{name!r} cannot rotate this tensor: {reason}; pass backend=None",
                list(x.shape),
            )
    return backend


def available(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Return a dict from backend name to the reason why that backend does not run on `device`, or
    None if it does.
    """
    # the smallest rotation: one token of one head with one pair
    x, table = torch.zeros(1, 1, 1, 2, device=device), torch.zeros(1, 1, device=device)
    request = TableRequest(table, table, seq_dim=-2, layout_in="half", layout_out="half")
    return {name: backend.why_not(x, request) for name, backend in BACKENDS.items()}


__all__ = ["BACKENDS", "Backend", "available", "pick"]
