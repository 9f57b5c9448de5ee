"""GPU times of decode steps: the QKV product with the rotation inside, and whole generation beside transformers.

The limit of a step is the time to read its weights and cached keys and values once, at the rate of a copy of 128 MiB measured
in the same run. Weights are random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.bench.gpu import COLD_BYTES, replay_us
from ropewalk.bench.rows import run_script
from ropewalk.caches import clear_caches
from ropewalk.kernels.fused import KVSlots, QKNorm, qk_norm_rope
from ropewalk.kernels.qkv import qkv_norm_rope
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: hidden size, query heads, key heads, head_dim of Llama-3-8B
QKV = (4096, 32, 8, 128)
ROWS = (1, 16, 64, 128)
MODELS: dict[str, dict[str, Any]] = {
    "Llama-3-8B shape": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_layers": 32, "num_heads": 32,
        "num_kv_heads": 8, "tie_embeddings": False,
    },
    "Qwen3-0.6B shape": {
        "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_layers": 28, "num_heads": 16,
        "num_kv_heads": 8, "head_dim": 128, "qk_norm": True,
    },
}  # fmt: skip
PROMPT, NEW = 128, 128


def copy_rate() -> float:
    """Return the bytes per second, read and written, of a copy of 128 MiB."""
    source = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / replay_us([lambda: target.copy_(source)]) * 1e6


def qkv_rows() -> Iterator[dict[str, Any]]:
    """Yield the times of the QKV product alone, with a separate rotation, and with the rotation inside."""
    hidden, q_heads, k_heads, head_dim = QKV
    width, spec = (q_heads + 2 * k_heads) * head_dim, RopeSpec(head_dim)
    rope, count = Rope(spec), max(2, COLD_BYTES // (2 * width * hidden))
    make = partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    weights = [make(width, hidden) / hidden**0.5 for _ in range(count)]
    norm = QKNorm(make(head_dim), make(head_dim))
    for rows in ROWS:
        xs = [make(rows, hidden) for _ in range(count)]
        positions, slots = torch.randint(0, 4000, (rows,), device="cuda"), torch.randperm(rows, device="cuda")
        cache = KVSlots(make(rows, k_heads, head_dim), make(rows, k_heads, head_dim))

        def product(i: int) -> Tensor:
            return torch.mm(xs[i], weights[i].t())  # noqa: B023 - called within the iteration

        def rotated(i: int) -> Any:
            heads = product(i).view(1, rows, -1, head_dim)  # noqa: B023
            q, k = heads[:, :, :q_heads], heads[:, :, q_heads : q_heads + k_heads]
            return rope(q, k, positions[None], seq_dim=-3, inplace=True)  # noqa: B023

        def stored(i: int, norm: QKNorm | None = norm) -> Any:
            where = {"positions": positions, "slots": slots, "cache": cache}  # noqa: B023
            return qk_norm_rope(product(i), spec=spec, heads=(q_heads, k_heads), norm=norm, **where)

        def inside(i: int, norm: QKNorm | None, backend: str | None) -> Any:
            where = {"positions": positions, "slots": slots, "cache": cache}  # noqa: B023
            call = {"spec": spec, "heads": (q_heads, k_heads), "norm": norm, **where}
            return qkv_norm_rope(xs[i], weights[i], backend=backend, **call)  # noqa: B023

        def timed(call: Callable[[int], Any]) -> float:
            return replay_us([lambda i=i: call(i) for i in range(count)])

        with torch.no_grad():
            alone = timed(product)
            ways = {
                "product, then rotation": rotated,
                "product, then norm, rotation and cache": stored,
                "rotation and cache inside": lambda i: inside(i, None, "triton"),
                "norm, rotation and cache inside": lambda i: inside(i, norm, "triton"),
                "qkv_norm_rope as it chooses": lambda i: inside(i, norm, None),
            }
            for way, call in ways.items():
                us = timed(call)
                yield {
                    "what": "qkv", "shape": "Llama-3-8B", "rows": rows, "way": way, "us": round(us, 2),
                    "product_us": round(alone, 2), "over_percent": round(100 * (us / alone - 1), 1),
                }  # fmt: skip


def seconds(call: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest time of a call."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def step_row(generate: Callable[[int], Any], limit: float, **row: Any) -> dict[str, Any]:
    """Return the row of one way to generate: the time of a step, from a long and a short generation."""
    generate(3)  # compiles and captures
    first = seconds(lambda: generate(1))
    step = (seconds(lambda: generate(NEW)) - first) / (NEW - 1)
    return {
        "what": "generate", **row, "prompt": PROMPT, "new": NEW, "steps_per_s": round(1 / step, 1),
        "step_ms": round(step * 1e3, 3), "limit_ms": round(limit * 1e3, 3), "percent_of_limit": round(100 * limit / step, 1),
        "first_token_ms": round(first * 1e3, 2),
    }  # fmt: skip


def ours(model: Decoder, prompt: Tensor, graph: bool | None, new: int) -> Tensor:
    """Generate with our decoder; with a graph the capacity is given, so that all lengths use one graph."""
    cache = {"cache": "static", "capacity": PROMPT + NEW} if graph is None else {}
    return model.generate(prompt, new, graph=graph, **cache)


def theirs(model: Any, prompt: Tensor, cache: str | None, new: int) -> Tensor:
    """Generate with transformers."""
    return model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, cache_implementation=cache)


def generate_rows(peers: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of our decoder and of transformers, for one prompt and for 64."""
    rate = copy_rate()
    for name, sizes in MODELS.items():
        model = _on_gpu(lambda sizes=sizes: Decoder(DecoderConfig(**sizes)))
        config = model.config
        read = sum(p.numel() for p in model.parameters()) - (0 if config.tie_embeddings else model.embed_tokens.weight.numel())
        token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        for batch in (1, 64):
            limit = 2 * (read + batch * token * (PROMPT + NEW / 2)) / rate
            prompt = torch.randint(0, 1000, (batch, PROMPT), device="cuda")
            row = {"shape": name, "batch": batch, "copy_GBps": round(rate / 1e9)}
            yield step_row(partial(ours, model, prompt, None), limit, contender="ropewalk", **row)
            if batch == 1:
                yield step_row(partial(ours, model, prompt, False), limit, contender="ropewalk without graph", **row)
            if peers and batch == 1:
                clear_caches()
                yield from _peer_rows(name, prompt, limit, row)
        del model
        clear_caches()
        torch.cuda.empty_cache()


def _peer_rows(name: str, prompt: Tensor, limit: float, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of transformers with a dynamic and with a static, compiled cache."""
    import transformers

    sizes = MODELS[name]
    options = {
        "vocab_size": sizes["vocab_size"], "hidden_size": sizes["hidden_size"], "intermediate_size": sizes["intermediate_size"],
        "num_hidden_layers": sizes["num_layers"], "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"], "head_dim": sizes.get("head_dim", 128),
        "tie_word_embeddings": sizes.get("tie_embeddings", True), "eos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    kind = "Qwen3" if sizes.get("qk_norm") else "Llama"
    config = getattr(transformers, f"{kind}Config")(**options)
    model = _on_gpu(lambda: getattr(transformers, f"{kind}ForCausalLM")(config))
    for way, cache in (("transformers", None), ("transformers, static cache", "static")):
        yield step_row(partial(theirs, model, prompt, cache), limit, contender=f"{way}, {transformers.__version__}", **row)


def _on_gpu(build: Callable[[], Any]) -> Any:
    """Return a model with random bfloat16 weights, made on the GPU."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return build().eval()
    finally:
        torch.set_default_dtype(torch.float32)


def measure() -> Iterator[dict[str, Any]]:
    """Yield all rows."""
    torch.manual_seed(0)
    yield from qkv_rows()
    yield from generate_rows()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
