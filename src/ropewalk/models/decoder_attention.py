"""The Decoder's attention: q, k and v from one packed projection, then softmax or linear attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention import KVCache, linear_attention
from ropewalk.attention.choices import Choices, HeadNorm
from ropewalk.attention.head_sizes import head_sizes
from ropewalk.attention.linear import identity_rope
from ropewalk.attention.softmax import Attended, SoftmaxAttention, as_encoding, head_norm
from ropewalk.encodings import Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.kernels.norm_rotation.config import why_not_spec
from ropewalk.kernels.norm_rotation.definition import QKNorm
from ropewalk.kernels.qkv import qkv_norm_rope
from ropewalk.kernels.support import why_no_triton
from ropewalk.models.decoder_config import WINDOWED, DecoderConfig
from ropewalk.models.layer_caches import RunningState
from ropewalk.rope import Rope

#: with fewer tokens the checks of the fused call take longer than the launches that it saves: for
#: 512 to 2,048 tokens a prompt took up to 30 % longer, from 8,192 on it is 6 to 12 % faster
FEWEST_TOKENS = 4096


class PackedAttention(SoftmaxAttention):
    """Softmax attention whose q, k and v projections are one matrix, so one matrix product computes
    all three.
    """

    def __init__(self, config: DecoderConfig, layer_type: str) -> None:
        """Create the attention of a layer of type `layer_type` (`DecoderConfig.layer_types`)."""
        hidden, norm = config.hidden_size, HeadNorm(config.norm_eps) if config.qk_norm else None
        # (query heads, key heads, head_dim)
        heads = head_sizes(hidden, config.num_heads, config.num_kv_heads, config.head_dim)
        # a name or a spec; an encoding that is added to the embeddings does not act in the layers
        named = "none" if config.input_encoding else config.layer_encoding(layer_type)
        choices = Choices(
            window=config.window if layer_type in WINDOWED else None,
            # the config has set it; `or 0.0` is for the type checker
            dropout=config.attention_dropout or 0.0,
            temperature=config.layer_temperature(layer_type),
            remapping=config.layer_remapping(layer_type),
        )
        sizes = Sizes(heads[0], heads[2], hidden, config.length)
        super().__init__(heads, as_encoding(named, sizes), choices)
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        # these matrices are not used: they only draw as many random numbers as separate projections
        # would, so that a seed keeps giving the same weights
        for out in (width, kv_width, kv_width):
            nn.Linear(hidden, out, bias=False)
        # an encoding may turn each query into several, whose outputs are projected together
        copies = self.encoding.query_copies
        self.o_proj = nn.Linear(copies * width, hidden, bias=bool(config.o_bias))
        self.q_norm, self.k_norm = (head_norm(self.head_dim, norm) for _ in "qk")
        self.qkv_proj = nn.Linear(hidden, width + 2 * kv_width, bias=config.qkv_bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q [B, Hq, S, D], k and v [B, Hk, S, D] of x [B, S, hidden], q and k normed."""
        # [B, Hq + 2 Hk, S, D]
        heads = self.qkv_proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        return self.q_norm(q), self.k_norm(k), v

    def project_rotated(
        self, x: Tensor, positions: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return q, k and v [B, heads, S, head_dim] of x, with q and k normed and rotated, by one
        or two launches on a GPU.

        None if the fused kernels do not support this call, would not be faster, or the cache stores
        keys before rotation.
        """
        if torch.compiler.is_compiling() or not x.is_cuda or x.shape[:-1].numel() < FEWEST_TOKENS:
            return None
        encoding = self.encoding
        if not isinstance(encoding, Rotary) or self.why_not_fused(x) is not None:
            return None
        if self.head_norm() is None:  # there is no launch to save: the rotation is one by itself
            return None
        # asked last: a new cache decides here that its keys are rotated
        if cache is not None and not cache.keeps_rotated(encoding):
            return None
        heads = qkv_norm_rope(
            x,
            self.qkv_proj.weight,
            self.qkv_proj.bias,
            spec=encoding.rope.spec,
            positions=positions,
            heads=(self.num_heads, self.num_kv_heads),
            norm=self.head_norm(),
        )
        q, k, v = (t.transpose(1, 2) for t in heads)
        return q, k, v

    def why_not_fused(self, x: Tensor) -> str | None:
        """Return why the layer cannot project, norm and rotate x by the fused kernels, or None if
        it can.
        """
        encoding, linear = self.encoding, self.qkv_proj
        if (
            not (isinstance(encoding, Rotary) and type(encoding).rotate is Rotary.rotate)
            or encoding.rope.spec.learned
        ):
            return f"{type(encoding).__name__} is not a plain rotation"
        if self.remapping is not None or encoding.rope.spec.per_head:
            return "a remapping or frequencies of each head have no fused kernel"
        if type(linear) is not nn.Linear or type(linear.weight.data) is not Tensor:
            return "the projection is not a plain nn.Linear"
        if any(
            module._forward_hooks or module._forward_pre_hooks
            for module in (linear, self.q_norm, self.k_norm)
        ):
            return "the projection or a norm has forward hooks, which the kernels would skip"
        if (reason := self.why_not_head_norm()) is not None:
            return reason
        if torch.is_autocast_enabled("cuda"):
            return "autocast is on, and the kernels compute in the dtype of x"
        if linear.weight.dtype != x.dtype:
            return f"the weights are {linear.weight.dtype}, and x is {x.dtype}"
        return why_no_triton(x) or why_not_spec(encoding.rope.spec.fingerprint, x.device)

    def head_norm(self) -> QKNorm | None:
        """Return the norm of each head of q and k as the fused kernels take it; None unless both
        have an nn.RMSNorm.
        """
        q_norm, k_norm = self.q_norm, self.k_norm
        if not (isinstance(q_norm, nn.RMSNorm) and isinstance(k_norm, nn.RMSNorm)):
            return None
        # `or 0.0` is for the type checker: why_not_head_norm refuses a norm without eps
        return QKNorm(q_norm.weight, k_norm.weight, q_norm.eps or 0.0)

    def why_not_head_norm(self) -> str | None:
        """Return why the fused kernels cannot compute the norms of q and k, or None if they can; a
        user may replace both.
        """
        q_norm, k_norm = self.q_norm, self.k_norm
        if type(q_norm) is nn.Identity and type(k_norm) is nn.Identity:
            return None
        if type(q_norm) is not nn.RMSNorm or type(k_norm) is not nn.RMSNorm:
            return (
                f"the norms of q and k are {type(q_norm).__name__} and {type(k_norm).__name__}, "
                "not both nn.RMSNorm"
            )
        if (
            q_norm.eps is None
            or q_norm.eps != k_norm.eps
            or (q_norm.weight is None) != (k_norm.weight is None)
        ):
            return "the norms of q and k need the same given eps, and both a weight or none"
        return None

    def attend(
        self,
        x: Tensor,
        positions: Tensor,
        padding: Tensor | None,
        documents: Tensor | None,
        cache: KVCache | None,
    ) -> Tensor:
        """Return the attention output [B, S, hidden] for x [B, S, hidden].

        positions  of the tokens, [S], [B, S] or [axes, B, S]
        padding    boolean [B, S], True for real tokens; None: all are real
        documents  [B, S], the number of each token's document; None: each row is one document
        cache      earlier tokens, which x also attends to; x is added to it
        """
        return self(x, positions, padding=padding, documents=documents, cache=cache).out


class PackedLinearAttention(PackedAttention):
    """Linear attention with the same projections; each head's output is normed, because the weights
    do not sum to one.
    """

    def __init__(self, config: DecoderConfig, layer_type: str) -> None:
        super().__init__(config, layer_type)
        self.norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)

    @property
    def rope(self) -> Rope:
        """The encoding's rotation, or the identity if the encoding does not rotate q and k."""
        return (
            self.encoding.rope
            if isinstance(self.encoding, Rotary)
            else identity_rope(self.head_dim)
        )

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        padding=None,
        documents=None,
        cache=None,
        **others,
    ) -> Attended:
        """Attend over x [B, S, hidden] as `attend` does; by default positions count each row's real
        tokens, as in `Attention`. `others` are arguments that only softmax attention has, such as
        `mask`; they must be None or False.
        """
        for name, value in others.items():
            if value is not None and value is not False:
                raise RopeError(
                    name,
                    "must be left out with linear attention, which never forms the weights",
                    value,
                )
        batch, seq = x.shape[:2]
        at = self.token_positions(positions, padding, documents, cache, batch, seq, x.device)
        return Attended(self.attend(x, at, padding, documents, cache), weights=None)

    def backend_for(self, x: Tensor, **masks: Any) -> tuple[str, str]:
        """Raise a RopeError: linear attention has no backends."""
        raise RopeError("attention", "must be softmax to have one of its backends", "linear")

    def attend(
        self,
        x: Tensor,
        positions: Tensor,
        padding: Tensor | None,
        documents: Tensor | None,
        cache: RunningState | None,
    ) -> Tensor:
        """Return the attention output [B, S, hidden] for x [B, S, hidden].

        The arguments are those of PackedAttention; the cache holds sums over all earlier tokens,
        and those of x are added to it.
        """
        q, k, v = self.project(x)
        k, v = (t.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for t in (k, v))
        positions = positions.expand(x.shape[0], -1) if positions.ndim == 1 else positions
        state = None if cache is None else cache.state
        out, state = linear_attention(
            q, k, v, self.rope, positions, padding=padding, documents=documents, state=state
        )
        if cache is not None:
            cache.state = state
        return self.o_proj(self.norm(out).transpose(1, 2).flatten(-2))


def next_positions(
    caches: list | None,
    padding: Tensor | None,
    documents: Tensor | None,
    tokens: Tensor,
    attention: nn.Module,
) -> Tensor:
    """Return the positions of tokens [B, S] for a call that gives none: [S] without caches, padding
    and documents, else [B, S].

    They count the real tokens of each row from 0, or from the position after the largest cached
    one, and restart at 0 in each document. Documents with a cache raise a RopeError.

    caches     the cache of each layer, or None; the first one says where the positions start
    padding    boolean [B, S], True for real tokens
    documents  [B, S], the number of each token's document
    attention  any layer's attention, whose `token_positions` is called
    """
    batch, seq = tokens.shape
    if caches is None and padding is None and documents is None:
        return torch.arange(seq, device=tokens.device)  # shared by all rows
    cache = None if caches is None else caches[0]
    return attention.token_positions(None, padding, documents, cache, batch, seq, tokens.device)  # type: ignore[operator]
