"""GPU times of the fused QK-norm, rotation and cache write, compared with one flat copy of the
packed qkv that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.kernels.norm_rotation import KVSlots, NormRotationConfig, QKNorm, qk_norm_rope
from ropewalk.spec import RopeSpec
from ropewalk_lab.bench.gpu import COLD_BYTES, beside_copy, replay_us
from ropewalk_lab.bench.rows import run_script

#: tokens, query heads, key heads
SHAPES = {"T64": (64, 32, 8), "T256": (256, 64, 8), "T8192": (8192, 32, 8)}
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

    def run(
        self,
        config: NormRotationConfig | None = None,
        backend: str | None = None,
        norm: bool = True,
    ):
        """Return q, normalised and rotated; k and v are written to the cache."""
        return qk_norm_rope(
            self.qkv,
            spec=RopeSpec(head_dim=HEAD_DIM),
            positions=self.positions,
            heads=self.heads,
            norm=self.norm if norm else None,
            cache=self.cache,
            slots=self.slots,
            backend=backend,
            config=config,
        )


def make_cases(name: str) -> list[FusedCase]:
    """Return random cases of a named shape, enough to exceed the L2 cache together, but at most
    200.
    """
    tokens, q_heads, k_heads = SHAPES[name]
    width = (q_heads + 2 * k_heads) * HEAD_DIM
    # a bfloat16 number has 2 bytes
    count = max(2, min(200, math.ceil(COLD_BYTES / (2 * tokens * width))))
    q_weight, k_weight = (
        torch.randn(HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2)
    )

    def make_case() -> FusedCase:
        """Return a packed qkv with random positions and cache slots; all cases share the norm's
        weights.
        """
        k, v = (
            torch.zeros(tokens, k_heads, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        return FusedCase(
            torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16),
            torch.randint(0, 4000, (tokens,), device="cuda"),
            torch.randperm(tokens, device="cuda"),
            KVSlots(k, v),
            QKNorm(q_weight, k_weight),
            (q_heads, k_heads),
        )

    return [make_case() for _ in range(count)]


def agrees(case: FusedCase) -> bool:
    """Return whether the kernel's q and cached k equal those of the definition up to bfloat16
    rounding.
    """
    case.cache.k.zero_()
    q = case.run(backend="triton")
    k = case.cache.k.clone()
    case.cache.k.zero_()
    expected = case.run(backend="definition")
    pairs = ((q.float(), expected.float()), (k.float(), case.cache.k.float()))
    return all(torch.allclose(ours, exact, rtol=0.01, atol=0.01) for ours, exact in pairs)


def copy_us(cases: list[FusedCase]) -> float:
    """Return the microseconds of one flat copy of the packed qkv."""
    targets = [torch.empty_like(case.qkv) for case in cases]
    return replay_us(
        [partial(target.copy_, case.qkv) for case, target in zip(cases, targets, strict=True)]
    )


@torch.no_grad()
def measure() -> Iterator[dict[str, Any]]:
    """Yield rows of the kernel with and without the norm, and of the definition in plain torch."""
    calls: dict[str, Callable[[FusedCase], Any]] = {
        "ropewalk, fused": lambda case: case.run(),
        "ropewalk, fused without norm": lambda case: case.run(norm=False),
        "ropewalk, plain torch": lambda case: case.run(backend="definition"),
    }
    for name in SHAPES:
        cases = make_cases(name)
        row = {"shape": name, "order": "packed qkv", "dtype": "bfloat16", "pass": "norm+rope+cache"}
        if not agrees(cases[0]):
            yield {
                **row,
                "contender": "ropewalk, fused",
                "skipped": "does not agree with the definition",
            }
            continue
        for contender, call in calls.items():
            yield {
                **row,
                "contender": contender,
                **beside_copy([partial(call, case) for case in cases], partial(copy_us, cases)),
            }


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
