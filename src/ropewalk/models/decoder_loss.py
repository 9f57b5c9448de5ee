"""Cross entropy of a language model without materialising all logits.

In a small model, the float32 logits of a batch, their softmax and its gradient take more memory
than everything else. Here logits are computed in chunks of tokens; each chunk is overwritten by its
gradient, which is used at once.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.checks import INTEGERS
from ropewalk.errors import RopeError
from ropewalk.tracing import is_traced

#: the target of a token that has no loss, as in torch's cross_entropy
IGNORED = -100
#: logits in memory at a time: 128 MiB in bfloat16
MAX_LOGITS = 1 << 26


def check_targets(targets: Tensor, tokens: Tensor, vocabulary: int) -> None:
    """Raise an error if `targets` are not tokens or IGNORED, one for each of `tokens`; values are
    checked only on a CPU and outside of a trace.
    """
    if not isinstance(targets, Tensor) or targets.dtype not in INTEGERS:
        raise RopeError(
            "targets", "must be a tensor of integers", getattr(targets, "dtype", type(targets))
        )
    if targets.shape != tokens.shape:
        raise RopeError(
            "targets",
            f"must have the shape of the tokens, {list(tokens.shape)}",
            list(targets.shape),
        )
    if targets.is_cpu and not is_traced((targets,)):
        values = targets.long()
        wrong = (values != IGNORED) & ((values < 0) | (values >= vocabulary))
        if wrong.any():
            rule = (
                f"must be from 0 to {vocabulary - 1}, the last token of the vocabulary, or "
                f"{IGNORED} to ignore a token"
            )
            raise RopeError("targets", rule, int(values[wrong][0]))


def token_loss(x: Tensor, weight: Tensor, targets: Tensor, max_logits: int = MAX_LOGITS) -> Tensor:
    """Return the mean cross entropy of softmax(x weight^T) at `targets`, in float32 (or float64);
    IGNORED targets do not count.

    x [T, hidden], weight [vocabulary, hidden], targets [T]. Loss and gradients equal those of
    F.cross_entropy up to rounding; they are 0 if every target is IGNORED. About `max_logits` logits
    are in memory at a time.
    """
    targets = targets.long()
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return _TokenLoss.apply(x, weight, targets, max_logits)  # type: ignore[return-value]
    total, count = x.new_zeros((), dtype=_sum_dtype(x)), (targets != IGNORED).sum().clamp(min=1)
    for rows in _chunks(x, weight, max_logits):
        logits = F.linear(x[rows], weight)
        total = total + F.cross_entropy(
            logits.to(total.dtype), targets[rows], ignore_index=IGNORED, reduction="sum"
        )
    return total / count


class _TokenLoss(torch.autograd.Function):
    """`token_loss` where gradients are needed."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, max_logits: int) -> Tensor:
        """Return the mean loss; gradients are computed here too, chunk by chunk, so that logits
        need not be kept. Arguments as in `token_loss`.
        """
        valid = targets != IGNORED
        count = valid.sum().clamp(min=1)
        chunks = _chunks(x, weight, max_logits)
        total = x.new_zeros((), dtype=_sum_dtype(x))
        x_grad, weight_grad = torch.empty_like(x), None
        for rows in chunks:
            mask = valid[rows].unsqueeze(-1)
            # an ignored token may be infinite, and 0 times infinity is NaN
            kept = x[rows].masked_fill(~mask, 0.0)
            # IGNORED is negative and no index, so these targets become 0; their results are masked
            losses, logits_grad = _loss_and_logits_grad(kept, weight, targets[rows].clamp(min=0))
            total = total + (losses * valid[rows]).sum()
            # ignored tokens are masked here, where a row has hidden size, rather than in the logits
            x_grad[rows] = (logits_grad @ weight) * mask
            chunk_grad = logits_grad.transpose(0, 1) @ kept
            # several chunks are summed in float32 at least, because a bfloat16 sum would lose small
            # terms
            chunk_grad = chunk_grad if len(chunks) == 1 else chunk_grad.to(_sum_dtype(x))
            weight_grad = chunk_grad if weight_grad is None else weight_grad.add_(chunk_grad)
        ctx.save_for_backward(x_grad, weight_grad, count)
        return total / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        """Return the gradients of x and weight: those that `forward` computed, times the gradient
        of the loss.
        """
        x_grad, weight_grad, count = ctx.saved_tensors
        # float32, or float64 if x is: rounding the scale to x's dtype would change all gradients by
        # the same factor
        scale = grad / count
        x_grad, weight_grad = (
            (stored.to(scale.dtype) * scale).to(x_grad.dtype) for stored in (x_grad, weight_grad)
        )
        return x_grad, weight_grad, None, None


def _loss_and_logits_grad(x: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy [T] of each row of x [T, hidden], and its gradient with respect to
    the logits [T, V], which overwrites the logits except under torch.compile.
    """
    logits = x @ weight.transpose(0, 1)
    log_probabilities = logits.log_softmax(dim=-1, dtype=_sum_dtype(x))
    index = targets.unsqueeze(-1)
    at_target = log_probabilities.gather(-1, index).squeeze(-1)
    # the probabilities overwrite the logits; torch.compile reuses memory by itself
    compiling = torch.compiler.is_compiling()
    grad = (
        log_probabilities.exp().to(x.dtype)
        if compiling
        else torch.exp(log_probabilities, out=logits)
    )
    # p - 1 is computed before rounding: near p = 1, p rounds to 1 in bfloat16, and the difference
    # would be 0
    grad = grad.scatter_(-1, index, at_target.expm1().to(grad.dtype).unsqueeze(-1))
    return -at_target, grad


def _chunks(x: Tensor, weight: Tensor, max_logits: int) -> list[slice]:
    """Return slices of the rows of x [T, hidden], equal but for the last, with about `max_logits`
    logits each and at least one row.
    """
    tokens = x.shape[0]
    if tokens * weight.shape[0] <= max_logits:
        return [slice(0, tokens)]
    count = -(-tokens * weight.shape[0] // max_logits)  # rounded up
    size = -(-tokens // count)
    # a compiled graph is for one number of chunks, and `int` fixes this number without fixing the
    # number of tokens
    return [slice(i * size, min((i + 1) * size, tokens)) for i in range(int(-(-tokens // size)))]


def _sum_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype in which losses and gradients are summed: float32, or float64 if x is."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32
