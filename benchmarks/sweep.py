"""Time all plausible configurations of the rotation kernel, of the fused kernel and of the QKV
product on the GPU; the tables of configurations in `ropewalk/kernels/` were chosen from these
times.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

import norm_rotation
from projection import SHAPES, Projection
from ropewalk.kernels.decode_step.config import ProductTile
from ropewalk.kernels.decode_step.workspace import kept_workspace
from ropewalk.kernels.request import Request
from ropewalk.kernels.support import power_of_two
from ropewalk_lab.bench.cases import BenchCase, make_case
from ropewalk_lab.bench.gpu import DECODE, ceiling_us, copies, replay_us
from ropewalk_lab.bench.rows import run_script

#: the models, numbers of rows and tiles for which the QKV product is timed
QKV_SHAPES = (
    "Qwen3-0.6B", "Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen3-4B", "Gemma-3-4B", "Qwen3-30B-A3B",
    "Qwen2.5-7B", "Llama-3-8B", "SmolLM2-135M", "Falcon3-7B", "gpt-oss-20b", "Phi-2",
)  # fmt: skip
QKV_ROWS = (80, 128, 192, 256)
QKV_TILES = (
    ProductTile(64, 16, 128, 6), ProductTile(64, 16, 64, 8), ProductTile(64, 32, 128, 4),
    ProductTile(64, 32, 64, 6), ProductTile(64, 64, 64, 5), ProductTile(128, 32, 64, 5),
    ProductTile(128, 32, 64, 5, 8), ProductTile(128, 64, 64, 4, 8),
)  # fmt: skip
WARPS, TOKENS, HEADS = (1, 2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16, 32)


def measure() -> Iterator[dict[str, Any]]:
    """Yield rows of the rotation kernel, the fused kernel and the QKV product, the fastest
    configuration of each shape first.
    """
    for name, order in itertools.product("ABCDEF", ("bshd", "bhsd")):
        if order == "bshd" or name not in DECODE:
            yield from sweep_rotation(name, order)
    for name in norm_rotation.SHAPES:
        yield from sweep_norm_rotation(name)
    for name, rows in itertools.product(QKV_SHAPES, QKV_ROWS):
        yield from sweep_qkv(name, rows)


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
def sweep_qkv(name: str, rows: int) -> list[dict[str, Any]]:
    """Return rows with times of `qkv_product` for one model and number of rows, the fastest first;
    one of them is the library's product and a second launch.
    """
    from ropewalk.kernels.qkv.launch import qkv_product

    case = Projection(rows, SHAPES[name])
    heads, dims = case.shape.q_heads, case.shape.head_dim
    head_norm = case.norm if case.shape.norm else None

    def call(tile: ProductTile, i: int) -> torch.Tensor:
        """Compute q of the i-th inputs, and fill the cache, with this tile."""
        q = case.xs[i].new_empty(rows, heads, dims)
        whole = -(-rows // tile.rows) * tile.rows
        memory = kept_workspace(whole, heads, case.shape.k_heads, dims, q.device)
        where = case.cache, case.slots, case.positions, case.spec
        options = {"bias": case.bias, "head_norm": head_norm, "workspace": memory, "tile": tile}
        qkv_product(case.xs[i], case.weights[i], q, *where, **options)
        return q

    every = range(case.count)
    calls: dict[Any, list[Callable[[], Any]]] = {
        tile: [partial(call, tile, i) for i in every]
        for tile in QKV_TILES
        if tile.columns <= max(16, power_of_two(dims) // 2)
    }
    way = partial(case.inside, norm=case.shape.norm, backend="definition")
    calls["two launches"] = [partial(way, i) for i in every]
    product = replay_us([partial(case.product, i) for i in every], replays=7)
    return _sweep({"shape": name, "rows": rows, "pass": "qkv, sweep"}, calls, product)


@torch.no_grad()
def _sweep(
    common: dict[str, Any], calls: dict[Any, list[Callable[[], Any]]], copy: float
) -> list[dict[str, Any]]:
    """Return one row per configuration, the fastest first; configurations that fail come last, with
    the error.

    common, copy  keys of every row, and the microseconds of a copy of the same bytes; for QKV, of
                  the library's product alone
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
