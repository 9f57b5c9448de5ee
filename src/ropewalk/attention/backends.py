"""Backends of softmax attention: torch's fused kernel, FlexAttention, and the definition in plain torch.

Each backend has a `why_not` function, which returns the reason why the backend cannot run a call, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.attention.masks import Visibility
from ropewalk.caches import cached
from ropewalk.errors import RopeError, choice


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call: q [B, H, Sq, D] and k [B, Hk, Sk, D] already rotated, `bias` broadcastable to [B, H, Sq, Sk]."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    visible: Visibility
    bias: Tensor | None = None
    dropout: float = 0.0
    wants_weights: bool = False

    @property
    def lengths(self) -> tuple[int, int]:
        """The number of queries and the number of keys."""
        return self.q.shape[-2], self.k.shape[-2]

    def full_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return bias and masks as one tensor: additive, of `dtype`, if any is float, else boolean; None if there are none."""
        allowed = self.visible.allowed(*self.lengths, self.q.device)
        added = [t.to(dtype) for t in (self.bias, self.visible.added) if t is not None]
        if not added:
            return allowed
        total = added[0] if len(added) == 1 else added[0] + added[1]
        return total if allowed is None else total.masked_fill(~allowed, float("-inf"))


def run_math(call: Call) -> tuple[Tensor, Tensor]:
    """Return softmax(scale q k^T + bias) v, computed in float32 (or float64), and the weights; a query without keys gives 0."""
    groups = call.q.shape[1] // call.k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) if groups > 1 else t for t in (call.k, call.v))
    compute_dtype = torch.promote_types(call.q.dtype, torch.float32)
    scores = (call.q.to(compute_dtype) @ k.to(compute_dtype).transpose(-1, -2)) * call.scale
    mask = call.full_mask(compute_dtype)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    # the softmax of a row of -inf is NaN
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    weights = F.dropout(weights, call.dropout) if call.dropout else weights
    return (weights @ v.to(compute_dtype)).to(call.q.dtype), weights


def sdpa_why_not(call: Call) -> str | None:
    """Return why torch's fused kernel cannot run this call; None if it can."""
    return "the fused kernel cannot return the weights" if call.wants_weights else None


def run_sdpa(call: Call) -> tuple[Tensor, None]:
    """Run torch's scaled_dot_product_attention, with is_causal=True if causality is the only mask, else with a mask tensor."""
    visible, (q_len, k_len) = call.visible, call.lengths
    grouped = call.q.shape[1] != call.k.shape[1]
    only_causal = call.bias is None and visible.only_causal
    # is_causal aligns the mask top-left, which is wrong if cached keys come before the queries
    use_flag = only_causal and visible.offset == 0 and q_len == k_len
    # a single query after all cached keys sees every key, so it needs no mask
    single_query = only_causal and q_len == 1 and visible.offset == k_len - 1
    mask = None if use_flag or single_query else call.full_mask(call.q.dtype)
    out = F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, dropout_p=call.dropout, is_causal=use_flag, scale=call.scale, enable_gqa=grouped
    )
    may_lack_keys = visible.padding is not None or visible.q_documents is not None or visible.mask is not None
    if mask is not None and may_lack_keys:
        empty = ~mask.any(dim=-1, keepdim=True) if mask.dtype == torch.bool else (mask == float("-inf")).all(dim=-1, keepdim=True)
        out = out.masked_fill(empty, 0.0)
    return out, None


def flex_why_not(call: Call) -> str | None:
    """Return why FlexAttention cannot or should not run this call; None if it can."""
    if call.q.device.type != "cuda":
        return "FlexAttention is compiled for CUDA only; elsewhere it materialises all scores"
    if call.wants_weights or call.dropout:
        return "FlexAttention supports neither returned weights nor dropout"
    if call.visible.mask is not None or call.bias is not None:
        return "torch's fused kernel is faster with a mask or bias tensor"
    return None


def run_flex(call: Call) -> tuple[Tensor, None]:
    """Run FlexAttention with a block mask, which skips blocks hidden by a window or by packed documents."""
    from torch.nn.attention.flex_attention import create_block_mask

    visible, (q_len, k_len) = call.visible, call.lengths
    per_row = visible.padding is not None or visible.q_documents is not None
    attends = lambda b, h, q, k: visible.at(b, h, q, k)  # noqa: E731 - FlexAttention counts the arguments of a function
    batch = call.q.shape[0] if per_row else None  # None: one mask for all rows; the heads always share theirs
    block_mask = create_block_mask(attends, batch, None, q_len, k_len, device=call.q.device)
    grouped = call.q.shape[1] != call.k.shape[1]
    out = _compiled_flex()(call.q, call.k, call.v, block_mask=block_mask, scale=call.scale, enable_gqa=grouped)
    return out, None


@cached("compiled flex_attention", entries=1)
def _compiled_flex() -> Callable:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


#: name -> (why_not, run)
ATTENTION_BACKENDS: dict[str, tuple[Callable[[Call], str | None], Callable[[Call], tuple[Tensor, Tensor | None]]]] = {
    "sdpa": (sdpa_why_not, run_sdpa),
    "flex": (flex_why_not, run_flex),
    "math": (lambda call: None, run_math),
}


def pick(call: Call, name: str | None = None) -> tuple[str, str]:
    """Return (backend, reason): the named backend, or the best one for this call."""
    if name is not None:
        why_not, _ = ATTENTION_BACKENDS[choice("backend", name, ATTENTION_BACKENDS)]
        reason = why_not(call)
        if reason:
            raise RopeError("backend", f"{name!r} cannot run this attention: {reason}", name)
        return name, "requested"
    if call.wants_weights:
        return "math", "the weights are requested"
    sparse = call.visible.window is not None or call.visible.q_documents is not None
    if sparse and flex_why_not(call) is None:
        return "flex", "FlexAttention skips the blocks that a window or packed documents hide"
    return "sdpa", "torch's fused kernel is the default"


def attend(call: Call, name: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the output [B, H, Sq, D], and the weights if the backend materialises them, else None."""
    _, run = ATTENTION_BACKENDS[pick(call, name)[0]]
    return run(call)
