"""Softmax attention by three ways: torch's fused kernel, FlexAttention, and plain mathematics, the definition.

Each takes q [B, H, Sq, D], k and v [B, Hk, Sk, D], a bias (or None) and the Visibility; each says why it cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.attention.masks import Visibility
from ropewalk.errors import RopeError, choice


@dataclass(frozen=True, eq=False)
class Call:
    """One attention: tensors already turned, `bias` broadcastable to [B, H, Sq, Sk]."""

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
        return self.q.shape[-2], self.k.shape[-2]

    def full_mask(self) -> Tensor | None:
        """Bias, float mask and rules in one additive tensor, or a boolean one where nothing is added; None for nothing."""
        allowed = self.visible.allowed(*self.lengths, self.q.device)
        added = [t.to(self.q.dtype) for t in (self.bias, self.visible.added) if t is not None]
        if not added:
            return allowed
        total = added[0] if len(added) == 1 else added[0] + added[1]
        return total if allowed is None else total.masked_fill(~allowed, float("-inf"))


def math_why_not(call: Call) -> str | None:
    """The definition runs everywhere."""
    return None


def run_math(call: Call) -> tuple[Tensor, Tensor]:
    """softmax(scale q k^T + bias) v in the scores' float32 (or float64): the definition. A row that may look nowhere gives 0."""
    groups = call.q.shape[1] // call.k.shape[1]
    k, v = (t.repeat_interleave(groups, dim=1) if groups > 1 else t for t in (call.k, call.v))
    high = torch.float64 if call.q.dtype == torch.float64 else torch.float32
    scores = (call.q.to(high) @ k.to(high).transpose(-1, -2)) * call.scale
    mask = call.full_mask()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask.to(high)
    # a row of -inf would softmax to NaN: nothing to look at means nothing is read
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    weights = F.dropout(weights, call.dropout) if call.dropout else weights
    return (weights @ v.to(high)).to(call.q.dtype), weights


def sdpa_why_not(call: Call) -> str | None:
    """Why torch's fused kernel cannot run this call; None if it can."""
    return "weights are asked for, and the fused kernel never forms them" if call.wants_weights else None


def run_sdpa(call: Call) -> tuple[Tensor, None]:
    """torch's scaled_dot_product_attention; plain causality goes by its flag, everything else by a mask."""
    q_len, k_len = call.lengths
    grouped = call.q.shape[1] != call.k.shape[1]
    plain = call.bias is None and call.visible.only_causal
    # the flag aligns top-left: right for a whole sequence, wrong behind a cache
    flag = plain and call.visible.offset == 0 and q_len == k_len
    one = plain and q_len == 1 and call.visible.offset == k_len - 1
    mask = None if flag or one else call.full_mask()
    out = F.scaled_dot_product_attention(
        call.q, call.k, call.v, mask, dropout_p=call.dropout, is_causal=flag, scale=call.scale, enable_gqa=grouped
    )
    if mask is not None and _may_be_blind(call.visible):
        blind = ~mask.any(dim=-1, keepdim=True) if mask.dtype == torch.bool else (mask == float("-inf")).all(dim=-1, keepdim=True)
        out = out.masked_fill(blind, 0.0)
    return out, None


def _may_be_blind(visible: Visibility) -> bool:
    """Whether a query may have no key at all: only padding, documents or the caller's mask can do that."""
    return visible.padding is not None or visible.q_documents is not None or visible.mask is not None


def flex_why_not(call: Call) -> str | None:
    """Why FlexAttention cannot, or should not, run this call; None if it can."""
    if call.q.device.type != "cuda":
        return "FlexAttention is compiled for CUDA; here it would form all scores"
    if call.wants_weights or call.dropout:
        return "FlexAttention has neither weights nor dropout"
    if call.visible.mask is not None or call.bias is not None:
        return "a mask or bias tensor is faster through torch's fused kernel"
    return None


def run_flex(call: Call) -> tuple[Tensor, None]:
    """FlexAttention with a block mask: skips what a window or packed documents hide."""
    from torch.nn.attention.flex_attention import create_block_mask

    visible, (q_len, k_len) = call.visible, call.lengths

    def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        ahead = k - q - visible.offset
        seen = ahead <= 0 if visible.causal else ahead == ahead
        if visible.window is not None:
            seen = seen & (ahead.abs() < visible.window)
        if visible.padding is not None:
            seen = seen & visible.padding[b, k]
        if visible.q_documents is not None and visible.k_documents is not None:
            seen = seen & (visible.q_documents[b, q] == visible.k_documents[b, k])
        return seen

    per_row = visible.padding is not None or visible.q_documents is not None
    block = create_block_mask(rule, call.q.shape[0] if per_row else None, None, q_len, k_len, device=call.q.device)
    grouped = call.q.shape[1] != call.k.shape[1]
    out = _compiled_flex()(call.q, call.k, call.v, block_mask=block, scale=call.scale, enable_gqa=grouped)
    return out, None


def _compiled_flex() -> Callable:
    global _FLEX
    if _FLEX is None:
        from torch.nn.attention.flex_attention import flex_attention

        _FLEX = torch.compile(flex_attention, dynamic=False)
    return _FLEX


_FLEX: Callable | None = None

#: name -> (why_not, run)
ATTENTION_BACKENDS: dict[str, tuple[Callable[[Call], str | None], Callable[[Call], tuple[Tensor, Tensor | None]]]] = {
    "sdpa": (sdpa_why_not, run_sdpa),
    "flex": (flex_why_not, run_flex),
    "math": (math_why_not, run_math),
}


def pick(call: Call, name: str | None = None) -> tuple[str, str]:
    """(backend, reason): the named one, or the best for this call and why."""
    if name is not None:
        reason = ATTENTION_BACKENDS[choice("backend", name, ATTENTION_BACKENDS)][0](call)
        if reason:
            raise RopeError("backend", f"{name!r} cannot run this attention: {reason}", name)
        return name, "asked for"
    if call.wants_weights:
        return "math", "weights are asked for"
    sparse = call.visible.window is not None or call.visible.q_documents is not None
    if sparse and flex_why_not(call) is None:
        return "flex", "a window or packed documents hide whole blocks, which FlexAttention skips"
    return "sdpa", "torch's fused kernel takes everything else"


def attend(call: Call, name: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Output [B, H, Sq, D], and the weights where the backend forms them."""
    return ATTENTION_BACKENDS[pick(call, name)[0]][1](call)
