"""Attention: multi-head softmax attention with any encoding, grouped heads, masks, packing and a cache."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.attention.backends import Call, attend, pick
from ropewalk.attention.cache import KVCache
from ropewalk.attention.masks import Visibility
from ropewalk.encodings import Encoding, Sizes, make_encoding
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, integer, number
from ropewalk.spec import RopeSpec


class Attended(NamedTuple):
    """The output [B, S, model_dim], and the weights [B, H, Sq, Sk] where they were asked for."""

    out: Tensor
    weights: Tensor | None


def as_encoding(encoding: Encoding | RopeSpec | str, sizes: Sizes) -> Encoding:
    """An encoding by instance, by spec (RoPE) or by name."""
    if isinstance(encoding, Encoding):
        return encoding
    if isinstance(encoding, RopeSpec):
        return Rotary(sizes, encoding)
    return make_encoding(
        encoding, num_heads=sizes.num_heads, head_dim=sizes.head_dim, model_dim=sizes.model_dim, length=sizes.length
    )


class Attention(nn.Module):
    """Softmax attention whose positions come from one `encoding`: a name from ENCODINGS, a RopeSpec or an Encoding.

    num_kv_heads < num_heads shares keys and values between heads (GQA; 1 is MQA). `scale` defaults to
    1/sqrt(head_dim), times what the spec puts on the softmax. `window` limits how far a query looks. `o_bias` is the
    output projection's own `bias`, where it differs; `norm_eps` belongs to `qk_norm`.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        encoding: Encoding | RopeSpec | str = "rope",
        causal: bool = True,
        window: int | None = None,
        dropout: float = 0.0,
        bias: bool = False,
        o_bias: bool | None = None,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        scale: float | None = None,
        length: int = 2048,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = integer("num_heads", num_heads, low=1)
        self.num_kv_heads = integer("num_kv_heads", num_heads if num_kv_heads is None else num_kv_heads, low=1, high=num_heads)
        if self.num_heads % self.num_kv_heads:
            raise RopeError("num_kv_heads", f"must divide num_heads = {num_heads}", num_kv_heads)
        if head_dim is None and model_dim % num_heads:
            raise RopeError("head_dim", f"must be given: {num_heads} heads do not divide model_dim", model_dim)
        self.head_dim = integer("head_dim", model_dim // num_heads if head_dim is None else head_dim, low=1)
        self.causal, self.backend = causal, backend
        self.window = None if window is None else integer("window", window, low=1)
        self.dropout = number("dropout", dropout, low=0, high=1)
        self.encoding = as_encoding(encoding, Sizes(self.num_heads, self.head_dim, model_dim, length))
        if self.encoding.causal_only and not causal:
            raise RopeError("encoding", "is defined for causal attention only; pass causal=True", type(self.encoding).__name__)
        self.q_proj = nn.Linear(model_dim, self.num_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(model_dim, self.num_kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(model_dim, self.num_kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(self.num_heads * self.head_dim, model_dim, bias=bias if o_bias is None else o_bias)
        self.q_norm = nn.RMSNorm(self.head_dim, eps=norm_eps) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim, eps=norm_eps) if qk_norm else nn.Identity()
        self.scale = self._default_scale() if scale is None else number("scale", scale, above=0)

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        cache: KVCache | None = None,
        return_weights: bool = False,
    ) -> Attended:
        """Attend over x [B, S, model_dim] and what `cache` holds.

        positions   integer [S] or [B, S] ([axes, B, S] where the encoding has axes); by default each row counts its real
                    tokens, from what the cache has seen
        mask        boolean (True = may look) or float (added), broadcastable to [B, H, Sq, Sk]
        padding     boolean [B, S], True for real tokens; padded queries give 0
        documents   integer [B, S], the number of the packed document of each token (without a cache)
        """
        batch, seq, _ = x.shape
        positions = self.token_positions(positions, padding, documents, cache, batch, seq, x.device)
        x = self.encoding.embed(x, positions)
        q, k, v = self.project(x)
        q, k, v, k_positions, key_padding = self._placed(q, k, v, positions, padding, cache)
        visible = Visibility(self.causal, self.window, key_padding, documents, documents, mask, offset=k.shape[-2] - seq)
        call = Call(
            q, k, v, self.scale, visible,
            bias=self.encoding.bias(q, positions, k_positions),
            dropout=self.dropout if self.training else 0.0,
            wants_weights=self._wants_weights(return_weights),
        )  # fmt: skip
        out, weights = attend(call, self.backend)
        if weights is not None:
            beside = self.encoding.value_bias(weights, positions, k_positions)
            out = out if beside is None else out + beside.to(out.dtype)
        if padding is not None:
            out = out.masked_fill(~padding[:, None, :, None], 0.0)
        out = self.o_proj(out.transpose(1, 2).flatten(-2))
        return Attended(out, weights if return_weights else None)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v [B, heads, S, head_dim] of x, normed but not turned."""
        q = self.q_norm(self._heads(self.q_proj(x), self.num_heads))
        k = self.k_norm(self._heads(self.k_proj(x), self.num_kv_heads))
        return q, k, self._heads(self.v_proj(x), self.num_kv_heads)

    def backend_for(
        self,
        x: Tensor,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[str, str]:
        """(backend, reason) that `forward` would take for x and these masks."""
        q = x.new_empty(x.shape[0], self.num_heads, x.shape[1], self.head_dim)
        here = torch.zeros(1, dtype=torch.int64, device=x.device)
        visible = Visibility(self.causal, self.window, padding, documents, documents, mask)
        call = Call(
            q, q, q, self.scale, visible,
            bias=self.encoding.bias(q[:, :, :1], here, here),  # of one token: only whether there is one matters
            dropout=self.dropout if self.training else 0.0,
            wants_weights=self._wants_weights(return_weights),
        )  # fmt: skip
        return pick(call, self.backend)

    def token_positions(
        self,
        positions: Tensor | None,
        padding: Tensor | None,
        documents: Tensor | None,
        cache: Any,
        batch: int,
        seq: int,
        device: torch.device,
    ) -> Tensor:
        """The positions of x's tokens, [B, S] unless given otherwise; `cache` is whatever has `next_positions`, or None."""
        if documents is not None and cache is not None:
            raise RopeError("documents", "cannot be packed into a cache: give each its own row", list(documents.shape))
        if documents is not None and documents.shape != (batch, seq):
            raise RopeError("documents", f"must number the document of every token, [{batch}, {seq}]", list(documents.shape))
        if positions is not None:
            return positions
        if documents is not None:
            return _count_within(documents)
        first = 0 if cache is None else cache.next_positions
        first = first.unsqueeze(-1) if isinstance(first, Tensor) else first
        if padding is not None:
            return (padding.long().cumsum(-1) - 1).clamp(min=0) + first
        return (torch.arange(seq, device=device) + first).expand(batch, seq)

    def _placed(
        self, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, padding: Tensor | None, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """q, k turned and v, with everything the cache holds: (q, k, v, key positions, key padding)."""
        if cache is None:
            return *self._turned(q, k, positions), v, positions, padding
        rotated = cache.keeps_rotated(self.encoding)
        if rotated:
            q, k = self._turned(q, k, positions)
        seen = cache.append(k, v, positions, padding)
        k = seen.k
        if not rotated:
            length = cache.next_positions
            q = self.encoding.turn(q, positions, key=False, length=length)
            k = self.encoding.turn(k, seen.positions, key=True, length=length)
        # a mask of ones would keep the fused kernel from its fastest form
        return q, k, seen.v, seen.positions, seen.valid if cache.padded else None

    def _turned(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.encoding, Rotary) and type(self.encoding).turn is Rotary.turn:
            return self.encoding.rope(q, k, positions)  # one launch for both
        return self.encoding.turn(q, positions, key=False), self.encoding.turn(k, positions, key=True)

    def _default_scale(self) -> float:
        factor = self.encoding.rope.spec.softmax_factor if isinstance(self.encoding, Rotary) else 1.0
        return factor / math.sqrt(self.head_dim)

    def _wants_weights(self, asked: bool) -> bool:
        """Relative values are mixed by the weights, so they need them whether the caller does or not."""
        return asked or type(self.encoding).value_bias is not Encoding.value_bias

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)  # [B, H, S, D]


def _count_within(documents: Tensor) -> Tensor:
    """0, 1, 2 ... within each run of equal document numbers."""
    index = torch.arange(documents.shape[-1], device=documents.device).expand_as(documents)
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(starts, index, 0).cummax(dim=-1).values
