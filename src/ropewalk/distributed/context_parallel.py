"""torch's context parallel, the engine "torch" of `ring_attention`: plain causal attention over
head_tail shards, by fused CUDA kernels.

In head_tail shards, rank r of W ranks holds the chunks r and 2W - 1 - r of 2W, as torch expects.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.distributed.sharding import Ring
from ropewalk.distributed.tiles import Masking


def torch_why_not(
    q: Tensor, k: Tensor, masking: Masking, order: str | Tensor, masks: Iterable[str] = ()
) -> str | None:
    """Return why torch's context parallel cannot run this attention, or None if it can.

    masking  causality, window, scale and the bias on the scores
    order    as in `ring_attention`: "head_tail", another kind of shards, or an index of each token
    masks    the names of the other masks that are given, such as "padding"
    """
    if q.device.type != "cuda":
        return f"torch's context parallel needs CUDA, and q is on {q.device.type}"
    if importlib.util.find_spec("torch.distributed.tensor.experimental") is None:
        return "this torch has no context parallel"
    if masking.bias is not None:
        return "torch's context parallel supports no bias on the scores"
    unsupported = list(masks) if masking.window is None else [*masks, "window"]
    if unsupported:
        return f"torch's context parallel masks by causality only, not by {', '.join(unsupported)}"
    if not (isinstance(order, str) and order == "head_tail") or not masking.causal:
        return "torch's context parallel supports only causal attention over head_tail shards"
    if q.dtype == torch.float64:
        return "torch's fused kernels do not support float64"
    if q.shape[1] != k.shape[1] and q.dtype == torch.float32:
        return "torch's float32 kernel cannot share keys between heads"
    return None


@contextmanager
def _ring_attention_of_torch(mesh) -> Iterator[None]:
    """Enter torch's context_parallel, in which SDPA sends k and v around the ring of ranks.

    torch requires at least one buffer that it can shard. Nothing uses this one, so it is as small
    as torch accepts: 2W elements, of which each of the W ranks keeps two.
    """
    from torch.distributed.tensor.experimental import context_parallel

    buffer = torch.empty(2 * mesh.size(), device=mesh.device_type)
    with context_parallel(mesh, buffers=[buffer], buffer_seq_dims=[0]):
        yield


def run_torch(q: Tensor, k: Tensor, v: Tensor, scale: float, ring: Ring) -> Tensor:
    """Return causal attention by torch's context parallel, for tensors that are sharded already."""
    return _TorchRing.apply(q, k, v, scale, ring)  # type: ignore[return-value]


class _TorchRing(torch.autograd.Function):
    """Enters torch's context_parallel in forward and again in backward, which runs after forward
    has left it.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, scale: float, ring: Ring) -> Tensor:
        """Return the output for this rank's q. It is computed on detached inputs, whose graph is
        kept in `ctx` for `backward`.
        """
        from torch.distributed.device_mesh import DeviceMesh

        group = torch.distributed.group.WORLD if ring.group is None else ring.group
        ctx.mesh = DeviceMesh.from_group(group, "cuda")  # type: ignore[arg-type]
        ctx.inputs = [t.detach().requires_grad_(t.requires_grad) for t in (q, k, v)]
        with torch.set_grad_enabled(any(ctx.needs_input_grad)), _ring_attention_of_torch(ctx.mesh):
            q, k, v = ctx.inputs
            grouped = q.shape[1] != k.shape[1]
            ctx.out = F.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=scale, enable_gqa=grouped
            )
        return ctx.out.detach()

    @staticmethod
    def backward(ctx, grad: Tensor):
        """Return the gradients of q, k and v, from the graph that `forward` kept; scale and ring
        have none.
        """
        with_grad = [t for t in ctx.inputs if t.requires_grad]
        with _ring_attention_of_torch(ctx.mesh):
            grads = iter(torch.autograd.grad(ctx.out, with_grad, grad))
        return *(next(grads) if t.requires_grad else None for t in ctx.inputs), None, None
