"""The sums of linear attention in plain torch: the definition that the kernels are measured against, and their backward.

A weight is a product of features, so the sum over keys of feature times value is all a later query needs to know of them.
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
    """elu(x) + 1: x + 1 where positive, else e^x. torch's own elu takes twice as long on a CPU."""
    return x.clamp(max=0).exp() + F.relu(x)


FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"elu": elu_plus_one, "relu": F.relu}


class State(NamedTuple):
    """What the past leaves behind: constant in size, float32, in the frame of position 0.

    mixed [B, H, F, Dv] sums key feature times value, total [B, H, F'] sums what the denominator needs.
    """

    mixed: Tensor
    total: Tensor
    count: Tensor  # [B] tokens seen: the next position of each row


class Features(NamedTuple):
    """What the sums run over: numerator features (with position) and denominator features (with or without)."""

    q: Tensor
    k: Tensor
    q_plain: Tensor
    k_plain: Tensor


def features(
    q: Tensor, k: Tensor, rope: Rope, positions: Tensor, form: str, phi: Callable[[Tensor], Tensor], scale: Tensor | float
) -> Features:
    """The features of both forms in float32 (float64 stays): a weight is q.k, its normaliser q_plain.k_plain."""
    high = torch.float64 if q.dtype == torch.float64 else torch.float32
    if form == "numerator":
        q, k = phi(q.to(high)), phi(k.to(high))
        return Features(rope.rotate(q, positions), rope.rotate(k, positions, key=True), q, k)
    q, k = (rope.rotate(F.normalize(x.to(high), dim=-1), positions, key=key) for x, key in ((q, False), (k, True)))
    one = torch.ones_like(q[..., :1])
    q, k = torch.cat((one, q * scale), dim=-1), torch.cat((one, k), dim=-1)
    return Features(q, k, q, k)


def causal_sums(q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor | None, chunk: int) -> tuple[Tensor, Tensor]:
    """sum_{j <= i} (q_i.k_j) v_j for every i, and the state after the last token.

    q, k [B, H, S, F], v [B, H, S, Dv], state [B, H, F, Dv]. Cost O(S chunk (F + Dv) + S F Dv): linear in S.
    Sums do not cross `documents` [B, S].
    """
    seq = q.shape[-2]
    pad = -seq % chunk
    q, k, v = (F.pad(t, (0, 0, 0, pad)).unflatten(-2, (-1, chunk)) for t in (q, k, v))  # [B, H, N, C, .]
    # written out: CPU libraries multiply by a transposed view at half the speed
    k_transposed = k.transpose(-1, -2).contiguous()
    inside = (q @ k_transposed).tril_()
    if documents is None:
        states = torch.cat((state.unsqueeze(2), k_transposed @ v), dim=2).cumsum(dim=2)  # [B, H, N + 1, F, Dv]
        past, state = q @ states[:, :, :-1], states[:, :, -1]
    else:
        # padding carries zeros, so it may count as part of the last document
        owners = torch.cat((documents, documents[:, -1:].expand(-1, pad)), dim=-1).unflatten(-1, (-1, chunk))  # [B, N, C]
        inside = inside.masked_fill((owners.unsqueeze(-1) != owners.unsqueeze(-2)).unsqueeze(1), 0.0)
        past, state = _past_within_documents(q, k, v, state, owners)
    return (inside @ v + past).flatten(2, 3)[:, :, :seq], state


def _past_within_documents(q: Tensor, k: Tensor, v: Tensor, state: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
    """A chunk hears of those before it only while the document it started with goes on."""
    pasts, carried = [], owners[:, 0, 0]
    for n in range(owners.shape[1]):
        started, last = owners[:, n] == carried[:, None], owners[:, n, -1]  # [B, C], [B]
        pasts.append((q[:, :, n] @ state) * started[:, None, :, None])
        ending = (owners[:, n] == last[:, None])[:, None, :, None]
        state = state * (last == carried)[:, None, None, None] + (k[:, :, n] * ending).transpose(-1, -2) @ v[:, :, n]
        carried = last
    return torch.stack(pasts, dim=2), state


def causal_totals(q: Tensor, k: Tensor, total: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """sum_{j <= i} q_i.k_j [B, H, S, 1] by two short running sums, which round less than one long one; and the last total."""
    seq = k.shape[-2]
    inside = F.pad(k, (0, 0, 0, -seq % chunk)).unflatten(-2, (-1, chunk)).cumsum(dim=-2)  # [B, H, N, C, F]
    ends = torch.cat((total.unsqueeze(2), inside[..., -1, :]), dim=2).cumsum(dim=2)  # [B, H, N + 1, F]
    running = (inside + ends[:, :, :-1, None]).flatten(2, 3)[:, :, :seq]
    return (q * running).sum(dim=-1, keepdim=True), ends[:, :, -1]


def empty_state(q: Tensor, v: Tensor, form: str) -> State:
    """What no token leaves behind."""
    high = torch.float64 if q.dtype == torch.float64 else torch.float32
    rows = q.shape[-1] + (form == "cosine")
    sizes = (*q.shape[:2], rows)
    count = torch.zeros(q.shape[0], dtype=torch.int64, device=q.device)
    return State(q.new_zeros(*sizes, v.shape[-1], dtype=high), q.new_zeros(sizes, dtype=high), count)


def _within_documents(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, documents: Tensor, causal: bool, chunk: int
) -> tuple[Tensor, Tensor]:
    """Sums over each query's own document; over both directions they are those of either, less the query's own key."""
    behind, last = causal_sums(q, k, v, state, documents, chunk)
    if causal:
        return behind, last
    ahead, _ = causal_sums(q.flip(-2), k.flip(-2), v.flip(-2), state, documents.flip(-1), chunk)
    return behind + ahead.flip(-2) - (q * k).sum(dim=-1, keepdim=True) * v, last


def attend(
    found: Features,
    v: Tensor,
    padding: Tensor | None,
    state: State,
    causal: bool,
    documents: Tensor | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """(out, mixed, total) in plain torch: the sums of these features behind `state`."""
    k_side, k_plain, value = found.k, found.k_plain, v.to(found.k.dtype)
    if padding is not None:
        real = padding[:, None, :, None]
        k_side, k_plain, value = k_side * real, k_plain * real, value * real
    mixed, total = state.mixed, state.total
    if documents is not None:
        ones = torch.ones_like(value[..., :1])
        top, mixed = _within_documents(found.q, k_side, value, mixed, documents, causal, chunk)
        bottom, last = _within_documents(found.q_plain, k_plain, ones, total.unsqueeze(-1), documents, causal, chunk)
        total = last.squeeze(-1)
    elif causal:
        top, mixed = causal_sums(found.q, k_side, value, mixed, None, chunk)
        bottom, total = causal_totals(found.q_plain, k_plain, total, chunk)
    else:
        mixed = mixed + k_side.transpose(-1, -2) @ value
        total = total + k_plain.sum(dim=-2)
        top, bottom = found.q @ mixed, found.q_plain @ total.unsqueeze(-1)
    # a query with no key has nothing to read
    some = bottom.abs() > eps
    return torch.where(some, top / torch.where(some, bottom, 1.0), 0.0), mixed, total
