"""`multimodal`: images as grids of tokens. What lies below the mark? RoPE over rows and columns against one long line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk.lab.batches import IGNORED, Batch
from ropewalk.lab.draws import below, fold
from ropewalk.lab.studies.page import Claim, Page, Table, lines, lower
from ropewalk.lab.studies.rows import Row, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import preset_of, trained
from ropewalk.lab.studies.workshop import Job, Place, Workshop

COLOURS, MARK, VOCABULARY = 16, 16, 24
_MODELS = ["rope_2d", "rope", "learned", "none"]
_SMALL = ["model.hidden_size=64", "model.intermediate_size=128"]
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "mlm", "changes": ["model.hidden_size=32", "model.intermediate_size=64", "train.warmup=2"],
        "encodings": ["rope_2d", "rope"], "side": 4, "sides": [4, 6], "batch": 8, "steps": 6, "count": 20, "seeds": 1,
    },
    "cpu": {
        "preset": "mlm", "changes": _SMALL, "encodings": _MODELS, "side": 6, "sides": [6, 8, 10], "batch": 64, "steps": 600,
        "count": 400, "seeds": 1,
    },
    "gpu": {
        "preset": "mlm", "changes": ["train.learning_rate=5e-4"], "encodings": _MODELS, "side": 8, "sides": [8, 10, 12, 16],
        "batch": 256, "steps": 1200, "count": 1000, "seeds": 2,
    },
    "cluster": {
        "preset": "mlm", "changes": ["train.learning_rate=5e-4"], "encodings": _MODELS, "side": 16, "sides": [16, 20, 24, 32],
        "batch": 256, "steps": 3000, "count": 1000, "seeds": 3,
    },
}  # fmt: skip


@dataclass(frozen=True)
class GridBatches:
    """Square images of coloured patches, one of them marked: what is the colour below it? Pure in (seed, index, side)."""

    seed: int = 0
    axes: int = 1
    vocab_size: int = VOCABULARY

    @property
    def fingerprint(self) -> str:
        return f"grids {self.seed} {self.axes}"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        side = int(length**0.5)
        if side * side != length:
            raise RopeError("length", "must be a square: an image has as many rows as columns", length)
        seed, count = fold(self.seed, 31), len(index)
        rows = below(seed, index, 0, length, COLOURS)
        place = below(seed, index, 1, 1, length - side)[:, 0]  # never in the last row
        each, targets = np.arange(count), np.full((count, length), IGNORED, dtype=np.int64)
        targets[each, place] = rows[each, place + side]
        rows[each, place] = MARK
        return Batch(torch.from_numpy(rows), torch.from_numpy(targets), count, positions=self._positions(count, side))

    def _positions(self, count: int, side: int) -> torch.Tensor | None:
        """Row and column of each patch, [2, B, S]; None for a line, where patches are simply counted."""
        if self.axes == 1:
            return None
        grid = torch.cartesian_prod(torch.arange(side), torch.arange(side)).T
        return grid[:, None].expand(2, count, side * side).contiguous()


def run(workshop: Workshop) -> dict[str, Any]:
    """One model for each encoding and seed."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "side", "sides", "batch", "steps", "count")}
    workshop.each(
        Job(f"{name}-{seed}", measure, {"encoding": name, "seed": seed, **shared})
        for seed in workshop.seeds
        for name in s["encodings"]
    )
    return {}


def measure(
    place: Place, *, encoding: str, seed: int, preset: str, changes: list[str], side: int, sides: list[int], batch: int,
    steps: int, count: int,
) -> list[Row]:  # fmt: skip
    """Train on images of one size, ask on images of others."""
    stage = f"train.stages=[{{length={side * side}, batch={batch}, steps={steps}}}]"
    wanted = preset_of(preset, [*changes, stage], seed, encoding=encoding)
    axes = 2 if encoding == "rope_2d" else 1
    model = trained(place, f"grid-{encoding}-{seed}", wanted, batches=GridBatches(seed, axes)).model
    sizes = [n for n in sides if n <= side] if encoding == "learned" else sides
    found = {n: wrong(model, GridBatches(10_000, axes), n, count, place.device) for n in sizes}
    return [row("wrong", values, model=encoding, seed=seed, side=n) for n, values in found.items()]


@torch.no_grad()
def wrong(model: nn.Module, batches: GridBatches, side: int, count: int, device: torch.device) -> np.ndarray:
    """Whether each of `count` images is answered wrongly: float64 [count]."""
    found = []
    for part in np.array_split(np.arange(count), max(1, count * side * side // 65_536)):
        batch = batches.batch(part, side * side).on(device)
        says = model(batch.inputs, **batch.given).argmax(-1)
        found.append(((says != batch.targets) & (batch.targets != IGNORED)).any(1).cpu().numpy())
    return np.concatenate(found).astype(np.float64)


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Accuracy by encoding and size of the image."""
    sides, models = sorted(known(rows, "wrong", "side")), known(rows, "wrong", "model")
    found = {m: {n: s for n in sides if (s := score(rows, "wrong", model=m, side=n)) is not None} for m in models}
    cells = [(m, *(f"{1 - by[n].mean:.1%}" if n in by else "-" for n in sides)) for m, by in found.items()]
    note = f"Trained on {sides[0]} x {sides[0]}; a guess is right in {1 / COLOURS:.1%}. A learned table has no larger image."
    table = Table("Right answers by size of the image", ("encoding", *(f"{n} x {n}" for n in sides)), cells, note)
    series = {m: (list(by), [100 * (1 - s.mean) for s in by.values()]) for m, by in found.items()}
    figure = lines(series, title="What lies below the mark?", x="patches a side", y="% right", log=False)
    return Page([table], {"multimodal": figure}, claims(rows, sides))


def claims(rows: list[Row], sides: list[int]) -> list[Claim]:
    """Two axes carry over to images of another size; a line does not."""
    at = {m: score(rows, "wrong", model=m, side=sides[-1]) for m in ("rope_2d", "rope")}
    size = f"{sides[-1]} x {sides[-1]}"
    text = f"On images of {size}, larger than any in training, RoPE over rows and columns errs less than along a line"
    return [lower(text, at, ["rope_2d", "rope"])]


STUDY = Study("multimodal", "Should an image be a grid or a line?", PRESETS, run, page)
