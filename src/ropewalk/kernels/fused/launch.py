"""From a checked call to a launch: planned once for every kind of call, then only pointers change."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from ropewalk.kernels.fused import kernel as fused_kernel
from ropewalk.kernels.fused.config import Config, has_pdl, pick_config
from ropewalk.kernels.fused.definition import Call, KVSlots
from ropewalk.kernels.triton.backend import has_sine_unit
from ropewalk.kernels.triton.tuning import power
from ropewalk.table import magnitude_on, tables

#: kinds of calls that are remembered
MOST_PLANS = 1024
#: how a compiled kernel is started is Triton's own business; elsewhere its ordinary launch is used
DIRECT = triton.__version__.startswith("3.6.") and not knobs.runtime.interpret
#: the backward's tile: dims of q that one program holds at most, and that one warp does
BACKWARD_DIMS, BACKWARD_DIMS_A_WARP = 4096, 512
BACKWARD_PROGRAMS_AN_SM = 4

#: typed as what Triton makes of them, which type checkers cannot see
_FORWARD: Any = fused_kernel.forward
_BACKWARD: Any = fused_kernel.backward
_PLANS: dict[tuple, Plan] = {}


def run(call: Call, config: Config | None = None) -> None:
    """Fill the outputs and the cache of a call in one launch; nothing is read back, so a CUDA graph can capture it."""
    tokens = call.q.shape[0]
    if not tokens:
        return
    if config is None:
        config = pick_config(tokens, max(call.q.shape[1], call.k.shape[1]), call.spec.head_dim)
    tensors = _tensors(call)
    key = (call.spec.fingerprint, call.q.device, call.q.shape[1:], call.k.shape[1], tokens % config.tokens, config, _norm(call))
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
    cache = call.cache
    stores, scales = ((None, None), (None, None)) if cache is None else ((cache.k, cache.v), cache.scales)
    return (call.q, call.k, call.v, call.q_out, call.k_out, *stores, *call.weights, *scales, call.positions, call.slots)


def _norm(call: Call) -> tuple:
    return () if call.norm is None else (call.norm.eps, call.norm.plus_one)


class Plan:
    """One kind of call: its constants and, once compiled, its kernel."""

    def __init__(self, call: Call, config: Config) -> None:
        values = forward_values(call, config)
        tokens_at = _FORWARD.arg_names.index("tokens")
        self.rest = tuple(values[name] for name in _FORWARD.arg_names[tokens_at + 1 :])
        self.options = {"num_warps": config.warps, **({"launch_pdl": True} if values["PDL"] else {})}
        kinds = (("Q", 1), ("K", 1 if call.cache is None else 2))
        self.groups = sum(times * -(-values[f"{kind}_HEADS"] // values[f"BLOCK_{kind}"]) for kind, times in kinds)
        self.tokens = config.tokens
        self.device_index = call.q.device.index
        self.kernel: Any = None

    def __call__(self, tensors: tuple[Tensor | None, ...], tokens: int) -> None:
        programs = -(-tokens // self.tokens) * self.groups
        if self.kernel is None or knobs.runtime.launch_enter_hook.calls:
            with torch.cuda.device_of(tensors[0]):
                kernel = _FORWARD[(programs,)](*tensors, tokens, *self.rest, **self.options)
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


def forward_values(call: Call, config: Config) -> dict[str, Any]:
    """Every argument of `fused_kernel.forward` after `tokens`, by name."""
    cache = call.cache
    k_slots, v_slots, page_size = cache_strides(cache)
    values = _angle_values(call) | _head_values(call, *(min(config.heads, power(x.shape[1])) for x in (call.q, call.k)))
    values |= {
        "num_slots": 0 if cache is None else cache.num_slots,
        **_strides(q=call.q, k=call.k, v=call.v, q_out=call.q_out, k_out=call.k_out),
        **dict(zip(("k_page", "k_row", "k_slot_head", "v_page", "v_row", "v_slot_head"), k_slots + v_slots, strict=True)),
        "MAGNITUDE": (values["q_magnitude"], values["k_magnitude"]) != (1.0, 1.0),
        "SPREAD": 32 * config.warps <= power(call.spec.pairs),
        "QUICK": has_sine_unit(call.q),
        "CACHE": cache is not None,
        "QUANTISED": cache is not None and cache.quantised,
        "KEEP_K": call.k_out is not None,
        "PAGE_SIZE": page_size,
        "TOKENS": config.tokens,
        "BLOCK_DIM": power(call.spec.head_dim),
        "MASK_TOKENS": call.q.shape[0] % config.tokens != 0,
        "EVICT": config.load,
        "STORE": config.store,
        "PDL": config.pdl and has_pdl(call.q.device),
    }
    return values


def _angle_values(call: Call) -> dict[str, Any]:
    spec, kept = call.spec, tables(call.spec, call.q.device)
    q_magnitude, k_magnitude = (float(magnitude_on(spec, kept.frequencies.magnitude, key)) for key in (False, True))
    return {
        "steps": kept.steps,
        "axis_of_pair": kept.axis_of_pair,
        "axis_stride": call.positions.stride(0) if spec.num_axes > 1 else 0,
        "q_magnitude": q_magnitude,
        "k_magnitude": k_magnitude,
        "AXES": spec.num_axes,
    }


def _head_values(call: Call, q_block: int, k_block: int) -> dict[str, Any]:
    spec, norm = call.spec, call.norm
    rest = spec.head_dim - 2 * spec.pairs
    return {
        "eps": 0.0 if norm is None else norm.eps,
        "Q_HEADS": call.q.shape[1],
        "K_HEADS": call.k.shape[1],
        "HEAD": (spec.head_dim, spec.rotary_start, spec.pairs, power(spec.pairs), power(rest) if rest else 0),
        "INTERLEAVED": spec.layout == "interleaved",
        "INTERLEAVED_OUT": spec.layout_out == "interleaved",
        "NORM": norm is not None,
        "WEIGHT": "" if norm is None or norm.q_weight is None else "1+w" if norm.plus_one else "w",
        "BLOCK_Q": q_block,
        "BLOCK_K": k_block,
    }


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
    tokens = call.q.shape[0]
    groups, warps = backward_division(call)
    workers = min(tokens, -(-BACKWARD_PROGRAMS_AN_SM * _processors(call.q.device) // groups))
    dq, dk = torch.empty_like(call.q), torch.empty_like(call.k)
    shares = call.q.new_empty((workers * groups, 2, call.spec.head_dim), dtype=torch.float32) if weight_grad else None
    if tokens:
        tensors = (call.q, call.k, q_grad, k_grad, dq, dk, *call.weights, shares, call.positions, tokens)
        values = backward_values(call, q_grad, k_grad, dq, dk, groups)
        with torch.cuda.device_of(call.q):
            _BACKWARD[(workers * groups,)](*tensors, **values, WEIGHT_GRAD=weight_grad, num_warps=warps)
    if shares is None:
        return dq, dk, None, None
    total = shares.sum(0)
    return dq, dk, *(total[i].to(weight.dtype) for i, weight in enumerate(call.weights) if weight is not None)


def backward_division(call: Call) -> tuple[int, int]:
    """Groups of heads, and warps of a program."""
    spec, q_heads = call.spec, call.q.shape[1]
    rest = spec.head_dim - 2 * spec.pairs
    width = 2 * power(spec.pairs) + (power(rest) if rest else 0)
    room = max(1, BACKWARD_DIMS // width)
    heads = min(power(q_heads), 1 << (room.bit_length() - 1))
    return power(-(-q_heads // heads)), min(8, power(max(1, heads * width // BACKWARD_DIMS_A_WARP)))


def backward_values(call: Call, q_grad: Tensor, k_grad: Tensor, dq: Tensor, dk: Tensor, groups: int) -> dict[str, Any]:
    """Every argument of `fused_kernel.backward` after `tokens` but WEIGHT_GRAD, by name; one token at a time."""
    strides = _strides(q=call.q, k=call.k, q_grad=q_grad, k_grad=k_grad, dq=dq, dk=dk)
    blocks = (power(-(-x.shape[1] // groups)) for x in (call.q, call.k))
    return _angle_values(call) | _head_values(call, *blocks) | strides | {"GROUPS": groups, "TOKENS": 1, "MASK_TOKENS": False}


@lru_cache(maxsize=64)
def _processors(where: torch.device) -> int:
    return torch.cuda.get_device_properties(where).multi_processor_count if where.type == "cuda" else 1
