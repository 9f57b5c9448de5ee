"""The Decoder's attention: q, k and v from one packed projection, then softmax or linear attention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ropewalk.attention import Attention, KVCache, linear_attention
from ropewalk.attention.linear import identity_rope
from ropewalk.encodings.rotary import Rotary
from ropewalk.models.decoder_config import WINDOWED, DecoderConfig
from ropewalk.models.layer_caches import RunningState
from ropewalk.rope import Rope


class PackedAttention(Attention):
    """Softmax attention whose q, k and v projections are one matrix, so one matrix product computes all three."""

    def __init__(self, config: DecoderConfig, layer_type: str) -> None:
        super().__init__(
            config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim,
            encoding="none" if config.input_encoding else config.layer_encoding(layer_type),
            window=config.window if layer_type in WINDOWED else None, dropout=config.attention_dropout or 0.0,
            o_bias=config.o_bias, qk_norm=config.qk_norm, norm_eps=config.norm_eps, length=config.length,
            temperature=config.layer_temperature(layer_type), remapping=config.layer_remapping(layer_type),
        )  # fmt: skip
        del self.q_proj, self.k_proj, self.v_proj
        width = (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
        self.qkv_proj = nn.Linear(config.hidden_size, width, bias=config.qkv_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, Hq + 2 Hk, S, D]
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        return self.q_norm(q), self.k_norm(k), v

    def attend(
        self, x: Tensor, positions: Tensor, padding: Tensor | None, documents: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """Return the attention output for x [B, S, hidden], which also attends to the cached tokens and is added to them."""
        return self(x, positions, padding=padding, documents=documents, cache=cache).out


class PackedLinearAttention(PackedAttention):
    """Linear attention with the same projections; each head's output is normed, because the weights do not sum to one."""

    def __init__(self, config: DecoderConfig, layer_type: str) -> None:
        super().__init__(config, layer_type)
        self.norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)

    @property
    def rope(self) -> Rope:
        """The encoding's rotation, or the identity if the encoding does not rotate q and k."""
        return self.encoding.rope if isinstance(self.encoding, Rotary) else identity_rope(self.head_dim)

    def attend(
        self, x: Tensor, positions: Tensor, padding: Tensor | None, documents: Tensor | None, cache: RunningState | None
    ) -> Tensor:
        """Return the attention output for x [B, S, hidden]; the cache holds sums over all earlier tokens and is updated."""
        q, k, v = self.project(x)
        k, v = (t.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for t in (k, v))
        positions = positions.expand(x.shape[0], -1) if positions.ndim == 1 else positions
        state = None if cache is None else cache.state
        out, state = linear_attention(q, k, v, self.rope, positions, padding=padding, documents=documents, state=state)
        if cache is not None:
            cache.state = state
        return self.o_proj(self.norm(out).transpose(1, 2).flatten(-2))


def next_positions(
    caches: list | None, padding: Tensor | None, documents: Tensor | None, tokens: Tensor, attention: Attention
) -> Tensor:
    """Return default positions: 0, 1, 2, ... over each row's real tokens, after the cached ones; documents restart at 0."""
    batch, seq = tokens.shape
    if caches is None and padding is None and documents is None:
        return torch.arange(seq, device=tokens.device)  # shared by all rows
    cache = None if caches is None else caches[0]
    return attention.token_positions(None, padding, documents, cache, batch, seq, tokens.device)
