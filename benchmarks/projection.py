"""GPU times of the QKV product of Llama-3-8B with norm, rotation and cache write inside, compared with the product alone.

Contenders alternate, one replay of a CUDA graph each, because a GPU at its power limit changes its speed over milliseconds. A row
has the median over the rounds of what a way takes more than the product in the same round.
The kernels with the rotation inside must agree with the definition in float64 before they are timed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.bench.gpu import COLD_BYTES, captured, replayed_us
from ropewalk.bench.rows import run_script
from ropewalk.kernels.decode.config import in_one_launch
from ropewalk.kernels.decode.workspace import Workspace
from ropewalk.kernels.fused import KVSlots, QKNorm, qk_norm_rope
from ropewalk.kernels.qkv import qkv_norm_rope, why_not
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: hidden size, query heads, key heads, head_dim
HIDDEN, Q_HEADS, K_HEADS, HEAD_DIM = 4096, 32, 8, 128
ROWS = (1, 16, 32, 64, 128, 512, 1024, 2048, 4096, 8192, 16384)
ROUNDS = 60


class Projection:
    """Inputs for a number of tokens, larger than the L2 cache in all, and the ways to project them."""

    def __init__(self, rows: int) -> None:
        """Make random inputs of `rows` tokens: `count` pairs of x and weight, a norm, and a cache with a slot for each token."""
        self.spec, self.rope = RopeSpec(HEAD_DIM), Rope(RopeSpec(HEAD_DIM))
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        width = (Q_HEADS + 2 * K_HEADS) * HEAD_DIM
        self.count = max(2, COLD_BYTES // (2 * (width * HIDDEN + rows * (HIDDEN + width))))
        self.weights = [make(width, HIDDEN) / HIDDEN**0.5 for _ in range(self.count)]
        self.xs = [make(rows, HIDDEN) for _ in range(self.count)]
        self.norm = QKNorm(make(HEAD_DIM), make(HEAD_DIM))
        self.positions, self.slots = torch.randint(0, 4000, (rows,), device="cuda"), torch.randperm(rows, device="cuda")
        self.cache = KVSlots(make(rows, K_HEADS, HEAD_DIM), make(rows, K_HEADS, HEAD_DIM))
        self.workspace = Workspace(rows, Q_HEADS, K_HEADS, HEAD_DIM, device="cuda")
        self.rows = rows

    def product(self, i: int) -> Tensor:
        """Return x @ weight^T of the i-th inputs, the packed qkv."""
        return torch.mm(self.xs[i], self.weights[i].t())

    def rotated(self, i: int) -> Any:
        """Compute the product, then rotate q and k in place by a second launch."""
        heads = self.product(i).view(1, self.rows, -1, HEAD_DIM)
        q, k = heads[:, :, :Q_HEADS], heads[:, :, Q_HEADS : Q_HEADS + K_HEADS]
        return self.rope(q, k, self.positions[None], seq_dim=-3, inplace=True)

    def stored(self, i: int) -> Any:
        """Compute the product, then norm, rotate and write to the cache by a second launch."""
        where = {"positions": self.positions, "slots": self.slots, "cache": self.cache}
        return qk_norm_rope(self.product(i), spec=self.spec, heads=(Q_HEADS, K_HEADS), norm=self.norm, **where)

    def inside(self, i: int, norm: bool, stored: bool, backend: str | None = "triton") -> Any:
        """Rotate inside the product's kernel, with the norm if `norm` and the cache write if `stored`."""
        where = {"slots": self.slots, "cache": self.cache} if stored else {}
        return qkv_norm_rope(
            self.xs[i], self.weights[i], spec=self.spec, positions=self.positions, heads=(Q_HEADS, K_HEADS),
            norm=self.norm if norm else None, workspace=self.workspace, backend=backend, **where,
        )  # fmt: skip

    def ways(self) -> dict[str, Callable[[int], Any]]:
        """Return {name: call to time, a function of the index of the inputs}; some numbers of tokens have no kernel."""
        ways: dict[str, Callable[[int], Any]] = {
            "product": self.product,
            "product, then rotation": self.rotated,
            "product, then norm, rotation and cache": self.stored,
        }
        few = in_one_launch(self.rows)
        if few or self.rows >= 512:
            ways["rotation inside"] = partial(self.inside, norm=False, stored=few)  # the kernel for few tokens stores them
        if in_one_launch(self.rows) or self.rows >= 512:
            ways["norm, rotation and cache inside"] = partial(self.inside, norm=True, stored=True)
        ways["qkv_norm_rope as it chooses"] = partial(self.inside, norm=True, stored=True, backend=None)
        return ways

    def error(self, norm: bool) -> float:
        """Return the largest relative error of q, k and v of `inside`, compared with float64."""
        packed = (self.xs[0].double() @ self.weights[0].double().t()).view(self.rows, -1, HEAD_DIM)
        q, k, v = packed.split((Q_HEADS, K_HEADS, K_HEADS), dim=1)
        if norm:
            q, k = (
                x / (x.square().mean(-1, keepdim=True) + self.norm.eps).sqrt() * weight.double()  # type: ignore[union-attr]
                for x, weight in ((q, self.norm.q_weight), (k, self.norm.k_weight))
            )
        exact = Rope(self.spec, backend="reference")
        q, k = exact(q[None], k[None], self.positions[None], seq_dim=-3)
        computed = (self.inside(0, norm, True), self.cache.k[self.slots], self.cache.v[self.slots])
        pairs = zip(computed, (q[0], k[0], v), strict=True)
        return max(float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs)


@torch.no_grad()
def measure() -> Iterator[dict[str, Any]]:
    """Yield a row for each number of tokens and each way but the product alone, with which they are compared."""
    torch.manual_seed(0)
    for rows in ROWS:
        case = Projection(rows)
        ways = case.ways()
        if "rotation inside" in ways:
            options = {"spec": case.spec, "positions": case.positions, "heads": (Q_HEADS, K_HEADS)}
            assert why_not(case.xs[0], case.weights[0], slots=case.slots, cache=case.cache, **options) is None
            errors = [case.error(norm) for norm in (False, "norm, rotation and cache inside" in ways)]
            assert max(errors) < 5e-3, errors
        graphs = {way: captured([partial(call, i) for i in range(case.count)]) for way, call in ways.items()}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, (graph, _) in graphs.items():
                times[way].append(replayed_us(graph, case.count))
        alone = statistics.median(times["product"])
        for way in list(ways)[1:]:
            us = statistics.median(times[way])
            over = [100 * (time / product - 1) for time, product in zip(times[way], times["product"], strict=True)]
            yield {
                "what": "qkv", "shape": "Llama-3-8B", "rows": rows, "way": way, "us": round(us, 2),
                "product_us": round(alone, 2), "over_percent": round(statistics.median(over), 1),
                "over_percent_quartiles": [round(value, 1) for value in statistics.quantiles(over)[::2]], "rounds": ROUNDS,
            }  # fmt: skip


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
