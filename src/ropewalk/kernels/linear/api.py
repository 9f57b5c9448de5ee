"""Causal linear attention in two launches of Triton kernels; `attention.linear` holds its definition in plain torch.

Triton itself is imported with the first tensor that needs it. Under TRITON_INTERPRET=1 CPU tensors are taken too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.triton.backend import DTYPES, has_sine_unit, why_no_triton
from ropewalk.spec import RopeSpec
from ropewalk.table import magnitude_on, tables

#: a wider state does not fit in one program's registers; bfloat16 leaves room for twice as much
MOST_DIMS = {torch.bfloat16: 128, torch.float16: 64, torch.float32: 64}
#: four programs for each multiprocessor of an H200
PROGRAMS = 528
#: (tokens that are multiplied with one another at once, stages of the pipeline) by a sweep on that GPU: narrow and wide heads
NARROW, WIDE = (64, 2), (32, 1)
#: features the kernels compute themselves; "cosine" is the normalised form
FEATURES = ("elu", "relu", "cosine")


@dataclass(frozen=True, eq=False)
class Ask:
    """What one call is besides its tensors: the angles, the features, and which of the tokens are real [B, S]."""

    spec: RopeSpec
    feature: str
    positions: Tensor
    real: Tensor | None
    eps: float


def why_not(q: Tensor, v: Tensor, spec: RopeSpec, feature: str | None, scale: Tensor | float = 1.0) -> str | None:
    """The reason why the kernels cannot take this call, or None."""
    if (reason := why_no_triton(q)) is not None:
        return reason
    if q.dtype not in DTYPES or v.dtype != q.dtype:
        return f"they take q, k and v of one dtype of bfloat16, float16 and float32, not {q.dtype} and {v.dtype}"
    if max(q.shape[-1], v.shape[-1]) > (most := MOST_DIMS[q.dtype]):
        return f"a {q.dtype} state of at most {most} x {most} fits in one program, this one has {q.shape[-1]} x {v.shape[-1]}"
    if isinstance(scale, Tensor) and (scale.ndim > 4 or scale.shape[-2:].numel() > 1):
        return "they take one scale a head"
    if feature not in FEATURES:
        return "they compute the features elu, relu and the cosine form themselves; others are torch's"
    if spec.rotary_dim != spec.head_dim or spec.layout != spec.layout_out or spec.num_axes > 1:
        return "they turn whole heads by one axis, and leave the layout as it is"
    if spec.learned or spec.needs_length or spec.precision == "hf" or spec.fractional:
        return "they turn by fixed exact phases"
    if tables(spec, q.device).frequencies.growth is not None:
        return "they do not grow with the position, as xPos does"
    return None


def run(
    q: Tensor, k: Tensor, v: Tensor, mixed: Tensor, total: Tensor, scale: Tensor | None, ask: Ask
) -> tuple[Tensor, Tensor, Tensor]:
    """(out [B, H, S, Dv], mixed, total): the outputs, and the state after the last token.

    q, k [B, H, S, D], v [B, H, S, Dv]; mixed [B, H, F, Dv] and total [B, H, F] are the state before the first.
    """
    from ropewalk.kernels.linear import kernel as device

    q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
    batch, heads, tokens, head_dim = q.shape
    if not q.numel():
        return torch.empty_like(v), mixed, total
    chunk, stages = NARROW if max(head_dim, v.shape[-1]) <= 64 else WIDE
    chunks = -(-tokens // chunk)
    # a power of two, so that few kernels are compiled
    per_segment = 1 << (-(-chunks * batch * heads // PROGRAMS) - 1).bit_length()
    segments = -(-chunks // per_segment)
    rows, width, pairs = mixed.shape[-2], v.shape[-1], head_dim // 2
    kept = tables(ask.spec, q.device)
    q_magnitude, k_magnitude = (float(magnitude_on(ask.spec, kept.frequencies.magnitude, key)) for key in (False, True))
    positions = ask.positions.expand(batch, tokens)
    real = None if ask.real is None else ask.real.contiguous().view(torch.uint8)
    out = torch.empty(batch, heads, tokens, width, dtype=v.dtype, device=v.device)
    constants: dict[str, Any] = {
        "PAIRS": pairs, "BLOCK": _block(pairs), "WIDTH": width, "WIDTH_BLOCK": _block(width), "ROWS": rows,
        "CHUNK": chunk, "CHUNKS": per_segment, "INTERLEAVED": ask.spec.layout == "interleaved",
        "FORM": getattr(device, ask.feature.upper()).value, "QUICK": has_sine_unit(q),
        **_multiplied_as(q), "num_warps": 4, "num_stages": stages,
    }  # fmt: skip
    sizes, grid = (tokens, heads, segments), (batch * heads * segments,)
    places = (*positions.stride(), 0 if real is None else real.stride(0))
    sums, sums_total = mixed.new_empty(batch, heads, segments, rows, width), total.new_empty(batch, heads, segments, rows)
    with torch.cuda.device_of(q):
        _kernel(device.segment_sums)[grid](
            k, v, positions, kept.steps, real, sums, sums_total, *sizes, k_magnitude,
            *k.stride()[:3], *v.stride()[:3], *places, **constants,
        )  # fmt: skip
        states = torch.cat((mixed.unsqueeze(2), sums), dim=2).cumsum(dim=2)
        totals = torch.cat((total.unsqueeze(2), sums_total), dim=2).cumsum(dim=2)
        scales = None if scale is None else scale.float().expand(batch, heads, 1, 1).reshape(batch, heads).contiguous()
        strides = (s for t in (q, k, v, out) for s in t.stride()[:3])
        _kernel(device.segment_out)[grid](
            q, k, v, out, positions, kept.steps, real, states, totals, scales, *sizes, q_magnitude, k_magnitude, ask.eps,
            *strides, *places, (segments + 1) * rows, **constants,
        )  # fmt: skip
    return out, states[:, :, -1], totals[:, :, -1]


def _multiplied_as(x: Tensor) -> dict[str, Any]:
    """What the matrix units see: bfloat16 as it came, float16 as tf32 (sums outgrow it), float32 as three parts of tf32."""
    import triton.language as tl

    # the interpreter multiplies bfloat16 by its bit patterns
    narrow = x.dtype == torch.bfloat16 and x.is_cuda
    return {"OPERAND": tl.bfloat16 if narrow else tl.float32, "PRECISION": "tf32x3" if x.dtype == torch.float32 else "tf32"}


def _kernel(function: Any) -> Any:
    """Typed as what Triton makes of it, which type checkers cannot see."""
    return function


def _block(size: int) -> int:
    # matrix units multiply 16 at a time
    return max(16, 1 << (size - 1).bit_length())
