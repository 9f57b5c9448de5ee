"""LatentAttention: multi-head latent attention (MLA), whose cache holds one latent vector and one
rotated key for each token.

Words of this module:
  latent      a vector of `kv_rank` numbers for each token, from which the keys (without the rotated
              part) and the values of all heads are projected up
  nope, rope  the dims of a head of q and k that do not rotate, and those that do
  absorbed    q is multiplied by the up-projection of keys instead of the latents, so that queries
              attend to the latents themselves
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.choices import Choices
from ropewalk.attention.head_sizes import head_sizes
from ropewalk.attention.masks import Visibility
from ropewalk.attention.softmax import SoftmaxAttention, as_encoding
from ropewalk.encodings import Encoding, Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, integer
from ropewalk.spec import RopeSpec


class LatentAttention(SoftmaxAttention):
    """MLA of DeepSeek-V2 and V3: keys and values are projected up from a latent; only `rope_dim`
    further dims of q and k rotate.

    A score is (q_nope . k_nope + R q_rope . R k_rope) * scale; by default scale is 1 /
    sqrt(nope_dim + rope_dim), times the spec's softmax factor. k_rope is one vector of a token for
    all heads, and the latent is never rotated. Parameters have the names of transformers'
    DeepseekV3Attention.

    kv_rank, q_rank  width of the latents; q_rank None = one full matrix for q
    nope_dim, rope_dim, value_dim  sizes of one head: the dims of q and k that do not rotate, those
                     that do, and the dims of v
    encoding         a RopeSpec with head_dim = rope_dim, as `rw.from_hf` reads it from a config, or
                     a name that rotates
    bias             of the projections to the latents and of the output; those from a latent, and
                     the one full matrix for q, have none
    length           the longest trained sequence, for an encoding given by a name
    absorbed         True: multiply q by the up-projection instead of the latents, so that keys and
                     values are never formed (fewer operations in a decode step); False: never do
                     so; None: do so in calls with more keys than queries
    options          as in `Choices`, without a remapping and rotated values
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        kv_rank: int,
        nope_dim: int,
        rope_dim: int,
        value_dim: int,
        q_rank: int | None = None,
        encoding: Encoding | RopeSpec | str = "rope",
        bias: bool = False,
        norm_eps: float = 1e-6,
        absorbed: bool | None = None,
        length: int = 2048,
        **options: Any,
    ) -> None:
        sizes = {
            "kv_rank": kv_rank,
            "nope_dim": nope_dim,
            "rope_dim": rope_dim,
            "value_dim": value_dim,
            "q_rank": q_rank,
        }
        for name, size in sizes.items():
            if size is not None:
                integer(name, size, low=1)
        rotary = as_encoding(encoding, Sizes(num_heads, rope_dim, model_dim, length))
        if not isinstance(rotary, Rotary) or rotary.rope.spec.head_dim != rope_dim:
            raise RopeError("encoding", f"must rotate heads of rope_dim = {rope_dim}", encoding)
        if rotary.query_copies > 1:
            rule = (
                "must keep the number of query heads, because LatentAttention rotates only a part "
                "of each query; use 'rope'"
            )
            raise RopeError("encoding", rule, type(rotary).__name__)
        choices = Choices.given(type(self).__name__, options)
        for name in ("remapping", "values"):
            if getattr(choices, name) is not None:
                rule = "must be None: LatentAttention rotates only a part of each query and key"
                raise RopeError(name, rule, getattr(choices, name))
        head_dim = nope_dim + rope_dim
        heads = head_sizes(model_dim, num_heads, num_kv_heads=None, head_dim=head_dim)
        super().__init__(heads, rotary, choices)
        self.kv_rank, self.nope_dim, self.rope_dim, self.value_dim = (
            kv_rank,
            nope_dim,
            rope_dim,
            value_dim,
        )
        self.q_rank, self.absorbed = q_rank, absorbed
        if q_rank is None:
            self.q_proj = nn.Linear(model_dim, num_heads * head_dim, bias=False)
        else:
            self.q_a_proj = nn.Linear(model_dim, q_rank, bias=bias)
            self.q_a_layernorm = nn.RMSNorm(q_rank, eps=norm_eps)
            self.q_b_proj = nn.Linear(q_rank, num_heads * head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(model_dim, kv_rank + rope_dim, bias=bias)
        self.kv_a_layernorm = nn.RMSNorm(kv_rank, eps=norm_eps)
        self.kv_b_proj = nn.Linear(kv_rank, num_heads * (nope_dim + value_dim), bias=False)
        self.o_proj = nn.Linear(num_heads * value_dim, model_dim, bias=bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [B, heads, S, nope + rope], the shared key [B, 1, S, rope] and the latent [B, 1,
        S, kv_rank] after its RMS norm; q and the key are not rotated.
        """
        q = (
            self.q_proj(x)
            if self.q_rank is None
            else self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        )
        latent, k = self.kv_a_proj_with_mqa(x).split([self.kv_rank, self.rope_dim], dim=-1)
        return (
            self._heads(q, self.num_heads),
            k.unsqueeze(1),
            self.kv_a_layernorm(latent).unsqueeze(1),
        )

    def _rotated(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return q with its last `rope_dim` dims rotated, and the shared key rotated."""
        nope, rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
        rope, k = super()._rotated(rope, k, positions)
        return torch.cat((nope, rope), dim=-1), k

    def _rotated_query(self, q: Tensor, positions: Tensor, length: int | Tensor | None) -> Tensor:
        """Return q with its last `rope_dim` dims rotated; `length` as in `Rope.forward`."""
        nope, rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
        return torch.cat((nope, super()._rotated_query(rope, positions, length)), dim=-1)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Visibility,
        bias: Tensor | None,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output [B, H, Sq, value_dim], and the weights if the backend returns them,
        else None.

        k [B, 1, Sk, rope] is the key that all heads share, v [B, 1, Sk, kv_rank] the latents.
        """
        up = self.kv_b_proj.weight.unflatten(0, (self.num_heads, -1))  # [H, nope + value, kv_rank]
        up_key, up_value = up.split([self.nope_dim, self.value_dim], dim=1)
        if self.absorbed or (self.absorbed is None and k.shape[-2] > q.shape[-2]):
            # q . (up_key latent) = (q up_key) . latent: attend to the latents themselves, then
            # project the result up
            nope, rope = q.split([self.nope_dim, self.rope_dim], dim=-1)
            q = torch.cat((nope @ up_key, rope), dim=-1)
            out, weights = super()._attend(
                q, torch.cat((v, k), dim=-1), v, visible, bias, return_weights
            )
            return out @ up_value.mT, weights
        # otherwise every head gets its own keys and values from the latents
        k = torch.cat((v @ up_key.mT, k.expand(-1, self.num_heads, -1, -1)), dim=-1)
        return super()._attend(q, k, v @ up_value.mT, visible, bias, return_weights)
