"""Pair layouts: convert activations, weights, biases, norms, LoRA and fused QKV from half to
interleaved and back, and probe which layout a model has.

The two layouts differ by a permutation of the r rotated dimensions of each head, nothing else:

    half         a0 a1 a2 b0 b1 b2      pair i = (x_i, x_{i + r/2})
    interleaved  a0 b0 a1 b1 a2 b2      pair i = (x_{2i}, x_{2i+1})

Words of this module:
  source, target  the layouts before and after, "half" or "interleaved"
  rotary_dim      how many dimensions of a head rotate, from `rotary_start` on
  packing         the order of the heads in a fused QKV projection

In a model's weights only the rows of the q and k projections, their biases and the QK-norms are
permuted, never what produces values or outputs, and never the inputs of a projection. Converting
there and back gives the same bits in any dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Shaped
from torch import Tensor

from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.spec import LAYOUTS, RopeSpec

PACKINGS = ("concatenated", "grouped")


def convert_layout(
    x: Shaped[Tensor, "..."],
    source: str,
    target: str,
    *,
    head_dim: int,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    dim: int = -1,
    num_heads: int | None = None,
) -> Shaped[Tensor, "..."]:
    """Return `x` with the rotated dimensions of every head permuted from the `source` layout to the
    `target` layout.

    dim           the axis of the heads: the last axis of activations [..., head_dim] or [..., heads
                  * head_dim], axis 0 of a q or k projection [heads * head_dim, in], of its bias,
                  and of a QK-norm weight [head_dim]
    rotary_dim    how many dimensions rotate, from `rotary_start` on; None = all to the end of the
                  head. The others keep their place
    num_heads     checked against the size of `dim` if given
    """
    spec = _checked_slice(source, target, head_dim, rotary_dim, rotary_start)
    return _converted("x", x, source, target, spec, dim, num_heads)


def convert_qkv(
    weight: Shaped[Tensor, "..."],
    source: str,
    target: str,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    packing: str = "concatenated",
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    dim: int = 0,
) -> Shaped[Tensor, "..."]:
    """Return a fused QKV weight or bias with the rows of its queries and keys converted; those of
    its values stay.

    packing  the order of the heads. "concatenated": all q heads, all k heads, all v heads (Phi-3,
             Falcon with one kv head). "grouped": for every kv head its q heads, then its k, then
             its v (GPT-NeoX, Falcon, InternLM2, Megatron)
    dim      the axis of the heads

    The other arguments are those of `convert_layout`.
    """
    spec = _checked_slice(source, target, head_dim, rotary_dim, rotary_start)
    choice("packing", packing, PACKINGS)
    integer("num_kv_heads", num_kv_heads, low=1)
    if integer("num_heads", num_heads, low=1) % num_kv_heads:
        raise RopeError(
            "num_heads", f"must be a multiple of num_kv_heads = {num_kv_heads}", num_heads
        )
    axis = _axis("weight", weight, dim)
    groups = num_kv_heads if packing == "grouped" else 1
    # the texts are what an error calls the tensor and the number of its heads
    heads = _unflatten(
        "weight",
        weight,
        axis,
        head_dim,
        num_heads + 2 * num_kv_heads,
        "num_heads + 2 * num_kv_heads",
    )
    heads = heads.unflatten(axis, (groups, -1))  # [groups, q + k + v heads of a group, head_dim]
    queries_and_keys, values = heads.split(
        [(num_heads + num_kv_heads) // groups, num_kv_heads // groups], dim=axis + 1
    )
    queries_and_keys = _permute(queries_and_keys, source, target, spec, axis + 2)
    return torch.cat((queries_and_keys, values), dim=axis + 1).flatten(axis, axis + 2)


def convert_lora(
    a: Shaped[Tensor, "rank inputs"],
    b: Shaped[Tensor, "outputs rank"],
    source: str,
    target: str,
    *,
    head_dim: int,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    num_heads: int | None = None,
) -> tuple[Shaped[Tensor, "rank inputs"], Shaped[Tensor, "outputs rank"]]:
    """Return the LoRA adapter (A, B) of a q or k projection for a base model in the `target`
    layout.

    The update is B A, so its rows are those of B: B is permuted and A is returned unchanged. For a
    fused projection call `convert_qkv` on B. The arguments after A and B are those of
    `convert_layout`.
    """
    spec = _checked_slice(source, target, head_dim, rotary_dim, rotary_start)
    if a.ndim != 2:
        raise RopeError("a", "must be [rank, inputs]", list(a.shape))
    if b.ndim != 2 or a.shape[0] != b.shape[1]:
        raise RopeError(
            "b", f"must be [outputs, rank] with the rank of a, {a.shape[0]}", list(b.shape)
        )
    # axis 0 of B has the heads
    return a, _converted("b", b, source, target, spec, 0, num_heads)


def _converted(
    name: str, x: Tensor, source: str, target: str, spec: RopeSpec, dim: int, num_heads: int | None
) -> Tensor:
    """Return x with the heads along `dim` in the target layout; `name` is what an error calls x."""
    axis = _axis(name, x, dim)
    heads = _unflatten(name, x, axis, spec.head_dim, num_heads, "num_heads")
    return _permute(heads, source, target, spec, axis + 1).flatten(axis, axis + 1)


def _checked_slice(
    source: str, target: str, head_dim: int, rotary_dim: int | None, rotary_start: int
) -> RopeSpec:
    """Check the names of the layouts and the rotated slice of the head; return the slice as a
    RopeSpec.
    """
    choice("source", source, LAYOUTS)
    choice("target", target, LAYOUTS)
    return RopeSpec(head_dim, rotary_dim=rotary_dim, rotary_start=rotary_start)


def _axis(name: str, x: Tensor, dim: int) -> int:
    """Return `dim` as an axis from 0 on; raise an error if x, called `name`, is no tensor or has no
    such axis.
    """
    if not isinstance(x, Tensor):
        raise RopeError(name, "must be a tensor", type(x))
    if not -x.ndim <= dim < x.ndim:
        raise RopeError("dim", f"must be an axis of a tensor that has {x.ndim} axes", dim)
    return dim % x.ndim


def _unflatten(
    name: str, x: Tensor, axis: int, head_dim: int, num_heads: int | None, count: str
) -> Tensor:
    """Return x with `axis` split into [heads, head_dim]; an error calls x `name` and the number of
    heads `count`.
    """
    size = x.shape[axis]
    if size % head_dim or not size:
        raise RopeError(
            name, f"must have a multiple of head_dim = {head_dim} along dim {axis}", list(x.shape)
        )
    if num_heads is not None and size != integer("num_heads", num_heads, low=1) * head_dim:
        raise RopeError(
            name,
            f"must have ({count}) * head_dim = {num_heads * head_dim} along dim {axis}",
            list(x.shape),
        )
    return x.unflatten(axis, (-1, head_dim))


def _permute(x: Tensor, source: str, target: str, spec: RopeSpec, axis: int) -> Tensor:
    """Return a copy of x whose `axis`, the dims of one head, is in the target layout."""
    if source == target:
        return x.clone()
    width_after = spec.head_dim - spec.rotary_start - 2 * spec.pairs
    before, rotated, after = x.split([spec.rotary_start, 2 * spec.pairs, width_after], dim=axis)
    # half is [2, pairs], interleaved is [pairs, 2]: each is the transpose of the other
    shape = (2, spec.pairs) if source == "half" else (spec.pairs, 2)
    rotated = rotated.unflatten(axis, shape).transpose(axis, axis + 1).flatten(axis, axis + 1)
    return torch.cat((before, rotated, after), dim=axis)


@dataclass(frozen=True)
class LayoutProbe:
    """The result of a probe.

    layout  the layout with the lower loss; None if the losses differ by at most the threshold
    losses  the loss of each layout
    margin  the difference between the two losses
    """

    layout: str | None
    losses: dict[str, float]
    margin: float


def probe_layout(loss: Callable[[str], float], *, threshold: float = 0.1) -> LayoutProbe:
    """Return which layout a model's weights were trained with: the one with the lower loss.

    loss       a function that runs the model with a layout, "half" or "interleaved", and returns
               its mean loss on ordinary data
    threshold  the difference of the losses up to which `layout` is None. The wrong layout raises
               the loss of a trained model by several nats per token, that of a model with a single
               attention head by tenths of a nat; on very short input it may not change the loss
    """
    number("threshold", threshold, low=0)
    losses = {layout: float(loss(layout)) for layout in LAYOUTS}
    for layout, value in losses.items():
        if not math.isfinite(value):
            raise RopeError(
                "loss",
                f"must be finite under both layouts; check the data and the {layout!r} run",
                value,
            )
    best, other = sorted(losses, key=losses.__getitem__)
    margin = losses[other] - losses[best]
    return LayoutProbe(best if margin > threshold else None, losses, margin)
