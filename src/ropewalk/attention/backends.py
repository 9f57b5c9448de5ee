"""Backends of softmax attention: torch's fused kernel, FlexAttention, and the definition in plain
torch.

Each backend has a `why_not` function, which returns the reason why the backend cannot run a call,
or None. A query without keys, such as one whose keys are all padding, has the output 0.

Words of this module:
  visible   the masks of a call (`masks.Visibility`); its `offset` is the number of cached keys
            before the first query
  math      the backend that computes the definition in plain torch
  shapes    B rows, H heads of q, Hk heads of k and v, Sq queries, Sk keys; D dimensions of a head
            of q and k, Dv of v
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.attention import flex
from ropewalk.attention.masks import Visibility, part_of_scores
from ropewalk.errors import RopeError, choice

#: `run_sdpa` calls torch's fused kernel, if there is a window, for blocks of this many queries, or
#: of `window` queries if that is more
FEWEST_IN_BLOCK = 1024
#: the number of queries from which `pick` takes FlexAttention for windows and documents
#: (results/h200_window.jsonl)
FEWEST_QUERIES = 2048


@dataclass(frozen=True, eq=False)
class Call:
    """One attention call: q [B, H, Sq, D] and k [B, Hk, Sk, D] already rotated, v [B, Hk, Sk, Dv].

    scale          the factor on q k^T
    visible        which keys each query may attend to
    bias           what to add to the scaled scores, broadcastable to [B, H, Sq, Sk]
    dropout        the probability that a weight is dropped
    wants_weights  the caller needs the weights after the softmax
    """

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

    def part(self, start: int, stop: int, first_key: int, stop_key: int) -> Call:
        """Return the call of queries start ... stop - 1 and keys first_key ... stop_key - 1;
        causality and window stay those of the whole call.
        """
        bias = (
            None
            if self.bias is None
            else part_of_scores(self.bias, start, stop, first_key, stop_key)
        )
        k, v = (t[:, :, first_key:stop_key] for t in (self.k, self.v))
        visible = self.visible.part(start, stop, first_key, stop_key)
        return replace(self, q=self.q[:, :, start:stop], k=k, v=v, visible=visible, bias=bias)

    def full_mask(self, dtype: torch.dtype) -> Tensor | None:
        """Return bias and masks as one tensor that broadcasts to [B, H, Sq, Sk]: additive, of
        `dtype`, if any is float, else boolean; None if there are none.
        """
        allowed = self.visible.allowed(*self.lengths, self.q.device)
        added = [t.to(dtype) for t in (self.bias, self.visible.added) if t is not None]
        if not added:
            return allowed
        total = added[0] if len(added) == 1 else added[0] + added[1]
        return total if allowed is None else total.masked_fill(~allowed, float("-inf"))


def trimmed(call: Call) -> Call:
    """Leave out the keys at both ends that causality and the window hide from all queries, and a
    window that hides no key; return the call as it is if it has no window.

    The weights have a column for every key, so a call that wants them stays as it is too.
    """
    visible, window, (q_len, k_len) = call.visible, call.visible.window, call.lengths
    if window is None or call.wants_weights:
        return call
    # the first key that the first query sees, and the end of the keys that the last query sees
    first_key = max(0, visible.offset + 1 - window)
    stop_key = min(k_len, visible.offset + q_len + (0 if visible.causal else window - 1))
    # a call needs at least one key: if no query sees any, stop_key <= first_key, and all keys stay
    if 0 < stop_key - first_key < k_len:
        call = call.part(0, q_len, first_key, stop_key)
        visible, k_len = call.visible, stop_key - first_key
    # the largest distance of a query to a key on its left, and to one on its right that causality
    # does not hide
    left, right = visible.offset + q_len - 1, 0 if visible.causal else k_len - 1 - visible.offset
    # a program that is traced for many lengths serves some below and some above the window, so it
    # keeps the window
    if isinstance(left, torch.SymInt) or max(left, right) >= window:
        return call
    return replace(call, visible=replace(visible, window=None))


def run_math(call: Call) -> tuple[Tensor, Tensor]:
    """Return softmax(scale q k^T + bias) v over the keys that the masks show, computed in float32
    (or float64), and the weights after dropout; a query without keys gives 0.
    """
    sharing = call.q.shape[1] // call.k.shape[1]  # how many query heads share a head of k and v
    k, v = (t.repeat_interleave(sharing, dim=1) if sharing > 1 else t for t in (call.k, call.v))
    compute_dtype = torch.promote_types(call.q.dtype, torch.float32)
    scores = (call.q.to(compute_dtype) @ k.to(compute_dtype).transpose(-1, -2)) * call.scale
    mask = call.full_mask(compute_dtype)
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )
    # the softmax of a row of -inf is NaN
    empty = (scores == float("-inf")).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(dim=-1).masked_fill(empty, 0.0)
    weights = F.dropout(weights, call.dropout) if call.dropout else weights
    return (weights @ v.to(compute_dtype)).to(call.q.dtype), weights


def sdpa_why_not(call: Call) -> str | None:
    """Return why torch's fused kernel cannot run this call; None if it can."""
    return "the fused kernel cannot return the weights" if call.wants_weights else None


def run_sdpa(call: Call) -> tuple[Tensor, None]:
    """Run torch's scaled_dot_product_attention: with is_causal=True if causality is the only mask,
    no key is cached and there is no bias, else with masks and bias, if any, as one tensor. A single
    last query without other masks needs neither.

    With a window, and more queries than one block has, attention is computed in blocks of queries,
    each over the keys that the block sees, so work grows with length times window.
    """
    visible, (q_len, k_len) = call.visible, call.lengths
    block = max(FEWEST_IN_BLOCK, visible.window or 0)
    if visible.window is not None and q_len > block:
        # a compiled graph is for one number of blocks, and `int` fixes this number without fixing
        # the number of queries
        starts = (i * block for i in range(int(-(-q_len // block))))
        parts = (trimmed(call.part(start, min(start + block, q_len), 0, k_len)) for start in starts)
        return torch.cat([run_sdpa(part)[0] for part in parts], dim=2), None
    grouped = call.q.shape[1] != call.k.shape[1]  # several query heads share a head of k and v
    only_causal = call.bias is None and visible.only_causal
    mask, is_causal = None, False
    if only_causal and visible.offset == 0 and q_len == k_len:
        # torch's causal mask shows query i the keys 0 ... i, which is wrong if keys are cached
        # before it
        is_causal = True
    elif not (only_causal and q_len == 1 and visible.offset == k_len - 1):
        # the exception is a single query that is the last token: it sees every key without a mask
        mask = call.full_mask(call.q.dtype)
    out = F.scaled_dot_product_attention(
        call.q,
        call.k,
        call.v,
        mask,
        dropout_p=call.dropout,
        is_causal=is_causal,
        scale=call.scale,
        enable_gqa=grouped,
    )
    # these masks can leave a query without keys; its output is set to 0. Causality and a window
    # never hide a query's own key
    may_lack_keys = (
        visible.padding is not None or visible.q_documents is not None or visible.mask is not None
    )
    if mask is not None and may_lack_keys:
        empty = (
            ~mask.any(dim=-1, keepdim=True)
            if mask.dtype == torch.bool
            else (mask == float("-inf")).all(dim=-1, keepdim=True)
        )
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
    """Run FlexAttention with a block mask, which skips blocks hidden by a window or by packed
    documents.
    """
    return flex.run(call.q, call.k, call.v, call.scale, call.visible), None


#: name -> (why_not, run)
ATTENTION_BACKENDS: dict[
    str, tuple[Callable[[Call], str | None], Callable[[Call], tuple[Tensor, Tensor | None]]]
] = {
    "sdpa": (sdpa_why_not, run_sdpa),
    "flex": (flex_why_not, run_flex),
    "math": (lambda call: None, run_math),
}


def pick(call: Call, name: str | None = None) -> tuple[str, str]:
    """Return (backend, why it was taken): the named backend, or without a name the best one for
    this call.
    """
    if name is not None:
        why_not, _ = ATTENTION_BACKENDS[choice("backend", name, ATTENTION_BACKENDS)]
        reason = why_not(call)
        if reason:
            rule = f"{name!r} cannot run this attention: {reason}; use another backend, or None"
            raise RopeError("backend", rule, name)
        return name, "requested"
    if call.wants_weights:
        return "math", "the weights are requested"
    sparse = call.visible.window is not None or call.visible.q_documents is not None
    if sparse and call.q.shape[-2] >= FEWEST_QUERIES and flex_why_not(call) is None:
        return "flex", "FlexAttention skips the blocks that a window or packed documents hide"
    return "sdpa", "torch's fused kernel is the default"


def attend(call: Call, name: str | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the output [B, H, Sq, Dv], and the weights if the backend materialises them, else
    None. `name` is that of the backend; None: the best one for this call.
    """
    _, run = ATTENTION_BACKENDS[pick(call, name)[0]]
    return run(call)
