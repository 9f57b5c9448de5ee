"""Time all plausible configurations of the rotation kernel and of the fused kernel on the GPU;
their tables in `kernels/*/config.py` were chosen from these times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import norm_rotation
from ropewalk.kernels.request import Request
from ropewalk_lab.bench.cases import BenchCase, make_case
from ropewalk_lab.bench.gpu import DECODE, ceiling_us, copies, replay_us
from ropewalk_lab.bench.rows import run_script

WARPS, TOKENS, HEADS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32)


def measure() -> Iterator[dict[str, Any]]:
    """Yield rows of the rotation kernel and of the fused kernel, the fastest configuration of each
    shape first.
    """
    for name, order in itertools.product("ABCDEF", ("bshd", "bhsd")):
        if order == "bshd" or name not in DECODE:
            yield from sweep_rotation(name, order)
    for name in norm_rotation.SHAPES:
        yield from sweep_norm_rotation(name)


def rotation_configs(order: str, pairs: int, q_heads: int, decode: bool) -> Iterator[Any]:
    """Yield configurations where a thread holds 2 to 16 pairs and a program covers contiguous
    memory.
    """
    from ropewalk.kernels.rotation.triton.config import RotationConfig

    for warps, tokens, heads in itertools.product(WARPS, TOKENS, HEADS):
        per_thread = tokens * heads * pairs / (32 * warps)
        # in "bshd" the heads of one token are contiguous, in "bhsd" the tokens of one head
        contiguous = tokens == 1 if order == "bshd" else tokens > 1 and heads <= 4
        if heads > q_heads or not 2 <= per_thread <= 16 or not contiguous:
            continue
        for q_and_k, hints in itertools.product((False, True), (False, True)):
            if (decode and hints) or (order == "bhsd" and q_and_k):
                continue
            yield RotationConfig(tokens, heads, warps, q_and_k=q_and_k, hints=hints)


def sweep_rotation(
    name: str, order: str, inplace: bool = False, variant: str = "plain"
) -> list[dict[str, Any]]:
    """Return rows with times of the rotation kernel for one shape, the fastest first."""
    from ropewalk.kernels.rotation.triton.launch import launch

    sets = copies(make_case(name, order, "cuda", variant=variant))
    case = sets[0]
    default_positions = variant == "plain" and not case.decode
    request = Request(case.spec, case.seq_dim, None if default_positions else case.positions)

    def call(case: BenchCase, config: Any) -> tuple[torch.Tensor, ...]:
        """Rotate q and k of a case by the kernel with this configuration."""
        xs = case.q, case.k
        outs = xs if inplace else tuple(map(torch.empty_like, xs))
        launch(xs, outs, request, config=config)
        return outs  # `replay_us` keeps them, so that no two calls write to the same memory

    # a partly rotated head is loaded and stored whole
    configs = rotation_configs(
        order, case.spec.head_dim // 2, case.q.shape[2 if order == "bshd" else 1], case.decode
    )
    calls = {config: [partial(call, one_set, config) for one_set in sets] for config in configs}
    return _sweep(
        {"shape": name, "order": order, "variant": variant, "pass": "sweep"},
        calls,
        ceiling_us(sets),
    )


def sweep_norm_rotation(name: str) -> list[dict[str, Any]]:
    """Return rows with times of the fused kernel for one shape, the fastest first."""
    cases = norm_rotation.make_cases(name)
    # a thread holds 16 to 64 numbers; a program of several tokens needs more threads than a head
    # has pairs
    divisions = [
        (1, heads, warps)
        for warps in (1, 2, 4, 8)
        for heads in (4, 8, 16, 32)
        if 4 <= heads / warps <= 16
    ]
    divisions += [(2, 16, 4), (4, 8, 4)]
    configs = [
        norm_rotation.NormRotationConfig(
            tokens=tokens, heads=heads, warps=warps, pdl=True, load=load, store=store
        )
        for (tokens, heads, warps), load, store in itertools.product(
            divisions, ("", "evict_first"), ("", ".cs")
        )
    ]
    calls = {config: [partial(case.run, config) for case in cases] for config in configs}
    return _sweep(
        {"shape": name, "pass": "norm+rope+cache, sweep"}, calls, norm_rotation.copy_us(cases)
    )


@torch.no_grad()
def _sweep(
    common: dict[str, Any], calls: dict[Any, list[Callable[[], Any]]], copy: float
) -> list[dict[str, Any]]:
    """Return one row per configuration, the fastest first; configurations that fail come last, with
    the error.

    common, copy  keys of every row, and the microseconds of a copy of the same bytes
    """
    rows = []
    for config, calls_of_config in calls.items():
        row = {**common, "config": str(config)}
        try:
            us = replay_us(calls_of_config, replays=7)
        except RuntimeError as error:
            rows.append({**row, "error": str(error)[:200]})
            continue
        rows.append({**row, "us": round(us, 3), "percent_of_copy": round(100 * copy / us, 1)})
    return sorted(rows, key=lambda row: row.get("us", math.inf))


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
