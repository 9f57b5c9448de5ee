"""torch's own context parallel, for what its fused CUDA kernels can do: plain causal attention over head-tail shards."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.distributed.sharding import Ring
from ropewalk.distributed.tiles import Rule


def torch_why_not(q: Tensor, k: Tensor, rule: Rule, order: str | None, hidden: Sequence[str] = ()) -> str | None:
    """Why torch's context parallel cannot run this attention; `hidden` names what hides keys beside causality."""
    if q.device.type != "cuda":
        return f"torch's context parallel knows CUDA kernels only, and q is on {q.device.type}"
    if importlib.util.find_spec("torch.distributed.tensor.experimental") is None:
        return "this torch has no context parallel"
    if rule.bias is not None:
        return "torch's context parallel adds no bias to the scores"
    if rule.window is not None or hidden:
        return f"torch's context parallel hides by causality alone, not by {', '.join(hidden) or 'window'}"
    if order != "head_tail" or not rule.causal:
        return "torch's context parallel is for causal attention over head_tail shards"
    if q.dtype == torch.float64:
        return "torch's fused kernels have no float64"
    if q.shape[1] != k.shape[1] and q.dtype == torch.float32:
        return "torch's float32 kernel does not share keys between heads"
    return None


@contextmanager
def _patched(mesh) -> Iterator[None]:
    """torch's context, which must have a buffer to cut: 2W tokens, the fewest that head-tail can."""
    from torch.distributed.tensor.experimental import context_parallel

    tokens = torch.empty(2 * mesh.size(), device=mesh.device_type)
    with context_parallel(mesh, buffers=[tokens], buffer_seq_dims=[0]):
        yield


def run_torch(q: Tensor, k: Tensor, v: Tensor, scale: float, ring: Ring) -> Tensor:
    """Causal attention by torch's context parallel on shards that lie here already."""
    return _TorchRing.apply(q, k, v, scale, ring)  # type: ignore[return-value]


class _TorchRing(torch.autograd.Function):
    """torch's context must be open in the backward too, which runs long after the call that opened it."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scale: float, ring: Ring) -> Tensor:
        from torch.distributed.device_mesh import DeviceMesh

        group = torch.distributed.group.WORLD if ring.group is None else ring.group
        ctx.mesh = DeviceMesh.from_group(group, "cuda")  # type: ignore[arg-type]
        ctx.inputs = [t.detach().requires_grad_(t.requires_grad) for t in (q, k, v)]
        with torch.set_grad_enabled(any(ctx.needs_input_grad)), _patched(ctx.mesh):
            q, k, v = ctx.inputs
            grouped = q.shape[1] != k.shape[1]
            ctx.out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        wanted = [t for t in ctx.inputs if t.requires_grad]
        with _patched(ctx.mesh):
            found = iter(torch.autograd.grad(ctx.out, wanted, grad))
        return *(next(found) if t.requires_grad else None for t in ctx.inputs), None, None
