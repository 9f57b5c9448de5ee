"""Study `multimodal`: RoPE with (row, column) positions compared with one sequence, on images where
a patch is predicted.

Words of this module:
  row    one measurement of a model: 1 for each image that it gets "wrong", else 0; its fields are
         `model`, the encoding, `side`, the patches per side of the images, and `seed`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk_lab.batches import IGNORED, Batch
from ropewalk_lab.stateless_random import below, fold
from ropewalk_lab.studies.findings import Claim, Findings, Table, claim_order, line_figure
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score, scores_by
from ropewalk_lab.studies.study import Study
from ropewalk_lab.studies.training import make_preset, train_or_load

#: patches have colours from 0 to 15, and the marked one has 16; the vocabulary is a multiple of 8
COLOURS, MARK, VOCABULARY = 16, 16, 24
PRESETS = presets_of("multimodal")


@dataclass(frozen=True)
class GridBatches:
    """Square images of coloured patches with one mark; the target is the colour of the patch below
    the mark.

    axes  of the positions: 2 for (row, column), 1 for one sequence, row by row
    """

    seed: int = 0
    axes: int = 1
    vocab_size: int = VOCABULARY

    @property
    def fingerprint(self) -> str:
        return f"grids {self.seed} {self.axes}"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return random images of `length` patches with one marked each; the target there is the
        colour one row below, and other patches have none. `index` [B] are sample numbers: the same
        number gives the same image.
        """
        side = int(length**0.5)
        if side < 2 or side * side != length:
            rule = "must be a square number from 4 on: images have as many rows as columns"
            raise RopeError("length", rule, length)
        seed = fold(self.seed, 31)  # other random numbers than those of other data with this seed
        count = len(index)
        images = below(seed, index, stream=0, count=length, high=COLOURS)
        # never in the last row, which has no row below it
        marked = below(seed, index, stream=1, count=1, high=length - side)[:, 0]
        image, targets = np.arange(count), np.full((count, length), IGNORED, dtype=np.int64)
        targets[image, marked] = images[image, marked + side]
        images[image, marked] = MARK
        return Batch(
            torch.from_numpy(images),
            torch.from_numpy(targets),
            count,  # of the targets: one in each image
            positions=self._positions(count, side),
        )

    def _positions(self, count: int, side: int) -> torch.Tensor | None:
        """Return the row and column of each patch, [2, B, S], or None for one axis."""
        if self.axes == 1:
            return None
        grid = torch.cartesian_prod(torch.arange(side), torch.arange(side)).T
        return grid[:, None].expand(2, count, side * side).contiguous()


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each encoding and seed; return the facts for the report."""
    shared = runner.pick("preset", "changes", "side", "sides", "batch", "steps", "count")
    runner.run_each(measure, "encoding", runner.settings["encodings"], **shared)
    return {}


def measure(
    workspace: Workspace,
    *,
    encoding: str,
    seed: int,
    preset: str,
    changes: list[str],
    side: int,
    sides: list[int],
    batch: int,
    steps: int,
    count: int,
) -> list[Row]:
    """Train on images of one size and measure the errors on images of several sizes; return the
    rows.

    preset, changes  the training preset, and changes of its settings
    side, sides      patches per side of the images to train on, and of those to measure on
    batch, steps     of the training: images in a step, and steps
    count            how many images of each size are measured
    """
    stage = f"train.stages=[{{length={side * side}, batch={batch}, steps={steps}}}]"
    full_preset = make_preset(preset, [*changes, stage], seed, encoding=encoding)
    axes = 2 if encoding == "rope_2d" else 1
    model = train_or_load(
        workspace, f"grid-{encoding}-{seed}", full_preset, batches=GridBatches(seed, axes)
    ).model
    # learned positions end at the size of the training
    tested = [size for size in sides if size <= side] if encoding == "learned" else sides
    rows = []
    for size in tested:
        # a seed that no training has
        errors = wrong(model, GridBatches(10_000, axes), size, count, workspace.device)
        rows.append(row("wrong", errors, model=encoding, seed=seed, side=size))
    return rows


@torch.no_grad()
def wrong(
    model: nn.Module, batches: GridBatches, side: int, count: int, device: torch.device
) -> np.ndarray:
    """Return 1.0 for each of `count` images whose prediction is wrong and 0.0 for the others,
    [count]; images have `side` rows and columns.
    """
    errors = []
    for part in np.array_split(np.arange(count), max(1, count * side * side // 65_536)):
        # about 65,536 patches at once
        batch = batches.batch(part, side * side).to(device)
        predicted = model(batch.inputs, **batch.keywords).argmax(-1)
        errors.append(
            ((predicted != batch.targets) & (batch.targets != IGNORED)).any(1).cpu().numpy()
        )
    return np.concatenate(errors).astype(np.float64)


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the accuracy by encoding and size of the image as a table and a figure, and the claim."""
    sides, models = sorted(distinct(rows, "wrong", "side")), distinct(rows, "wrong", "model")
    cells, series = [], {}
    for name in models:
        accuracy = {
            side: 1 - each.mean
            for side, each in scores_by(rows, "wrong", "side", sides, model=name).items()
        }
        cells.append(
            (name, *(f"{accuracy[side]:.1%}" if side in accuracy else "-" for side in sides))
        )
        series[name] = (list(accuracy), [100 * share for share in accuracy.values()])
    side = facts["settings"]["side"]
    note = (
        f"Trained on {side} x {side}; chance is {1 / COLOURS:.1%}. Learned positions do not exist "
        "for larger images."
    )
    table = Table(
        "Accuracy by size of the image",
        ("encoding", *(f"{side} x {side}" for side in sides)),
        cells,
        note,
    )
    figure = line_figure(
        series, title="The patch below the mark", x="patches per side", y="% right", log_x=False
    )
    return Findings([table], {"multimodal": figure}, claims(rows, sides))


def claims(rows: list[Row], sides: list[int]) -> list[Claim]:
    """Return the claim that two axes generalise to larger images better than one."""
    errors = {
        name: score(rows, "wrong", model=name, side=sides[-1]) for name in ("rope_2d", "rope")
    }
    size = f"{sides[-1]} x {sides[-1]}"
    text = (
        f"On images of {size}, larger than any in training, RoPE over rows and columns has fewer "
        "errors than over one sequence"
    )
    return [claim_order(text, errors, ["rope_2d", "rope"])]


STUDY = Study(
    "multimodal",
    ABOUT["multimodal"],
    PRESETS,
    run,
    findings,
)
