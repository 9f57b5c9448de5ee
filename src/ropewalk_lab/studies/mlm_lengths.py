"""Study `mlm_lengths`: a small version of RoFormer's pre-training in six stages of different
lengths, each evaluated.

Words of this module:
  row    one measurement: the "loss" or "accuracy" for each window, with the fields `stage`, the
         number of the stage from 1; `trained`, its length; `length`, that of the text measured; and
         `seed`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  score  the values [seeds, windows] of the rows with given fields
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.atomic_folder import alone_in
from ropewalk_lab.batches import IGNORED, mask_tokens
from ropewalk_lab.data import make_data
from ropewalk_lab.evaluation import MAX_TOKENS, evaluating
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Ours,
    Table,
    by_length,
    cell,
    claim_order,
    line_figure,
    percent,
    score_rows,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, read_rows, row, score, write_rows
from ropewalk_lab.studies.study import Study
from ropewalk_lab.studies.training import corpus_of, make_preset, make_trainer, preset_facts
from ropewalk_lab.tokenizer import Tokenizer, open_tokenizer

PRESETS = presets_of("mlm_lengths")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run one long training for each seed, evaluated after every stage; return the facts for the
    report.
    """
    settings, shared = runner.settings, runner.pick("preset", "changes", "stages", "windows")
    lengths = [length for length, _, _ in settings["stages"]]
    if any(max(lengths) % length for length in lengths):
        raise RopeError(
            "stages",
            "must have lengths that divide the longest one: held-out texts have that length and "
            "are cut into pieces of each length",
            lengths,
        )
    runner.run(Job(f"stages-{seed}", measure, {"seed": seed, **shared}) for seed in runner.seeds)
    return preset_facts(settings["preset"], [*settings["changes"], _change_to(settings["stages"])])


def _change_to(stages: Sequence[Sequence[int]]) -> str:
    """Return the change of a preset that sets its stages, as text: "train.stages=[...]"."""
    tables = (
        f"{{length={length}, batch={batch}, steps={steps}}}" for length, batch, steps in stages
    )
    return f"train.stages=[{', '.join(tables)}]"


def measure(
    workspace: Workspace,
    *,
    seed: int,
    preset: str,
    changes: list[str],
    stages: list[list[int]],
    windows: int,
) -> list[Row]:
    """Train stage by stage; after each stage, measure the masked loss and accuracy at every length;
    return the rows.

    preset, changes  the training preset, and changes of its settings
    stages           (length, batch, steps) of each stage
    windows          the number of held-out windows of the longest length
    """
    full_preset = make_preset(preset, [*changes, _change_to(stages)], seed)
    # a finished training has no model of its first stages left to measure on other windows, so the
    # number of windows is part of its name
    trainer = make_trainer(workspace, f"mlm-{seed}-{windows}", full_preset)
    lengths = sorted({length for length, _, _ in stages})
    tokenizer = open_tokenizer(make_data(full_preset.data).tokenizer)
    text = corpus_of(full_preset).valid.windows(windows, lengths[-1])
    rows, end, folder = [], 0, trainer.folder
    assert folder is not None  # the trainers of a study have one
    for stage, (length, _, steps) in enumerate(stages, start=1):
        end += steps
        # rows are saved before the next stage starts, so that a resumed study never evaluates a
        # later model
        path = folder / f"stage-{stage}.jsonl"
        with alone_in(folder):  # another study may train the same model
            if not path.exists():
                if trainer.run(stop=end).step < end:
                    raise KeyboardInterrupt  # the training has saved a checkpoint
                fields = {"stage": stage, "trained": length, "seed": seed}
                new_rows: list[Row] = []
                for input_length in lengths:
                    new_rows += masked_rows(
                        trainer.model, text, tokenizer, input_length, workspace.device, **fields
                    )
                write_rows(path, new_rows)
        rows += read_rows(path)
    return rows


def masked_rows(
    model: nn.Module,
    text: np.ndarray,
    tokenizer: Tokenizer,
    length: int,
    device: torch.device,
    **fields: Any,
) -> list[Row]:
    """Return rows of loss and accuracy at the masked tokens of `text` [windows, S], with one value
    for each window; the model reads it in pieces of `length` tokens, which divides S.

    The masked tokens are the same for every length.
    """
    inputs, targets = mask_tokens(text, np.arange(len(text)), tokenizer, seed=1)
    masked = targets != IGNORED
    pieces = inputs.view(-1, length).to(device, torch.int64)
    with evaluating(model):
        logits = torch.cat(
            [model(part).float().cpu() for part in pieces.split(max(1, MAX_TOKENS // length))]
        )
    logits = logits.view(*text.shape, -1)
    losses = F.cross_entropy(
        logits.transpose(1, 2), targets.long(), reduction="none", ignore_index=IGNORED
    )
    hits = (logits.argmax(-1) == targets) & masked
    return [
        row("loss", _mean_by_window(losses, masked), length=length, **fields),
        row("accuracy", _mean_by_window(hits.double(), masked), length=length, **fields),
    ]


def _mean_by_window(values: Tensor, masked: Tensor) -> np.ndarray:
    """Return the mean [windows] of values [windows, S] over the masked tokens of each window; 0
    for a window without any.
    """
    return ((values * masked).sum(1) / masked.sum(1).clamp(min=1)).double().numpy()


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return RoFormer's table of stages, the loss after each stage at every length, the claims, and
    our values beside the published table "roformer-stages".
    """
    stages, lengths = distinct(rows, "loss", "stage"), distinct(rows, "loss", "length")
    trained = {stage: distinct(rows, "loss", "trained", stage=stage)[0] for stage in stages}
    cells = []
    for stage, (_, batch, steps) in zip(stages, facts["settings"]["stages"], strict=True):
        loss, accuracy = (
            score(rows, metric, stage=stage, length=trained[stage])
            for metric in ("loss", "accuracy")
        )
        cells.append(
            (str(stage), str(trained[stage]), str(batch), str(steps), cell(loss), percent(accuracy))
        )
    columns = ("stage", "length", "batch", "steps", "loss", "accuracy")
    note = (
        "On held-out text after each stage, at the stage's own length; the masked tokens are the "
        "same for all."
    )
    by_stage = score_rows(rows, "loss", "stage", stages, "length", lengths)
    tables = [
        Table("Stages", columns, cells, note),
        Table(
            "Loss by length", ("after stage", *map(str, lengths)), by_stage, "One model per row."
        ),
    ]
    series = {
        f"stage {stage}, at {trained[stage]}": by_length(rows, lengths, stage=stage)
        for stage in stages
    }
    figure = line_figure(
        series, title="Masked loss by length", x="length of the input", y="loss, nats per byte"
    )
    ours = Ours(columns[1:], {stage: tuple(values) for stage, *values in cells})
    return Findings(
        tables, {"mlm_lengths": figure}, claims(rows, stages, trained), {"roformer-stages": ours}
    )


def claims(rows: list[Row], stages: list[int], trained: dict[int, int]) -> list[Claim]:
    """Return the claims that each stage of the longest length ends at a lower loss than the stages
    directly before and after it, if these are shorter; each is measured at its own length.

    The last claim is that the final model has a lower loss for longer inputs. `trained` is the
    length of each stage.
    """
    losses = {
        str(stage): score(rows, "loss", stage=stage, length=trained[stage]) for stage in stages
    }
    result, longest = [], max(trained.values())
    for stage in stages:
        for other in (stage - 1, stage + 1):
            # `longest` for a stage before the first or after the last, which there is not
            if trained[stage] == longest and trained.get(other, longest) < longest:
                text = (
                    f"Stage {stage} (length {trained[stage]}) ends below stage {other} (length "
                    f"{trained[other]})"
                )
                # both are states of one training, so the windows are the only noise
                result.append(claim_order(text, losses, [str(stage), str(other)], same_model=True))
    lengths = distinct(rows, "loss", "length")
    at_end = {
        str(length): score(rows, "loss", stage=stages[-1], length=length) for length in lengths
    }
    order = sorted(at_end, key=int, reverse=True)
    result.append(
        claim_order(
            "The final model has a lower loss for longer inputs", at_end, order, same_model=True
        )
    )
    return result


STUDY = Study(
    "mlm_lengths",
    ABOUT["mlm_lengths"],
    PRESETS,
    run,
    findings,
    ("roformer-stages",),
)
