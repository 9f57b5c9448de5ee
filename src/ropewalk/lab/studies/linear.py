"""`linear`: linear against softmax attention, both with RoPE: how well, how fast, and what they must remember."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn

from ropewalk.lab.studies.page import Claim, Page, Table, lines, lower, number
from ropewalk.lab.studies.rows import Row, chosen, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import (
    CPU_CHANGES,
    GPU_CHANGES,
    facts_of,
    held_out_windows,
    length_of,
    measured,
    preset_of,
    trained,
)
from ropewalk.lab.studies.workshop import Job, Place, Workshop

#: name -> what it changes of the model
KINDS: dict[str, dict[str, str]] = {
    "softmax, rope": {"encoding": "rope"},
    "linear, rope": {"encoding": "rope", "attention": "linear"},
    "linear, none": {"encoding": "none", "attention": "linear"},
}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "windows": 4, "multiples": [1, 2], "timed": [64, 128], "seeds": 1},
    "cpu": {
        "preset": "cpu", "changes": CPU_CHANGES, "windows": 24, "multiples": [1, 2, 4], "timed": [512, 1024, 2048, 4096],
        "seeds": 1,
    },
    "gpu": {
        "preset": "gpu", "changes": GPU_CHANGES, "windows": 64, "multiples": [1, 2, 4],
        "timed": [1024, 4096, 16_384, 65_536], "seeds": 1,
    },
    "cluster": {
        "preset": "cluster", "changes": [], "windows": 64, "multiples": [1, 2, 4], "timed": [4096, 16_384, 65_536], "seeds": 3,
    },
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """Trainings side by side, then the clock, alone."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "windows", "multiples")}
    workshop.each(
        Job(f"{kind.replace(', ', '-')}-{seed}", quality, {"kind": kind, "seed": seed, **shared})
        for seed in workshop.seeds
        for kind in KINDS
    )
    workshop.each([Job("costs", costs, {"preset": s["preset"], "changes": s["changes"], "timed": s["timed"]})])
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def quality(
    place: Place, *, kind: str, seed: int, preset: str, changes: list[str], windows: int, multiples: list[int]
) -> list[Row]:
    """Loss of one model at every length."""
    wanted = preset_of(preset, changes, seed, **KINDS[kind])
    model = trained(place, f"{kind.replace(', ', '-')}-{seed}", wanted).model
    length = length_of(wanted)
    lengths = [length * multiple for multiple in multiples]
    return measured(model, held_out_windows(wanted, windows, lengths[-1]), lengths, length, model=kind, seed=seed)


def costs(place: Place, *, preset: str, changes: list[str], timed: list[int]) -> list[Row]:
    """Milliseconds to read a text, bytes to remember it, and on a GPU the peak; models are untrained, which costs the same."""
    from ropewalk.models import Decoder, DecoderConfig

    rows = []
    for kind, change in KINDS.items():
        table: dict[str, Any] = preset_of(preset, changes, 0).model | change
        model = Decoder(DecoderConfig(vocab_size=264, length=max(timed), **table)).to(place.device).eval()
        for length in timed:
            tokens = torch.zeros(1, length, dtype=torch.int64, device=place.device)
            caches = model.caches()
            with torch.no_grad():
                model.features(tokens, caches=caches)
            what = {"model": kind, "length": length}
            rows.append(row("remembered", sum(held_bytes(cache) for cache in caches), **what))
            del caches
            rows.append(row("milliseconds", _milliseconds(model, tokens), **what))
            if place.device.type == "cuda":
                rows.append(row("peak", torch.cuda.max_memory_allocated(place.device), **what))
                torch.cuda.reset_peak_memory_stats(place.device)
    return rows


def held_bytes(cache: Any) -> int:
    """The bytes of what a cache holds of the tokens it has seen."""
    held = cache.state if hasattr(cache, "state") else cache.seen
    return sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor))


@torch.no_grad()
def _milliseconds(model: nn.Module, tokens: torch.Tensor, repeats: int = 3) -> float:
    """The fastest of a few readings of a text."""
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        model.features(tokens)  # type: ignore[operator]
        if tokens.is_cuda:
            torch.cuda.synchronize(tokens.device)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Loss, time and memory."""
    lengths, timed = known(rows, "loss", "length"), known(rows, "milliseconds", "length")
    kinds = known(rows, "loss", "model")
    losses = [(m, *(number(score(rows, "loss", model=m, length=n)) for n in lengths)) for m in kinds]
    times = {m: [chosen(rows, "milliseconds", model=m, length=n)[0]["mean"] for n in timed] for m in kinds}
    held = [(m, *(f"{chosen(rows, 'remembered', model=m, length=n)[0]['mean'] / 2**20:.2f}" for n in timed)) for m in kinds]
    tables = [
        Table("Loss by context length", ("attention", *map(str, lengths)), losses, "Nats per byte."),
        Table(
            "Milliseconds to read one text",
            ("attention", *map(str, timed)),
            [(m, *(f"{t:.1f}" for t in y)) for m, y in times.items()],
        ),
        Table("MiB remembered of it", ("attention", *map(str, timed)), held, "Keys and values, or running sums."),
    ]
    if chosen(rows, "peak"):
        peaks = [(m, *(f"{chosen(rows, 'peak', model=m, length=n)[0]['mean'] / 2**20:.0f}" for n in timed)) for m in kinds]
        tables.append(Table("MiB at the peak", ("attention", *map(str, timed)), peaks))
    figure = lines({m: (timed, y) for m, y in times.items()}, title="Time to read one text", x="tokens", y="ms", log_y=True)
    return Page(tables, {"linear": figure}, claims(rows, lengths))


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """What linear attention costs in loss, and what RoPE gives it."""
    near = {m: score(rows, "loss", model=m, length=lengths[0]) for m in KINDS}
    return [
        lower(
            "Softmax attention has a lower loss than linear attention, both with RoPE", near, ["softmax, rope", "linear, rope"]
        ),
        lower("RoPE lowers the loss of linear attention", near, ["linear, rope", "linear, none"]),
    ]


STUDY = Study("linear", "What does linear attention cost, and save?", PRESETS, run, page)
