"""The loss of a language model without its logits: the vocabulary is met a few rows of tokens at a time.

All logits of a batch in float32, their softmax and its gradient are larger than everything else a small model keeps.
Here each chunk's logits turn into their own gradient in place, which is used up at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100
#: logits in memory at a time: 128 MB in bfloat16
MOST_LOGITS = 1 << 26


def token_loss(x: Tensor, weight: Tensor, targets: Tensor, most_logits: int = MOST_LOGITS) -> Tensor:
    """The mean cross entropy of softmax(x weight^T) at `targets`, in float32; IGNORED targets do not count.

    x [T, hidden], weight [vocabulary, hidden], targets [T]. Equals F.cross_entropy of the logits and has its gradients.
    """
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _TokenLoss.apply(x, weight, targets, most_logits)  # type: ignore[return-value]
    total, count = x.new_zeros((), dtype=_high(x)), (targets != IGNORED).sum().clamp(min=1)
    for rows in _chunks(x, weight, most_logits):
        logits = F.linear(x[rows], weight)
        total = total + F.cross_entropy(logits.to(total.dtype), targets[rows], ignore_index=IGNORED, reduction="sum")
    return total / count


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, most_logits: int) -> Tensor:
        real = targets != IGNORED
        count = real.sum().clamp(min=1)
        chunks = _chunks(x, weight, most_logits)
        total = x.new_zeros((), dtype=_high(x))
        x_grad, weight_grad = torch.empty_like(x), None
        for rows in chunks:
            counted = real[rows].unsqueeze(-1)
            losses, logits_grad = _chunk(x[rows], weight, targets[rows].clamp(min=0))
            total = total + (losses * real[rows]).sum()
            # rows that do not count are left out here, where a row is short
            x_grad[rows] = (logits_grad @ weight) * counted
            found = logits_grad.transpose(0, 1) @ (x[rows] * counted)
            # sums of several chunks are kept in float32: a bfloat16 sum would lose the small ones
            found = found if len(chunks) == 1 else found.to(_high(x))
            weight_grad = found if weight_grad is None else weight_grad.add_(found)
        ctx.save_for_backward(x_grad, weight_grad, count)
        return total / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        x_grad, weight_grad, count = ctx.saved_tensors
        scale = grad / count  # float32, and so is the product: a rounded scale would be off for all of them alike
        scaled = ((found.to(scale.dtype) * scale).to(x_grad.dtype) for found in (x_grad, weight_grad))
        return *scaled, None, None


def _chunk(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The losses of some rows, and the gradients of their logits in the logits' own memory."""
    logits = x @ weight.transpose(0, 1)
    log_probabilities = logits.log_softmax(dim=-1, dtype=_high(x))
    place = targets.unsqueeze(-1)
    at_target = log_probabilities.gather(-1, place).squeeze(-1)
    # a compiler finds memory to write to by itself
    compiling = torch.compiler.is_compiling()
    grad = log_probabilities.exp().to(x.dtype) if compiling else torch.exp(log_probabilities, out=logits)
    # p - 1 is taken before it is rounded: near p = 1 bfloat16 would make it 0
    grad = grad.scatter_(-1, place, at_target.expm1().to(grad.dtype).unsqueeze(-1))
    return -at_target, grad


def _chunks(x: Tensor, weight: Tensor, most_logits: int) -> list[slice]:
    """Rows in equal chunks of at most `most_logits` logits."""
    tokens = x.shape[0]
    count = max(1, -(-tokens * weight.shape[0] // most_logits))
    size = max(1, -(-tokens // count))
    return [slice(start, min(start + size, tokens)) for start in range(0, max(tokens, 1), size)]


def _high(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
