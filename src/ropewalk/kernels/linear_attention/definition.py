"""The definition of causal linear attention in plain torch, quadratic in the number of tokens:

    elu, relu  out_i = sum_j [R_i f(q_i)].[R_j f(k_j)] v_j / sum_j f(q_i).f(k_j)
    cosine     out_i = sum_j (1 + a cos_ij) v_j / sum_j (1 + a cos_ij)

with cos_ij = (R_i q_i / |q_i|).(R_j k_j / |k_j|) and sums over the keys j <= i that are no padding.
The kernels compute the same in time linear in the number of tokens; the backward pass and calls
that they do not support use the chunked sums of `ropewalk.attention.linear_sums`.

R_i is the rotation at token i, f the feature, a the `scale` of each head. The state, `mixed` and
`total`, holds the sums over the keys before the call: of (rotated key feature) x value, [B, H, F,
Dv], and of the key features of the denominator, [B, H, F]. F is D, or D + 1 with "cosine", which
has the constant 1 as one more feature.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.linear_attention.api import LinearCall
from ropewalk.kernels.request import align
from ropewalk.kernels.rotation.definition import rotate
from ropewalk.table import cos_sin


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixed: Tensor,
    total: Tensor,
    scale: Tensor | None,
    call: LinearCall,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (out [B, H, S, Dv], mixed, total): the outputs, and the state after the last token.

    q and k are [B, H, S, D], v is [B, H, S, Dv]; `mixed` and `total` are the state before the call.
    `scale` is the a of "cosine", None with other features.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    out_dtype, v = v.dtype, v.to(dtype)
    q, k = (_feature(x.to(dtype), call.feature) for x in (q, k))
    # q_top and k_top are for the numerator, q_bottom and k_bottom for the denominator
    q_top, k_top = _rotated(q, call, key=False), _rotated(k, call, key=True)
    q_bottom, k_bottom = q, k
    if scale is not None:
        # "cosine": a constant feature 1 adds the 1 of the weight 1 + a cos; the denominator has the
        # same weights as the numerator
        one = torch.ones_like(q_top[..., :1])
        q_top = q_bottom = torch.cat((one, q_top * scale), dim=-1)
        k_top = k_bottom = torch.cat((one, k_top), dim=-1)
    if call.real is not None:
        real = call.real[:, None, :, None]
        k_top, k_bottom = k_top * real, k_bottom * real
    # the keys of this call, up to each query, and those of the state
    numerator = (q_top @ k_top.mT).tril() @ v + q_top @ mixed
    denominator = (q_bottom @ k_bottom.mT).tril().sum(dim=-1, keepdim=True)
    denominator = denominator + q_bottom @ total.unsqueeze(-1)
    defined = denominator.abs() > call.eps  # elsewhere the output is 0, as if no key were seen
    out = torch.where(defined, numerator / torch.where(defined, denominator, 1.0), 0.0)
    return out.to(out_dtype), mixed + k_top.mT @ v, total + k_bottom.sum(dim=-2)


def _feature(x: Tensor, name: str) -> Tensor:
    """Return the feature f(x): elu(x) + 1, relu(x), or x / |x| for "cosine"."""
    if name == "cosine":
        return F.normalize(x, dim=-1)
    return F.relu(x) if name == "relu" else F.elu(x) + 1


def _rotated(x: Tensor, call: LinearCall, key: bool) -> Tensor:
    """Return x [B, H, S, D] rotated at the positions of the call.

    key  whether x are keys, whose magnitude (the factor on cos and sin) may differ from that of
         queries
    """
    cos, sin = cos_sin(call.spec, call.positions, dtype=x.dtype, key=key)
    return rotate(x, align(cos, x, -2), align(sin, x, -2), call.spec.layout)  # type: ignore[arg-type]
