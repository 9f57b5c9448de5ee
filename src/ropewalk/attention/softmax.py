"""Attention: multi-head softmax attention with any encoding, grouped heads, masks, packed documents
and a KV cache.

Words of this module:
  encoding    where positions enter: `embed` adds them to x, `rotate` turns q and k, `bias` is added
              to the scores, `value_bias` to the output; an encoding does some of these, or none
  visible     the masks of a call, `masks.Visibility`
  padding     [B, S], True for real tokens; documents: [B, S], the document index of each token
  positions   those of the tokens; k_positions: those of all keys, cached ones too
  values      the option to rotate the values too, a `RotatedValues`; None: they do not rotate
  sinks       a learned score of each head that belongs to no token and takes a share of the
              attention weights; the sinks of a `KVCache` are tokens
  remapping   replaces the distances by which RoPE scores far tokens, see `attention.remap`
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from ropewalk.attention.backends import Call, attend, pick, trimmed
from ropewalk.attention.cache import KVCache
from ropewalk.attention.choices import Choices, FurtherChoices, HeadNorm, ProjectionBias
from ropewalk.attention.documents import positions_in_documents
from ropewalk.attention.head_sizes import head_sizes
from ropewalk.attention.lse import pick_with_lse
from ropewalk.attention.masks import Visibility, check_token_masks, checked_positions
from ropewalk.attention.remapped import check_remapped_call, remapped_attention
from ropewalk.attention.sinks import attend_with_sinks
from ropewalk.attention.temperature import QueryTemperature
from ropewalk.encodings import ENCODINGS, Encoding, Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, integer
from ropewalk.positions import left_padded
from ropewalk.spec import RopeSpec


class Attended(NamedTuple):
    """The output [B, S, model_dim], and the weights [B, H, Sq, Sk] if requested, else None."""

    out: Tensor
    weights: Tensor | None


def as_encoding(encoding: Encoding | RopeSpec | str, sizes: Sizes) -> Encoding:
    """Return the encoding given as an instance, as a spec (RoPE) or by name; `sizes` are those of
    its attention layer.
    """
    if isinstance(encoding, Encoding):
        return encoding
    if isinstance(encoding, RopeSpec):
        return Rotary(sizes, encoding)
    return ENCODINGS[choice("encoding", encoding, ENCODINGS)](sizes)


class SoftmaxAttention(nn.Module):
    """Softmax attention between projections: a subclass has `project`, which returns q, k and v,
    and `o_proj`, which takes the output of all heads.
    """

    o_proj: nn.Linear

    def __init__(self, heads: tuple[int, int, int], encoding: Encoding, choices: Choices) -> None:
        """Create everything but the projections; `heads` holds the numbers of query heads and of
        key heads, and the size of a head.
        """
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = heads
        choices.check(encoding)
        self.encoding = encoding
        self.causal, self.window, self.backend = choices.causal, choices.window, choices.backend
        self.dropout = float(choices.dropout)
        self.scale = choices.softmax_scale(encoding, self.head_dim)
        self.remapping, self.values = choices.remapping, choices.values
        self.temperature = (
            None
            if choices.temperature is None
            else QueryTemperature(choices.temperature, self.num_heads)
        )
        # `choices.sinks` only says that there are sinks; their scores start at 0
        self.sinks = None if choices.sinks is None else nn.Parameter(torch.zeros(self.num_heads))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v [B, heads, S, head_dim] of x, not rotated; q and k are normed if the
        layer norms heads, and v is empty if the keys are the values.
        """
        raise NotImplementedError

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
        """Attend over x [B, S, model_dim] and the tokens in `cache`.

        positions   integer [S] or [B, S] ([axes, B, S] if the encoding has axes); by default 0, 1,
                    2, ... over the real tokens of each row, or of each document; with a cache, they
                    continue after the cached tokens
        mask        boolean (True = attend) or float (added to the scores), broadcastable to [B, H,
                    Sq, Sk]
        padding     boolean [B, S], True for real tokens; a padded query has 0 as the output of
                    every head, so it gives o_proj(0)
        documents   integer [B, S], the document index of each token of packed rows; tokens with
                    equal indices are one document, neighbours or not; not with a cache
        """
        batch, seq, _ = x.shape
        positions = self.token_positions(positions, padding, documents, cache, batch, seq, x.device)
        x = self.encoding.embed(x, positions)
        # None unless the layer can project and rotate at once
        rotated = self.project_rotated(x, positions, cache)
        q, k, v = self.project(x) if rotated is None else rotated
        if self.temperature is not None:
            q = self.temperature(q, positions)
        # a call that fails adds no tokens to the cache, except under torch.compile, which cannot
        # trace the undo
        with (
            nullcontext()
            if cache is None or torch.compiler.is_compiling()
            else cache.unchanged_on_error()
        ):
            if self.remapping is not None:
                visible = Visibility(self.causal, self.window, padding, documents, documents, mask)
                out, weights = (
                    remapped_attention(self, q, k, v, positions, visible, cache, return_weights),
                    None,
                )
            else:
                q, k, v, k_positions, key_padding = self._rotated_with_cache(
                    q, k, v, positions, padding, cache, rotated is not None
                )
                visible = Visibility(
                    self.causal,
                    self.window,
                    key_padding,
                    documents,
                    documents,
                    mask,
                    offset=k.shape[-2] - seq,
                )
                out, weights = self._attend(
                    q, k, v, visible, self.encoding.bias(q, positions, k_positions), return_weights
                )
                if self.values is not None:
                    # RotatedValues has checked that the encoding has a rope
                    out = self.encoding.rope.unrotate(out, positions)  # type: ignore[union-attr]
                if weights is not None:
                    value_term = self.encoding.value_bias(weights, positions, k_positions)
                    out = out if value_term is None else out + value_term.to(out.dtype)
        if padding is not None:
            out = out.masked_fill(~padding[:, None, :, None], 0.0)
        out = self.o_proj(out.transpose(1, 2).flatten(-2))
        return Attended(out, weights if return_weights else None)

    def project_rotated(
        self, x: Tensor, positions: Tensor, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return `project(x)` with q and k rotated, if a layer can do both at once for these
        arguments; None otherwise.
        """
        return None

    def backend_for(
        self,
        x: Tensor,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        mask: Tensor | None = None,
        return_weights: bool = False,
    ) -> tuple[str, str]:
        """Return (backend, why it is taken): which backend `forward` without a cache would use for
        x and these masks. Raise an error if the layer's `backend` cannot run the call.
        """
        # stands for q, k and v: a backend is chosen by shapes, dtype, device and need of gradients
        q = x.new_empty(
            x.shape[0],
            self.num_heads,
            x.shape[1],
            self.head_dim,
            requires_grad=self.o_proj.weight.requires_grad,
        )
        zero = torch.zeros(1, dtype=torch.int64, device=x.device)
        # queries and keys are the same tokens, so their documents are the same
        visible = Visibility(self.causal, self.window, padding, documents, documents, mask)
        # one token suffices: only whether the bias is None matters
        bias = self.encoding.bias(q[:, :, :1], zero, zero)
        call = self._call(q, q, q, visible, bias, return_weights)
        if self.remapping is not None:
            check_remapped_call(self, return_weights)
            index = torch.arange(x.shape[1], device=x.device)
            # only whether there is a band matters here, and every piece has one
            band = self.remapping.pieces(index, index)[0].band
            return pick_with_lse(replace(call, visible=replace(visible, band=band)), self.backend)
        return pick(call, self.backend) if self.sinks is None else pick_with_lse(call, self.backend)

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Visibility,
        bias: Tensor | None,
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of every head [B, H, Sq, D], and the weights if the backend returns
        them, else None. q, k and v are rotated already; `bias` is added to the scores.
        """
        call = self._call(q, k, k if self.shares_values else v, visible, bias, return_weights)
        if self.sinks is None:
            return attend(call, self.backend)
        return attend_with_sinks(call, self.sinks, self.backend)

    def _call(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible: Visibility,
        bias: Tensor | None,
        return_weights: bool,
    ) -> Call:
        """Return the call of this layer's attention, with its scale, and its dropout in training.
        The first and last keys are left out if a window hides them from all queries, unless the
        weights are wanted. `return_weights`: the caller wants the weights.
        """
        # value_bias needs the weights even if the caller does not
        wants_weights = return_weights or type(self.encoding).value_bias is not Encoding.value_bias
        return trimmed(
            Call(
                q,
                k,
                v,
                self.scale,
                visible,
                bias,
                self.dropout if self.training else 0.0,
                wants_weights,
            )
        )

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
        """Return `positions`, or the default positions [B, S] if None; `cache` is None or any
        object with `next_positions`.
        """
        if documents is not None and cache is not None:
            raise RopeError(
                "documents",
                "cannot be used with a cache; give each document its own row",
                list(documents.shape),
            )
        check_token_masks(batch, seq, padding, documents)
        if positions is not None:
            # RoFormer's linear attention uses this method too, and has no attribute `encoding`
            return checked_positions(
                positions, batch, seq, getattr(getattr(self, "encoding", None), "entry", None)
            )
        if documents is not None:
            return positions_in_documents(documents, padding)
        first = 0 if cache is None else cache.next_positions
        if isinstance(first, Tensor):
            if len(first) != batch:
                raise RopeError(
                    "cache",
                    f"holds {len(first)} rows, so x must have as many; or use a new cache",
                    batch,
                )
            first = first.unsqueeze(-1)
        if padding is not None:
            return left_padded(padding) + first
        return (torch.arange(seq, device=device) + first).expand(batch, seq)

    def _rotated_with_cache(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        padding: Tensor | None,
        cache: KVCache | None,
        rotated: bool,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """Return (q, k, v, key positions, key padding): q and k rotated, k and v with the cached
        tokens in front.

        `rotated` says that q and k are rotated already. Keys that the cache stores unrotated are
        rotated here, all of them, after the new ones are appended.
        """
        keeps_rotated = cache is None or cache.keeps_rotated(self.encoding)
        if keeps_rotated and not rotated:
            q, k = self._rotated(q, k, positions)
        if cache is None:
            return q, k, self._rotated_values(v, positions), positions, padding
        if (
            keeps_rotated
            and isinstance(self.encoding, Rotary)
            and self.encoding.rope.spec.needs_length
        ):
            rule = (
                "must hold keys that are not rotated for a scaling that depends on the length; use "
                "KVCache(rotated=False)"
            )
            raise RopeError("cache", rule, self.encoding.rope.spec.scaling)
        seen = cache.append(k, v, positions, padding)
        k = seen.k
        if not keeps_rotated:
            length = cache.next_positions  # of each row: its largest position + 1
            q = self._rotated_query(q, positions, length)
            k = self.encoding.rotate(k, seen.positions, key=True, length=length)
        # torch's fused kernels are faster without a mask, so pass none if all tokens are real
        return (
            q,
            k,
            self._rotated_values(seen.v, seen.positions),
            seen.positions,
            seen.valid if cache.padded else None,
        )

    def _rotated(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return q and k with their positions applied by the encoding."""
        # not for a subclass of Rotary that rotates in another way
        if isinstance(self.encoding, Rotary) and type(self.encoding).rotate is Rotary.rotate:
            return self.encoding.rope(q, k, positions)  # one launch rotates both
        return self.encoding.rotate(q, positions, key=False), self.encoding.rotate(
            k, positions, key=True
        )

    def _rotated_query(self, q: Tensor, positions: Tensor, length: int | Tensor | None) -> Tensor:
        """Return q rotated; `length` is that of the sequence, for frequencies that depend on it."""
        return self.encoding.rotate(q, positions, key=False, length=length)

    def _rotated_values(self, v: Tensor, positions: Tensor) -> Tensor:
        """Return the values rotated like keys if the layer rotates values that are not its keys,
        otherwise v itself.
        """
        # a cache holds values unrotated, so that its tokens can get other positions. If `shared`,
        # the keys are the values and v has no elements
        if self.values is None or self.values.shared:
            return v
        # RotatedValues has checked that the encoding has a rope
        return self.encoding.rope.rotate(v, positions, key=True)  # type: ignore[union-attr]

    @property
    def shares_values(self) -> bool:
        """Whether keys are also the values."""
        return self.values is not None and self.values.shared

    def _heads(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)  # [B, H, S, D]


class Attention(SoftmaxAttention):
    """Softmax attention with one `encoding`: a name from ENCODINGS, a RopeSpec or an Encoding.

    num_kv_heads   None: num_heads; fewer: heads share keys and values (GQA; 1 is MQA)
    head_dim       None: model_dim / num_heads
    causal, window, dropout  as in `Choices`, which also has the further choices: scale, backend,
                   temperature, remapping, values (RotatedValues) and sinks (LearnedSinks)
    bias           whether the four projections have a bias; ProjectionBias says it separately for
                   those of q, k and v and for that of the output
    qk_norm        HeadNorm(): RMSNorm of every head of q and k
    length         the longest trained sequence, for encodings that depend on it
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
        bias: bool | ProjectionBias = False,
        qk_norm: HeadNorm | None = None,
        length: int = 2048,
        **further: Unpack[FurtherChoices],
    ) -> None:
        """Create the layer. `bias` is for all four projections if it is a bool, `qk_norm` norms
        every head of q and k, `length` is the longest trained sequence, for encodings that depend
        on it, and `further` holds the other fields of `Choices`.
        """
        heads = head_sizes(model_dim, num_heads, num_kv_heads, head_dim)
        choices = Choices.given(
            type(self).__name__, further, causal=causal, window=window, dropout=dropout
        )
        sizes = Sizes(heads[0], heads[2], model_dim, integer("length", length, low=1))
        super().__init__(heads, as_encoding(encoding, sizes), choices)
        if isinstance(bias, bool):
            bias = ProjectionBias(bias, bias)
        self._add_projections(model_dim, bias)
        self.q_norm, self.k_norm = (head_norm(self.head_dim, qk_norm) for _ in "qk")

    def _add_projections(self, model_dim: int, bias: ProjectionBias) -> None:
        """Add the projections of q, k, v and of the output."""
        width, kv_width = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(model_dim, width, bias=bias.qkv)
        self.k_proj = nn.Linear(model_dim, kv_width, bias=bias.qkv)
        if not self.shares_values:
            self.v_proj = nn.Linear(model_dim, kv_width, bias=bias.qkv)
        # an encoding may turn each query into several, whose outputs are projected together
        copies = self.encoding.query_copies
        self.o_proj = nn.Linear(copies * width, model_dim, bias=bias.out)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q_norm(self._heads(self.q_proj(x), self.num_heads))
        k = self.k_norm(self._heads(self.k_proj(x), self.num_kv_heads))
        if self.shares_values:
            return q, k, k[..., :0]  # v is empty: the keys are the values
        return q, k, self._heads(self.v_proj(x), self.num_kv_heads)


def head_norm(head_dim: int, norm: HeadNorm | None) -> nn.Module:
    """Return the module that norms the heads of q or of k: an RMSNorm, or the identity if `norm`
    is None.
    """
    if norm is None:
        return nn.Identity()
    if not isinstance(norm, HeadNorm):
        raise RopeError("qk_norm", "must be HeadNorm() or None", norm)
    return nn.RMSNorm(head_dim, eps=norm.eps)
