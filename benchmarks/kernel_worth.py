"""What each GPU kernel is worth: the time of a whole model's step with it and without it.

A step is a prompt, a decode step of many rows, or a training step. "Without" means that the same
model computes the same result by the next simpler way: a library product and a second launch, or
torch's own operators. The two take turns, in one process. A kernel is kept if it makes a step of
some real shape at least 2 % faster.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch

from decode import MODELS, NEW, OTHERS, _on_gpu
from ropewalk.caches import clear_caches
from ropewalk.kernels.fused import api as fused
from ropewalk.kernels.prefill import forms
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.presets import PRESETS
from ropewalk_lab.bench.rows import run_script

ROUNDS = 7
PROMPTS = (128, 512, 2048, 8192, 16384)


@contextmanager
def without_gluon() -> Iterator[None]:
    """Choose the plain Triton form of the QKV kernel for many tokens."""
    with mock.patch.object(forms, "pick_form", return_value=forms.PLAIN):
        yield


@contextmanager
def without_one_launch() -> Iterator[None]:
    """Compute QKV of many tokens by the library's product and a second launch."""
    with mock.patch.object(forms, "is_faster", return_value=False):
        yield


@contextmanager
def without_fused() -> Iterator[None]:
    """Norm, rotate and store by torch's operators and the rotation kernel."""
    with (
        mock.patch.object(forms, "is_faster", return_value=False),
        mock.patch.object(fused, "why_not_kernel", return_value="switched off"),
    ):
        yield


#: kernel -> what switches it off, and what takes its place
SWITCHES: dict[str, tuple[Callable[[], AbstractContextManager[None]], str]] = {
    "QKV of many tokens, Gluon": (without_gluon, "plain Triton"),
    "QKV of many tokens, one launch": (without_one_launch, "library product and a second launch"),
    "fused norm, rotation and cache write": (without_fused, "torch and the rotation kernel"),
}


def milliseconds(call: Callable[[], Any]) -> float:
    """Return the time of one call, until the GPU has finished."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def compare(call: Callable[[], Any], off: Callable[[], AbstractContextManager[None]]) -> dict:
    """Return the median times of a call with and without a kernel, and what the kernel gains."""
    times: dict[str, list[float]] = {"with": [], "without": []}
    ways = {"with": nullcontext, "without": off}
    for way in ways.values():
        with way():
            call()  # compiles
            call()
    for _ in range(ROUNDS):
        for name, way in ways.items():
            with way():
                times[name].append(milliseconds(call))
    median = {name: statistics.median(values) for name, values in times.items()}
    spread = max((max(values) - min(values)) / median[name] for name, values in times.items())
    return {
        "with_ms": round(median["with"], 3),
        "without_ms": round(median["without"], 3),
        "gain_percent": round(100 * (median["without"] / median["with"] - 1), 2),
        "spread_percent": round(100 * spread, 1),
    }


def decode_step_ms(model: Decoder, prompt: torch.Tensor) -> float:
    """Return the time of one decode step with a graph, from a generation of NEW tokens and of two."""
    generate = partial(model.generate, prompt, cache="static", capacity=prompt.shape[1] + NEW)
    generate(3)
    short, long = (min(milliseconds(partial(generate, n)) for _ in range(3)) for n in (2, NEW))
    return (long - short) / (NEW - 2)


def model_rows(name: str, model: Decoder) -> Iterator[dict[str, Any]]:
    """Yield rows of prompts and of decode steps of many rows."""
    vocabulary = model.config.vocab_size
    for kernel, (off, instead) in SWITCHES.items():
        row = {"what": "kernel worth", "kernel": kernel, "instead": instead, "model": name}
        for tokens in PROMPTS:
            prompt = torch.randint(0, vocabulary, (1, tokens), device="cuda")
            call = partial(model.generate, prompt, 1)
            yield row | {"step": f"prompt of {tokens:,} tokens"} | compare(call, off)
        if "fused" in kernel:
            continue
        for rows in (96, 128):
            prompt = torch.randint(0, vocabulary, (rows, 16), device="cuda")
            times: dict[str, list[float]] = {"with": [], "without": []}
            for _ in range(3):
                for way, context in (("with", nullcontext), ("without", off)):
                    clear_caches()
                    with context():
                        times[way].append(decode_step_ms(model, prompt))
            best = {way: min(values) for way, values in times.items()}
            yield (
                row
                | {"step": f"decode step of {rows} rows"}
                | {f"{way}_ms": round(value, 3) for way, value in best.items()}
                | {"gain_percent": round(100 * (best["without"] / best["with"] - 1), 2)}
            )


def training_rows() -> Iterator[dict[str, Any]]:
    """Yield rows of training steps: loss and backward of a decoder of 100M parameters."""
    model = Decoder(PRESETS["llama-100m"]).to("cuda", torch.bfloat16)
    tokens = torch.randint(0, model.config.vocab_size, (8, 2048), device="cuda")

    def step() -> None:
        model.loss(tokens).backward()
        model.zero_grad(set_to_none=True)

    for kernel, (off, instead) in SWITCHES.items():
        row = {"what": "kernel worth", "kernel": kernel, "instead": instead}
        row |= {"model": "llama-100m", "step": "training step, 8 x 2,048"}
        yield row | compare(step, off)


def measure() -> Iterator[dict[str, Any]]:
    """Yield all rows."""
    yield from training_rows()
    sizes = dict(MODELS)
    for name in ("Qwen3-4B", "Llama-3.2-1B"):
        hidden, heads, kv, head_dim, inner, layers, vocabulary, normed = OTHERS[name]
        sizes[f"{name} shape"] = {
            "vocab_size": vocabulary, "hidden_size": hidden, "intermediate_size": inner,
            "num_layers": layers, "num_heads": heads, "num_kv_heads": kv, "head_dim": head_dim,
            "qk_norm": normed,
        }  # fmt: skip
    for name, fields in sizes.items():
        clear_caches()
        model = _on_gpu(lambda fields=fields: Decoder(DecoderConfig(**fields)))
        with torch.no_grad():
            yield from model_rows(name, model)
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
