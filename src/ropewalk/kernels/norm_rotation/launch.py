"""Launches of the fused kernels. The forward keeps a launch plan for each combination of spec,
dtypes, strides and shapes; one plan serves several numbers of tokens. The backward has no plans.

Words of this module:
  plan     a compiled kernel with the arguments that are the same in several calls
  program  computes a block of tokens and a group of heads, in the forward of q, of k or of v
  q_block  how many heads of q a group has; k_block those of k or v
  config   how the kernel divides its work: the tokens, heads and warps of a program; None lets
           `pick_config` choose
  values   kernel arguments by name, which the kernel explains; names in capitals are constants
  HEAD     (head_dim, first rotated dim, pairs, tile width of the pairs, of the rest or 0)
  steps    the phase step of each pair: its angle per position, as an integer in units of 2^-64
           turns
  rest     the dims of a head that do not rotate
  call     a checked `NormRotationCall`, its tensors with one token axis
  cache    a `KVSlots`, or None; a slot is the place of a token in it
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.caches import Cache
from ropewalk.kernels.launch_plan import LaunchPlan
from ropewalk.kernels.norm_rotation import kernel
from ropewalk.kernels.norm_rotation.config import NormRotationConfig, pick_config
from ropewalk.kernels.norm_rotation.definition import KVSlots, LatentNorm, NormRotationCall
from ropewalk.kernels.support import has_pdl, has_sine_unit, multiprocessors, power_of_two
from ropewalk.table import TABLES, magnitude_on, tables

#: the tile of the backward kernel: the most dims of q in one program, and the dims per warp
BACKWARD_DIMS, BACKWARD_DIMS_PER_WARP = 4096, 512
BACKWARD_PROGRAMS_PER_MULTIPROCESSOR = 4

#: typed Any because type checkers do not see what triton.jit returns
_FORWARD: Any = kernel.forward
_BACKWARD: Any = kernel.backward
_PLANS = Cache("fused launch plans", entries=1024, points_into=TABLES)


def run(call: NormRotationCall, config: NormRotationConfig | None = None) -> None:
    """Write the outputs and the cache of a call in one launch. The first call of a kind compiles
    the kernel and makes its tables; later calls do not synchronise with the GPU, so a CUDA graph
    can capture them.
    """
    tokens = call.q.shape[0]
    if not tokens:
        return
    if config is None:
        config = pick_config(tokens, max(call.q.shape[1], call.k.shape[1]), call.spec.head_dim)
    tensors = changing_tensors(call)
    norm = () if call.norm is None else (type(call.norm), call.norm.eps, call.norm.plus_one)
    # everything that a plan and its compiled kernel depend on: dtypes, strides, the alignment of
    # pointers, and how many tokens the last block has
    signature = (
        call.spec.fingerprint,
        call.q.device,
        call.q.shape[1:],
        call.k.shape[1],
        tokens % config.tokens,
        config,
        norm,
    )
    signature += tuple(
        None if t is None else (t.dtype, t.stride(), t.data_ptr() % 16) for t in tensors
    )
    signature += (None if call.cache is None else call.cache.k.shape,)
    plan = _PLANS.get(signature)
    if plan is None:
        plan = _PLANS.keep(signature, _ForwardPlan(call, config))
    plan(tensors, tokens)


def changing_tensors(call: NormRotationCall) -> tuple[Tensor | None, ...]:
    """Return the first kernel arguments: the tensors, which change from call to call."""
    cache = call.cache
    stores, scales = (
        ((None, None), (None, None)) if cache is None else ((cache.k, cache.v), cache.scales)
    )
    return (
        call.q,
        call.k,
        call.v,
        call.q_out,
        call.k_out,
        *stores,
        *call.weights,
        *scales,
        call.positions,
        call.slots,
    )


class _ForwardPlan(LaunchPlan):
    """The launch plan of the forward for calls with the same shapes, strides and spec; their
    numbers of tokens may differ by multiples of the tokens of a program, so the last block of
    tokens is equally full in all of them.
    """

    def __init__(self, call: NormRotationCall, config: NormRotationConfig) -> None:
        """Collect the kernel arguments that all these calls share; those up to `tokens` change."""
        values = forward_values(call, config)
        super().__init__(
            _FORWARD, values, _FORWARD.arg_names.index("tokens") + 1, call.q.device, config.warps
        )
        # programs for each block of tokens: one for each group of heads of q, of k, and of v if v
        # is stored; v is divided like k
        q_groups, k_groups = (
            -(-values[f"{name}_HEADS"] // values[f"BLOCK_{name}"]) for name in ("Q", "K")
        )
        self.groups = q_groups + (2 if values["VALUES"] else 1) * k_groups
        self.tokens_per_program = config.tokens

    def __call__(self, tensors: tuple[Tensor | None, ...], tokens: int) -> None:
        """Launch the kernel for `tokens` tokens; the first call compiles it."""
        grid = (-(-tokens // self.tokens_per_program) * self.groups, 1, 1)
        if self.can_start:
            self.start(grid, (*[None if t is None else t.data_ptr() for t in tensors], tokens))
        else:
            self.launch(grid, (*tensors, tokens))


def forward_values(call: NormRotationCall, config: NormRotationConfig) -> dict[str, Any]:
    """Return every argument of `kernel.forward` after `tokens`, by name."""
    cache = call.cache
    k_slots, v_slots, page_size = cache_strides(cache)
    # the number of heads of q, and of k or v, in one program
    q_block, k_block = (min(config.heads, power_of_two(x.shape[1])) for x in (call.q, call.k))
    values = _angle_values(call) | _head_values(call, q_block, k_block)
    return values | {
        **_strides(q=call.q, k=call.k, v=call.v, q_out=call.q_out, k_out=call.k_out),
        **dict(
            zip(
                ("k_page", "k_row", "k_slot_head", "v_page", "v_row", "v_slot_head"),
                k_slots + v_slots,
                strict=True,
            )
        ),
        "num_slots": 0 if cache is None else cache.num_slots,
        "PAGE_SIZE": page_size,
        "CACHE": cache is not None,
        "QUANTISED": cache is not None and cache.quantised,
        "KEEP_K": call.k_out is not None,
        "MAGNITUDE": (values["q_magnitude"], values["k_magnitude"]) != (1.0, 1.0),
        "QUICK": has_sine_unit(call.q),
        # compute the angles once for each head: if a program has no more threads than pairs, that
        # is cheaper than sharing the angles through shared memory
        "SPREAD": 32 * config.warps <= power_of_two(call.spec.pairs),
        "BLOCK_DIM": power_of_two(call.spec.head_dim),
        "TOKENS": config.tokens,
        "MASK_TOKENS": call.q.shape[0] % config.tokens != 0,
        "EVICT": config.load,
        "STORE": config.store,
        "PDL": config.pdl and has_pdl(call.q.device),
        "LATENT": isinstance(call.norm, LatentNorm),
        "VALUES": cache is not None and cache.v is not None,
    }


def _angle_values(call: NormRotationCall) -> dict[str, Any]:
    """Return the kernel arguments that define the angles and the magnitudes, by name; `steps` has
    the phase step of each pair, its angle per position in units of 2^-64 turns.
    """
    spec, spec_tables = call.spec, tables(call.spec, call.q.device)
    q_magnitude, k_magnitude = (
        float(magnitude_on(spec, spec_tables.frequencies.magnitude, is_key))
        for is_key in (False, True)
    )
    axis_stride = call.positions.stride(0) if spec.num_axes > 1 else 0
    return {
        "steps": spec_tables.steps, "q_magnitude": q_magnitude, "k_magnitude": k_magnitude,
        "AXES": spec.num_axes, "axis_of_pair": spec_tables.axis_of_pair, "axis_stride": axis_stride,
    }  # fmt: skip


def _head_values(call: NormRotationCall, q_block: int, k_block: int) -> dict[str, Any]:
    """Return, by name, the kernel arguments that describe a head, its norm, and how many heads of q
    and of k there are and one program has.
    """
    spec = call.spec
    rest = spec.head_dim - 2 * spec.pairs  # the dims that do not rotate
    return {
        "Q_HEADS": call.q.shape[1],
        "K_HEADS": call.k.shape[1],
        "BLOCK_Q": q_block,
        "BLOCK_K": k_block,
        "HEAD": (
            spec.head_dim,
            spec.rotary_start,
            spec.pairs,
            power_of_two(spec.pairs),
            power_of_two(rest) if rest else 0,
        ),
        "INTERLEAVED": spec.layout == "interleaved",
        "INTERLEAVED_OUT": spec.output_layout == "interleaved",
        "NORM": call.head_norm is not None,
        "eps": 0.0 if call.norm is None else call.norm.eps,
        "WEIGHT": call.weight_form,
    }


def _strides(**tensors: Tensor | None) -> dict[str, int]:
    """Return the (token, head) strides of tensors [T, H, D] by kernel argument name."""
    strides = {}
    for name, x in tensors.items():
        strides[f"{name}_token"], strides[f"{name}_head"] = (0, 0) if x is None else x.stride()[:2]
    return strides


def cache_strides(cache: KVSlots | None) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the (page, row, head) strides of k and of v, and the page size for the kernel: 1 if
    all slots are evenly spaced.
    """
    if cache is None:
        return (0, 0, 0), (0, 0, 0), 1
    # without a v cache the strides of k take the place of those of v, and are not used
    k, v = cache.k.stride()[:-1], (cache.k if cache.v is None else cache.v).stride()[:-1]
    # with a page size of 1 every slot is a page: the page stride is that from slot to slot, and the
    # row stride has no effect
    if cache.k.ndim == 3:
        return (k[0], 0, k[1]), (v[0], 0, v[1]), 1
    # pages that follow one another without a gap: their slots are evenly spaced
    if all(page == cache.page_size * row for page, row, _ in (k, v)):
        return (k[1], 0, k[2]), (v[1], 0, v[2]), 1
    return k, v, cache.page_size


def run_backward(
    call: NormRotationCall, q_grad: Tensor, k_grad: Tensor, weight_grad: bool
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k and of the two weights, with one launch and one sum; those of
    the weights are None unless `weight_grad`.
    """
    tokens = call.q.shape[0]
    # `workers` programs for each group of heads share the tokens; each writes its partial sums of
    # the weight gradients
    groups, warps = backward_blocks(call)
    workers = min(
        tokens, -(-BACKWARD_PROGRAMS_PER_MULTIPROCESSOR * multiprocessors(call.q.device) // groups)
    )
    dq, dk = torch.empty_like(call.q), torch.empty_like(call.k)
    parts = (
        call.q.new_empty((workers * groups, 2, call.spec.head_dim), dtype=torch.float32)
        if weight_grad
        else None
    )
    if tokens:
        tensors = (
            call.q,
            call.k,
            q_grad,
            k_grad,
            dq,
            dk,
            *call.weights,
            parts,
            call.positions,
            tokens,
        )
        values = backward_values(call, q_grad, k_grad, dq, dk, groups)
        with torch.cuda.device_of(call.q):
            _BACKWARD[(workers * groups,)](
                *tensors, **values, WEIGHT_GRAD=weight_grad, num_warps=warps
            )
    if parts is None:
        return dq, dk, None, None
    q_weight, k_weight = call.weights  # given if `weight_grad`
    dq_weight, dk_weight = parts.sum(0)
    return dq, dk, dq_weight.to(q_weight.dtype), dk_weight.to(k_weight.dtype)  # type: ignore[union-attr]


def backward_blocks(call: NormRotationCall) -> tuple[int, int]:
    """Return into how many groups the heads are divided, and the warps of a program (at most 8),
    which processes one group of heads of q and one of k.
    """
    spec, q_heads = call.spec, call.q.shape[1]
    rest = spec.head_dim - 2 * spec.pairs  # the dims that do not rotate
    width = 2 * power_of_two(spec.pairs) + (power_of_two(rest) if rest else 0)
    # a head with more dims than a program should have is alone
    most_heads = max(1, BACKWARD_DIMS // width)
    # the largest power of two up to `most_heads`
    heads = min(power_of_two(q_heads), 1 << (most_heads.bit_length() - 1))
    return power_of_two(-(-q_heads // heads)), min(
        8, power_of_two(max(1, heads * width // BACKWARD_DIMS_PER_WARP))
    )


def backward_values(
    call: NormRotationCall, q_grad: Tensor, k_grad: Tensor, dq: Tensor, dk: Tensor, groups: int
) -> dict[str, Any]:
    """Return every argument of `kernel.backward` after `tokens` except WEIGHT_GRAD, by name. A
    block has one token, so no block is partly empty.
    """
    strides = _strides(q=call.q, k=call.k, q_grad=q_grad, k_grad=k_grad, dq=dq, dk=dk)
    q_block, k_block = (power_of_two(-(-x.shape[1] // groups)) for x in (call.q, call.k))
    heads = _head_values(call, q_block, k_block)
    return (
        _angle_values(call)
        | heads
        | strides
        | {"GROUPS": groups, "TOKENS": 1, "MASK_TOKENS": False}
    )
