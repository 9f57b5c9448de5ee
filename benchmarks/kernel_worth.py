"""What each GPU kernel is worth: the time of a whole model's step with it and without it.

A step is a prompt, a training step or a decode step. "Without" means that the same model computes
the same result by the next simpler way, which each row names. The two take turns, in one process. A
kernel is kept if it makes a step of some real shape at least 2 % faster.

Of the decode kernels only the QKV product of many rows is here; `decode.py` times whole steps with
all of them beside transformers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch

from decode import MODELS, OTHERS, _on_gpu, step_milliseconds
from ropewalk.attention import linear, lse
from ropewalk.attention.remap import ReRope
from ropewalk.caches import clear_caches
from ropewalk.kernels.qkv import launch as qkv_launch
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decoder_attention import PackedAttention
from ropewalk.models.presets import PRESETS
from ropewalk_lab.bench.rows import run_script

ROUNDS = 7


@dataclass(frozen=True)
class Kernel:
    """A kernel, what takes its place, and where it is timed.

    off      (object, attribute, result): that function returns this result while the kernel is off
    changes  fields of the models' config, without which they would not use the kernel
    rows     numbers of rows for which a decode step is timed
    """

    name: str
    instead: str
    off: tuple[Any, str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    models: tuple[str, ...] = ("Qwen3-0.6B shape", "Llama-3.2-1B shape")
    prompts: tuple[int, ...] = (2048, 8192, 32768)
    rows: tuple[int, ...] = ()
    trained: bool = True

    def switched_off(self) -> AbstractContextManager[Any]:
        """Return a context in which models compute without the kernel."""
        where, attribute, result = self.off
        return mock.patch.object(where, attribute, return_value=result)


OFF = "switched off"
REMAPPED: dict[str, Any] = {
    "changes": {"remapping": ReRope(512)},
    "prompts": (8192, 32768),
    "trained": False,  # the kernel has no backward pass
}
#: models for which the QKV product of more than 64 rows is one launch
SMALL = ("Qwen3-0.6B", "Qwen2.5-0.5B", "SmolLM2-135M", "Qwen2.5-1.5B", "Llama-3.2-1B", "Qwen3-1.7B")
KERNELS = (
    Kernel(
        "norm, rotation and cache write",
        "torch's norm, the rotation kernel and torch's copy",
        (PackedAttention, "project_rotated", None),
        models=("Llama-3-8B shape", "Qwen3-4B shape", "Qwen3-0.6B shape", "Llama-3.2-1B shape"),
        prompts=(512, 2048, 8192, 16384),
    ),
    Kernel(
        "QKV of many rows in one launch",
        "the library's product and a second launch",
        (qkv_launch, "pick_qkv_tile", None),
        models=tuple(f"{name} shape" for name in SMALL),
        prompts=(),
        rows=(96, 128, 256),
        trained=False,  # training does not use it
    ),
    Kernel(
        "linear attention",
        "sums over chunks in plain torch",
        (linear, "why_not_triton", OFF),
        changes={"attention": "linear"},
    ),
    Kernel(
        "attention over a band",
        "plain torch, a block of queries at a time",
        (lse, "triton_why_not", OFF),
        **REMAPPED,
    ),
    Kernel(
        "attention over a band",
        "torch's FlexAttention",
        (lse, "pick_with_lse", ("flex", OFF)),
        **REMAPPED,
    ),
)


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the time of one call, until the GPU has finished."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    call()
    wait()
    return (time.perf_counter() - start) * 1e3


def compare(call: Callable[[], Any], kernel: Kernel, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return the median times of a call with and without a kernel, and by how many per cent the
    call is longer without it.
    """
    ways = {"with": nullcontext, "without": kernel.switched_off}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        with way():
            call()  # compiles
            call()
    for _ in range(rounds):
        for name, way in ways.items():
            with way():
                times[name].append(milliseconds(call))
    return compared(times)


def compare_steps(model: Decoder, rows: int, kernel: Kernel) -> dict[str, Any]:
    """Return the median times of a decode step with and without a kernel, and what it gains."""
    tokens = random_tokens(model, rows, 128)
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(ROUNDS):
        for name, way in (("with", nullcontext), ("without", kernel.switched_off)):
            with way(), torch.no_grad():
                clear_caches()  # the captured steps of the other way
                step_milliseconds(model, tokens, 4)  # captures
                times[name].append(step_milliseconds(model, tokens, 48))
    return compared(times)


def compared(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians of times "with" and "without", the gain and the spread, as keys of a row."""
    median = {name: statistics.median(values) for name, values in times.items()}
    spread = max((max(values) - min(values)) / median[name] for name, values in times.items())
    return {
        "with_ms": round(median["with"], 3),
        "without_ms": round(median["without"], 3),
        "gain_percent": round(100 * (median["without"] / median["with"] - 1), 2),
        "spread_percent": round(100 * spread, 1),
    }


def random_tokens(model: Decoder, rows: int, tokens: int) -> torch.Tensor:
    """Return random tokens [rows, tokens] on the model's device."""
    device = next(model.parameters()).device
    return torch.randint(0, model.config.vocab_size, (rows, tokens), device=device)


def prompt_step(model: Decoder, tokens: int) -> Callable[[], Any]:
    """Return a call that reads a random prompt of one row and generates one token."""
    prompt = random_tokens(model, 1, tokens)
    return torch.no_grad()(partial(model.generate, prompt, 1))


def training_step(model: Decoder, rows: int, tokens: int) -> Callable[[], Any]:
    """Return a call that computes the loss of random tokens and its gradients."""
    batch = random_tokens(model, rows, tokens)

    def step() -> None:
        model.loss(batch).backward()
        model.zero_grad(set_to_none=True)

    return step


def shapes() -> dict[str, dict[str, Any]]:
    """Return the fields of `DecoderConfig` for each shape of a model."""
    fields = dict(MODELS)
    for name, sizes in OTHERS.items():
        hidden, heads, kv, head_dim, inner, layers, vocabulary, normed = sizes
        fields[f"{name} shape"] = {
            "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
            "num_layers": layers, "num_heads": heads, "num_kv_heads": kv, "head_dim": head_dim,
            "qk_norm": normed,
        }  # fmt: skip
    return fields


def measure() -> Iterator[dict[str, Any]]:
    """Yield a row for each kernel, model and step."""
    for kernel in KERNELS:
        row = {"what": "kernel worth", "kernel": kernel.name, "instead": kernel.instead}
        if kernel.trained:
            config = PRESETS["llama-100m"].with_(**kernel.changes)
            assert isinstance(config, DecoderConfig)
            model = Decoder(config).to("cuda", torch.bfloat16)
            step = training_step(model, 8, 2048)
            where = {"model": "llama-100m", "step": "training step, 8 x 2,048"}
            yield row | where | compare(step, kernel)
            del model, step
        for name in kernel.models:
            clear_caches()
            config = DecoderConfig(**shapes()[name], **kernel.changes)
            model = _on_gpu(partial(Decoder, config))
            for tokens in kernel.prompts:
                where = {"model": name, "step": f"prompt of {tokens:,} tokens"}
                yield row | where | compare(prompt_step(model, tokens), kernel)
            for rows in kernel.rows:
                where = {"model": name, "step": f"decode step of {rows} rows"}
                yield row | where | compare_steps(model, rows, kernel)
            del model
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
