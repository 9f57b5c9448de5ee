"""GPU timings of the fused QK-norm + RoPE + cache write, beside one flat copy of the packed qkv it reads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.bench.gpu import COLD_BYTES, against, replay_us
from ropewalk.kernels.fused.api import Config, KVSlots, QKNorm, qk_norm_rope
from ropewalk.spec import RopeSpec

#: tokens, query heads, key heads
CASES = {"T64": (64, 32, 8), "T256": (256, 64, 8), "T8192": (8192, 32, 8)}
HEAD_DIM = 128


@dataclass(frozen=True, eq=False)
class FusedCase:
    """One packed qkv, its positions, slots and cache."""

    qkv: Tensor
    positions: Tensor
    slots: Tensor
    cache: KVSlots
    norm: QKNorm
    heads: tuple[int, int]

    def run(self, config: Config | None = None, backend: str | None = None, norm: bool = True):
        """q, normed and turned; k and v go to the cache."""
        spec, used = RopeSpec(head_dim=HEAD_DIM), self.norm if norm else None
        return qk_norm_rope(
            self.qkv, spec=spec, positions=self.positions, heads=self.heads, norm=used, cache=self.cache, slots=self.slots,
            backend=backend, config=config,
        )  # fmt: skip


def make(name: str) -> list[FusedCase]:
    """As many sets as it takes to leave the cache behind."""
    tokens, q_heads, k_heads = CASES[name]
    width = (q_heads + 2 * k_heads) * HEAD_DIM
    count = max(2, min(200, -(-COLD_BYTES // (2 * tokens * width))))
    q_weight, k_weight = (torch.randn(HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def one() -> FusedCase:
        k, v = (torch.zeros(tokens, k_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return FusedCase(
            torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16),
            torch.randint(0, 4000, (tokens,), device="cuda"),
            torch.randperm(tokens, device="cuda"),
            KVSlots(k, v),
            QKNorm(q_weight, k_weight),
            (q_heads, k_heads),
        )

    return [one() for _ in range(count)]


def agrees(case: FusedCase) -> bool:
    """The kernel's q and cache within bfloat16's rounding of the definition's."""
    case.cache.k.zero_()
    q: Tensor = case.run(backend="triton")  # type: ignore[assignment]  # one tensor, with a cache
    k = case.cache.k.clone()
    case.cache.k.zero_()
    expected: Tensor = case.run(backend="definition")  # type: ignore[assignment]
    return all(
        bool(((a - b).abs() <= 0.01 * b.abs() + 1e-2).all())
        for a, b in ((q.float(), expected.float()), (k.float(), case.cache.k.float()))
    )


def ceiling_us(sets: list[FusedCase]) -> float:
    """One flat copy of the packed qkv."""
    targets = [torch.empty_like(case.qkv) for case in sets]
    return replay_us([lambda a=case.qkv, b=target: b.copy_(a) for case, target in zip(sets, targets, strict=True)])


def measure() -> Iterator[dict[str, Any]]:
    """Rows for the kernel with and without the norm, and for the definition in plain torch."""
    with torch.no_grad():
        for name in CASES:
            sets = make(name)
            row = {"shape": name, "order": "packed qkv", "dtype": "bfloat16", "pass": "norm+rope+cache"}
            if not agrees(sets[0]):
                yield {**row, "contender": "ropewalk, fused", "skipped": "does not agree with the definition"}
                continue
            ways: dict[str, Callable[[FusedCase], Any]] = {
                "ropewalk, fused": lambda case: case.run(),
                "ropewalk, fused without norm": lambda case: case.run(norm=False),
                "ropewalk, plain torch": lambda case: case.run(backend="definition"),
            }
            for contender, way in ways.items():
                calls = [lambda case=case, way=way: way(case) for case in sets]
                yield {**row, "contender": contender, **against(calls, partial(ceiling_us, sets))}


def sweep(name: str) -> list[dict[str, Any]]:
    """Every configuration worth a try for one case, fastest first: what `kernels/fused_config.py` is filled from."""
    sets, found = make(name), []
    copy = ceiling_us(sets)
    # a thread holds 16 to 64 numbers; several tokens want more threads than pairs
    divisions = [(1, heads, warps) for warps in (1, 2, 4, 8) for heads in (4, 8, 16, 32) if 4 <= heads / warps <= 16]
    divisions += [(2, 16, 4), (4, 8, 4)]
    hints = itertools.product(("", "evict_first"), ("", ".cs"))
    for (tokens, heads, warps), (load, store) in itertools.product(divisions, hints):
        config = Config(tokens=tokens, heads=heads, warps=warps, pdl=True, load=load, store=store)
        try:
            with torch.no_grad():
                us = replay_us([lambda case=case, config=config: case.run(config) for case in sets], replays=7)
        except RuntimeError as error:
            found.append({"config": str(config), "us": float("inf"), "error": str(error)[:200]})
            continue
        found.append({"config": str(config), "us": round(us, 3), "percent_of_copy": round(100 * copy / us, 1)})
    return sorted(found, key=lambda row: row["us"])
