"""Attention that also returns the log-sum-exp of its scores, so that the results of several calls
can be merged.

Memory stays bounded: the plain torch backend forms the scores of a block of queries at a time, the
other backends those of a tile.

Words of this module:
  visible   the masks of a call (`masks.Visibility`); its `offset` is the number of cached keys
            before the first query
  band      limits the keys of a query by groups, such as chunks of positions: it sees those with
            low <= q_group - k_group < high (`masks.Band`)
  math      the backend that computes the definition in plain torch
  shapes    B rows, H heads of q, Hk heads of k and v, Sq queries, Sk keys, D dimensions of a head
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropewalk.attention import flex
from ropewalk.attention.backends import Call
from ropewalk.attention.masks import part_of_scores
from ropewalk.errors import RopeError, choice
from ropewalk.kernels import banded_attention

#: the most scores that the plain torch backend forms at a time, 256 MiB in float32; it forms at
#: least those of one query of every head and row
MOST_SCORES = 1 << 26


class Partial(NamedTuple):
    """The output [B, H, Sq, D] and the log-sum-exp of the scores [B, H, Sq], which is -inf for a
    query without keys.
    """

    out: Tensor
    lse: Tensor


def merge(parts: Sequence[Partial], dtype: torch.dtype) -> Tensor:
    """Return the attention [B, H, Sq, D] over the keys of all parts together, in `dtype`; no key may
    be in two parts. A query without keys gives 0.
    """
    lse = torch.stack([part.lse for part in parts])
    # weights relative to the highest one, which cancels out and so needs no gradient; the clamp
    # keeps a query without keys, -inf in all parts, from becoming NaN
    highest = lse.amax(dim=0).clamp(min=torch.finfo(lse.dtype).min).detach()
    weights = (lse - highest).exp()
    total = weights.sum(dim=0)
    weights = weights / torch.where(total > 0, total, 1.0)
    out = sum(
        weight.unsqueeze(-1) * part.out.to(lse.dtype)
        for weight, part in zip(weights, parts, strict=True)
    )
    return out.to(dtype)  # type: ignore[union-attr]  # there is at least one part


def run_math(call: Call) -> Partial:
    """Return output and log-sum-exp in float32 (or float64), computed for a block of queries at a
    time.
    """
    q_len, k_len = call.lengths
    compute_dtype = torch.promote_types(call.q.dtype, torch.float32)
    call = replace(call, k=call.k.to(compute_dtype), v=call.v.to(compute_dtype))
    block_size = max(1, MOST_SCORES // max(1, call.q.shape[0] * call.q.shape[1] * k_len))
    starts = range(0, max(1, q_len), block_size)  # one empty block if there are no queries
    whole = len(starts) == 1 or q_len == 0  # one block, which sees all keys
    # read back from the device once, for all blocks: skipping keys saves far more time than waiting
    # for the device costs
    firsts, stops = ([0], [k_len]) if whole else key_ranges(call, block_size).tolist()
    blocks = zip(starts, firsts, stops, strict=True)
    parts = [
        _block(call, start, min(start + block_size, q_len), first, stop)
        for start, first, stop in blocks
    ]
    return (
        parts[0]
        if len(parts) == 1
        else Partial(*(torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True)))
    )


def key_ranges(call: Call, block_size: int) -> Tensor:
    """Return the first key, and one past the last, that each block of `block_size` queries may see
    by causality and band: int64 [2, blocks], both 0 for a block without keys.
    """
    visible, band, (q_len, k_len) = call.visible, call.visible.band, call.lengths
    blocks = -(-q_len // block_size)
    key = torch.arange(k_len, device=call.q.device)
    # whether a block may see a key, [B or 1, blocks, keys]
    inside = torch.ones(1, blocks, k_len, dtype=torch.bool, device=key.device)
    if visible.causal:
        # keys up to the last query of the block
        stops = block_size * torch.arange(1, blocks + 1, device=key.device)[:, None]
        inside = inside & (key < visible.offset + stops)
    if band is not None:
        q_groups = torch.nn.functional.pad(
            band.q_group.reshape(-1, q_len), (0, blocks * block_size - q_len), value=0
        )
        # the last block may be shorter: the queries that it lacks get the group of the last one
        q_groups[:, q_len:] = q_groups[:, q_len - 1 : q_len]
        # [B, blocks]
        first_group, last_group = q_groups.unflatten(-1, (blocks, block_size)).aminmax(dim=-1)
        k_groups = band.k_group.reshape(-1, 1, k_len)
        # a query sees a key if band.low <= q_group - k_group < band.high
        if band.low is not None:
            inside = inside & (k_groups <= last_group.unsqueeze(-1) - band.low)
        if band.high is not None:
            inside = inside & (k_groups > first_group.unsqueeze(-1) - band.high)
    # argmax returns the first key that some row of the batch may see
    inside = inside.any(dim=0).int()  # [blocks, keys]
    has_keys = inside.amax(dim=-1)
    return torch.stack(
        (inside.argmax(dim=-1) * has_keys, (k_len - inside.flip(-1).argmax(dim=-1)) * has_keys)
    )


def _block(call: Call, start: int, stop: int, first_key: int, stop_key: int) -> Partial:
    """Return the result of queries start ... stop - 1 and keys first_key ... stop_key - 1."""
    k, v = call.k[:, :, first_key:stop_key], call.v[:, :, first_key:stop_key]
    if first_key == stop_key:  # no keys: the output is 0
        lse = k.new_full((*call.q.shape[:2], stop - start), float("-inf"))
        return Partial(lse.new_zeros(*lse.shape, v.shape[-1]), lse)
    sharing = call.q.shape[1] // k.shape[1]  # how many query heads share a head of k and v
    q = call.q[:, :, start:stop].to(k.dtype).unflatten(1, (-1, sharing))  # [B, Hk, sharing, S, D]
    # one product with the queries of all heads that share their keys
    scores = ((q * call.scale).flatten(2, 3) @ k.mT).unflatten(2, (sharing, -1))
    visible = call.visible.part(start, stop, first_key, stop_key)
    bias = (
        None if call.bias is None else part_of_scores(call.bias, start, stop, first_key, stop_key)
    )
    mask = replace(call, q=call.q[:, :, start:stop], k=k, visible=visible, bias=bias).full_mask(
        k.dtype
    )
    if mask is not None:
        while mask.ndim < 4:
            mask = mask.unsqueeze(0)
        # [B, Hk, sharing, S, keys], or 1 instead of Hk and sharing if the mask is the same for all
        # heads
        mask = mask.unflatten(1, (-1, sharing)) if mask.shape[1] > 1 else mask.unsqueeze(2)
        scores = (
            scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        )
    # the softmax, relative to the highest score, which cancels out and so needs no gradient; the
    # clamp keeps a row of -inf from becoming NaN
    top = scores.amax(dim=-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min).detach()
    weights = (scores - top).exp()
    total = weights.sum(dim=-1, keepdim=True)
    # so that the gradient of a query without keys is not NaN
    safe = torch.where(total > 0, total, 1.0)
    out = (weights.flatten(2, 3) @ v).unflatten(2, (sharing, -1)) / safe
    lse = torch.where(total > 0, top + safe.log(), float("-inf")).squeeze(-1)
    return Partial(out.flatten(1, 2), lse.flatten(1, 2))


def flex_why_not(call: Call) -> str | None:
    """Return why FlexAttention cannot run this call; None if it can."""
    if call.q.device.type != "cuda":
        return "FlexAttention is compiled for CUDA only"
    if call.bias is not None or call.visible.added is not None:
        return (
            "FlexAttention takes no tensor with a value for every score here, so no float mask and "
            "no bias"
        )
    return None


def run_flex(call: Call) -> Partial:
    """Run FlexAttention, which skips the blocks of keys that the masks hide."""
    # lse is a tensor, or from torch 2.9 on an object that holds it in `lse`
    out, lse = flex.run(call.q, call.k, call.v, call.scale, call.visible, **_with_lse())
    return Partial(out, lse if isinstance(lse, Tensor) else lse.lse)


def _with_lse() -> dict[str, Any]:
    """Return the option that makes FlexAttention return the log-sum-exp."""
    from torch.nn.attention import flex_attention as module

    request = getattr(module, "AuxRequest", None)  # since torch 2.9
    return {"return_lse": True} if request is None else {"return_aux": request(lse=True)}


def triton_why_not(call: Call) -> str | None:
    """Return why our Triton kernel cannot run this call; None if it can."""
    visible = call.visible
    if call.bias is not None or any(
        x is not None for x in (visible.window, visible.padding, visible.q_documents, visible.mask)
    ):
        return "our Triton kernel supports causality and a band, and no other mask or bias"
    if visible.band is None or call.k.shape[-2] == 0:
        return "our Triton kernel needs keys, and a band that limits which of them a query sees"
    return banded_attention.why_not(call.q, call.k, call.v)


def run_triton(call: Call) -> Partial:
    """Run our Triton kernel, which skips the blocks of keys before and after the band; it has no
    backward pass.
    """
    visible, band = call.visible, call.visible.band
    assert band is not None  # see triton_why_not
    # the keys of each block of queries; ROWS is how many queries a block of the kernel has
    ranges = key_ranges(call, banded_attention.ROWS)
    masks = (
        ranges,
        visible.causal,
        visible.offset,
        band.q_group,
        band.k_group,
        band.low,
        band.high,
    )
    return Partial(
        *banded_attention.run(
            banded_attention.BandedCall(call.q, call.k, call.v, call.scale, *masks)
        )
    )


#: name -> (why_not, run); each `run` returns the output and the log-sum-exp. Torch's fused kernel,
#: "sdpa", does not return the log-sum-exp
LSE_BACKENDS: dict[str, tuple[Callable[[Call], str | None], Callable[[Call], Partial]]] = {
    "triton": (triton_why_not, run_triton),
    "flex": (flex_why_not, run_flex),
    "math": (lambda call: None, run_math),
}


def pick_with_lse(call: Call, name: str | None = None) -> tuple[str, str]:
    """Return (backend, why it was taken): the named backend, or for None our Triton kernel where it
    can run, else plain torch.
    """
    if name is None:
        reason = triton_why_not(call)
        return (
            ("math", reason)
            if reason
            else ("triton", "our kernel skips the keys outside of a band")
        )
    why_not, _ = LSE_BACKENDS[choice("backend", name, LSE_BACKENDS)]
    if reason := why_not(call):
        rule = f"{name!r} cannot run this attention: {reason}; use another backend, or None"
        raise RopeError("backend", rule, name)
    return name, "requested"


def attend_with_lse(call: Call, name: str | None = None) -> Partial:
    """Return output and log-sum-exp, computed by the backend that `pick_with_lse` picks."""
    _, run = LSE_BACKENDS[pick_with_lse(call, name)[0]]
    return run(call)
