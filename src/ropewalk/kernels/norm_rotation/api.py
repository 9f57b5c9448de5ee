"""qk_norm_rope and why_not: argument checks, the autograd function, and the choice between kernel
and definition.

Words of this module:
  call     a checked `NormRotationCall`, its tensors with one token axis: q [T, Hq, D]
  shape    the sizes of the token axes that the caller's tensors have; the call has their product, T
  heads    (Hq, Hk), given if q holds q, k and v packed
  config   how the kernel divides its work; None picks one
  backend  "triton", the fused kernel, or "definition", plain torch
  weights  the learned factors of the norms of q and of k; None where there are none
  slot     the place of a token in the cache; a token with a negative slot is not stored
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Inexact, Shaped
from torch import Tensor

import ropewalk.ops  # noqa: F401  # registers the op that a compiled graph calls for cos and sin
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.norm_rotation import definition
from ropewalk.kernels.norm_rotation.config import NormRotationConfig, why_not_kernel
from ropewalk.kernels.norm_rotation.definition import KVSlots, LatentNorm, NormRotationCall, QKNorm
from ropewalk.spec import RopeSpec

INTEGERS = (torch.int32, torch.int64)
#: the dtypes of positions under a spec whose axes have real coordinates
POSITIONS = (*INTEGERS, torch.float32, torch.float64)
BACKENDS = ("triton", "definition")


def qk_norm_rope(
    q: Inexact[Tensor, "..."],
    k: Inexact[Tensor, "..."] | None = None,
    v: Inexact[Tensor, "..."] | None = None,
    *,
    spec: RopeSpec,
    positions: Shaped[Tensor, "..."],
    heads: tuple[int, int] | None = None,
    norm: QKNorm | LatentNorm | None = None,
    cache: KVSlots | None = None,
    slots: Shaped[Tensor, "..."] | None = None,
    return_kv: bool = False,
    q_out: Inexact[Tensor, "..."] | None = None,
    length: int | None = None,
    backend: str | None = None,
    config: NormRotationConfig | None = None,
):
    """Normalise and rotate the heads of q and k; with a cache, also store k and v at their slots.

    q, k, v    [..., heads, head_dim] of the same tokens, k and v may have fewer heads; or q alone,
               packed [..., (Hq + 2 Hk) head_dim] with heads=(Hq, Hk). Any strides with the last
               dimension contiguous
    positions  integers [...] (floats if the spec's axes have real coordinates), of which leading
               dimensions may be left out. With several axes always [axes, ...], for text too:
               [2, S] is [axes, S] here, while Rope reads it as [B, S]
    norm       QKNorm, or None to rotate only; LatentNorm for the latents of MLA, with a cache
    cache      KVSlots; slots are integers [...], and a token with a negative slot is padding and
               not stored. A cache without v takes a call without v: latent attention stores [latent
               | rotated key] as k
    q_out      where the result of q is written, of q's shape; may be q itself
    length     one length for all sequences, needed only by length-dependent scalings; `Rope` also
               takes one for each row
    backend    "triton", "definition", or None: the kernel if it supports the call (`why_not` says
               why not), else the definition. Under torch.compile, without a cache, it is always
               the definition, which the compiler fuses itself
    config     how the kernel divides its work; None picks one of `CONFIGS`

    Returns (q, k) without a cache, with gradients to q, k and the norm's weights. With a cache it
    returns q without gradients, or (q, k, v) with `return_kv`, for the attention of a prefill; v is
    returned as given, and left out where the cache has no v.
    """
    call, shape = checked_call(q, k, v, spec, positions, heads, norm, cache, slots, length)
    if cache is None:
        if return_kv or q_out is not None:
            raise RopeError(
                "return_kv" if return_kv else "q_out", "needs a cache; leave it out", True
            )
        return tuple(
            _unflatten(x, shape)
            for x in _differentiable(call, _pick_backend(call, backend), config)
        )
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (call.q, call.k, call.v, *call.weights)
    ):
        raise RopeError(
            "cache",
            "stores values without gradients; call it under torch.no_grad()",
            "an input requires grad",
        )
    call.q_out = _output_tensor(call.q, q_out)
    call.k_out = torch.empty_like(call.k) if return_kv else None
    _run(call, _pick_backend(call, backend), config)
    if not return_kv:
        return _unflatten(call.q_out, shape)
    return tuple(_unflatten(x, shape) for x in (call.q_out, call.k_out, call.v) if x is not None)


def why_not(*args, **kwargs) -> str | None:
    """Return why the Triton kernel does not support a call of `qk_norm_rope` with these arguments,
    or None if it does; an invalid call raises the error that `qk_norm_rope` raises.
    """
    arguments = dict(zip(("q", "k", "v"), args, strict=False)) | kwargs
    names = ("q", "k", "v", "spec", "positions", "heads", "norm", "cache", "slots", "length")
    call, _ = checked_call(*(arguments.get(name) for name in names))
    # the kernel does not support every dtype and stride of q_out either
    if arguments.get("q_out") is not None:
        call.q_out = _output_tensor(call.q, arguments["q_out"])
    return why_not_kernel(call)


def _pick_backend(call: NormRotationCall, backend: str | None) -> str:
    """Return "triton" or "definition": the given backend; if None, "triton" where it supports the
    call and torch.compile is not at work. Raise an error if the given one does not support the
    call.
    """
    if backend is None:
        # torch.compile can fuse plain torch operations, but not a Triton launch
        return "definition" if torch.compiler.is_compiling() or why_not_kernel(call) else "triton"
    if choice("backend", backend, BACKENDS) == "triton" and (reason := why_not_kernel(call)):
        raise RopeError(
            "backend",
            f"'triton' cannot take this call: {reason}; pass backend=None",
            list(call.q.shape),
        )
    return backend


def _run(call: NormRotationCall, backend: str, config: NormRotationConfig | None) -> None:
    """Write the outputs of the call by the backend "triton" or "definition"; `config` is for the
    kernel, None picks one.
    """
    if backend == "definition":
        definition.run(call)
        return
    from ropewalk.kernels.norm_rotation import launch

    launch.run(call, config)


def _differentiable(
    call: NormRotationCall, backend: str, config: NormRotationConfig | None
) -> tuple[Tensor, Tensor]:
    """Return the normalised and rotated q and k, with gradients to q, k and the weights of the
    norm. Under torch.compile the definition computes them, whatever the backend.
    """
    q_weight, k_weight = call.weights
    if torch.compiler.is_compiling():
        # the compiler differentiates plain torch itself
        q, k = (
            definition.norm_and_rotate(call, call.q, False),
            definition.norm_and_rotate(call, call.k, True),
        )
        return q.to(call.q.dtype), k.to(call.k.dtype)
    return _NormRope.apply(call.q, call.k, q_weight, k_weight, call, backend, config)  # type: ignore[return-value]


class _NormRope(torch.autograd.Function):
    """The autograd function: it saves only its inputs, and the backward recomputes the rms."""

    @staticmethod
    def forward(
        ctx,
        q,
        k,
        q_weight,
        k_weight,
        call: NormRotationCall,
        backend: str,
        config: NormRotationConfig | None,
    ):
        """Return the normalised and rotated q and k. The weights, also in `call`, are arguments so
        that they get gradients.
        """
        filled = replace(call, q=q, k=k, q_out=torch.empty_like(q), k_out=torch.empty_like(k))
        _run(filled, backend, config)
        ctx.save_for_backward(q, k, q_weight, k_weight, call.positions)
        # q and k must be kept alive only by save_for_backward, so ctx.call gets empty tensors; v,
        # which is only stored in caches, has no gradient here
        ctx.call, ctx.backend = replace(call, q=q.new_empty(0), k=k.new_empty(0), v=None), backend
        return filled.q_out, filled.k_out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, q_grad: Tensor, k_grad: Tensor):
        """Return the gradients of q, k and the two weights; the last three arguments of `forward`
        have none.
        """
        q, k, q_weight, k_weight, positions = ctx.saved_tensors
        # put the saved tensors back into the call: autograd checks that they were not changed in
        # place. The norm is a QKNorm or None, because a LatentNorm has no gradients
        norm = (
            None
            if ctx.call.norm is None
            else replace(ctx.call.norm, q_weight=q_weight, k_weight=k_weight)
        )
        call = replace(ctx.call, q=q, k=k, norm=norm, positions=positions)
        if ctx.backend == "definition":
            dq, dq_weight = definition.backward(call, q_grad, key=False)
            dk, dk_weight = definition.backward(call, k_grad, key=True)
        else:
            from ropewalk.kernels.norm_rotation import launch

            # the kernel reads heads whose last dimension is contiguous
            q_grad, k_grad = (g if g.stride(-1) == 1 else g.contiguous() for g in (q_grad, k_grad))
            # arguments 2 and 3 of `forward` are the weights
            weight_grad = q_weight is not None and any(ctx.needs_input_grad[2:4])
            dq, dk, dq_weight, dk_weight = launch.run_backward(call, q_grad, k_grad, weight_grad)
        return dq, dk, dq_weight, dk_weight, None, None, None


def checked_call(
    q, k, v, spec, positions, heads, norm, cache, slots, length
) -> tuple[NormRotationCall, tuple[int, ...]]:
    """Return the call of `qk_norm_rope` with these arguments, checked and with its tokens flattened
    to one axis, and the original shape of the token axes. Its outputs are None.
    """
    if not isinstance(spec, RopeSpec):
        raise RopeError("spec", "must be a RopeSpec", spec)
    if spec.learned:
        raise RopeError(
            "spec", "must have fixed frequencies; use Rope for learned ones", spec.scaling
        )
    if spec.per_head:
        raise RopeError(
            "spec", "must have the same frequencies in all heads; use Rope for others", spec.axes
        )
    q, k, v = _unpack(q, k, v, heads, spec.head_dim)  # [..., H, D]
    shape, dtype, device = tuple(q.shape[:-2]), q.dtype, q.device
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is None or (heads is not None and x is not q):
            continue  # packed k and v are views of the tensor that q is a view of
        if x.ndim < 3 or tuple(x.shape[:-2]) != shape or x.shape[-1] != spec.head_dim:
            raise RopeError(name, f"must be [{_shown(shape)}heads, {spec.head_dim}]", list(x.shape))
        if x.device != device or x.dtype != dtype:
            raise RopeError(name, f"must be {dtype} on {device}, like q", [x.dtype, x.device])
    if isinstance(norm, LatentNorm):
        _check_latent_norm(norm, spec, device, cache)
    for weight in (norm.q_weight, norm.k_weight) if isinstance(norm, QKNorm) else ():
        if weight is not None and (weight.shape[0] != spec.head_dim or weight.device != device):
            raise RopeError(
                "norm",
                f"must have weights [{spec.head_dim}] on {device}",
                [list(weight.shape), weight.device],
            )
    if (cache is None) != (slots is None) or (
        cache is not None and (v is None) != (cache.v is None)
    ):
        rule = "must be given together with slots, and with v if and only if it has a v cache"
        named = {"cache": cache, "slots": slots, "v": v}
        raise RopeError("cache", rule, [name for name in named if named[name] is not None])
    if cache is not None:
        _check_cache(cache, k, k if v is None else v)
        slots = _per_token("slots", slots, shape, (), device, INTEGERS)
    axes = (spec.num_axes,) if spec.num_axes > 1 else ()
    positions = _per_token(
        "positions", positions, shape, axes, device, POSITIONS if spec.fractional else INTEGERS
    )
    if spec.needs_length and length is None:
        rule = (
            f"must be given: the frequencies of {type(spec.scaling).__name__} depend on the length "
            "of each sequence"
        )
        raise RopeError("length", rule, None)
    if length is not None:
        length = integer("length", length, low=0)
    q, k, v = _flatten(q), _flatten(k), None if v is None else _flatten(v)
    return NormRotationCall(q, k, v, spec, positions, length, norm, cache, slots), shape


def _unpack(
    q: Tensor, k: Tensor | None, v: Tensor | None, heads: tuple[int, int] | None, head_dim: int
):
    """Return q, k, v [..., heads, head_dim]: as given, or with `heads`, (of q, of k), as views of
    q, which then holds q, k and v packed.
    """
    if heads is None:
        if k is None:
            raise RopeError(
                "k", "must be given, or heads=(q heads, kv heads) with packed qkv", None
            )
        return q, k, v
    if k is not None or v is not None:
        raise RopeError("heads", "is for packed qkv: leave k and v out", heads)
    q_heads, k_heads = (integer("heads", count, low=1) for count in heads)
    all_heads = q_heads + 2 * k_heads
    if q.shape[-1] != all_heads * head_dim or q.ndim < 2:
        raise RopeError(
            "q",
            f"must be [..., ({q_heads} + 2 * {k_heads}) * {head_dim}] as packed qkv",
            list(q.shape),
        )
    # Tensor.split is a Python wrapper, slow enough to matter in a decode step; split_with_sizes is
    # not
    return torch.split_with_sizes(
        q.view(*q.shape[:-1], all_heads, head_dim), (q_heads, k_heads, k_heads), -2
    )


def _check_latent_norm(
    norm: LatentNorm, spec: RopeSpec, device: torch.device, cache: KVSlots | None
) -> None:
    """Raise an error if the norm of a latent does not fit the spec or the device, or if there is no
    cache.
    """
    width = spec.rotary_start
    if width + 2 * spec.pairs != spec.head_dim or not width:
        raise RopeError(
            "norm",
            "must be a QKNorm or None unless the spec rotates the end of the head alone",
            [type(norm).__name__, spec],
        )
    if norm.weight.shape[0] != width or norm.weight.device != device:
        raise RopeError(
            "norm",
            f"must have a weight [{width}] on {device}",
            [list(norm.weight.shape), norm.weight.device],
        )
    if cache is None:
        rule = "must be a QKNorm or None without a cache: LatentNorm has no gradients"
        raise RopeError("norm", rule, type(norm).__name__)


def _check_cache(cache: KVSlots, k: Tensor, v: Tensor) -> None:
    """Raise an error if the cache does not have the heads, head_dim and device of k and v."""
    if (
        cache.k.shape[-2:] != k.shape[-2:]
        or v.shape[-2:] != k.shape[-2:]
        or cache.k.device != k.device
    ):
        rule = f"must be [..., {k.shape[-2]} heads, {k.shape[-1]}] on {k.device}, like k and v"
        raise RopeError("cache", rule, [list(cache.k.shape), list(v.shape), cache.k.device])


def _per_token(
    name: str,
    values: Tensor,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    device: torch.device,
    dtypes: tuple[torch.dtype, ...],
) -> Tensor:
    """Return `values`, which may lack leading token axes, broadcast to all tokens: contiguous
    [tokens] or [axes, tokens].

    name   of the argument, for errors
    shape  the sizes of the token axes
    axes   (number of position axes,) if `values` has such a first axis, else ()
    """
    if not isinstance(values, Tensor) or values.dtype not in dtypes or values.device != device:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        got = [values.dtype, values.device] if isinstance(values, Tensor) else values
        raise RopeError(name, f"must be an {kinds} tensor on {device}", got)
    if values.shape != (*axes, *shape):
        # how many token axes `values` has; they must be the last ones of `shape`
        given_axes = values.ndim - len(axes)
        if not 1 <= given_axes <= len(shape) or tuple(values.shape) != (
            *axes,
            *shape[len(shape) - given_axes :],
        ):
            raise RopeError(
                name, f"must be [{_shown((*axes, *shape))}] or its last axes", list(values.shape)
            )
        filled = values.reshape(
            *axes, *[1] * (len(shape) - given_axes), *shape[len(shape) - given_axes :]
        )
        values = filled.expand(*axes, *shape)
    # the kernels read neighbouring tokens from neighbouring memory, but reshape may return a view
    # with other strides
    return (values if len(shape) == 1 else values.reshape(*axes, -1)).contiguous()


def _flatten(x: Tensor) -> Tensor:
    """Return x [..., H, D] as [T, H, D], all token axes as one."""
    return x if x.ndim == 3 else x.flatten(0, -3)


def _output_tensor(q: Tensor, q_out: Tensor | None) -> Tensor:
    """Return the tensor [T, H, D] that gets the result of q: a view of `q_out`, or a new one if
    that is None.
    """
    if q_out is None:
        return torch.empty(q.shape, dtype=q.dtype, device=q.device)
    flat = _flatten(q_out)
    # another data pointer: it could not be flattened as a view, and `flat` is a copy
    if flat.shape != q.shape or flat.device != q.device or flat.data_ptr() != q_out.data_ptr():
        raise RopeError(
            "q_out",
            f"must be {list(q.shape)} on {q.device}, its tokens evenly spaced",
            list(q_out.shape),
        )
    return flat


def _unflatten(x, shape: tuple[int, ...]) -> Tensor:
    """Return x [T, H, D] with its token axis divided into the original token axes."""
    return x if len(shape) == 1 else x.unflatten(0, shape)


def _shown(sizes: tuple[int, ...]) -> str:
    """Return sizes as the beginning of a shape in an error message, such as "2, 16, "."""
    return "".join(f"{size}, " for size in sizes)
