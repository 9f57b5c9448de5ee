"""Softmax attention in float64 by plain loops over heads and queries: what every backend must
equal.
"""

import itertools

import torch

from ropewalk.encodings.base import Encoding


def may_look(layer, b, h, i, j, mask, padding, documents):
    """Return whether query i of row b and head h may attend to key j."""
    if (layer.causal and j > i) or (layer.window and abs(i - j) >= layer.window):
        return False
    if padding is not None and not padding[b, j]:
        return False
    if documents is not None and documents[b, i] != documents[b, j]:
        return False
    return (
        mask is None
        or mask.dtype != torch.bool
        or bool(mask[b % mask.shape[0], h % mask.shape[1], i, j])
    )


def attention_by_definition(layer, x, positions, *, mask=None, padding=None, documents=None):
    """Return the output and the weights of `layer` on x [B, S, D] with positions [B, S] or [axes,
    B, S], query by query.
    """
    encoding = layer.encoding
    batch, seq, _ = x.shape
    heads, kv_heads, size = layer.num_heads, layer.num_kv_heads, layer.head_dim
    x = encoding.embed(x, positions)
    q, k, v = (
        norm(proj(x).view(batch, seq, count, size)).transpose(1, 2)
        for proj, norm, count in (
            (layer.q_proj, layer.q_norm, heads),
            (layer.k_proj, layer.k_norm, kv_heads),
            (layer.v_proj, torch.nn.Identity(), kv_heads),
        )
    )
    q, k = encoding.rotate(q, positions, key=False), encoding.rotate(k, positions, key=True)
    bias = encoding.bias(q, positions, positions)
    bias = torch.zeros(()) if bias is None else bias
    bias = bias.expand(batch, heads, seq, seq)
    weights = torch.zeros(batch, heads, seq, seq, dtype=x.dtype)
    for b, h, i in itertools.product(range(batch), range(heads), range(seq)):
        looked_at = [j for j in range(seq) if may_look(layer, b, h, i, j, mask, padding, documents)]
        if not looked_at:
            continue
        scores = (
            k[b, h * kv_heads // heads, looked_at] @ q[b, h, i] * layer.scale
            + bias[b, h, i, looked_at]
        )
        if mask is not None and mask.dtype != torch.bool:
            scores = scores + mask.expand(batch, heads, seq, seq)[b, h, i, looked_at]
        weights[b, h, i, looked_at] = scores.exp() / scores.exp().sum()
    out = weights @ v.repeat_interleave(heads // kv_heads, dim=1)
    beside = encoding.value_bias(weights, positions, positions)
    out = (
        out if beside is None or type(encoding).value_bias is Encoding.value_bias else out + beside
    )
    if padding is not None:
        out = out * padding[:, None, :, None]
    return layer.o_proj(out.transpose(1, 2).flatten(-2)), weights
