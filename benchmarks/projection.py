"""GPU times of the QKV product with norm, rotation and cache write inside, compared with the
product alone.

First Llama-3-8B in detail, then `qkv_norm_rope` as a user calls it for the shapes of many models.
Few tokens with a cache are one launch; more are the product and a second launch.
Contenders alternate, one replay of a CUDA graph each, because a GPU at its power limit changes its
speed over milliseconds. A row has the median over the rounds of what a way takes more than the
product in the same round. Calls of `qkv_norm_rope` must agree with the definition in float64 before
they are timed, but for those whose backend is the definition.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ropewalk.kernels.decode_step.config import pick_qkv_tile
from ropewalk.kernels.norm_rotation import KVSlots, QKNorm, qk_norm_rope
from ropewalk.kernels.qkv import qkv_norm_rope
from ropewalk.kernels.support import multiprocessors
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab.bench.gpu import COLD_BYTES, captured, replayed_us
from ropewalk_lab.bench.rows import run_script

ROWS = (1, 16, 32, 64, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
ROUNDS = 60
SHAPES_ROWS = (1, 8, 16, 32, 64, 128, 256, 512, 2048, 4096, 16384)
SHAPES_ROUNDS = 21
#: what `qkv_norm_rope` does for more tokens: the product and a second launch
TWO_LAUNCHES = "two launches"


@dataclass(frozen=True)
class Shape:
    """The sizes of a model's QKV projection, whether a norm of the heads follows it and whether it
    has a bias; `tuned`: whether the kernel's tiles were chosen by times of this model.
    """

    hidden: int
    q_heads: int
    k_heads: int
    head_dim: int
    norm: bool = False
    bias: bool = False
    tuned: bool = False

    @property
    def heads(self) -> tuple[int, int]:
        return self.q_heads, self.k_heads

    @property
    def columns(self) -> int:
        return (self.q_heads + 2 * self.k_heads) * self.head_dim


LLAMA = Shape(4096, 32, 8, 128, norm=True)
SHAPES = {
    "Llama-3-8B": Shape(4096, 32, 8, 128, tuned=True),
    "Gemma-3-4B": Shape(2560, 8, 4, 256, norm=True, tuned=True),
    "Phi-3-mini": Shape(3072, 32, 32, 96, tuned=True),
    "Qwen2.5-7B": Shape(3584, 28, 4, 128, bias=True, tuned=True),
    "Qwen3-8B": Shape(4096, 32, 8, 128, norm=True, tuned=True),
    "GLM-4.5-Air": Shape(4096, 96, 8, 128, bias=True, tuned=True),
    "Qwen3-0.6B": Shape(1024, 16, 8, 128, norm=True, tuned=True),
    "Llama-3.2-1B": Shape(2048, 32, 8, 64, tuned=True),
    "Gemma-2-9B": Shape(3584, 16, 8, 256, tuned=True),
    "Phi-2": Shape(2560, 32, 32, 80, bias=True, tuned=True),
    "gpt-oss-20b": Shape(2880, 64, 8, 64, bias=True, tuned=True),
    "Llama-3-70B": Shape(8192, 64, 8, 128),
    "Mistral-Nemo-12B": Shape(5120, 32, 8, 128),
    "Qwen3-4B": Shape(2560, 32, 8, 128, norm=True, tuned=True),
    "Qwen3-30B-A3B": Shape(2048, 32, 4, 128, norm=True, tuned=True),
    "Qwen2.5-0.5B": Shape(896, 14, 2, 64, bias=True, tuned=True),
    "Gemma-3-27B": Shape(5376, 32, 16, 128, norm=True),
    "Falcon3-7B": Shape(3072, 12, 4, 256, tuned=True),
    "StableLM-2-12B": Shape(5120, 32, 8, 160, norm=True),
    "Llama-2-13B": Shape(5120, 40, 40, 128),
    "Nemotron-4-340B": Shape(18432, 96, 8, 192),
    "Phi-4": Shape(5120, 40, 10, 128),
    "Qwen3-32B": Shape(5120, 64, 8, 128, norm=True),
    "Qwen3-1.7B": Shape(2048, 16, 8, 128, norm=True),
    "Qwen2.5-1.5B": Shape(1536, 12, 2, 128, bias=True),
    "TinyLlama-1.1B": Shape(2048, 32, 4, 64),
    "OLMo-2-1B": Shape(2048, 16, 16, 128),
    "LFM2-1.2B": Shape(2048, 32, 8, 64, norm=True),
    "Gemma-3-1B": Shape(1152, 4, 1, 256, norm=True),
    "Pythia-410M": Shape(1024, 16, 16, 64, bias=True),
    "SmolLM2-360M": Shape(960, 15, 5, 64),
    "SmolLM2-135M": Shape(576, 9, 3, 64, tuned=True),
}


class Projection:
    """Inputs for a number of tokens, larger than the L2 cache in all, and the ways to project them."""

    def __init__(self, rows: int, shape: Shape) -> None:
        """Make random inputs of `rows` tokens: `count` pairs of x and weight, a norm, and a cache
        with a slot for each token.
        """
        self.shape, self.spec, self.rope = (
            shape,
            RopeSpec(shape.head_dim),
            Rope(RopeSpec(shape.head_dim)),
        )
        make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
        self.count = max(
            2,
            COLD_BYTES
            // (2 * (shape.columns * shape.hidden + rows * (shape.hidden + shape.columns))),
        )
        self.weights = [
            make(shape.columns, shape.hidden) / shape.hidden**0.5 for _ in range(self.count)
        ]
        self.xs = [make(rows, shape.hidden) for _ in range(self.count)]
        self.bias = make(shape.columns) if shape.bias else None
        self.norm = QKNorm(make(shape.head_dim), make(shape.head_dim))
        self.positions, self.slots = (
            torch.randint(0, 4000, (rows,), device="cuda"),
            torch.randperm(rows, device="cuda"),
        )
        self.cache = KVSlots(*(make(rows, shape.k_heads, shape.head_dim) for _ in range(2)))
        heads, available = shape.q_heads + 2 * shape.k_heads, multiprocessors(self.slots.device)
        self.rows = rows
        tile = pick_qkv_tile(
            rows,
            shape.hidden,
            heads,
            shape.head_dim,
            norm=False,
            head_norm=shape.norm,
            available=available,
        )
        self.in_one_launch = tile is not None

    def product(self, i: int) -> Tensor:
        """Return x @ weight^T, plus the bias if there is one, of the i-th inputs: the packed qkv."""
        return F.linear(self.xs[i], self.weights[i], self.bias)

    def rotated(self, i: int) -> Any:
        """Compute the product, then rotate q and k in place by a second launch."""
        heads, (q_heads, k_heads) = (
            self.product(i).view(1, self.rows, -1, self.shape.head_dim),
            self.shape.heads,
        )
        q, k = heads[:, :, :q_heads], heads[:, :, q_heads : q_heads + k_heads]
        return self.rope(q, k, self.positions[None], seq_dim=-3, inplace=True)

    def stored(self, i: int) -> Any:
        """Compute the product, then norm, rotate and write to the cache by a second launch."""
        where = {"positions": self.positions, "slots": self.slots, "cache": self.cache}
        return qk_norm_rope(
            self.product(i), spec=self.spec, heads=self.shape.heads, norm=self.norm, **where
        )

    def inside(self, i: int, norm: bool, backend: str | None = "triton") -> Any:
        """Rotate inside the product's kernel, and write to the cache; with the norm if `norm`."""
        return qkv_norm_rope(
            self.xs[i],
            self.weights[i],
            self.bias,
            spec=self.spec,
            positions=self.positions,
            heads=self.shape.heads,
            norm=self.norm if norm else None,
            slots=self.slots,
            cache=self.cache,
            backend=backend,
        )

    def ways(self) -> dict[str, Callable[[int], Any]]:
        """Return {name: call to time, a function of the index of the inputs}."""
        ways: dict[str, Callable[[int], Any]] = {
            "product": self.product,
            "product, then rotation": self.rotated,
            "product, then norm, rotation and cache": self.stored,
        }
        if self.in_one_launch:
            ways["rotation inside"] = partial(self.inside, norm=False)
            ways["norm, rotation and cache inside"] = partial(self.inside, norm=True)
        return ways

    def error(self, call: Callable[[int], Any], norm: bool) -> float:
        """Return the largest relative error of q, k and v of a call of `inside`, compared with
        float64.
        """
        packed = self.xs[0].double() @ self.weights[0].double().t()
        packed = packed if self.bias is None else packed + self.bias
        packed = packed.view(self.rows, -1, self.shape.head_dim)
        q, k, v = packed.split((*self.shape.heads, self.shape.k_heads), dim=1)
        if norm:
            q, k = (
                x / (x.square().mean(-1, keepdim=True) + self.norm.eps).sqrt() * weight.double()  # type: ignore[union-attr]
                for x, weight in ((q, self.norm.q_weight), (k, self.norm.k_weight))
            )
        q, k = Rope(self.spec, backend="reference")(
            q[None], k[None], self.positions[None], seq_dim=-3
        )
        assert self.cache.v is not None
        computed = (call(0), self.cache.k[self.slots], self.cache.v[self.slots])
        pairs = zip(computed, (q[0], k[0], v), strict=True)
        return max(float((ours.double() - theirs).norm() / theirs.norm()) for ours, theirs in pairs)

    def times(self, ways: dict[str, Callable[[int], Any]], rounds: int) -> dict[str, list[float]]:
        """Return the microseconds of each of `rounds` rounds for each way; calls of
        `qkv_norm_rope` must agree with float64 first.
        """
        for way in (way for way in ways if "inside" in way or "as called" in way):
            error = self.error(ways[way], norm="norm" in way)
            assert error < 5e-3, (way, error)
        graphs = {
            way: captured([partial(call, i) for i in range(self.count)])
            for way, call in ways.items()
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, (graph, _) in graphs.items():
                times[way].append(replayed_us(graph, self.count))
        return times


def over_percent(times: dict[str, list[float]], way: str) -> list[float]:
    """Return for each round by how much a way takes longer than the product, in per cent of the
    product's time.
    """
    return [
        100 * (time / product - 1)
        for time, product in zip(times[way], times["product"], strict=True)
    ]


@torch.no_grad()
def measure() -> Iterator[dict[str, Any]]:
    """Yield a row for each number of tokens and each way but the product alone, with which they are
    compared; then the rows of `shapes`.
    """
    torch.manual_seed(0)
    for rows in ROWS:
        case = Projection(rows, LLAMA)
        times = case.times(case.ways(), ROUNDS)
        for way in list(times)[1:]:
            over = over_percent(times, way)
            yield {
                "what": "qkv",
                "shape": "Llama-3-8B",
                "rows": rows,
                "way": way,
                "us": round(statistics.median(times[way]), 2),
                "product_us": round(statistics.median(times["product"]), 2),
                "over_percent": round(statistics.median(over), 1),
                "over_percent_quartiles": [
                    round(value, 1) for value in statistics.quantiles(over)[::2]
                ],
                "rounds": ROUNDS,
            }
    yield from shapes()


def shapes() -> Iterator[dict[str, Any]]:
    """Yield a row for each shape and number of tokens: `qkv_norm_rope` with a cache, as a user
    calls it, compared with the product.
    """
    for name, shape in SHAPES.items():
        for rows in SHAPES_ROWS:
            case = Projection(rows, shape)
            way = "norm and rotation, as called" if shape.norm else "rotation, as called"
            call = partial(case.inside, norm=shape.norm, backend=None)
            ways = {"product": case.product, way: call}
            if case.in_one_launch:
                ways[TWO_LAUNCHES] = partial(case.inside, norm=shape.norm, backend="definition")
            times = case.times(ways, SHAPES_ROUNDS)
            over = over_percent(times, way)
            two = over_percent(times, TWO_LAUNCHES) if case.in_one_launch else over
            yield {
                "what": "qkv shapes",
                "shape": name,
                **asdict(shape),
                "rows": rows,
                "launches": 1 if case.in_one_launch else 2,
                "product_us": round(statistics.median(times["product"]), 2),
                "over_percent": round(statistics.median(over), 1),
                "over_percent_quartiles": [
                    round(value, 1) for value in statistics.quantiles(over)[::2]
                ],
                "two_launches_over_percent": round(statistics.median(two), 1),
                "rounds": SHAPES_ROUNDS,
            }


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
