"""The launches of causal linear attention: which calls the kernels support, and how a sequence is
divided into segments.

The state before a token has two sums over the keys so far, for each head: `mixed`, of (rotated key
feature) x value, and `total`, of key features. `scale` is the a of the form "cosine", whose weights
are 1 + a cos; None with other features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.request import COMPUTED_IN_FLOAT32
from ropewalk.kernels.support import has_sine_unit, power_of_two, tile_width, untyped, why_no_triton
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on, tables

#: the widest state that fits in one program's registers; bfloat16 operands take fewer registers
MOST_DIMS = {torch.bfloat16: 128, torch.float16: 64, torch.float32: 64}
#: how many programs a launch should have: four for each multiprocessor of an H200
PROGRAMS = 528
#: (tokens per chunk, pipeline stages) for heads of up to 64 dims and for wider heads, from a sweep
NARROW, WIDE = (64, 2), (32, 1)
#: the features that the kernels compute; "cosine" normalises q and k to length 1
FEATURES = ("elu", "relu", "cosine")


@dataclass(frozen=True, eq=False)
class LinearCall:
    """The arguments of a call besides q, k, v and the state.

    feature    of q and k, one of FEATURES
    positions  [S] or [B, S]
    real       [B, S], False for padding; None without padding
    eps        where the absolute value of a denominator is at most this, the output is 0
    """

    spec: RopeSpec
    feature: str
    positions: Tensor
    real: Tensor | None
    eps: float


def why_not(
    q: Tensor, v: Tensor, spec: RopeSpec, feature: str | None, scale: Tensor | float = 1.0
) -> str | None:
    """Return why the kernels do not support this call, or None if they do. A `feature` of None is
    one that has no name here, such as a function of the caller.
    """
    if (reason := why_no_triton(q)) is not None:
        return reason
    if q.dtype not in COMPUTED_IN_FLOAT32 or v.dtype != q.dtype:
        return (
            "the kernels take q, k and v of one dtype, bfloat16, float16 or float32, not "
            f"{q.dtype} and {v.dtype}"
        )
    most = MOST_DIMS[q.dtype]
    if max(q.shape[-1], v.shape[-1]) > most:
        return (
            f"the kernels take a {q.dtype} state of at most {most} x {most}, this one has "
            f"{q.shape[-1]} x {v.shape[-1]}"
        )
    if isinstance(scale, Tensor) and (scale.ndim > 4 or scale.shape[-2:].numel() > 1):
        return "the kernels take one scale per head"
    if feature not in FEATURES:
        return "the kernels compute the features elu and relu, and form='cosine', no others"
    if (
        spec.rotated_dims != spec.head_dim
        or spec.layout != spec.output_layout
        or spec.num_axes > 1
        or spec.per_head
    ):
        return "the kernels rotate whole heads along one axis, with the same layout in and out"
    if spec.learned or spec.needs_length or spec.precision == "hf" or spec.fractional:
        return (
            "the kernels rotate by fixed exact phases, so not by learned, length-dependent or "
            "fractional angles, and not with precision='hf'"
        )
    if tables(spec, q.device).frequencies.growth is not None:
        return "the kernels have no magnitude that grows with the position, as xPos has"
    return None


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

    q, k [B, H, S, D], v [B, H, S, Dv]. The state holds sums over all keys so far: `mixed` [B, H, F,
    Dv] of the product of a key's F rotated features and its value, `total` [B, H, F] of the
    features, for the denominator. `scale` is the a of form="cosine", one number for each head; None
    with other features.
    """
    from ropewalk.kernels.linear_attention import kernel

    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    batch, heads, tokens, head_dim = q.shape
    if not q.numel():
        return torch.empty_like(v), mixed, total
    chunk, stages = NARROW if max(head_dim, v.shape[-1]) <= 64 else WIDE
    chunks = -(-tokens // chunk)
    # chunks of a segment: a power of two, so that few variants of the kernels are compiled
    per_segment = power_of_two(-(-chunks * batch * heads // PROGRAMS))
    segments = -(-chunks // per_segment)
    rows, width, pairs = mixed.shape[-2], v.shape[-1], head_dim // 2
    spec_tables = tables(call.spec, q.device)
    q_magnitude, k_magnitude = (
        float(magnitude_on(call.spec, spec_tables.frequencies.magnitude, key))
        for key in (False, True)
    )
    positions = call.positions.expand(batch, tokens)
    real = None if call.real is None else call.real.contiguous().view(torch.uint8)
    out = torch.empty(batch, heads, tokens, width, dtype=v.dtype, device=v.device)
    constants: dict[str, Any] = {
        "PAIRS": pairs,
        "BLOCK": tile_width(pairs),
        "WIDTH": width,
        "WIDTH_BLOCK": tile_width(width),
        "ROWS": rows,
        "CHUNK": chunk,
        "CHUNKS": per_segment,
        "INTERLEAVED": call.spec.layout == "interleaved",
        "FORM": getattr(kernel, call.feature.upper()).value,
        "QUICK": has_sine_unit(q),
        **_operands(q),
        "num_warps": 4,
        "num_stages": stages,
    }
    # one program for each segment of each head
    sizes, grid = (tokens, heads, segments), (batch * heads * segments,)
    token_strides = (*positions.stride(), 0 if real is None else real.stride(0))
    sums, sums_total = (
        mixed.new_empty(batch, heads, segments, rows, width),
        total.new_empty(batch, heads, segments, rows),
    )
    with torch.cuda.device_of(q):
        untyped(kernel.segment_sums)[grid](
            k, v, positions, spec_tables.steps, real, sums, sums_total, *sizes, k_magnitude,
            *k.stride()[:3], *v.stride()[:3], *token_strides, **constants,
        )  # fmt: skip
        # the state before each segment, and after the last one
        states = torch.cat((mixed.unsqueeze(2), sums), dim=2).cumsum(dim=2)
        totals = torch.cat((total.unsqueeze(2), sums_total), dim=2).cumsum(dim=2)
        scales = (
            None
            if scale is None
            else scale.float().expand(batch, heads, 1, 1).reshape(batch, heads).contiguous()
        )
        strides = (s for t in (q, k, v, out) for s in t.stride()[:3])
        untyped(kernel.segment_out)[grid](
            q,
            k,
            v,
            out,
            positions,
            spec_tables.steps,
            real,
            states,
            totals,
            scales,
            *sizes,
            q_magnitude,
            k_magnitude,
            call.eps,
            *strides,
            *token_strides,
            (segments + 1) * rows,
            **constants,
        )
    return out, states[:, :, -1], totals[:, :, -1]


def _operands(x: Tensor) -> dict[str, Any]:
    """Return the operand type of the matrix products for x: bfloat16 for bfloat16 (on a GPU); tf32
    for float16, whose sums can overflow; tf32x3 for float32: three tf32 products for each one, with
    about the precision of float32.
    """
    import triton.language as tl

    # Triton's interpreter would multiply the bit patterns of bfloat16 values
    use_bfloat16 = x.dtype == torch.bfloat16 and x.is_cuda
    return {
        "OPERAND": tl.bfloat16 if use_bfloat16 else tl.float32,
        "PRECISION": "tf32x3" if x.dtype == torch.float32 else "tf32",
    }
