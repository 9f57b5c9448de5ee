"""Timings of a patched Llama against the same model unpatched and under Liger's patch: whole forwards, and the rotary part."""

from __future__ import annotations

import copy
import importlib.util
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.bench.cpu import times_in_turn
from ropewalk.interop.patch.model import patch, patched

#: eight layers of Llama-3-8B's size; the vocabulary is small, it takes no part
LLAMA_3_8B = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024, "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}  # fmt: skip
#: what one thread runs in a moment
SMALL = {**LLAMA_3_8B, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
         "num_key_value_heads": 4, "head_dim": 64}  # fmt: skip
CACHED, STEPS, ROUNDS = 1024, 8, 300
#: a form may be this many times farther from the float32 run of the model than the model as it came is
AGREEMENT = 1.1


def llama(sizes: dict[str, Any], device: str, dtype: torch.dtype) -> nn.Module:
    """A Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM._from_config(LlamaConfig(**sizes), dtype=dtype, attn_implementation="sdpa")
    return model.eval()


@contextmanager
def _liger(model: nn.Module) -> Iterator[nn.Module]:
    """Liger's rotation alone; it replaces the function for every Llama of the process."""
    from liger_kernel.transformers import apply_liger_kernel_to_llama  # type: ignore[import-not-found]  # a peer, not an extra
    from transformers.models.llama import modeling_llama

    before = modeling_llama.apply_rotary_pos_emb
    apply_liger_kernel_to_llama(rope=True, cross_entropy=False, fused_linear_cross_entropy=False, rms_norm=False, swiglu=False)
    try:
        yield model
    finally:
        modeling_llama.apply_rotary_pos_emb = before


class Form:
    """One way to run the model: entered for every timing, which takes no time, so that none finds a cooler GPU than another."""

    def __init__(
        self, enter: Callable[[], AbstractContextManager], call: Callable[[], Tensor], rewind: Callable[[], Any]
    ) -> None:
        self.enter, self.call, self.rewind = enter, call, rewind


Ways = Callable[[nn.Module], tuple[Callable[[], Tensor], Callable[[], Any]]]


def forms_of(model: nn.Module, ways: Ways) -> tuple[dict[str, Form], Tensor]:
    """The model as it came, a copy patched by us, and the first under Liger's patch; and what its float32 run gives."""
    # the same weights at the same place: where they lie in memory is worth a per cent
    ours = patch(copy.deepcopy(model, {id(p): p for p in model.parameters()}))
    call, rewind = ways(copy.deepcopy(model).float())
    rewind()
    return {
        "transformers": Form(nullcontext, *ways(model)),
        "ropewalk, patch": Form(nullcontext, *ways(ours)),
        "liger-kernel, patch": Form(lambda: _liger(model), *ways(model)),
    }, call()


@contextmanager
def clock_held_at(mhz: int | None) -> Iterator[None]:
    """The GPU's clock where power cannot push it about, which it does by more than a rotation takes; None leaves it free."""
    if mhz is None:
        yield
        return
    control = ["nvidia-smi", f"--id={torch.cuda.current_device()}"]
    subprocess.run([*control, f"--lock-gpu-clocks={mhz},{mhz}"], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([*control, "--reset-gpu-clocks"], check=True, capture_output=True)


def measure(seq: int = 8192, batch: int = 64, rounds: int = ROUNDS, mhz: int | None = None) -> list[dict[str, Any]]:
    """Prefill of one row and decode steps of many, bf16 on the GPU: median milliseconds of each form, taken in turn."""
    model = llama(LLAMA_3_8B, "cuda", torch.bfloat16)
    head = {"order": "bhsd", "dtype": "bfloat16", "layers": LLAMA_3_8B["num_hidden_layers"], "sm_mhz": mhz or "free"}
    with torch.no_grad(), clock_held_at(mhz):
        ids = torch.randint(0, 1024, (1, seq), device="cuda")
        whole = forms_of(model, lambda model: (lambda: prefill(model, ids), lambda: None))
        done = list(_rows({**head, "shape": f"llama prefill 1x{seq}"}, *whole, 1, rounds))
        steps = forms_of(model, lambda model: decode_step(model, batch))
        return done + list(_rows({**head, "shape": f"llama decode {batch}x1 after {CACHED}"}, *steps, STEPS, rounds // 3))


def prefill(model: nn.Module, ids: Tensor) -> Tensor:
    """A forward without a cache; only the last logits, as generation wants them."""
    return model(ids, use_cache=False, logits_to_keep=64).logits


def decode_step(model: nn.Module, batch: int) -> tuple[Callable[[], Tensor], Callable[[], Any]]:
    """One decode step on a static cache of CACHED tokens, and what sets the cache back to them."""
    from transformers import StaticCache

    config: Any = model.config
    torch.manual_seed(1)  # every form decodes the same
    cache = StaticCache(config=config, max_cache_len=CACHED + 2 * STEPS)
    for row in torch.randint(0, 1024, (4, CACHED // 4), device=model.device):  # type: ignore[call-overload]
        model(row.expand(batch, -1), past_key_values=cache, logits_to_keep=1)
    last = torch.randint(0, 1024, (batch, 1), device=model.device)  # type: ignore[call-overload]

    def rewind() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(CACHED)  # type: ignore[union-attr]  # a static layer's is a tensor

    return lambda: model(last, past_key_values=cache).logits, rewind


def _rows(head: dict[str, Any], ways: dict[str, Form], wanted: Tensor, loops: int, rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each form that can run here and is as near to the float32 run as the model that came."""
    forms: dict[str, tuple[Form, float]] = {}
    for name, form in ways.items():
        if name.startswith("liger") and importlib.util.find_spec("liger_kernel") is None:
            yield {**head, "contender": name, "skipped": "liger-kernel is not installed"}
            continue
        form.rewind()
        with form.enter():
            found = form.call().float()
        error = ((found - wanted).square().mean() / wanted.square().mean()).sqrt().item()
        if forms and error > AGREEMENT * forms["transformers"][1]:
            yield {**head, "contender": name, "skipped": f"is farther from the float32 run than transformers: {error:.3g}"}
        else:
            forms[name] = form, error
    taken: dict[str, list[float]] = {name: [] for name in forms}
    names = list(forms)
    for turn in range(rounds + 3):  # the first three warm up
        # each comes after every other equally often: a hot GPU is a slow one
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            form = forms[name][0]
            with form.enter():
                taken[name].append(_event_ms(form.call, form.rewind, loops))
    taken = {name: times[3:] for name, times in taken.items()}
    base = statistics.median(taken["transformers"])
    for name, times in taken.items():
        low, middle, high = statistics.quantiles(times, n=4)
        row = {"ms": round(middle, 4), "quartiles_ms": [low, high], "times_faster": round(base / middle, 4)}
        ahead = {"ahead_ms": {other: lead(times, taken[other]) for other in taken if other != name}}
        yield {**head, "contender": name, "pass": "forward", **row, **ahead, "rms_error": float(f"{forms[name][1]:.3g}")}


def lead(ours: list[float], theirs: list[float]) -> list[float]:
    """The median of theirs - ours over rounds, between the ends of its 95 % interval: pairs share what a GPU's clock does."""
    differences = sorted(their - our for our, their in zip(ours, theirs, strict=True))
    count = len(differences)
    reach = round(0.98 * count**0.5)  # ranks that half of all coin tosses leave with 95 %
    low, high = max(0, count // 2 - reach), min(count - 1, count // 2 + reach)
    return [round(value, 4) for value in (differences[low], statistics.median(differences), differences[high])]


def _event_ms(call: Callable[[], Any], rewind: Callable[[], Any], loops: int) -> float:
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


def measure_cpu(rounds: int = 8) -> list[dict[str, Any]]:
    """One thread, float32: the rotary part of eight layers with Llama-3-8B's heads, and whole forwards of a small Llama."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            rotary = [row for seq in (1024, 1) for row in _rotary_rows(seq, rounds)]
            return rotary + [row for seq in (256, 1) for row in _forward_rows(seq, rounds)]
    finally:
        torch.set_num_threads(threads)


def rotary_part(model: nn.Module, q: Tensor, k: Tensor, positions: Tensor, layers: int) -> Callable[[], Any]:
    """What one forward spends on its rope: the rotary module once, and the turning of q and k in each layer."""
    from transformers.models.llama import modeling_llama

    attention = model.model.layers[0].self_attn  # type: ignore[union-attr,index]
    stand = vars(attention).get("forward")
    turn = modeling_llama.apply_rotary_pos_emb if stand is None else stand.redirection.instead["apply_rotary_pos_emb"]

    def run() -> None:
        cos, sin = model.model.rotary_emb(q, positions)  # type: ignore[union-attr,operator]
        for _ in range(layers):
            turn(q, k, cos, sin)

    return run


def _rotary_rows(seq: int, rounds: int) -> Iterator[dict[str, Any]]:
    model = llama({**LLAMA_3_8B, "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64}, "cpu", torch.float32)
    q, k = (torch.randn(1, seq, heads, 128).transpose(1, 2) for heads in (32, 8))
    positions = torch.arange(seq)[None]
    calls = {"transformers": rotary_part(model, q, k, positions, 8)}
    with patched(model):
        calls["ropewalk, patch"] = rotary_part(model, q, k, positions, 8)
        yield from _cpu_rows({"shape": f"llama rotary part 1x{seq} 32/8x128, 8 layers", "pass": "forward"}, calls, rounds)


def _forward_rows(seq: int, rounds: int) -> Iterator[dict[str, Any]]:
    model = llama(SMALL, "cpu", torch.float32)
    models = {"transformers": model, "ropewalk, patch": patch(copy.deepcopy(model))}
    calls = {name: _forward(each, seq) for name, each in models.items()}
    yield from _cpu_rows({"shape": f"small llama 1x{seq} after {256 if seq == 1 else 0}", "pass": "forward"}, calls, rounds)


def _forward(model: nn.Module, seq: int) -> Callable[[], Any]:
    """A forward of `seq` tokens; a single one follows 256 cached."""
    from transformers import DynamicCache

    config: Any = model.config
    ids, cache = torch.randint(0, 1024, (1, seq)), DynamicCache(config=config)
    if seq == 1:
        model(torch.randint(0, 1024, (1, 256)), past_key_values=cache)

    def run() -> None:
        model(ids, past_key_values=cache)
        cache.crop(-seq)  # the next call finds the cache as this one did

    return run


def _cpu_rows(head: dict[str, Any], calls: dict[str, Callable[[], Any]], rounds: int) -> Iterator[dict[str, Any]]:
    taken = times_in_turn(calls, rounds)
    for name, us in taken.items():
        faster = round(taken["transformers"] / us, 3)
        yield {
            **head,
            "order": "bhsd",
            "dtype": "float32",
            "threads": 1,
            "contender": name,
            "us": round(us, 1),
            "times_faster": faster,
        }
