"""From a checked call to a launch: planned once for every kind of call, then only pointers change."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from ropewalk.kernels import fused_kernel as device
from ropewalk.kernels.fused_config import Config, has_pdl, pick_config
from ropewalk.kernels.fused_definition import Call, KVSlots
from ropewalk.kernels.triton_sources import _levels
from ropewalk.spec import RopeSpec
from ropewalk.table import CACHE, cos_sin, magnitude_on, tables

#: the float32 rows kept for the "table" form of one spec, in bytes; positions beyond them use the phase
TABLE_BYTES = 16 << 20
#: kinds of calls that are remembered
MOST_PLANS = 1024
#: how a compiled kernel is started is Triton's own business; elsewhere its ordinary launch is used
DIRECT = triton.__version__.startswith("3.6.") and not knobs.runtime.interpret
#: the backward's tile: pairs x heads that one program holds, and pairs that one warp does
BACKWARD_PAIRS, BACKWARD_PAIRS_A_WARP = 4096, 512
BACKWARD_PROGRAMS_AN_SM = 4

_PLANS: dict[tuple, Plan] = {}


def run(call: Call, config: Config | None = None) -> None:
    """Fill the outputs and the cache of a call in one launch; nothing is read back, so a CUDA graph can capture it."""
    tokens = call.q.shape[0]
    if not tokens:
        return
    config = pick_config(tokens, call.spec.num_axes) if config is None else config
    tensors = _tensors(call)
    key = (call.spec.key, call.q.device, call.q.shape[1:], call.k.shape[1], tokens % config.tokens, config, _norm(call))
    key += tuple(None if t is None else (t.dtype, t.stride(), t.data_ptr() % 16) for t in tensors)
    key += (None if call.cache is None else call.cache.k.shape,)
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= MOST_PLANS:
            _PLANS.clear()
        plan = _PLANS[key] = Plan(call, config)
    plan(tensors, tokens)


def _tensors(call: Call) -> tuple[Tensor | None, ...]:
    """The kernel's first arguments, which change from call to call."""
    caches = (None,) * 4 if call.cache is None else (call.cache.k, call.cache.v, call.cache.k_scale, call.cache.v_scale)
    return (call.q, call.k, call.v, call.q_out, call.k_out, *caches[:2], *call.weights, *caches[2:], call.positions, call.slots)


def _norm(call: Call) -> tuple:
    return () if call.norm is None else (call.norm.eps, call.norm.plus_one)


class Plan:
    """One kind of call: its constants and, once compiled, its kernel."""

    def __init__(self, call: Call, config: Config) -> None:
        values = forward_values(call, config)
        tokens_at = device.forward.arg_names.index("tokens")
        self.rest = tuple(values[name] for name in device.forward.arg_names[tokens_at + 1 :])
        self.options = {"num_warps": config.warps, **({"launch_pdl": True} if values["PDL"] else {})}
        self.tokens, self.groups = config.tokens, config.groups
        self.device_index = call.q.device.index
        self.kernel: Any = None

    def __call__(self, tensors: tuple[Tensor | None, ...], tokens: int) -> None:
        programs = -(-tokens // self.tokens) * self.groups
        if self.kernel is None or knobs.runtime.launch_enter_hook.calls:
            with torch.cuda.device_of(tensors[0]):
                kernel = device.forward[(programs,)](*tensors, tokens, *self.rest, **self.options)
            self.kernel = kernel if DIRECT else None
        elif torch._C._cuda_getDevice() != self.device_index:
            with torch.cuda.device_of(tensors[0]):
                self._start(programs, tensors, tokens)
        else:
            self._start(programs, tensors, tokens)

    def _start(self, programs: int, tensors: tuple[Tensor | None, ...], tokens: int) -> None:
        """What Triton's own launch does in the end, without binding, hashing and checking arguments first."""
        kernel = self.kernel
        stream = torch._C._cuda_getCurrentRawStream(self.device_index)
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        kernel.run(
            programs, 1, 1, stream, kernel.function, kernel.packed_metadata, None, None, None, *pointers, tokens, *self.rest
        )


def angle_table(spec: RopeSpec, where: torch.device, angles: str) -> Tensor | None:
    """What a form of angles reads: rows of cos and sin, float32 [rows, 2, pairs], or the two levels; no magnitude."""
    if angles == "phase":
        return None
    if angles == "levels":
        return _levels(spec, where)
    rows = max(1, TABLE_BYTES // (8 * spec.pairs))
    build = lambda: torch.stack(cos_sin(spec, torch.arange(rows, device=where), gain=0), dim=1)  # noqa: E731
    return CACHE.get((spec.key, where, "fused rows"), build, lambda table: 4 * table.numel())


def forward_values(call: Call, config: Config) -> dict[str, Any]:
    """Every argument of `fused_kernel.forward` after `tokens`, by name."""
    cache, norm = call.cache, call.norm
    table = angle_table(call.spec, call.q.device, config.angles)
    reach = 0 if table is None else len(table) if config.angles == "table" else table.shape[1] ** 2
    k_slots, v_slots, page_size = cache_strides(cache)
    values = _angle_values(call) | _head_values(call, config.groups)
    values |= dict(
        table=table,
        reach=reach,
        num_slots=0 if cache is None else cache.num_slots,
        **_strides(q=call.q, k=call.k, v=call.v, q_out=call.q_out, k_out=call.k_out),
        **dict(zip(("k_page", "k_row", "k_slot_head", "v_page", "v_row", "v_slot_head"), k_slots + v_slots, strict=True)),
        MAGNITUDE=(values["q_magnitude"], values["k_magnitude"]) != (1.0, 1.0),
        ANGLES=config.angles,
        CACHE=cache is not None,
        QUANTISED=cache is not None and cache.quantised,
        KEEP_K=call.k_out is not None,
        PAGE_SIZE=page_size,
        TOKENS=config.tokens,
        BLOCK_DIM=_power(call.spec.head_dim),
        MASK_TOKENS=call.q.shape[0] % config.tokens != 0,
        EVICT=config.load,
        STORE=config.store,
        PDL=config.pdl and has_pdl(call.q.device),
    )
    return values


def _angle_values(call: Call) -> dict[str, Any]:
    spec, kept = call.spec, tables(call.spec, call.q.device)
    q_magnitude, k_magnitude = (float(magnitude_on(spec, kept.frequencies.magnitude, key)) for key in (False, True))
    return dict(
        steps=kept.steps,
        axis_of_pair=kept.axis_of_pair,
        axis_stride=call.positions.stride(0) if spec.num_axes > 1 else 0,
        q_magnitude=q_magnitude,
        k_magnitude=k_magnitude,
        AXES=spec.num_axes,
    )


def _head_values(call: Call, groups: int) -> dict[str, Any]:
    spec, norm = call.spec, call.norm
    rest = spec.head_dim - 2 * spec.pairs
    q_heads, k_heads = call.q.shape[1], call.k.shape[1]
    return dict(
        eps=0.0 if norm is None else norm.eps,
        Q_HEADS=q_heads,
        K_HEADS=k_heads,
        HEAD=(spec.head_dim, spec.rotary_start, spec.pairs, _power(spec.pairs), _power(rest) if rest else 0),
        INTERLEAVED=spec.layout == "interleaved",
        INTERLEAVED_OUT=spec.layout_out == "interleaved",
        NORM=norm is not None,
        WEIGHT="" if norm is None or norm.q_weight is None else "1+w" if norm.plus_one else "w",
        GROUPS=groups,
        BLOCK_Q=_power(-(-q_heads // groups)),
        BLOCK_K=_power(-(-k_heads // groups)),
    )


def _strides(**tensors: Tensor | None) -> dict[str, int]:
    """(token, head) strides of [T, H, D] by the kernel's names."""
    axes = ("token", "head")
    return {f"{name}_{axis}": 0 if x is None else x.stride(i) for name, x in tensors.items() for i, axis in enumerate(axes)}


def cache_strides(cache: KVSlots | None) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """(page, row, head) strides of k and of v, and the page size the kernel divides by: 1 where slots are evenly spaced."""
    if cache is None:
        return (0, 0, 0), (0, 0, 0), 1
    k, v = cache.k.stride()[:-1], cache.v.stride()[:-1]
    if cache.k.ndim == 3:
        return (k[0], 0, k[1]), (v[0], 0, v[1]), 1
    if all(page == cache.page_size * row for page, row, _ in (k, v)):
        return (k[1], 0, k[2]), (v[1], 0, v[2]), 1
    return k, v, cache.page_size


def run_backward(call: Call, q_grad: Tensor, k_grad: Tensor, weight_grad: bool) -> tuple[Tensor | None, ...]:
    """Gradients of q, k and, where asked for, of the two weights; one launch and one sum."""
    tokens, q_heads = call.q.shape[:2]
    heads = max(1, min(_power(q_heads), BACKWARD_PAIRS // _power(call.spec.pairs)))
    groups = _power(-(-q_heads // heads))
    workers = min(tokens, -(-BACKWARD_PROGRAMS_AN_SM * _processors(call.q.device) // groups))
    dq, dk = torch.empty_like(call.q), torch.empty_like(call.k)
    shares = call.q.new_empty((workers * groups, 2, call.spec.head_dim), dtype=torch.float32) if weight_grad else None
    if tokens:
        tensors = (call.q, call.k, q_grad, k_grad, dq, dk, *call.weights, shares, call.positions, tokens)
        warps = min(8, max(1, _power(heads * _power(call.spec.pairs) // BACKWARD_PAIRS_A_WARP)))
        values = backward_values(call, q_grad, k_grad, dq, dk, groups)
        with torch.cuda.device_of(call.q):
            device.backward[(workers * groups,)](*tensors, **values, WEIGHT_GRAD=weight_grad, num_warps=warps)
    if shares is None:
        return dq, dk, None, None
    total = shares.sum(0)
    return dq, dk, *(total[i].to(weight.dtype) for i, weight in enumerate(call.weights) if weight is not None)


def backward_values(call: Call, q_grad: Tensor, k_grad: Tensor, dq: Tensor, dk: Tensor, groups: int) -> dict[str, Any]:
    """Every argument of `fused_kernel.backward` after `tokens` but WEIGHT_GRAD, by name; one token at a time."""
    strides = _strides(q=call.q, k=call.k, q_grad=q_grad, k_grad=k_grad, dq=dq, dk=dk)
    return _angle_values(call) | _head_values(call, groups) | strides | dict(TOKENS=1, MASK_TOKENS=False)


@lru_cache(maxsize=64)
def _processors(where: torch.device) -> int:
    return torch.cuda.get_device_properties(where).multi_processor_count if where.type == "cuda" else 1


def _power(n: int) -> int:
    """The power of two that holds n."""
    return 1 << (n - 1).bit_length()
