"""`mlm_lengths`: RoFormer's pre-training made small, six stages of changing length, judged after each on the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.lab.batches import IGNORED, mask_tokens
from ropewalk.lab.studies.page import Claim, Page, Table, by_length, lines, lower, number
from ropewalk.lab.studies.rows import Row, known, read_rows, row, score, write_rows
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import corpus_of, facts_of, prepare, preset_of
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.lab.tokenizer import Bytes

_LARGE = [
    "model.hidden_size=384", "model.intermediate_size=1536", "model.num_layers=4", "model.num_heads=6", "data.source=code",
    "train.learning_rate=7e-4", "train.warmup=400", "train.precision=bfloat16", "train.log_every=20",
]  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "mlm", "changes": ["model.hidden_size=32", "model.intermediate_size=64", "train.warmup=2"],
        "stages": [[16, 4, 6], [48, 4, 3], [8, 4, 4]], "windows": 6, "seeds": 1,
    },
    "cpu": {
        "preset": "mlm", "changes": [],
        "stages": [[128, 16, 400], [384, 16, 25], [64, 16, 240], [32, 32, 160], [384, 16, 20], [128, 32, 60]],
        "windows": 64, "seeds": 1,
    },
    "gpu": {
        "preset": "mlm", "changes": _LARGE,
        "stages": [[128, 128, 4000], [384, 128, 250], [64, 128, 2400], [32, 256, 1600], [384, 128, 200], [128, 256, 600]],
        "windows": 256, "seeds": 1,
    },
    "cluster": {
        "preset": "mlm", "changes": [*_LARGE, "model.hidden_size=768", "model.intermediate_size=3072", "model.num_layers=12"],
        "stages": [
            [512, 256, 20000], [1536, 256, 1250], [256, 256, 12000], [128, 512, 8000], [1536, 256, 1000], [512, 512, 3000],
        ],
        "windows": 256, "seeds": 3,
    },
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """One long training a seed, stopped at the end of every stage."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "stages", "windows")}
    workshop.each(Job(f"stages-{seed}", measure, {"seed": seed, **shared}) for seed in workshop.seeds)
    return facts_of(preset_of(s["preset"], [*s["changes"], _stages(s["stages"])], 0))


def _stages(stages: Sequence[Sequence[int]]) -> str:
    tables = (f"{{length={length}, batch={batch}, steps={steps}}}" for length, batch, steps in stages)
    return f"train.stages=[{', '.join(tables)}]"


def measure(place: Place, *, seed: int, preset: str, changes: list[str], stages: list[list[int]], windows: int) -> list[Row]:
    """Train stage by stage; after each, the masked loss and accuracy at every length in use."""
    wanted = preset_of(preset, [*changes, _stages(stages)], seed)
    trainer = prepare(place, f"mlm-{seed}", wanted)
    lengths = sorted({length for length, _, _ in stages})
    text = corpus_of(wanted).valid.windows(windows, lengths[-1])
    rows, end = [], 0
    for number_, (length, _, steps) in enumerate(stages, start=1):
        end += steps
        # kept as soon as measured, before any further step, so that a continued study never judges a later model
        kept = trainer.folder / f"stage-{number_}.jsonl"  # type: ignore[operator]
        if not kept.exists():
            if trainer.run(stop=end).step < end:
                raise KeyboardInterrupt
            what = {"stage": number_, "trained": length, "seed": seed}
            found = [each for n in lengths for each in masked_rows(trainer.model, text, n, place.device, **what)]
            write_rows(kept, found)
        rows += read_rows(kept)
    return rows


def masked_rows(model: nn.Module, text: np.ndarray, length: int, device: torch.device, **what: Any) -> list[Row]:
    """Loss and accuracy at the masked tokens of windows read in pieces of `length`: the same tokens whatever the length."""
    inputs, targets = mask_tokens(text, np.arange(len(text)), Bytes(), seed=1)
    asked = targets != IGNORED
    pieces = inputs.view(-1, length).to(device, torch.int64)
    was_training = model.training
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(part).float().cpu() for part in pieces.split(max(1, 16_384 // length))])
    model.train(was_training)
    logits = logits.view(*text.shape, -1)
    losses = F.cross_entropy(logits.transpose(1, 2), targets.long(), reduction="none", ignore_index=IGNORED)
    hits = (logits.argmax(-1) == targets) & asked
    return [
        row("loss", _by_window(losses, asked), length=length, **what),
        row("accuracy", _by_window(hits.double(), asked), length=length, **what),
    ]


def _by_window(values: Tensor, asked: Tensor) -> np.ndarray:
    return ((values * asked).sum(1) / asked.sum(1).clamp(min=1)).double().numpy()


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """RoFormer's own table, and the same model at every length."""
    stages, lengths = known(rows, "loss", "stage"), known(rows, "loss", "length")
    trained = {stage: known(rows, "loss", "trained", stage=stage)[0] for stage in stages}
    own = [(score(rows, m, stage=s, length=trained[s])) for s in stages for m in ("loss", "accuracy")]
    cells = [
        (str(stage), str(trained[stage]), str(plan[1]), str(plan[2]), number(own[2 * i]), number(own[2 * i + 1]))
        for i, (stage, plan) in enumerate(zip(stages, facts["settings"]["stages"], strict=True))
    ]
    columns = ("stage", "length", "batch", "steps", "loss", "accuracy")
    note = "On held-out text after each stage, read at the stage's own length; the masked tokens are the same for all."
    read_at = [(str(s), *(number(score(rows, "loss", stage=s, length=n)) for n in lengths)) for s in stages]
    tables = [
        Table("Stages", columns, cells, note),
        Table("Loss by length read", ("after stage", *map(str, lengths)), read_at, "One model a row."),
    ]
    series = {f"stage {s}, at {trained[s]}": by_length(rows, lengths, stage=s) for s in stages}
    figure = lines(series, title="Masked loss by length", x="tokens read at a time", y="loss, nats per byte")
    return Page(tables, {"mlm_lengths": figure}, claims(rows, stages, trained))


def claims(rows: list[Row], stages: list[int], trained: dict[int, int]) -> list[Claim]:
    """The long stages end lower than their neighbours, each read at its own length."""
    own = {str(s): score(rows, "loss", stage=s, length=trained[s]) for s in stages}
    found = []
    for stage in stages:
        for other in (stage - 1, stage + 1):
            if other in trained and trained[stage] == max(trained.values()) > trained[other]:
                text = f"Stage {stage} (length {trained[stage]}) ends below stage {other} (length {trained[other]})"
                # one training, stopped twice: windows are the only noise
                found.append(lower(text, own, [str(stage), str(other)], same_model=True))
    last = stages[-1]
    ends = {str(n): score(rows, "loss", stage=last, length=n) for n in known(rows, "loss", "length")}
    order = sorted(ends, key=int, reverse=True)
    found.append(lower("The final model does better the more it reads at a time", ends, order, same_model=True))
    return found


STUDY = Study(
    "mlm_lengths", "Does alternating lengths, as RoFormer was trained, reach a lower loss where texts are long?", PRESETS, run,
    page, ("roformer-stages",),
)  # fmt: skip
