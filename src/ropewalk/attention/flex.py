"""FlexAttention of torch: compiled, with a block mask, so that it skips the blocks of scores that
are masked completely.

`visible` holds the masks of a call (`attention.masks.Visibility`). Its band, if any, limits a query
to keys by groups of positions, for attention that is computed in pieces.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.masks import Visibility
from ropewalk.caches import cached


def run(q: Tensor, k: Tensor, v: Tensor, scale: float, visible: Visibility, **options: Any) -> Any:
    """Return what torch's flex_attention returns for q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk,
    Sk, Dv] and `options`: the output [B, H, Sq, Dv], or a tuple if the options ask for more.
    """
    (batch, heads, q_len), k_len = q.shape[:3], k.shape[2]
    mask, band = visible.mask, visible.band
    if mask is not None:
        visible = replace(visible, mask=mask.expand(batch, heads, q_len, k_len))
    # by_row: whether the mask may differ between batch rows; by_head: whether it differs between
    # heads
    by_row = any(t is not None for t in (visible.padding, visible.q_documents, mask))
    by_row = by_row or (band is not None and (band.q_group.ndim > 1 or band.k_group.ndim > 1))
    by_head = mask is not None and mask.ndim > 2 and mask.shape[-3] > 1
    sizes = (batch if by_row else None, heads if by_head else None, q_len, k_len, q.device)
    # tensors that are made while a graph is compiled or captured belong to it, so they cannot be
    # kept
    in_graph = torch.compiler.is_compiling() or (
        torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    )
    # a block mask made from mask tensors is for this call alone
    if by_row or band is not None or in_graph:
        block_mask = _block_mask(visible, *sizes)
    else:
        block_mask = _kept_block_mask(visible.causal, visible.window, visible.offset, sizes)
    attend = compiled()[1]  # flex_attention
    return attend(
        q, k, v, block_mask=block_mask, scale=scale, enable_gqa=heads != k.shape[1], **options
    )


@cached("block masks of FlexAttention", entries=16)
def _kept_block_mask(causal: bool, window: int | None, offset: int, sizes: tuple[Any, ...]) -> Any:
    """Return the block mask of a call that has no mask tensors; the layers of a model use the same
    one. `sizes` are the other arguments of `_block_mask`.
    """
    with torch.inference_mode(False):  # a later call may need it for a backward pass
        return _block_mask(Visibility(causal, window, offset=offset), *sizes)


def _block_mask(
    visible: Visibility,
    batch: int | None,
    heads: int | None,
    q_len: int,
    k_len: int,
    device: torch.device,
) -> Any:
    """Return the block mask of a call; batch or heads are None if all rows or all heads have the
    same mask.
    """
    # FlexAttention counts the parameters of the function, so it gets one with exactly these four:
    # the indices of batch row, head, query and key. compiled()[0] is create_block_mask
    attends = lambda b, h, q, k: visible.at(b, h, q, k)  # noqa: E731
    return compiled()[0](attends, batch, heads, q_len, k_len, device=device)


@cached("compiled FlexAttention", entries=1)
def compiled() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return torch's create_block_mask and flex_attention, compiled; after a second length they are
    compiled for all lengths.

    Without compilation both would hold a number for every query and key in memory.
    """
    from torch.nn.attention import flex_attention as module

    # after 8 compilations, for other masks or other gradients, torch uses the uncompiled functions;
    # newer releases of torch have an argument for a higher limit
    more: dict[str, Any] = (
        {"recompile_limit": 64}
        if "recompile_limit" in inspect.signature(torch.compile).parameters
        else {}
    )
    return torch.compile(module.create_block_mask, **more), torch.compile(
        module.flex_attention, **more
    )
