"""Training steps: our Decoder against transformers' Llama of the same size, weights and optimiser, eager and compiled."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.models import checkpoints
from ropewalk.models.checkpoints_decoder import config_to_hf
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.presets import PRESETS

Step = Callable[[], Any]


def measure(
    config: DecoderConfig = PRESETS["llama-100m"],  # type: ignore[assignment]  # a decoder's
    *,
    batch: int = 8,
    seq: int = 2048,
    rounds: int = 7,
    steps: int = 5,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    compiled: bool = True,
) -> list[dict[str, Any]]:
    """Tokens a second (median of rounds taken in turn) and peak memory of loss, backward and AdamW of both models.

    Before anything is timed both must have the same loss from the same weights in float32.
    """
    tokens = torch.randint(0, config.vocab_size, (batch, seq), device=device)
    theirs, ours = _pair(config, device)
    error = _agreement(theirs, ours, tokens[:1, :256])
    ways: dict[str, tuple[Step, int]] = {}
    for name, model, loss in (
        ("ropewalk", ours, lambda: ours.loss(tokens)),
        ("transformers", theirs, lambda: theirs(input_ids=tokens, labels=tokens, use_cache=False).loss),
    ):
        model.to(dtype).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        # parameters, and two moments of the same size; gradients come and go
        kept = 3 * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
        ways[f"{name}, eager"] = _step(loss, optimizer), kept
        if compiled:
            ways[f"{name}, compiled"] = _step(torch.compile(loss), optimizer), kept
    size = sum(parameter.numel() for parameter in ours.parameters())
    row = {
        "shape": f"decoder {size / 1e6:.0f}M {batch}x{seq}", "dtype": str(dtype).removeprefix("torch."),
        "pass": "training step", "loss_error": float(f"{error:.3g}"),
    }  # fmt: skip
    peaks = {name: kept + _growth(step, device) for name, (step, kept) in ways.items()}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (step, _) in ways.items():
            taken[name].append(_seconds(step, steps, device))
    rows = []
    for name, seconds in taken.items():
        middle = statistics.median(seconds)
        rows.append({
            **row, "contender": name, "us": round(middle * 1e6, 1), "tokens_per_second": round(batch * seq / middle),
            "spread_percent": round(100 * (max(seconds) - min(seconds)) / middle, 1), "peak_bytes": peaks[name],
        })  # fmt: skip
    return rows


def _pair(config: DecoderConfig, device: str) -> tuple[nn.Module, Any]:
    """transformers' model with random weights, and ours read from its folder, in float32."""
    import transformers

    given = {key: value for key, value in config_to_hf(config).items() if key not in ("model_type", "architectures")}
    asked = transformers.AutoConfig.for_model(config_to_hf(config)["model_type"], **given)
    theirs = transformers.AutoModelForCausalLM.from_config(asked, attn_implementation="sdpa")
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = checkpoints.load(Path(folder) / "model", device=device)
    return theirs.to(device), ours


@torch.no_grad()
def _agreement(theirs: nn.Module, ours: Any, tokens: Tensor) -> float:
    """How far the two losses are apart; more than rounding explains is refused."""
    expected = theirs(input_ids=tokens, labels=tokens).loss
    error = float((ours.loss(tokens) - expected).abs())
    if error > 1e-4:
        raise AssertionError(f"the losses of one set of weights differ by {error:g}: nothing to time")
    return error


def _step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _growth(step: Step, device: str) -> int:
    """What a step allocates at its peak beyond what is there before it; 0 where nobody counts."""
    for _ in range(3):
        step()
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _seconds(step: Step, steps: int, device: str) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps
