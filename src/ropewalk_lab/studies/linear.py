"""Study `linear`: linear against softmax attention, both with RoPE: loss, time and memory.

Words of this module:
  row    one measurement: a metric ("loss", "accuracy"; "milliseconds" of a forward pass,
         "remembered" bytes of its cache, "peak" bytes), its values, and the fields `model`,
         `length` and, for "loss" and "accuracy", `seed`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  kind   a name of MODELS, stored as `model`
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import nn

from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.bench.memory import peak_bytes
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Table,
    claim_order,
    line_figure,
    ours_by_name,
    score_rows,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score, select
from ropewalk_lab.studies.study import Study
from ropewalk_lab.tokenizer import Bytes

#: name -> changed settings of the model
MODELS: dict[str, dict[str, str]] = {
    "softmax, rope": {"encoding": "rope"},
    "linear, rope": {"encoding": "rope", "attention": "linear"},
    "linear, none": {"encoding": "none", "attention": "linear"},
}
PRESETS = presets_of("linear")


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each kind and seed, then measure time and memory in a single job; return
    the facts for the report.
    """
    settings, shared = runner.settings, runner.pick("preset", "changes", "windows", "multiples")
    runner.run_each(quality, "kind", MODELS, _file_name, **shared)
    runner.run([Job("costs", costs, runner.pick("preset", "changes", "timed"))])
    return training.preset_facts(settings["preset"], settings["changes"])


def _file_name(kind: str) -> str:
    """Return the name of a model without spaces."""
    return kind.replace(", ", "-")


def quality(
    workspace: Workspace,
    *,
    kind: str,
    seed: int,
    preset: str,
    changes: list[str],
    windows: int,
    multiples: list[int],
) -> list[Row]:
    """Train one model and measure its loss at every length; return the rows.

    kind             a name of MODELS
    preset, changes  the training preset, and changes of its settings
    windows          the number of held-out windows
    multiples        the lengths, as multiples of the trained length
    """
    full_preset = training.make_preset(preset, changes, seed, **MODELS[kind])
    name = f"{_file_name(kind)}-{seed}"
    return training.train_and_measure(
        workspace, name, full_preset, multiples, windows, model=kind, seed=seed
    )


def costs(workspace: Workspace, *, preset: str, changes: list[str], timed: list[int]) -> list[Row]:
    """Return rows of untrained models: the time of a forward pass, the bytes of its cache and, on a
    GPU, the peak memory that the pass needs beside the weights. `timed` are the lengths in tokens.
    """
    rows = []
    for kind, change in MODELS.items():
        table: dict[str, Any] = training.make_preset(preset, changes, 0).model | change
        model = (
            Decoder(DecoderConfig(vocab_size=Bytes.vocab_size, length=max(timed), **table))
            .to(workspace.device)
            .eval()
        )
        for length in timed:
            tokens = torch.zeros(1, length, dtype=torch.int64, device=workspace.device)
            caches = model.caches()
            with torch.no_grad():
                model.features(tokens, caches=caches)
            # without a seed, which costs do not depend on
            fields = {"model": kind, "length": length}
            rows.append(row("remembered", sum(held_bytes(cache) for cache in caches), **fields))
            del caches
            rows.append(row("milliseconds", _milliseconds(model, tokens), **fields))
            if workspace.device.type == "cuda":
                with torch.no_grad():
                    peak = peak_bytes(partial(model.features, tokens), "cuda")
                rows.append(row("peak", peak, **fields))
    return rows


def held_bytes(cache: Any) -> int:
    """Return the bytes of the tensors that a cache uses, without memory that it has reserved for
    further tokens.
    """
    # the running sums and token count of linear attention; or the keys, values, positions and
    # padding mask of softmax attention
    tensors = cache.state if hasattr(cache, "state") else cache.seen
    return sum(
        each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor)
    )


@torch.no_grad()
def _milliseconds(model: nn.Module, tokens: torch.Tensor) -> float:
    """Return the milliseconds of the fastest of three forward passes; `features` is the pass
    without logits.
    """
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        model.features(tokens)  # type: ignore[operator]
        if tokens.is_cuda:
            torch.cuda.synchronize(tokens.device)
        best = min(best, time.perf_counter() - began)
    return 1000 * best


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return tables of loss, time and memory, a figure of the time, the claims, and our values
    beside published ones.
    """
    lengths, timed = distinct(rows, "loss", "length"), distinct(rows, "milliseconds", "length")
    models = distinct(rows, "loss", "model")

    def costs_of(metric: str, model: str) -> list[float]:
        """Return a cost of a model at each of the lengths `timed`."""
        return [select(rows, metric, model=model, length=length)[0]["mean"] for length in timed]

    def costs_table(title: str, metric: str, unit: float, digits: int, note: str = "") -> Table:
        """Return a table of one cost of every model by length, divided by `unit`."""
        cells = [
            (model, *(f"{value / unit:.{digits}f}" for value in costs_of(metric, model)))
            for model in models
        ]
        return Table(title, ("attention", *map(str, timed)), cells, note)

    losses = score_rows(rows, "loss", "model", models, "length", lengths)
    tables = [
        Table(
            "Loss by context length", ("attention", *map(str, lengths)), losses, "Nats per byte."
        ),
        costs_table("Milliseconds of a forward pass", "milliseconds", 1, 1),
        costs_table(
            "MiB of the cache", "remembered", 2**20, 2, "Keys and values, or running sums."
        ),
    ]
    if select(rows, "peak"):
        tables.append(costs_table("Peak MiB", "peak", 2**20, 0))
    times = {model: (timed, costs_of("milliseconds", model)) for model in models}
    figure = line_figure(times, title="Time of a forward pass", x="tokens", y="ms", log_y=True)
    ours = ours_by_name(
        rows,
        {"Performer": "linear, none", "Performer with RoPE": "linear, rope"},
        "model",
        lengths[:1],
    )
    return Findings(tables, {"linear": figure}, claims(rows, lengths), {"roformer-linear": ours})


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """Return the claims that linear attention has a higher loss than softmax attention, and that
    RoPE lowers the loss of linear attention, both at the trained length, the first of `lengths`.
    """
    losses = {model: score(rows, "loss", model=model, length=lengths[0]) for model in MODELS}
    text = "Softmax attention has a lower loss than linear attention, both with RoPE"
    return [
        claim_order(text, losses, ["softmax, rope", "linear, rope"]),
        claim_order(
            "RoPE lowers the loss of linear attention", losses, ["linear, rope", "linear, none"]
        ),
    ]


STUDY = Study(
    "linear",
    ABOUT["linear"],
    PRESETS,
    run,
    findings,
    ("roformer-linear",),
)
