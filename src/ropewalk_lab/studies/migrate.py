"""Study `migrate`: change a trained sinusoidal model to RoPE and train it further; compare it with
the unchanged model, trained further as long, and with RoPE trained from scratch as long.

Words of this module:
  row    one measurement: the "loss" or "accuracy" for each window, with the fields `way` (the
         variant: KEPT, MOVED or FRESH), `steps` of the further training, `length` and `seed`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropewalk.models.migrate import migrate
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Table,
    claim_order,
    line_figure,
    score_rows,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, score, scores_by
from ropewalk_lab.studies.study import Study

#: names of the three compared models, stored in the field `way` of the rows
KEPT, MOVED, FRESH = "sinusoidal, trained on", "migrated to RoPE", "RoPE from scratch"
PRESETS = presets_of("migrate")


def run(runner: JobRunner) -> dict[str, Any]:
    """Train the three models for each seed and number of steps, without steps only the first two;
    return the facts for the report.
    """
    settings, shared = runner.settings, runner.pick("preset", "changes", "rate", "windows")
    for steps in settings["steps"]:
        # without steps, RoPE from scratch would be an untrained model
        variants = (KEPT, MOVED, FRESH) if steps else (KEPT, MOVED)
        # "from" is the encoding of the trained model, "sinusoidal"
        arguments = {"steps": steps, "source": settings["from"], **shared}
        jobs = []
        for seed in runner.seeds:
            for variant in variants:
                name = f"{variant.replace(' ', '-').replace(',', '')}-{steps}-{seed}"
                jobs.append(Job(name, measure, {"variant": variant, "seed": seed, **arguments}))
        runner.run(jobs)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace,
    *,
    variant: str,
    steps: int,
    seed: int,
    preset: str,
    changes: list[str],
    source: str,
    rate: float,
    windows: int,
) -> list[Row]:
    """Return rows with the loss and accuracy of a model after `steps` more steps (RoPE from scratch
    has no others), at the trained length and at twice that length.

    variant          KEPT: the model with the encoding `source` as it is; MOVED: migrated to RoPE;
                     FRESH: RoPE from scratch
    preset, changes  the training preset, and changes of its settings
    rate             the learning rate of these steps
    windows          the number of held-out windows
    """
    original = training.make_preset(preset, changes, seed, encoding=source)
    length = training.trained_length(original)
    model = (
        None
        if variant == FRESH
        else training.train_or_load(workspace, f"{source}-{seed}", original).model
    )
    if variant == MOVED and model is not None:
        model = migrate(model, "rope").model
    if steps:
        further = training.fine_tuning(
            original, length, original.train.stages[0].batch, steps, rate, seed
        )
        if variant != KEPT:
            further = replace(further, model={**original.model, "encoding": "rope"})
        origin = f"{variant} {source} {seed}"
        # for FRESH there is no model to start from, so a new one is trained
        model = training.train_or_load(
            workspace, f"migrate-{steps}-{seed}", further, start=model, origin=origin
        ).model
    text = training.held_out_windows(original, windows, 2 * length)
    assert model is not None  # RoPE from scratch has steps
    return training.loss_rows(
        model, text, [length, 2 * length], length, way=variant, steps=steps, seed=seed
    )


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return a table of the loss by steps for each length, the trained one and twice it; a figure
    of the loss at the trained length; and the claims.
    """
    lengths, steps, variants = (
        distinct(rows, "loss", field) for field in ("length", "steps", "way")
    )
    columns = ("model", *(f"after {count} steps" for count in steps))
    tables = []
    for length in lengths:
        cells = score_rows(rows, "loss", "way", variants, "steps", steps, length=length)
        tables.append(Table(f"Loss at {length} tokens", columns, cells))
    series = {}
    for variant in variants:
        by_steps = scores_by(rows, "loss", "steps", steps, way=variant, length=lengths[0])
        series[variant] = (list(by_steps), [each.mean for each in by_steps.values()])
    figure = line_figure(
        series,
        title="Migration to RoPE",
        x="steps of training after the change",
        y="loss",
        log_x=False,
    )
    return Findings(tables, {"migrate": figure}, claims(rows, lengths, steps[-1]))


def claims(rows: list[Row], lengths: list[int], steps: int) -> list[Claim]:
    """Return three claims about the losses after `steps` steps, at the two `lengths`: the trained
    one, and twice it.

    The migrated model has a lower loss than RoPE from scratch at the trained length, and a lower
    loss than the unchanged model at both lengths.
    """
    near, far = (
        {
            variant: score(rows, "loss", way=variant, steps=steps, length=length)
            for variant in (KEPT, MOVED, FRESH)
        }
        for length in lengths
    )
    lower = f"After {steps} steps a migrated model has a lower loss"
    return [
        claim_order(f"{lower} than RoPE from scratch", near, [MOVED, FRESH]),
        claim_order(f"{lower} than the unchanged model, trained as long", near, [MOVED, KEPT]),
        claim_order(
            f"{lower} at {lengths[1]} tokens, twice the trained length, than the unchanged model",
            far,
            [MOVED, KEPT],
        ),
    ]


STUDY = Study("migrate", ABOUT["migrate"], PRESETS, run, findings)
