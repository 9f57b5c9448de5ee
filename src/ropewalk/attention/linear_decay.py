"""Linear attention without rotation whose weights decay with distance, in O(n).

    out_i = sum_j w_ij v_j / sum_j w_ij,    w_ij = phi(q_i).phi(k_j) exp(-rate |i - j|)

With the features "elu" and "relu" no weight is negative. Where the denominator is at most `eps`, as
relu can make it, the output is 0. An exponential of a distance is a product of exponentials, so a
chunk of queries needs only its own scores and the decayed sum over earlier chunks.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.attention.linear_sums import CHUNK, FEATURE_MAPS, divide, in_chunks
from ropewalk.errors import RopeError, choice, integer, number


def decaying_linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rate: float | Tensor,
    *,
    phi: str | Callable[[Tensor], Tensor] = "elu",
    causal: bool = True,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> Tensor:
    """Return the attention of q, k [B, H, S, D] and v [B, H, S, Dv] with weights that decay by
    exp(-rate) a token.

    rate   at least 0: one number, or a tensor [H] with one for each head, whose values are not
           checked
    phi    the feature map: "elu" (elu(x) + 1), "relu", or a function that is applied to q and to k
    chunk  tokens in a chunk; scores are formed only between tokens of the same chunk
    eps    an output is 0 if the absolute value of its denominator is at most this
    """
    if isinstance(phi, str):
        phi = FEATURE_MAPS[choice("phi", phi, FEATURE_MAPS)]
    integer("chunk", chunk, low=1)
    if q.ndim != 4 or q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        shapes = [list(t.shape) for t in (q, k, v)]
        raise RopeError("k, v", "must match q [B, H, S, D] in all but the width of v", shapes)
    dtype = torch.promote_types(q.dtype, torch.float32)
    if isinstance(rate, Tensor):
        if rate.shape not in ((), (q.shape[1],)):
            rule = f"must be one number, or [{q.shape[1]}]: one for each head"
            raise RopeError("rate", rule, list(rate.shape))
        rate = rate.to(q.device, dtype).expand(q.shape[1])
    else:
        rate = q.new_full((q.shape[1],), number("rate", rate, low=0), dtype=dtype)
    q, k = phi(q.to(dtype)), phi(k.to(dtype))
    # a further value of 1 for each token: its weighted sum is the denominator
    values = torch.cat((v.to(dtype), torch.ones_like(v[..., :1], dtype=dtype)), dim=-1)
    sums = _decayed_sums(q, k, values, rate, chunk)
    if not causal:
        later = _decayed_sums(q.flip(-2), k.flip(-2), values.flip(-2), rate, chunk).flip(-2)
        # both sums include the token itself, so it is subtracted once
        sums = sums + later - (q * k).sum(dim=-1, keepdim=True) * values
    return divide(sums[..., :-1], sums[..., -1:], eps).to(v.dtype)


def _decayed_sums(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, chunk: int) -> Tensor:
    """Return sum_{j <= i} (q_i.k_j) exp(-rate (i - j)) v_j for every i: [B, H, S, Dv].

    q, k   [B, H, S, F], the F features of each token
    rate   [H], the decay of each head per token
    chunk  tokens in a chunk; scores are formed only between tokens of the same chunk
    """
    seq = q.shape[-2]
    if not seq:  # there is no chunk, and v is empty as the result is
        return v
    # N chunks of C tokens, [B, H, N, C, .]
    q, k, v = (in_chunks(t, chunk) for t in (q, k, v))
    place = torch.arange(chunk, device=q.device, dtype=q.dtype)
    rate = rate.view(-1, 1, 1)  # [H, 1, 1]
    distance = (place[:, None] - place).clamp(min=0)  # exp stays finite above the diagonal
    inside = (q @ k.mT).tril() * (-rate * distance).exp().unsqueeze(1)
    # the decay from each key to the last token of its chunk, and from there to each query of the
    # next chunk
    to_end = (-rate * (chunk - 1 - place[:, None])).exp().unsqueeze(1)
    from_end = (-rate * (1 + place[:, None])).exp().unsqueeze(1)
    added = (k * to_end).mT @ v  # [B, H, N, F, Dv]
    # `states` gets the decayed sum of k v^T before each chunk
    state, states = torch.zeros_like(added[:, :, 0]), []
    for of_chunk in added.unbind(2):
        states.append(state)
        state = (-rate * chunk).exp() * state + of_chunk
    earlier = (q * from_end) @ torch.stack(states, dim=2)
    return (inside @ v + earlier).flatten(2, 3)[:, :, :seq]
