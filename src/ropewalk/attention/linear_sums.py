"""The sums of linear attention in plain torch: the reference for the kernels, and their backward.

A weight is a dot product of features, so later queries need only one sum over past keys: key feature times value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.rope import Rope

FORMS = ("numerator", "cosine")
CHUNK = 128


def elu_plus_one(x: Tensor) -> Tensor:
    """Return elu(x) + 1: x + 1 if x > 0, else e^x. On a CPU this takes half the time of torch's elu."""
    return x.clamp(max=0).exp() + F.relu(x)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_plus_one, "relu": F.relu}


class State(NamedTuple):
    """Sums over all past tokens, in float32 or float64; the size does not grow with the number of tokens.

    kv_sum [B, H, F, Dv]   sum of (key feature) (value)^T for the numerator; features are rotated to absolute positions
    k_sum [B, H, F']       sum of key features for the denominator
    count [B]              real tokens so far, which is the next position of each row
    """

    kv_sum: Tensor
    k_sum: Tensor
    count: Tensor


class Features(NamedTuple):
    """Features of the numerator (q, k: rotated) and of the denominator (q_plain, k_plain: rotated in the cosine form only)."""

    q: Tensor
    k: Tensor
    q_plain: Tensor
    k_plain: Tensor


def make_features(
    q: Tensor,
    k: Tensor,
    rope: Rope,
    positions: Tensor,
    padding: Tensor | None,
    form: str,
    phi: str | Callable[[Tensor], Tensor],
    scale: Tensor | float,
) -> Features:
    """Return features in float32 (or float64); features of padded keys are 0.

    The numerator weighs each value by q.k; the denominator is the sum of q_plain.k_plain.
    """
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    if form == "numerator":
        phi = FEATURE_MAPS[phi] if isinstance(phi, str) else phi
        q_plain, k_plain = phi(q.to(compute_dtype)), phi(k.to(compute_dtype))
        q, k = rope.rotate(q_plain, positions), rope.rotate(k_plain, positions, key=True)
    else:
        q, k = (rope.rotate(F.normalize(x.to(compute_dtype), dim=-1), positions, key=key) for x, key in ((q, False), (k, True)))
        one = torch.ones_like(q[..., :1])
        q, k = torch.cat((one, q * scale), dim=-1), torch.cat((one, k), dim=-1)
        q_plain, k_plain = q, k
    if padding is not None:
        real = padding[:, None, :, None]
        k, k_plain = k * real, k_plain * real
    return Features(q, k, q_plain, k_plain)


def key_sums(features: Features, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `kv_sum` and `k_sum` of `State` for these keys and values."""
    return features.k.mT @ v.to(features.k.dtype), features.k_plain.sum(dim=-2)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Return sum_{j <= i} (q_i.k_j) v_j for every i, and `state` after the last token.

    q, k [B, H, S, F], v [B, H, S, Dv], and state [B, H, F, Dv], the sum of k_j v_j^T over preceding tokens.
    Cost O(S chunk (F + Dv) + S F Dv): linear in S.
    With `documents` [B, S], the document index of each token, a query sums over its own document only.
    """
    seq = q.shape[-2]
    pad = -seq % chunk
    q, k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(-2, (-1, chunk)) for t in (q, k, v))  # [B, H, N, C, .]
    # contiguous, because CPU libraries multiply a transposed view at half the speed
    k_transposed = k.transpose(-1, -2).contiguous()
    inside = (q @ k_transposed).tril_()
    if documents is None:
        states = torch.cat((state.unsqueeze(2), k_transposed @ v), dim=2).cumsum(dim=2)  # [B, H, N + 1, F, Dv]
        past, state = q @ states[:, :, :-1], states[:, :, -1]
    else:
        # the padded tokens are zeros, so they may belong to the last document
        ids = torch.cat((documents, documents[:, -1:].expand(-1, pad)), dim=-1).unflatten(-1, (-1, chunk))  # [B, N, C]
        inside = inside.masked_fill((ids.unsqueeze(-1) != ids.unsqueeze(-2)).unsqueeze(1), 0.0)
        past, state = _past_within_documents(q, k, v, state, ids)
    return (inside @ v + past).flatten(2, 3)[:, :, :seq], state


def _past_within_documents(q: Tensor, k: Tensor, v: Tensor, state: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return each query's sum over earlier chunks of its document, and the final state; ids [B, N, C] are document indices."""
    pasts, current = [], ids[:, 0, 0]  # the document that `state` belongs to
    for n in range(ids.shape[1]):
        final = ids[:, n, -1]
        pasts.append((q[:, :, n] @ state) * (ids[:, n] == current[:, None])[:, None, :, None])
        in_final = (ids[:, n] == final[:, None])[:, None, :, None]
        state = state * (final == current)[:, None, None, None] + (k[:, :, n] * in_final).mT @ v[:, :, n]
        current = final
    return torch.stack(pasts, dim=2), state


def causal_denominators(q: Tensor, k: Tensor, k_sum: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the denominators sum_{j <= i} q_i.k_j [B, H, S, 1] and the sum of all keys, `k_sum` included.

    To reduce rounding error, keys are summed within chunks, then across chunks.
    """
    seq = k.shape[-2]
    inside = F.pad(k, (0, 0, 0, -seq % chunk)).unflatten(-2, (-1, chunk)).cumsum(dim=-2)  # [B, H, N, C, F]
    before = torch.cat((k_sum.unsqueeze(2), inside[..., -1, :]), dim=2).cumsum(dim=2)  # [B, H, N + 1, F]
    running = (inside + before[:, :, :-1, None]).flatten(2, 3)[:, :, :seq]
    return (q * running).sum(dim=-1, keepdim=True), before[:, :, -1]


def empty_state(q: Tensor, v: Tensor, form: str) -> State:
    """Return the state before the first token: zeros."""
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    sizes = (*q.shape[:2], q.shape[-1] + (form == "cosine"))
    count = torch.zeros(q.shape[0], dtype=torch.int64, device=q.device)
    return State(q.new_zeros(*sizes, v.shape[-1], dtype=compute_dtype), q.new_zeros(sizes, dtype=compute_dtype), count)


def _within_documents(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor, causal: bool, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return each query's sum over its own document (up to itself if causal), and the final state."""
    earlier, final = causal_sums(q, k, v, state, documents, chunk)
    if causal:
        return earlier, final
    later, _ = causal_sums(q.flip(-2), k.flip(-2), v.flip(-2), state, documents.flip(-1), chunk)
    # both directions include the query's own key
    return earlier + later.flip(-2) - (q * k).sum(dim=-1, keepdim=True) * v, final


def attend(
    features: Features,
    v: Tensor,
    state: State,
    causal: bool,
    documents: Tensor | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out, kv_sum, k_sum): the output, and the sums of `state` with these tokens added."""
    q, k, q_plain, k_plain = features
    v, kv_sum, k_sum = v.to(k.dtype), state.kv_sum, state.k_sum
    if documents is not None:
        numerator, kv_sum = _within_documents(q, k, v, kv_sum, documents, causal, chunk)
        ones = torch.ones_like(v[..., :1])
        denominator, final = _within_documents(q_plain, k_plain, ones, k_sum.unsqueeze(-1), documents, causal, chunk)
        k_sum = final.squeeze(-1)
    elif causal:
        numerator, kv_sum = causal_sums(q, k, v, kv_sum, None, chunk)
        denominator, k_sum = causal_denominators(q_plain, k_plain, k_sum, chunk)
    else:
        kv_sum, k_sum = (a + b for a, b in zip((kv_sum, k_sum), key_sums(features, v), strict=True))
        numerator, denominator = q @ kv_sum, q_plain @ k_sum.unsqueeze(-1)
    # a query without keys gives 0
    has_keys = denominator.abs() > eps
    return torch.where(has_keys, numerator / torch.where(has_keys, denominator, 1.0), 0.0), kv_sum, k_sum
