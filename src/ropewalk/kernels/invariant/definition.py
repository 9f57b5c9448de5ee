"""The definition of results that do not depend on the batch, in plain torch: every token is
computed alone.

How a library divides a sum follows from the shapes of its arguments. Here these shapes follow from
the token and the tokens before it alone, and so do the bits of the result.

`first_keys` [B] has the index of each row's first key; the keys before it are padding. A query sees
the keys up to its own, with a `window` at most its latest ones; `scale` is the softmax scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def each_token(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return the results of `function` for all tokens of the tensors [T, ...], concatenated; it
    gets one token of each tensor at a time, [1, ...].
    """
    # a copy, because a library may also choose its kernel by the alignment of memory
    results = [
        function(*(t[i : i + 1].clone() for t in tensors)) for i in range(tensors[0].shape[0])
    ]
    # without tokens, the function returns an empty result of the right shape
    return torch.cat(results) if results else function(*tensors)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of the rows of x [T, K]."""
    return each_token(lambda token: F.rms_norm(token, weight.shape, weight, eps), x)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gate: bool
) -> Tensor:
    """Return x @ weight^T + bias [T, N], plus `residual`; or, with `gate`, silu(first half) *
    second half of the columns.
    """
    return finished(each_token(lambda token: F.linear(token, weight, bias), x), residual, gate)


def finished(out: Tensor, residual: Tensor | None, gate: bool) -> Tensor:
    """Return the product `out` with the gate applied, else with the residual added if there is
    one.
    """
    if gate:
        first, second = out.chunk(2, dim=-1)
        return F.silu(first) * second
    return out if residual is None else residual + out


def attention(
    q: Tensor, k: Tensor, v: Tensor, first_keys: Tensor, scale: float, window: int | None
) -> Tensor:
    """Return the attention [B, S, Hq, D] of q [B, S, Hq, D] over k and v [B, Hk, N, D]; the S
    queries are the last S of the N tokens. Other arguments as in `api.attention`.
    """
    if not q.numel():
        return torch.empty_like(q)
    _, queries, heads, _ = q.shape
    group, before = heads // k.shape[1], k.shape[2] - queries
    wide = torch.promote_types(q.dtype, torch.float32)
    rows = []
    for row, row_first in enumerate(first_keys.tolist()):
        tokens = []
        for token in range(queries):
            own = before + token
            first = row_first if window is None else max(row_first, own - window + 1)
            if own < row_first:  # padding sees no key, and its output is 0
                tokens.append(torch.zeros_like(q[row, token]))
                continue
            # each key head once for every query head that shares it
            keys, values = (
                t[row, :, first : own + 1].clone().repeat_interleave(group, dim=0) for t in (k, v)
            )
            query = q[row, token].clone().unsqueeze(1)
            scores = (query.to(wide) @ keys.to(wide).mT) * scale
            tokens.append((scores.softmax(dim=-1) @ values.to(wide)).squeeze(1).to(q.dtype))
        rows.append(torch.stack(tokens))
    return torch.stack(rows)
