"""Time a training step of our Decoder and of transformers' Llama with the same weights and
optimiser, eager and compiled.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.models import checkpoints
from ropewalk.models.decoder_checkpoint import config_to_hf
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.presets import PRESETS
from ropewalk_lab.bench.rows import run_script

Step = Callable[[], Any]


def measure(
    config: DecoderConfig = PRESETS["llama-100m"],
    *,
    batch: int = 8,
    seq: int = 2048,
    rounds: int = 7,
    steps: int = 5,
    device: str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    compiled: bool = True,
) -> Iterator[dict[str, Any]]:
    """Yield tokens per second (median of alternating rounds) and peak memory of a step: loss,
    backward and AdamW.

    First both models must compute the same loss from the same weights in float32.
    """
    tokens = torch.randint(0, config.vocab_size, (batch, seq), device=device)
    theirs, ours = _pair(config, device)
    error = _loss_error(theirs, ours, tokens[:1, :256])
    contenders: dict[str, tuple[Step, int]] = {}
    for name, model, loss in (
        ("ropewalk", ours, lambda: ours.loss(tokens)),
        (
            "transformers",
            theirs,
            lambda: theirs(input_ids=tokens, labels=tokens, use_cache=False).loss,
        ),
    ):
        model.to(dtype).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        # parameters and two moments of the same size; gradients are counted in the step's peak
        state_bytes = 3 * sum(
            parameter.numel() * parameter.element_size() for parameter in model.parameters()
        )
        contenders[f"{name}, eager"] = _step(loss, optimizer), state_bytes
        if compiled:
            contenders[f"{name}, compiled"] = _step(torch.compile(loss), optimizer), state_bytes
    peaks = {
        name: state_bytes + _peak_growth(step, device)
        for name, (step, state_bytes) in contenders.items()
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, (step, _) in contenders.items():
            times[name].append(_seconds(step, steps, device))
    size = sum(parameter.numel() for parameter in ours.parameters())
    for name, seconds in times.items():
        median = statistics.median(seconds)
        yield {
            "shape": f"decoder {size / 1e6:.0f}M {batch}x{seq}",
            "dtype": str(dtype).removeprefix("torch."),
            "pass": "training step",
            "loss_error": float(f"{error:.3g}"),
            "contender": name,
            "us": round(median * 1e6, 1),
            "tokens_per_second": round(batch * seq / median),
            "spread_percent": round(100 * (max(seconds) - min(seconds)) / median, 1),
            "peak_bytes": peaks[name],
        }


def _pair(config: DecoderConfig, device: str) -> tuple[nn.Module, Any]:
    """Return transformers' model with random weights, and our model loaded from its checkpoint,
    both in float32.
    """
    import transformers

    values = config_to_hf(config)
    model_type = values.pop("model_type")
    values.pop("architectures", None)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(model_type, **values), attn_implementation="sdpa"
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder) / "model")
        ours = checkpoints.load(Path(folder) / "model", device=device)
    return theirs.to(device), ours


@torch.no_grad()
def _loss_error(theirs: nn.Module, ours: Any, tokens: Tensor) -> float:
    """Return the difference of the two losses; raise an error if it is larger than rounding."""
    expected = theirs(input_ids=tokens, labels=tokens).loss
    error = float((ours.loss(tokens) - expected).abs())
    if error > 1e-4:
        raise AssertionError(
            f"the two models have the same weights, but their losses differ by {error:g}"
        )
    return error


def _step(loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """Return a function that runs one training step: loss, backward and optimiser."""

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _peak_growth(step: Step, device: str) -> int:
    """Return the bytes that a step allocates at its peak; 0 on a CPU, where torch does not count
    them.
    """
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
    """Return the mean seconds of a step over `steps` steps, after one that is not timed."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    step()
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
