"""The definition of the fused kernel in plain torch: RMS-norm of every head, rotation, and the
write into a KV cache.

It computes in float32 (float64 for float64 inputs) and rounds each result once, when it is stored.
The Triton kernel takes the same `NormRotationCall` and is tested against this module, which also
runs the calls that the kernel does not support.

Words of this module:
  T, Hq, Hk, D  tokens, heads of q, heads of k and v, dimensions of a head
  key           True for k, False for q; their cos and sin differ if their magnitudes do
  latent        the dims of k that do not rotate, in latent attention (MLA)
  slot          the place of a token in a cache; a negative one is padding
  quantised     the cache is float8 and stores x / scale
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.errors import RopeError, flag, number
from ropewalk.kernels.request import COMPUTED_IN_FLOAT32, TableRequest, table_dtype
from ropewalk.kernels.rotation.eager import differentiable
from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin
from ropewalk.tensor_frequencies import Length

FP8 = torch.float8_e4m3fn
#: the largest finite e4m3 value: larger values are stored as this one and not as NaN
FP8_MAX = 448.0


@dataclass(frozen=True, eq=False)
class QKNorm:
    """RMS-norm of every q and k head over its whole width: x / sqrt(mean(x^2) + eps) * w.

    Weights are [head_dim], or None for no weight; `plus_one` multiplies by 1 + w, for weights
    stored as Gemma does.
    """

    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    eps: float = 1e-6
    plus_one: bool = False

    def __post_init__(self) -> None:
        """Check every field."""
        object.__setattr__(self, "eps", number("eps", self.eps, low=0))
        flag("plus_one", self.plus_one)
        if (self.q_weight is None) != (self.k_weight is None):
            raise RopeError(
                "k_weight", "must be given together with q_weight, or both left out", self.k_weight
            )
        for name, weight in (("q_weight", self.q_weight), ("k_weight", self.k_weight)):
            if weight is not None and (
                weight.ndim != 1 or not weight.is_floating_point() or not weight.is_contiguous()
            ):
                raise RopeError(
                    name, "must be contiguous floats [head_dim]", [weight.dtype, list(weight.shape)]
                )


@dataclass(frozen=True, eq=False)
class LatentNorm:
    """RMS-norm of the dims of k that do not rotate, for latent attention (MLA): k is [latent |
    key], and q is not normed.

    `weight` is [head_dim - rotary_dim]; the rotated slice must be the end of the head.
    """

    weight: Tensor
    eps: float = 1e-6
    #: as in QKNorm, so that a call need not tell the two apart
    q_weight: ClassVar[None] = None
    plus_one: ClassVar[bool] = False

    @property
    def k_weight(self) -> Tensor:
        """The weight, which only k has."""
        return self.weight

    def __post_init__(self) -> None:
        """Check both fields."""
        object.__setattr__(self, "eps", number("eps", self.eps, low=0))
        if (
            self.weight.ndim != 1
            or not self.weight.is_floating_point()
            or not self.weight.is_contiguous()
        ):
            raise RopeError(
                "weight",
                "must be contiguous floats [latent]",
                [self.weight.dtype, list(self.weight.shape)],
            )


@dataclass(frozen=True, eq=False)
class KVSlots:
    """The key and value caches of one layer, written by slot; v is None for latent attention, whose
    values are in k.

    k, v              [slots, heads, head_dim], or pages [pages, page_size, heads, head_dim] where
                      slot s is row s % page_size of page s // page_size. Any strides with the last
                      dimension contiguous: pass pages with heads first as `cache.transpose(1, 2)`.
    k_scale, v_scale  for float8_e4m3fn caches: x / scale is stored, saturated at 448; each scale is
                      a float or one float32 on the device
    """

    k: Tensor
    v: Tensor | None = None
    k_scale: float | Tensor | None = None
    v_scale: float | Tensor | None = None

    def __post_init__(self) -> None:
        """Check the tensors, and turn the scales of a float8 cache into tensors."""
        allowed = (*COMPUTED_IN_FLOAT32, torch.float64, FP8)
        for name, cache in (("k", self.k), ("v", self.v)):
            if cache is not None and (
                cache.dtype not in allowed or cache.ndim not in (3, 4) or cache.stride(-1) != 1
            ):
                rule = (
                    "must be float or float8_e4m3fn [slots, heads, D] or [pages, page_size, heads, "
                    "D], last dim contiguous"
                )
                raise RopeError(f"{name} cache", rule, [cache.dtype, list(cache.shape)])
        if self.v is None and self.v_scale is not None:
            raise RopeError("v_scale", "needs a v cache; leave it out", self.v_scale)
        if self.v is None:
            # a field of a frozen dataclass can be set only so
            object.__setattr__(self, "k_scale", self._on_device("k_scale", self.k_scale))
            return
        if (
            self.k.shape != self.v.shape
            or self.k.dtype != self.v.dtype
            or self.k.device != self.v.device
        ):
            raise RopeError(
                "v cache",
                "must have the shape, dtype and device of the k cache",
                [self.v.dtype, list(self.v.shape)],
            )
        for name, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            object.__setattr__(self, name, self._on_device(name, scale))

    def _on_device(self, name: str, scale: float | Tensor | None) -> Tensor | None:
        """Return a scale, 1 if it is None, as one float32 on the cache's device, so that later
        calls need no copy; None if the cache is not quantised. `name` is for errors.
        """
        if not self.quantised:
            if scale is not None:
                raise RopeError(name, "is only for a float8_e4m3fn cache; leave it out", scale)
            return None
        if isinstance(scale, Tensor):
            if scale.numel() != 1 or scale.dtype != torch.float32 or scale.device != self.k.device:
                raise RopeError(
                    name,
                    f"must be a float or one float32 on {self.k.device}",
                    [scale.dtype, list(scale.shape)],
                )
            return scale
        return torch.full(
            (1,), 1.0 if scale is None else number(name, scale, above=0), device=self.k.device
        )

    @property
    def quantised(self) -> bool:
        return self.k.dtype == FP8

    @property
    def scales(self) -> tuple[Tensor | None, Tensor | None]:
        """The scales of k and v on the device; None unless the cache is quantised."""
        # converted to tensors in __post_init__
        return self.k_scale, self.v_scale  # type: ignore[return-value]

    @property
    def page_size(self) -> int:
        """The number of slots in a page; 1 for a cache without pages."""
        return 1 if self.k.ndim == 3 else self.k.shape[1]

    @property
    def num_slots(self) -> int:
        return self.k.shape[0] * self.page_size


@dataclass(eq=False, slots=True)
class NormRotationCall:
    """One checked call: q [T, Hq, D], k and v [T, Hk, D], contiguous in the last dimension;
    positions [T] or [axes, T].

    An output that is None is not written; `slots` is [T] if there is a `cache`, otherwise None.
    """

    q: Tensor
    k: Tensor
    v: Tensor | None
    spec: RopeSpec
    positions: Tensor
    length: Length = None
    norm: QKNorm | LatentNorm | None = None
    cache: KVSlots | None = None
    slots: Tensor | None = None
    q_out: Tensor | None = None
    k_out: Tensor | None = None

    def rows(self, key: bool) -> tuple[Tensor, Tensor]:
        """Return cos and sin [T, 1, pairs] for all heads, magnitude included; `key`: those of
        attention keys.
        """
        dtype = table_dtype(self.q)
        if torch.compiler.is_compiling():  # a graph cannot hold the caches behind `table.cos_sin`
            device = self.positions.device
            given = self.length
            length = torch.full((), given, device=device) if isinstance(given, int) else given
            # 1 is the power of the magnitude, "auto" the table strategy
            cos, sin = torch.ops.ropewalk.cos_sin(
                self.positions, length, 1, self.spec.fingerprint, "auto", dtype, key
            )
        else:
            cos, sin = cos_sin(self.spec, self.positions, length=self.length, dtype=dtype, key=key)
        return cos.unsqueeze(-2), sin.unsqueeze(-2)

    @property
    def weights(self) -> tuple[Tensor | None, Tensor | None]:
        """The norm's weights for q and for k."""
        return (None, None) if self.norm is None else (self.norm.q_weight, self.norm.k_weight)

    @property
    def head_norm(self) -> QKNorm | None:
        """The norm of whole heads of q and k, if there is one."""
        return self.norm if isinstance(self.norm, QKNorm) else None

    @property
    def weight_form(self) -> str:
        """By what a normed head is multiplied, as the kernels call it: "" (nothing: there is no
        weight, or no norm of whole heads), "w" or "1+w".
        """
        norm = self.head_norm
        if norm is None or norm.q_weight is None:
            return ""
        return "1+w" if norm.plus_one else "w"


def run(call: NormRotationCall) -> None:
    """Compute the outputs of a call and write them to `q_out`, `k_out` and the cache."""
    q, k = (norm_and_rotate(call, x, key) for x, key in ((call.q, False), (call.k, True)))
    for out, result in ((call.q_out, q), (call.k_out, k)):
        if out is not None:
            out.copy_(result)  # rounds to the dtype of out
    if call.cache is not None:
        _write(call.cache, k, call.v, call.slots)  # type: ignore[arg-type]  # given if a cache is


def norm_and_rotate(call: NormRotationCall, x: Tensor, key: bool) -> Tensor:
    """Return x normed as `call.norm` says (not at all if None) and rotated, before rounding to x's
    dtype. A QKNorm norms whole heads, a LatentNorm only the latent part of the key.

    key  whether x is the attention key
    """
    cos, sin = call.rows(key)
    wide = x.to(cos.dtype)
    if isinstance(call.norm, LatentNorm):
        if key:
            latent, rotating = wide.split([call.spec.rotary_start, 2 * call.spec.pairs], dim=-1)
            latent = latent * _inverse_rms(latent, call.norm.eps) * call.norm.weight.to(cos.dtype)
            wide = torch.cat((latent, rotating), dim=-1)
    elif call.norm is not None:
        wide = wide * _inverse_rms(wide, call.norm.eps) * _factor(call, key, cos.dtype)
    return differentiable(wide, cos, sin, _table_request(call.spec, cos, sin))


def backward(call: NormRotationCall, grad: Tensor, key: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradients of `norm_and_rotate` for x (rounded to its dtype) and for the weight;
    the rms is recomputed from x, which is k if `key`, else q. The norm is a QKNorm or None.

    With n = x r w, r = 1 / rms and dy = `grad`: dn is dy rotated backwards, dw is the sum of dn x
    r, and dx = r (dn w - x r^2 mean(dn w x)). Where heads are multiplied by 1 + w, read that for w.
    """
    x = call.k if key else call.q
    cos, sin = call.rows(key)
    back = _table_request(call.spec, cos, sin).adjoint()
    dn = differentiable(grad.to(cos.dtype), back.cos, back.sin, back)
    if call.norm is None:
        return dn.to(x.dtype), None
    wide = x.to(cos.dtype)
    inverse_rms = _inverse_rms(wide, call.norm.eps)
    normed = wide * inverse_rms  # x r
    weighted = dn * _factor(call, key, cos.dtype)  # dn w
    dx = (weighted - normed * (weighted * normed).mean(-1, keepdim=True)) * inverse_rms
    weight = call.weights[1 if key else 0]
    dw = None if weight is None else (dn * normed).sum((0, 1)).to(weight.dtype)
    return dx.to(x.dtype), dw


def _inverse_rms(wide: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) over the last dimension, which is kept with size 1."""
    return torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)


def _factor(call: NormRotationCall, key: bool, dtype: torch.dtype) -> Tensor | float:
    """Return by what the normalised heads of q, or of k if `key`, are multiplied: w, 1 + w, or 1
    without a weight.
    """
    weight = call.weights[1 if key else 0]
    if weight is None:
        return 1.0
    wide = weight.to(dtype)
    # only a norm has a weight
    return 1.0 + wide if call.norm.plus_one else wide  # type: ignore[union-attr]


def _table_request(spec: RopeSpec, cos: Tensor, sin: Tensor) -> TableRequest:
    """Return the rotation of heads [T, H, D] by cos and sin as a request."""
    # -3: the tokens are the first of three axes
    return TableRequest(cos, sin, -3, spec.layout, spec.output_layout, start=spec.rotary_start)  # type: ignore[arg-type]


def _write(cache: KVSlots, k: Tensor, v: Tensor | None, slots: Tensor) -> None:
    """Store k and v of every token at its slot; a negative slot is padding. A slot beyond the cache
    raises an error on a CPU; on a GPU it is padding too, because checking would synchronise, and
    then no CUDA graph could capture it.
    """
    if not slots.numel():
        return
    slots = slots.to(torch.int64)
    rule = f"must be below the cache's {cache.num_slots} slots; negative ones are padding"
    if slots.device.type == "cpu" and torch.compiler.is_compiling():
        # the error is raised when the graph runs
        torch.ops.aten._assert_async.msg((slots < cache.num_slots).all(), f"slots: {rule}")
    elif slots.device.type == "cpu" and (last := int(slots.max())) >= cache.num_slots:
        raise RopeError("slots", rule, last)
    live = (slots >= 0) & (slots < cache.num_slots)
    # padding tokens write a copy of a real token to the real token's slot; if all are padding, slot
    # 0 is rewritten unchanged
    source = torch.where(live, torch.arange(len(slots), device=slots.device), live.int().argmax())
    target = torch.where(live.any(), slots[source], 0)
    rows_of_cache = (
        (target,) if cache.k.ndim == 3 else (target // cache.page_size, target % cache.page_size)
    )
    for store, x, scale in zip((cache.k, cache.v), (k, v), cache.scales, strict=True):
        if store is None or x is None:
            continue
        rows = _stored(x[source], store.dtype, scale)
        if cache.quantised:
            # torch cannot index float8 tensors, so index their bytes
            store, rows = store.view(torch.uint8), rows.view(torch.uint8)
        store[rows_of_cache] = torch.where(live.any(), rows, store[rows_of_cache])


def _stored(x: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Return x in the cache's dtype, rounded once; with a scale, x / scale as float8, where values
    beyond the range become the largest one.
    """
    if scale is None:
        return x.to(dtype)
    return (x.to(table_dtype(x)) / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)
