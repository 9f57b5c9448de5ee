"""Time a Llama with `rw.patch`, unpatched, and on a GPU with Liger's patch: whole forward passes, and
on a CPU also the rotary part.
"""

from __future__ import annotations

import copy
import importlib.util
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.interop.patch.model import patch, patched
from ropewalk_lab.bench.cpu import alternating_times, one_thread
from ropewalk_lab.bench.rows import run_script

#: eight layers of Llama-3-8B's size; the vocabulary is small because it does not matter here
LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}
#: small enough for one CPU thread
SMALL = {
    **LLAMA_3_8B,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}
#: tokens in the cache before a decode step, and calls in each timing of decode steps
CACHED, STEPS = 1024, 8
#: timings of each contender (a third as many of decode steps), and timings before them that are not
#: counted
ROUNDS, WARM_UP = 300, 3
#: the error of a contender, compared with a float32 run, may be this many times the error of
#: transformers
TOLERANCE = 1.1


def llama(sizes: dict[str, Any], device: str, dtype: torch.dtype) -> nn.Module:
    """Return a Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(
            LlamaConfig(**sizes), dtype=dtype, attn_implementation="sdpa"
        )
    return model.eval()


@contextmanager
def _liger() -> Iterator[None]:
    """Apply only Liger's rotation, which replaces the function for every Llama of the process."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama
    from transformers.models.llama import modeling_llama

    before = modeling_llama.apply_rotary_pos_emb
    apply_liger_kernel_to_llama(
        rope=True,
        cross_entropy=False,
        fused_linear_cross_entropy=False,
        rms_norm=False,
        swiglu=False,
    )
    try:
        yield
    finally:
        modeling_llama.apply_rotary_pos_emb = before


@dataclass(frozen=True)
class Contender:
    """One variant of the model: `call` is timed inside the context `enter`, after `rewind` has
    reset its cache.
    """

    enter: Callable[[], AbstractContextManager]
    call: Callable[[], Tensor]
    rewind: Callable[[], Any]


#: a function that returns the timed call of a model, and the function that resets its cache
MakeCall = Callable[[nn.Module], tuple[Callable[[], Tensor], Callable[[], Any]]]


def contenders_of(model: nn.Module, make_call: MakeCall) -> tuple[dict[str, Contender], Tensor]:
    """Return the model unpatched, with our patch and with Liger's patch; and the logits of a
    float32 run.
    """
    # the copy shares the weights, because their memory addresses change the time by one per cent
    ours = patch(copy.deepcopy(model, {id(p): p for p in model.parameters()}))
    call, rewind = make_call(copy.deepcopy(model).float())
    rewind()
    return {
        "transformers": Contender(nullcontext, *make_call(model)),
        "ropewalk, patch": Contender(nullcontext, *make_call(ours)),
        "liger-kernel, patch": Contender(_liger, *make_call(model)),
    }, call()


def measure(seq: int = 8192, batch: int = 64, rounds: int = ROUNDS) -> Iterator[dict[str, Any]]:
    """Yield the times of the prefill of one row and of decode steps of `batch` rows, bf16 on the
    GPU, by contender.
    """
    model = llama(LLAMA_3_8B, "cuda", torch.bfloat16)
    common = {"order": "bhsd", "dtype": "bfloat16", "layers": LLAMA_3_8B["num_hidden_layers"]}
    with torch.no_grad():
        ids = torch.randint(0, 1024, (1, seq), device="cuda")
        # a prefill has no cache to reset
        contenders, expected = contenders_of(
            model, lambda model: (lambda: prefill(model, ids), lambda: None)
        )
        yield from _rows(
            {**common, "shape": f"llama prefill 1x{seq}"}, contenders, expected, 1, rounds
        )
        contenders, expected = contenders_of(model, lambda model: decode_step(model, batch))
        shape = f"llama decode {batch}x1 after {CACHED}"
        yield from _rows({**common, "shape": shape}, contenders, expected, STEPS, rounds // 3)


def prefill(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits of the last 64 tokens of a forward pass without a cache."""
    return model(ids, use_cache=False, logits_to_keep=64).logits


def decode_step(model: nn.Module, batch: int) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
    """Return a function for one decode step on a static cache of CACHED tokens, and a function that
    resets the cache.
    """
    from transformers import StaticCache

    config: Any = model.config
    torch.manual_seed(1)  # all contenders decode the same tokens
    cache = StaticCache(config=config, max_cache_len=CACHED + 2 * STEPS)
    for row in torch.randint(0, 1024, (4, CACHED // 4), device=model.device):
        model(row.expand(batch, -1), past_key_values=cache, logits_to_keep=1)
    last = torch.randint(0, 1024, (batch, 1), device=model.device)

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(CACHED)

    return lambda: model(last, past_key_values=cache).logits, rewind


def _rows(
    common: dict[str, Any],
    contenders: dict[str, Contender],
    expected: Tensor,
    loops: int,
    rounds: int,
) -> Iterator[dict[str, Any]]:
    """Yield a row for each contender; one that is not installed, or whose error is above TOLERANCE
    times that of transformers, is not timed.

    common, expected  keys of every row, and the logits of a float32 run
    loops, rounds     calls in each timing, and timings of each contender, which alternate
    """
    errors: dict[str, float] = {}
    for name, contender in contenders.items():
        if name.startswith("liger") and importlib.util.find_spec("liger_kernel") is None:
            yield {**common, "contender": name, "skipped": "liger-kernel is not installed"}
            continue
        contender.rewind()
        with contender.enter():
            logits = contender.call().float()
        error = ((logits - expected).square().mean() / expected.square().mean()).sqrt().item()
        if errors and error > TOLERANCE * errors["transformers"]:
            yield {
                **common,
                "contender": name,
                "skipped": f"is farther from the float32 run than transformers: {error:.3g}",
            }
        else:
            errors[name] = error
    times: dict[str, list[float]] = {name: [] for name in errors}
    names = list(errors)
    for index in range(rounds + WARM_UP):
        # the order changes, so that each contender is first, second and last equally often, because
        # a hot GPU is slower
        for name in names[index % len(names) :] + names[: index % len(names)]:
            with contenders[name].enter():
                times[name].append(_event_ms(contenders[name].call, contenders[name].rewind, loops))
    times = {name: values[WARM_UP:] for name, values in times.items()}
    base = statistics.median(times["transformers"])
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        row = {
            "ms": round(median, 4),
            "quartiles_ms": [low, high],
            "times_faster": round(base / median, 4),
        }
        ahead = {
            "ahead_ms": {other: lead(values, times[other]) for other in times if other != name}
        }
        yield {
            **common,
            "contender": name,
            "pass": "forward",
            **row,
            **ahead,
            "rms_error": float(f"{errors[name]:.3g}"),
        }


def lead(ours: list[float], theirs: list[float]) -> list[float]:
    """Return [low, median, high]: the median of theirs - ours over the rounds, inside its 95 %
    interval.

    Times of the same round are subtracted, because the GPU's clock changes less within a round.
    """
    differences = sorted(their - our for our, their in zip(ours, theirs, strict=True))
    count = len(differences)
    # half the interval in ranks: 1.96 standard deviations of a binomial, sqrt(count) / 2
    reach = round(0.98 * count**0.5)
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    return [
        round(value, 4)
        for value in (differences[low], statistics.median(differences), differences[high])
    ]


def _event_ms(call: Callable[[], Any], rewind: Callable[[], Any], loops: int) -> float:
    """Return the milliseconds of one of `loops` calls by CUDA events, after one call that is not
    timed.
    """
    rewind()
    call()
    rewind()
    torch.cuda.synchronize()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(loops):
        call()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop) / loops


def measure_cpu(rounds: int = 8) -> Iterator[dict[str, Any]]:
    """Time in one thread, float32: the rotary part of eight layers with Llama-3-8B's heads, and a
    small Llama's forward pass.
    """
    with one_thread(), torch.no_grad():
        for seq in (1024, 1):
            yield from _rotary_rows(seq, rounds)
        for seq in (256, 1):
            yield from _forward_rows(seq, rounds)


def rotary_part(
    model: nn.Module, q: Tensor, k: Tensor, positions: Tensor, layers: int
) -> Callable[[], Any]:
    """Return a function that runs the rotary part of a forward pass: the rotary module once, then
    the rotation per layer.
    """
    from transformers.models.llama import modeling_llama

    # a patched layer has a forward of its own
    replacement = vars(model.model.layers[0].self_attn).get("forward")
    rotate = modeling_llama.apply_rotary_pos_emb
    if replacement is not None:
        rotate = replacement.method.substitutes["apply_rotary_pos_emb"]

    def run() -> None:
        cos, sin = model.model.rotary_emb(q, positions)
        for _ in range(layers):
            rotate(q, k, cos, sin)

    return run


def _rotary_rows(seq: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the times of the rotary part of eight layers for `seq` tokens, without and with our
    patch.
    """
    model = llama(
        {**LLAMA_3_8B, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64},
        "cpu",
        torch.float32,
    )
    q, k = (torch.randn(1, seq, heads, 128).transpose(1, 2) for heads in (32, 8))
    positions = torch.arange(seq)[None]
    calls = {"transformers": rotary_part(model, q, k, positions, 8)}
    with patched(model):
        calls["ropewalk, patch"] = rotary_part(model, q, k, positions, 8)
        yield from _cpu_rows(f"llama rotary part 1x{seq} 32/8x128, 8 layers", calls, rounds)


def _forward_rows(seq: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the times of a forward pass of a small Llama with `seq` tokens, without and with our
    patch.
    """
    model = llama(SMALL, "cpu", torch.float32)
    models = {"transformers": model, "ropewalk, patch": patch(copy.deepcopy(model))}
    calls = {name: _forward(variant, seq) for name, variant in models.items()}
    yield from _cpu_rows(f"small llama 1x{seq} after {256 if seq == 1 else 0}", calls, rounds)


def _forward(model: nn.Module, seq: int) -> Callable[[], Any]:
    """Return a function that runs a forward pass of `seq` tokens; a single token follows 256 cached
    tokens.
    """
    from transformers import DynamicCache

    config: Any = model.config
    ids, cache = torch.randint(0, 1024, (1, seq)), DynamicCache(config=config)
    if seq == 1:
        model(torch.randint(0, 1024, (1, 256)), past_key_values=cache)

    def run() -> None:
        model(ids, past_key_values=cache)
        cache.crop(-seq)  # every call starts from the same cache

    return run


def _cpu_rows(
    shape: str, calls: dict[str, Callable[[], Any]], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yield a row with the time of each call, in turns, and how many times faster than transformers
    it is.
    """
    times = alternating_times(calls, rounds)
    common = {"shape": shape, "pass": "forward", "order": "bhsd", "dtype": "float32", "threads": 1}
    for name, us in times.items():
        yield {
            **common,
            "contender": name,
            "us": round(us, 1),
            "times_faster": round(times["transformers"] / us, 3),
        }


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure, "cpu": measure_cpu})
