"""`passkey`: five digits said once, asked for at the end; how far, how deep, and with which method they are found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.lab.batches import IGNORED, Batch, MixedBatches, TaskBatches, TextBatches
from ropewalk.lab.evaluation import depth_grid
from ropewalk.lab.objectives import answers
from ropewalk.lab.studies.extension import METHODS, NONE, spec_for
from ropewalk.lab.studies.page import FAILS, HOLDS, TIED, Claim, Page, Table, lines
from ropewalk.lab.studies.rows import Row, chosen, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import CPU_CHANGES, GPU_CHANGES, corpus_of, facts_of, length_of, preset_of, trained
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.models.migrate import migrate

FOUND = 0.95
ALL = [NONE, *METHODS]
_DEPTHS = [0.0, 0.25, 0.5, 0.75, 1.0]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "smoke", "changes": ["train.stages=[{length=96, batch=4, steps=20}]"], "share": 0.5, "methods": [NONE, "yarn"],
        "multiples": [1, 2], "depths": [0.0, 1.0], "count": 5, "seeds": 1,
    },
    "cpu": {
        "preset": "cpu", "changes": [*CPU_CHANGES, "train.stages=[{length=128, batch=16, steps=1200}]"], "share": 0.5,
        "methods": ALL, "multiples": [1, 2, 4], "depths": _DEPTHS, "count": 20, "seeds": 1,
    },
    "gpu": {
        "preset": "gpu", "changes": [*GPU_CHANGES, "train.stages=[{length=256, batch=128, steps=1200}]"], "share": 0.5,
        "methods": ALL, "multiples": [1, 2, 4, 8], "depths": _DEPTHS, "count": 100, "seeds": 1,
    },
    "cluster": {
        "preset": "cluster", "changes": [], "share": 0.2, "methods": ALL,
        "multiples": [1, 2, 4, 8, 16], "depths": _DEPTHS, "count": 200, "seeds": 3,
    },
}  # fmt: skip


def row_by_row(model: nn.Module, batch: Batch) -> Tensor:
    """Language modelling where every row weighs the same: five digits of a task as much as a window full of text."""
    losses = F.cross_entropy(answers(model, batch).float().transpose(1, 2), batch.targets, reduction="none", ignore_index=IGNORED)
    asked = (batch.targets != IGNORED).sum(1).clamp(min=1)
    # scaled back to a sum over targets, which is what a trainer divides by their number
    return (losses.sum(1) / asked).mean() * batch.count


def run(workshop: Workshop) -> dict[str, Any]:
    """One model a seed, under every method."""
    s = workshop.settings
    shared = {name: value for name, value in s.items() if name != "seeds"}
    workshop.each(Job(f"passkey-{seed}", measure, {"seed": seed, **shared}) for seed in workshop.seeds)
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def measure(
    place: Place, *, seed: int, preset: str, changes: list[str], share: float, methods: list[str], multiples: list[int],
    depths: list[float], count: int,
) -> list[Row]:  # fmt: skip
    """Train on text and pass keys, then look for keys at every length and depth."""
    wanted = preset_of(preset, changes, seed, encoding="rope")
    corpus, length = corpus_of(wanted), length_of(wanted)
    text = TextBatches(corpus.train, corpus.vocab_size, corpus.fingerprint, seed)
    keys = TaskBatches("passkey", corpus.vocab_size, seed)
    batches = MixedBatches((text, keys), (1 - share, share), seed)
    model = trained(place, f"passkey-{seed}", wanted, batches=batches, objective=row_by_row).model
    plain = model.layers[0].self_attn.encoding.rope.spec  # type: ignore[union-attr, index]
    rows = []
    for multiple in multiples:
        # at the trained length every method but none would only do harm
        for method in methods if multiple > 1 else [NONE]:
            longer = migrate(model, spec_for(method, plain, multiple, length)).model
            grid = depth_grid(longer, [multiple * length], depths, count, seed=seed, device=place.device)
            what: dict[str, Any] = {"method": method, "seed": seed}
            rows += [row("found", hits, length=far, depth=depth, **what) for (far, depth), hits in grid.items()]
    torch.cuda.empty_cache()
    return rows


def _mean(rows: list[Row], **what: Any) -> float | None:
    found = [r["mean"] for r in chosen(rows, "found", **what)]
    return sum(found) / len(found) if found else None


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Accuracy by method and length, by depth, and how far each method reaches."""
    lengths, depths = known(rows, "found", "length"), known(rows, "found", "depth")
    methods = known(rows, "found", "method")
    means = {m: {n: _mean(rows, method=m, length=n) for n in lengths} for m in methods}
    for method in methods:
        means[method][lengths[0]] = means[NONE][lengths[0]]
    cells = [(m, *(_percent(found[n]) for n in lengths), _reach(found)) for m, found in means.items()]
    by_method = Table("Keys found", ("method", *map(str, lengths), f"longest with {FOUND:.0%}"), cells, "Mean over all depths.")
    deep = [
        (f"{m}, {n}", *(_percent(_mean(rows, method=m, length=n, depth=d)) for d in depths))
        for m in methods
        for n in lengths
        if chosen(rows, "found", method=m, length=n)
    ]
    by_depth = Table("By depth", ("method, length", *(f"{d:.0%}" for d in depths)), deep, "0 % is the beginning of the text.")
    series = {m: (lengths, [100 * (found[n] or 0) for n in lengths]) for m, found in means.items()}
    figure = lines(series, title="Pass keys found", x="tokens", y="%")
    return Page([by_method, by_depth], {"passkey": figure}, claims(rows, lengths))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _reach(found: dict[int, float | None]) -> str:
    """The longest length up to which a method never falls below FOUND."""
    reach = 0
    for length, share in found.items():
        if share is None or share < FOUND:
            break
        reach = length
    return str(reach) if reach else "none"


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """That the task was learnt at all: without it nothing beyond means anything."""
    share = _mean(rows, method=NONE, length=lengths[0]) or 0.0
    found = score(rows, "found", method=NONE, length=lengths[0])
    count = found.values.size if found is not None else 1
    error = (max(share * (1 - share), 1 / count) / count) ** 0.5
    verdict = HOLDS if share - 2 * error >= FOUND else FAILS if share + 2 * error < FOUND else TIED
    text = f"At the trained length ({lengths[0]}) at least {FOUND:.0%} of the keys are found"
    return [Claim(text, verdict, f"{share:.1%} ± {error:.1%} of {count}")]


STUDY = Study(
    "passkey", "How far can a model find five digits that were said once?", PRESETS, run, page,
    ("interpolation-passkey", "yarn-passkey", "drope-needle"),
)  # fmt: skip
