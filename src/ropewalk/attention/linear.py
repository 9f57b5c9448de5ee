"""LinearAttention: RoPE in O(n). The n x n weights are never formed.

    numerator   out_i = sum_j [R_i phi(q_i)].[R_j phi(k_j)] v_j / sum_j phi(q_i).phi(k_j)       rotation in the numerator only
    cosine      out_i = sum_j (1 + a cos_ij) v_j / sum_j (1 + a cos_ij), cos_ij = (R_i q_i/|q_i|).(R_j k_j/|k_j|)

Both are sums over keys of a feature times a value, so a chunk needs only the state left by those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError, choice, integer
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {"elu": lambda x: F.elu(x) + 1, "relu": F.relu}
FORMS = ("numerator", "cosine")
CHUNK = 64


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
    inside = (q @ k.transpose(-1, -2)).tril()
    if documents is None:
        states = torch.cat((state.unsqueeze(2), k.transpose(-1, -2) @ v), dim=2).cumsum(dim=2)  # [B, H, N + 1, F, Dv]
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


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    positions: Tensor | None = None,
    *,
    form: str = "numerator",
    phi: str | Callable[[Tensor], Tensor] = "elu",
    scale: Tensor | float = 1.0,
    causal: bool = True,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
    state: State | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
) -> tuple[Tensor, State]:
    """Attend q, k [B, H, S, D], v [B, H, S, Dv] in time and memory linear in S; also the state to go on from.

    positions default to the order of the real tokens behind `state`. padding [B, S] is True for real tokens.
    """
    choice("form", form, FORMS)
    phi = FEATURES[choice("phi", phi, FEATURES)] if isinstance(phi, str) else phi
    integer("chunk", chunk, low=1)
    batch, _, seq, _ = q.shape
    if documents is not None and (state is not None or not causal):
        raise RopeError("documents", "are for causal attention over whole sequences, without a state", list(documents.shape))
    count = torch.zeros(batch, dtype=torch.int64, device=q.device) if state is None else state.count
    if state is not None and rope.spec.needs_length:
        raise RopeError(
            "state", "holds keys turned for one length; a scaling that follows it needs softmax attention", rope.spec.scaling
        )
    if positions is None:
        order = torch.arange(seq, device=q.device) if padding is None else (padding.long().cumsum(-1) - 1).clamp(min=0)
        positions = order + count[:, None]
    found = features(q, k, rope, positions, form, phi, scale)
    k_side, k_plain, value = found.k, found.k_plain, v.to(found.k.dtype)
    if padding is not None:
        real = padding[:, None, :, None]
        k_side, k_plain, value = k_side * real, k_plain * real, value * real
    heads, width = k_side.shape[1], value.shape[-1]
    mixed = value.new_zeros(batch, heads, k_side.shape[-1], width) if state is None else state.mixed
    total = value.new_zeros(batch, heads, k_plain.shape[-1]) if state is None else state.total
    if causal:
        top, mixed = causal_sums(found.q, k_side, value, mixed, documents, chunk)
        if documents is None:
            bottom, total = causal_totals(found.q_plain, k_plain, total, chunk)
        else:
            ones = torch.ones_like(value[..., :1])
            bottom, last = causal_sums(found.q_plain, k_plain, ones, total.unsqueeze(-1), documents, chunk)
            total = last.squeeze(-1)
    else:
        mixed = mixed + k_side.transpose(-1, -2) @ value
        total = total + k_plain.sum(dim=-2)
        top, bottom = found.q @ mixed, found.q_plain @ total.unsqueeze(-1)
    seen = torch.full_like(count, seq) if padding is None else padding.sum(-1)
    # a query with no key has nothing to read
    out = torch.where(bottom.abs() > eps, top / torch.where(bottom.abs() > eps, bottom, 1.0), 0.0)
    return out.to(v.dtype), State(mixed, total, count + seen)


class LinearAttention(nn.Module):
    """Multi-head linear attention with RoPE; the same projections as `Attention`, memory and time linear in the length.

    form "numerator" rotates the numerator only; "cosine" weighs by 1 + a cos with a trained 0 < a <= 1, always >= 0.
    A norm follows the heads by default, since the weights of the first form do not sum to one.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        spec: RopeSpec | None = None,
        form: str = "numerator",
        phi: str | Callable[[Tensor], Tensor] = "elu",
        causal: bool = True,
        bias: bool = False,
        out_norm: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        super().__init__()
        self.num_heads = integer("num_heads", num_heads, low=1)
        if head_dim is None and model_dim % num_heads:
            raise RopeError("head_dim", f"must be given: {num_heads} heads do not divide model_dim", model_dim)
        self.head_dim = model_dim // num_heads if head_dim is None else head_dim
        choice("form", form, FORMS)
        if isinstance(phi, str):
            choice("phi", phi, FEATURES)
        self.rope = Rope(RopeSpec(head_dim=self.head_dim) if spec is None else spec)
        self.form, self.phi, self.causal, self.chunk = form, phi, causal, chunk
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(model_dim, num_heads * self.head_dim, bias=bias) for _ in range(3))
        self.o_proj = nn.Linear(num_heads * self.head_dim, model_dim, bias=bias)
        self.norm = nn.RMSNorm(self.head_dim, eps=1e-6) if out_norm else nn.Identity()
        if form == "cosine":
            self.raw_scale = nn.Parameter(torch.full((num_heads, 1, 1), 3.0))

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Attend over x [B, S, model_dim]; pass the returned state to go on, one token or many at a time."""
        q, k, v = (
            proj(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scale = torch.sigmoid(self.raw_scale) if self.form == "cosine" else 1.0
        out, state = linear_attention(
            q, k, v, self.rope, positions, form=self.form, phi=self.phi, scale=scale, causal=self.causal,
            padding=padding, documents=documents, state=state, chunk=self.chunk,
        )  # fmt: skip
        return self.o_proj(self.norm(out).transpose(1, 2).flatten(-2)), state
