"""The Decoder's forward whose bits do not depend on the batch.

The result of a token depends only on itself and the tokens before it in its row: not on other rows,
the row's place in the batch, how a prompt is divided into chunks, or how many of the tokens a cache
held already. So generation and a forward over the finished text give the same logits, bit for bit.

Words of this module:
  product      of `kernels.invariant`: x @ weight^T + bias, plus `residual` if given; with gate=True
               silu(first half) * second half of its columns
  plain_spec   the spec of a layer's rotation, or one that rotates by 0 if the layer does not rotate
  packed       q, k and v of every token in one row, as one product gives them
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention import KVCache
from ropewalk.errors import RopeError
from ropewalk.kernels import invariant
from ropewalk.kernels.invariant.definition import each_token
from ropewalk.kernels.norm_rotation import qk_norm_rope
from ropewalk.kernels.support import why_no_triton
from ropewalk.models.plain_layers import fixed_config, plain_spec, why_not_layer


def why_not(model: Any) -> str | None:
    """Return why a model cannot compute invariantly, or None if it can."""
    if not hasattr(model, "embed_tokens"):
        return "only a Decoder can"
    if model.encoding is not None:
        return "the encoding is added to the embeddings"
    config = model.config
    if model.training and (config.dropout or config.attention_dropout):
        return "dropout is random; set dropout and attention_dropout to 0, or call model.eval()"
    if torch.is_autocast_enabled(model.embed_tokens.weight.device.type):
        return "autocast is on; convert the model to the dtype instead"
    return next((reason for layer in model.layers if (reason := why_not_layer(layer))), None)


def check(
    model: Any, padding: Tensor | None, documents: Tensor | None, caches: Sequence[Any] | None
) -> None:
    """Raise an error if an invariant model cannot compute this call."""
    if (reason := why_not(model)) is not None:
        raise RopeError("invariant", f"is not possible for this model: {reason}", True)
    if documents is not None:
        raise RopeError(
            "documents",
            "cannot be packed in an invariant model; give each document its own row",
            list(documents.shape),
        )
    for cache in caches or ():
        if not isinstance(cache, KVCache) or cache.kind == "sliding" or cache.rotated is False:
            rule = "must be growing or static and hold rotated keys in an invariant model"
            raise RopeError("caches", rule, cache)
    if padding is None:
        return
    left = bool((padding[:, 1:] >= padding[:, :-1]).all())
    # after cached tokens, any padding would be between tokens of a row
    if not left or (caches is not None and len(caches[0]) and not bool(padding.all())):
        rule = "must be on the left, before the first token of a row, in an invariant model"
        raise RopeError("padding", rule, "padding after a token")


def run_layer(
    layer: Any, x: Tensor, positions: Tensor, padding: Tensor | None, cache: KVCache | None
) -> Tensor:
    """Return the output [B, S, hidden] of a layer for x [B, S, hidden]; other arguments as in
    `Decoder.forward`, with the cache of this layer, which gets the keys and values of x.
    """
    shape, attention, network = x.shape, layer.self_attn, layer.mlp
    x = x.flatten(0, 1)
    normed, qkv = _normed(x, layer.input_layernorm), attention.qkv_proj
    packed = invariant.product(normed, qkv.weight, qkv.bias)
    mixed = _attend(attention, packed.unflatten(0, shape[:2]), positions, padding, cache)
    out, gate_up, down = attention.o_proj, network.gate_up_proj, network.down_proj
    x = invariant.product(mixed.flatten(2).flatten(0, 1), out.weight, out.bias, residual=x)
    normed = _normed(x, layer.post_attention_layernorm)
    middle = invariant.product(normed, gate_up.weight, gate_up.bias, gate=True)
    return invariant.product(middle, down.weight, down.bias, residual=x).unflatten(0, shape[:2])


def logits(model: Any, features: Tensor) -> Tensor:
    """Return the logits [..., V] of normed features [..., hidden]."""
    flat = features.reshape(-1, features.shape[-1])
    return invariant.product(flat, model.head_weight).unflatten(0, features.shape[:-1])


def final_norm(model: Any, x: Tensor) -> Tensor:
    """Return the normed output of the last layer, x [B, S, hidden]."""
    return _normed(x.flatten(0, 1), model.norm).unflatten(0, x.shape[:2])


def _normed(x: Tensor, module: Any) -> Tensor:
    """Return x [T, hidden] normed by an nn.RMSNorm."""
    return invariant.normed(x, module.weight, module.eps)


def _attend(
    attention: Any,
    packed: Tensor,
    positions: Tensor,
    padding: Tensor | None,
    cache: KVCache | None,
) -> Tensor:
    """Return the attention output of each head, [B, S, Hq, D], from packed q, k and v [B, S,
    (Hq + 2 Hk) D].
    """
    q, k, v = packed.unflatten(-1, (-1, attention.head_dim)).split(
        (attention.num_heads, attention.num_kv_heads, attention.num_kv_heads), dim=-2
    )
    q, k = _rotated(attention, q, k, positions)
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    # True: q and k are rotated already. From here on k and v begin with the cached tokens, and so
    # does `real`, True for real tokens
    q, k, v, _, real = attention._rotated_with_cache(q, k, v, positions, padding, cache, True)
    batch = q.shape[0]
    if real is None:
        first = torch.zeros(batch, dtype=torch.int64, device=q.device)
    else:  # a row of padding alone has its first key after the last
        first = torch.where(real.any(-1), real.int().argmax(-1), real.shape[-1])
    return invariant.attention(q.transpose(1, 2), k, v, first, attention.scale, attention.window)


def _rotated(attention: Any, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, ...]:
    """Return q and k [B, S, H, D], normed and rotated; positions are [S], [B, S] or, for a spec with
    several axes, [axes, B, S].
    """
    spec, norm, shape = plain_spec(attention), attention.head_norm(), q.shape[:2]
    axes = (spec.num_axes,) if spec.num_axes > 1 else ()
    positions = positions.expand(*axes, *shape)
    if why_no_triton(q) is None:
        config = fixed_config(attention)
        return tuple(qk_norm_rope(q, k, spec=spec, positions=positions, norm=norm, config=config))
    # the token axis first, so that every token is computed alone
    places = positions.reshape(*axes, -1).movedim(-1, 0)

    def rotated(q: Tensor, k: Tensor, place: Tensor) -> Tensor:
        heads = qk_norm_rope(q, k, spec=spec, positions=place.movedim(0, -1), norm=norm)
        return torch.cat(tuple(heads), dim=-2)

    both = each_token(rotated, q.flatten(0, 1), k.flatten(0, 1), places).unflatten(0, shape)
    return both.split((q.shape[-2], k.shape[-2]), dim=-2)
