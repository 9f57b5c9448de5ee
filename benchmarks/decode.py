"""GPU times of generation by our Decoder and by transformers.

The limit of a step is the time to read its weights and cached keys and values once, at the rate of
a copy of 128 MiB measured in the same run. The rows by length of context also have the share of two
other limits: a stream that only reads, and the memory's nominal rate. Weights are random.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ropewalk.caches import clear_caches
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.bench.gpu import replay_us
from ropewalk_lab.bench.rows import run_script

MODELS: dict[str, dict[str, Any]] = {
    "Llama-3-8B shape": {
        "vocab_size": 128256,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_layers": 32,
        "num_heads": 32,
        "num_kv_heads": 8,
        "tie_embeddings": False,
    },
    "Qwen3-0.6B shape": {
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_layers": 28,
        "num_heads": 16,
        "num_kv_heads": 8,
        "head_dim": 128,
        "qk_norm": True,
    },
}
#: hidden size, heads of q, heads of k, head dim, intermediate size, layers, vocabulary; and whether
#: the heads are normed
OTHERS = {
    "SmolLM2-135M": (576, 9, 3, 64, 1536, 30, 49152, False),
    "Qwen2.5-0.5B": (896, 14, 2, 64, 4864, 24, 151936, False),
    "TinyLlama-1.1B": (2048, 32, 4, 64, 5632, 22, 32000, False),
    "Llama-3.2-1B": (2048, 32, 8, 64, 8192, 16, 128256, False),
    "Qwen2.5-1.5B": (1536, 12, 2, 128, 8960, 28, 151936, False),
    "Qwen3-1.7B": (2048, 16, 8, 128, 6144, 28, 151936, True),
    "Llama-3.2-3B": (3072, 24, 8, 128, 8192, 28, 128256, False),
    "Qwen3-4B": (2560, 32, 8, 128, 9728, 36, 151936, True),
    "Llama-2-7B": (4096, 32, 32, 128, 11008, 32, 32000, False),
    "Qwen3-14B": (5120, 40, 8, 128, 17408, 40, 151936, True),
}
PROMPT, NEW = 128, 128
BATCHES = (1, 16, 32, 64, 128)
OTHER_BATCHES = (1, 16)
#: models of OTHERS that have rows by length of context; the last two did not choose any tile
CONTEXT_OTHERS = ("Llama-3.2-1B", "Qwen2.5-0.5B", "Qwen2.5-1.5B", "TinyLlama-1.1B")
#: (batch, length of the prompt) for the rows by length of context; the first model also has LARGER
CONTEXTS = ((1, 128), (1, 4096), (1, 32768))
LARGER = ((1, 120_000), (16, 128), (16, 4096), (8, 32768), (64, 128), (64, 4096))
#: a case with more tokens than this is timed once, without the memory of the generation before
MOST_REPEATED = 1 << 16


def copy_rate() -> float:
    """Return the bytes per second, read and written, of a copy of 128 MiB."""
    source = torch.empty(1 << 27, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / replay_us([lambda: target.copy_(source)]) * 1e6


def read_rate() -> float:
    """Return the bytes per second of a sum over 512 MiB, which reads all of them and writes one
    number.
    """
    source = torch.zeros(1 << 27, dtype=torch.float32, device="cuda")
    return 4 * source.numel() / replay_us([source.sum]) * 1e6


def nominal_rate() -> float | None:
    """Return the bytes per second that the memory's clock and bus allow, if torch tells them."""
    properties = torch.cuda.get_device_properties(0)
    clock, bits = (
        getattr(properties, name, None) for name in ("memory_clock_rate", "memory_bus_width")
    )
    # kHz, two transfers in each clock
    return None if not clock or not bits else 2e3 * clock * bits / 8


def seconds(call: Callable[[], Any], repeats: int = 5) -> float:
    """Return the seconds of the fastest of `repeats` calls; a call ends when the GPU has finished."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def step_row(
    generate: Callable[[int], Any], limit: float, repeats: int = 5, **row: Any
) -> dict[str, Any]:
    """Return the row of one way to generate: the time of a step, from a generation of NEW tokens
    and one of two.

    The time of the first new token is that of the prompt. The second one also takes the time of
    what is done once before the steps, `opening_ms`.

    generate  number of new tokens -> the generation; `limit` is the least time of a step, in
              seconds; `row` are further keys
    """
    generate(3)  # compiles and captures
    first, second, last = (seconds(partial(generate, new), repeats) for new in (1, 2, NEW))
    step = (last - second) / (NEW - 2)
    return {
        "what": "generate",
        "prompt": PROMPT,
        **row,
        "new": NEW,
        "steps_per_s": round(1 / step, 1),
        "step_ms": round(step * 1e3, 3),
        "limit_ms": round(limit * 1e3, 3),
        "percent_of_limit": round(100 * limit / step, 1),
        "first_token_ms": round(first * 1e3, 2),
        "opening_ms": round((second - first - step) * 1e3, 2),
    }


def step_milliseconds(model: Decoder, tokens: Tensor, new: int) -> float:
    """Return the time of one step of greedy generation, from one of `new` steps and one of none."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    model.generate(tokens, new + 1)
    torch.cuda.synchronize()
    middle = time.perf_counter()
    model.generate(tokens, 1)
    torch.cuda.synchronize()
    return (2 * middle - start - time.perf_counter()) / new * 1e3


def ours(model: Decoder, prompt: Tensor, graph: bool | None, new: int) -> Tensor:
    """Generate `new` tokens with our decoder. `graph` is False for no CUDA graph; None captures
    one, with a cache of fixed capacity, so that every `new` uses the same graph.
    """
    capacity = prompt.shape[1] + NEW
    cache = {"cache": "static", "capacity": capacity} if graph is None else {}
    return model.generate(prompt, new, graph=graph, **cache)


def theirs(model: Any, prompt: Tensor, cache: str | None, new: int) -> Tensor:
    """Generate `new` tokens with transformers; `cache` is its `cache_implementation`."""
    return model.generate(
        prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, cache_implementation=cache
    )


def generate_rows(peers: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the rows of our decoder for every batch size; for one sequence also without a graph, and
    those of transformers.
    """
    rate = copy_rate()
    for name, sizes in MODELS.items():
        model = _on_gpu(lambda sizes=sizes: Decoder(DecoderConfig(**sizes)))
        for batch in BATCHES:
            prompt, limit, row = _case(model, name, batch, rate)
            yield step_row(partial(ours, model, prompt, None), limit, contender="ropewalk", **row)
            if batch == 1:
                yield step_row(
                    partial(ours, model, prompt, False),
                    limit,
                    contender="ropewalk without graph",
                    **row,
                )
            if peers and batch == 1:
                clear_caches()
                yield from _peer_rows(name, prompt, limit, row)
        del model
        clear_caches()
        torch.cuda.empty_cache()


def other_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of our decoder in the shapes of other models."""
    rate = copy_rate()
    for name in OTHERS:
        model = _on_gpu(lambda name=name: Decoder(_other_config(name)))
        for batch in OTHER_BATCHES:
            prompt, limit, row = _case(model, name, batch, rate)
            row["what"] = "generate, other models"
            yield step_row(partial(ours, model, prompt, None), limit, contender="ropewalk", **row)
        del model
        clear_caches()
        torch.cuda.empty_cache()


def context_rows() -> Iterator[dict[str, Any]]:
    """Yield the rows of our decoder after prompts of CONTEXTS tokens, with the shares of three
    limits.
    """
    copy, others = copy_rate(), {"read": read_rate(), "nominal": nominal_rate()}
    configs = {name: DecoderConfig(**sizes) for name, sizes in MODELS.items()}
    configs |= {f"{name} shape": _other_config(name) for name in CONTEXT_OTHERS}
    for name, config in configs.items():
        model = _on_gpu(lambda config=config: Decoder(config))
        for batch, length in CONTEXTS + (LARGER if name == next(iter(configs)) else ()):
            prompt, limit, row = _case(model, name, batch, copy, length)
            row |= {"what": "generate, by context", "prompt": length, "contender": "ropewalk"}
            if prompt.numel() <= MOST_REPEATED:
                row = step_row(partial(ours, model, prompt, None), limit, 3, **row)
            else:
                row = step_row(partial(_alone, model, prompt), limit, 1, **row)
            for each, rate in others.items():
                if rate is not None:
                    row[f"percent_of_{each}"] = round(row["percent_of_limit"] * copy / rate, 1)
                    row[f"{each}_GBps"] = round(rate / 1e9)
            yield row
            clear_caches()
        del model
        torch.cuda.empty_cache()


def _alone(model: Decoder, prompt: Tensor, new: int) -> None:
    """Generate after the caches and captured steps of earlier generations are freed."""
    clear_caches()
    torch.cuda.empty_cache()
    ours(model, prompt, None, new)


def _other_config(name: str) -> DecoderConfig:
    """Return the config of a model of OTHERS."""
    hidden, heads, kv_heads, head_dim, intermediate, layers, vocabulary, norm = OTHERS[name]
    return DecoderConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        qk_norm=norm,
    )


def _case(
    model: Decoder, name: str, batch: int, rate: float, length: int = PROMPT
) -> tuple[Tensor, float, dict[str, Any]]:
    """Return a random prompt of `batch` rows, the least seconds of a step after it, and the keys of
    its row.
    """
    config = model.config
    # numbers that a step reads: all weights (of embeddings that are not tied, only one row), and
    # the keys and values
    weights = sum(parameter.numel() for parameter in model.parameters())
    weights -= 0 if config.tie_embeddings else model.embed_tokens.weight.numel()
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    limit = 2 * (weights + batch * per_token * (length + NEW / 2)) / rate  # a number has 2 bytes
    prompt = torch.randint(0, 1000, (batch, length), device="cuda")
    return prompt, limit, {"shape": name, "batch": batch, "copy_GBps": round(rate / 1e9)}


def _peer_rows(
    shape: str, prompt: Tensor, limit: float, row: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of transformers with a dynamic and with a static, compiled cache."""
    import transformers

    sizes = MODELS[shape]
    options = {
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["hidden_size"],
        "intermediate_size": sizes["intermediate_size"],
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": sizes["num_heads"],
        "num_key_value_heads": sizes["num_kv_heads"],
        "head_dim": sizes.get("head_dim", 128),
        "tie_word_embeddings": sizes.get("tie_embeddings", True),
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    family = "Qwen3" if sizes.get("qk_norm") else "Llama"
    config = getattr(transformers, f"{family}Config")(**options)
    model = _on_gpu(lambda: getattr(transformers, f"{family}ForCausalLM")(config))
    for name, cache in (("transformers", None), ("transformers, static cache", "static")):
        yield step_row(
            partial(theirs, model, prompt, cache),
            limit,
            contender=f"{name}, {transformers.__version__}",
            **row,
        )


def _on_gpu(build: Callable[[], Any]) -> Any:
    """Return the model that `build` creates, with bfloat16 weights on the GPU."""
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            return build().eval()
    finally:
        torch.set_default_dtype(torch.float32)


def measure() -> Iterator[dict[str, Any]]:
    """Yield the rows of `generate_rows`, `other_rows` and `context_rows`."""
    torch.manual_seed(0)
    yield from generate_rows()
    yield from other_rows()
    yield from context_rows()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
