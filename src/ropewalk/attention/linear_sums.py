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
    """elu(x) + 1: x + 1 if positive, else e^x; torch's own elu takes twice as long on a CPU."""
    return x.clamp(max=0).exp() + F.relu(x)


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_plus_one, "relu": F.relu}


class State(NamedTuple):
    """The sums over all past tokens: constant in size, at least float32, rotated to absolute positions.

    mixed [B, H, F, Dv] sums key feature times value, total [B, H, F'] sums the denominator's key features.
    """

    mixed: Tensor
    total: Tensor
    count: Tensor  # [B], real tokens so far, which is the next position of each row


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
    """Return the features in float32 (or float64): a weight is q.k, its normaliser q_plain.k_plain; padded keys are 0."""
    high = torch.promote_types(q.dtype, torch.float32)
    if form == "numerator":
        phi = FEATURE_MAPS[phi] if isinstance(phi, str) else phi
        q_plain, k_plain = phi(q.to(high)), phi(k.to(high))
        q, k = rope.rotate(q_plain, positions), rope.rotate(k_plain, positions, key=True)
    else:
        q, k = (rope.rotate(F.normalize(x.to(high), dim=-1), positions, key=key) for x, key in ((q, False), (k, True)))
        one = torch.ones_like(q[..., :1])
        q, k = torch.cat((one, q * scale), dim=-1), torch.cat((one, k), dim=-1)
        q_plain, k_plain = q, k
    if padding is not None:
        real = padding[:, None, :, None]
        k, k_plain = k * real, k_plain * real
    return Features(q, k, q_plain, k_plain)


def key_sums(features: Features, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return `mixed` and `total` of `State` for these keys and values."""
    return features.k.mT @ v.to(features.k.dtype), features.k_plain.sum(dim=-2)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """Return sum_{j <= i} (q_i.k_j) v_j for every i, and the state after the last token.

    q, k [B, H, S, F], v [B, H, S, Dv], state [B, H, F, Dv]. Cost O(S chunk (F + Dv) + S F Dv): linear in S.
    With `documents` [B, S] each sum stays within one document.
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
    """Return each chunk's sums over earlier chunks of the same document, and the last state; ids [B, N, C] are documents."""
    pasts, current = [], ids[:, 0, 0]  # the document that `state` belongs to
    for n in range(ids.shape[1]):
        last = ids[:, n, -1]
        pasts.append((q[:, :, n] @ state) * (ids[:, n] == current[:, None])[:, None, :, None])
        in_last = (ids[:, n] == last[:, None])[:, None, :, None]
        state = state * (last == current)[:, None, None, None] + (k[:, :, n] * in_last).mT @ v[:, :, n]
        current = last
    return torch.stack(pasts, dim=2), state


def causal_totals(q: Tensor, k: Tensor, total: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return sum_{j <= i} q_i.k_j [B, H, S, 1], by two short running sums to round less, and the last total."""
    seq = k.shape[-2]
    inside = F.pad(k, (0, 0, 0, -seq % chunk)).unflatten(-2, (-1, chunk)).cumsum(dim=-2)  # [B, H, N, C, F]
    ends = torch.cat((total.unsqueeze(2), inside[..., -1, :]), dim=2).cumsum(dim=2)  # [B, H, N + 1, F]
    running = (inside + ends[:, :, :-1, None]).flatten(2, 3)[:, :, :seq]
    return (q * running).sum(dim=-1, keepdim=True), ends[:, :, -1]


def empty_state(q: Tensor, v: Tensor, form: str) -> State:
    """The state before the first token."""
    high = torch.promote_types(q.dtype, torch.float32)
    sizes = (*q.shape[:2], q.shape[-1] + (form == "cosine"))
    count = torch.zeros(q.shape[0], dtype=torch.int64, device=q.device)
    return State(q.new_zeros(*sizes, v.shape[-1], dtype=high), q.new_zeros(sizes, dtype=high), count)


def _within_documents(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor, causal: bool, chunk: int
) -> tuple[Tensor, Tensor]:
    """Return sums over each query's own document, and the last state; bidirectional sums add both directions."""
    behind, last = causal_sums(q, k, v, state, documents, chunk)
    if causal:
        return behind, last
    ahead, _ = causal_sums(q.flip(-2), k.flip(-2), v.flip(-2), state, documents.flip(-1), chunk)
    # both directions include the query's own key
    return behind + ahead.flip(-2) - (q * k).sum(dim=-1, keepdim=True) * v, last


def attend(
    features: Features,
    v: Tensor,
    state: State,
    causal: bool,
    documents: Tensor | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out, mixed, total): the output, and the state after these tokens, which follow `state`."""
    q, k, q_plain, k_plain = features
    v, mixed, total = v.to(k.dtype), state.mixed, state.total
    if documents is not None:
        top, mixed = _within_documents(q, k, v, mixed, documents, causal, chunk)
        ones = torch.ones_like(v[..., :1])
        bottom, last = _within_documents(q_plain, k_plain, ones, total.unsqueeze(-1), documents, causal, chunk)
        total = last.squeeze(-1)
    elif causal:
        top, mixed = causal_sums(q, k, v, mixed, None, chunk)
        bottom, total = causal_totals(q_plain, k_plain, total, chunk)
    else:
        mixed, total = (a + b for a, b in zip((mixed, total), key_sums(features, v), strict=True))
        top, bottom = q @ mixed, q_plain @ total.unsqueeze(-1)
    # a query without keys gives 0
    some = bottom.abs() > eps
    return torch.where(some, top / torch.where(some, bottom, 1.0), 0.0), mixed, total
