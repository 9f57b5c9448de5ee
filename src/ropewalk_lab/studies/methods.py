"""Study `methods`: recent position encodings trained alike, and methods applied to the trained RoPE
model, side by side.

Words of this module:
  row     one measurement: a metric ("loss", "accuracy"; "found", 1 for each pass key found, else 0;
          "parameters"; "factors", those that a search found; "milliseconds" and "bytes" of a
          call), its values, and fields. `model` is the method; `length` that of the text; `depth`
          where a pass key lies, from 0 (start) to 1 (end)
  job     one call of a function such as `measure`; a runner runs the jobs for the settings and the
          seeds of the study, and stores their rows
  method  a name of TRAINED, of a model trained with it, or of AFTERWARDS, which changes the trained
          RoPE model
  score   the values [seeds, windows] of the rows with given fields
  facts   what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

from ropewalk.models.migrate import migrate
from ropewalk_lab.evaluation import depth_grid
from ropewalk_lab.scores import Score
from ropewalk_lab.settings import Preset
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Table,
    by_length,
    cell,
    claim_order,
    line_figure,
    percent,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.method_costs import costs
from ropewalk_lab.studies.method_models import (
    APPLIED,
    DROPE,
    LONGROPE2,
    TRAINED,
    adapted,
    new_model,
    preset_of,
    searched_factors,
)
from ropewalk_lab.studies.passkey import passkey_batches, row_by_row
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, joined_score, row, score, select
from ropewalk_lab.studies.study import Study

#: methods that begin with the trained RoPE model
AFTERWARDS = (*APPLIED, LONGROPE2, DROPE)
ALL = [*TRAINED, *AFTERWARDS]

PRESETS = presets_of("methods")


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each method and seed, then change the RoPE model by the other methods,
    then measure the costs of all in a single job, while nothing else runs.

    Return the facts for the report.
    """
    settings = runner.settings
    shared = runner.pick("preset", "changes", "share", "multiples", "windows", "depths", "count")
    # the slowest are last in TRAINED; they begin first, so that parallel processes end at about the
    # same time
    trained = [method for method in reversed(TRAINED) if method in settings["methods"]]
    applied = [method for method in AFTERWARDS if method in settings["methods"]]

    def job(work: Callable[..., list[Row]], method: str, seed: int, **options: Any) -> Job:
        """Return the job that runs `work` for a method and a seed."""
        return Job(
            f"{method.replace(' ', '_')}-{seed}",
            work,
            {"method": method, "seed": seed, **shared, **options},
        )

    options = runner.pick("recalibrated", "search")
    runner.run(job(train, method, seed) for method in trained for seed in runner.seeds)
    runner.run(job(apply, method, seed, **options) for method in applied for seed in runner.seeds)
    options = {"methods": trained + applied, "multiple": max(settings["multiples"])}
    runner.run([Job("costs", costs, options | runner.pick("preset", "changes", "repeats"))])
    return training.preset_facts(settings["preset"], settings["changes"])


def train(
    workspace: Workspace,
    *,
    method: str,
    seed: int,
    share: float,
    preset: str,
    changes: list[str],
    **sizes,
) -> list[Row]:
    """Train a model on text and pass keys, then count its parameters and measure its loss and the
    pass keys it finds at every length; return the rows.

    share            of the training samples that are pass keys, the others are text
    preset, changes  the training preset, and changes of its settings
    sizes            `multiples`, `windows`, `depths` and `count`, as for `measured`
    """
    full_preset = preset_of(method, preset, changes, seed)
    model = _trained(workspace, method, seed, share, full_preset)
    rows = [row("parameters", sum(p.numel() for p in model.parameters()), model=method, seed=seed)]
    for multiple in sizes["multiples"]:
        rows += measured(workspace, model, full_preset, multiple, **sizes, model=method, seed=seed)
    return rows


def _trained(
    workspace: Workspace, method: str, seed: int, share: float, preset: Preset, **options: Any
) -> nn.Module:
    """Return the model of a method, trained on text mixed with a `share` of pass keys, or loaded if
    it was trained before.

    options  for a method that begins with a trained model: `start` and `origin` of
             `training.make_trainer`; a method of TRAINED needs none
    """
    if method in TRAINED:
        options = {"origin": method, "change": lambda model: new_model(method, model, seed)}
    name = f"methods-{method.replace(' ', '_')}-{seed}"
    batches = passkey_batches(preset, share)
    return training.train_or_load(
        workspace, name, preset, batches=batches, objective=row_by_row, **options
    ).model


def apply(
    workspace: Workspace,
    *,
    method: str,
    seed: int,
    share: float,
    preset: str,
    changes: list[str],
    recalibrated: int,
    search: dict[str, int],
    **sizes,
) -> list[Row]:
    """Change the trained RoPE model for each longer length; return rows measured at that length.
    DroPE trains the model `recalibrated` steps, and is measured at the trained length too.

    search  `population` and `rounds` of the search for LongRoPE2's factors
    The other arguments are those of `train`.
    """
    full_preset = preset_of("rope", preset, changes, seed)
    model = _trained(workspace, "rope", seed, share, full_preset)
    length = training.trained_length(full_preset)
    fields: dict[str, Any] = {"model": method, "seed": seed}
    rows = []
    if method == DROPE:
        stage, rate = full_preset.train.stages[0], full_preset.train.learning_rate / 2
        recalibration = training.fine_tuning(
            full_preset, stage.length, stage.batch, recalibrated, rate, seed
        )
        start = migrate(model, to=DROPE).model
        model = _trained(
            workspace, DROPE, seed, share, recalibration, start=start, origin=f"rope-{seed}"
        )
        rows += measured(workspace, model, full_preset, 1, **sizes, **fields)
    for multiple in sizes["multiples"]:
        if multiple == 1:
            # DroPE was measured above; the other methods are made for longer text, and `train` has
            # measured the RoPE model at the trained length
            continue
        if method == DROPE:
            longer = model
        elif method == LONGROPE2:
            factors = searched_factors(model, multiple, length, seed=seed, **search)
            rows.append(row("factors", factors, length=multiple * length, **fields))
            longer = adapted(model, method, multiple, length, factors)
        else:
            longer = adapted(model, method, multiple, length)
        rows += measured(workspace, longer, full_preset, multiple, **sizes, **fields)
    return rows


def measured(
    workspace: Workspace,
    model: nn.Module,
    full_preset: Preset,
    multiple: int,
    /,
    *,
    multiples: list[int],
    windows: int,
    depths: list[float],
    count: int,
    **fields: Any,
) -> list[Row]:
    """Return rows with the loss on the same last tokens and with the pass keys found, at `multiple`
    times the trained length.

    multiples      all multiples of the study; a window has the length of the largest
    windows        the number of held-out windows
    depths, count  the depths of pass keys, from 0 (start) to 1 (end), and the samples at each
    """
    length = training.trained_length(full_preset)
    held_out = training.held_out_windows(full_preset, windows, max(multiples) * length)
    rows = training.loss_rows(model, held_out, [multiple * length], length, **fields)
    grid = depth_grid(
        model, [multiple * length], depths, count, seed=fields["seed"], device=workspace.device
    )
    return rows + [
        row("found", hits, length=tokens, depth=depth, **fields)
        for (tokens, depth), hits in grid.items()
    ]


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return loss and pass keys of every method in one table, its costs in another, and the claims."""
    models = [name for name in ALL if select(rows, "loss", model=name)]
    lengths = sorted(distinct(rows, "loss", "length"))
    columns = (
        "method",
        "how",
        *(f"loss at {length}" for length in lengths),
        *(f"found at {length}" for length in lengths),
    )
    note = (
        f"Nats per byte on the same last {lengths[0]} tokens, and the share of pass keys found, "
        "over all depths; ± is the standard error over windows or samples and, if there are "
        "several, over seeds."
    )
    cells = [
        (
            name,
            _how(name, facts),
            *(cell(score(rows, "loss", model=name, length=length)) for length in lengths),
            *(percent(found(rows, name, length)) for length in lengths),
        )
        for name in models
    ]
    tables = [
        Table("Methods side by side", columns, cells, note),
        _costs_table(rows, models, lengths[-1]),
    ]
    figures = {}
    for figure, names in {
        "methods_trained": TRAINED,
        "methods_applied": ("rope", *AFTERWARDS),
    }.items():
        shown = [name for name in names if name in models]
        scores = {
            name: [score(rows, "loss", model=name, length=length) for length in lengths]
            for name in shown
        }
        figures[figure] = line_figure(
            {name: by_length(rows, lengths, model=name) for name in shown},
            title=f"Loss on the same last {lengths[0]} tokens, trained at {lengths[0]}",
            x="tokens of context",
            y="loss, nats per byte",
            errors={
                name: [each.error for each in scores[name] if each is not None] for name in shown
            },
        )
    return Findings(tables, figures, claims(rows, lengths))


def _how(method: str, facts: dict[str, Any]) -> str:
    """Return how the model of a method was made."""
    if method in TRAINED:
        return "trained"
    return (
        f"rope, {facts['settings']['recalibrated']} steps more"
        if method == DROPE
        else "rope, no training"
    )


def _costs_table(rows: list[Row], models: list[str], longest: int) -> Table:
    """Return a table of the costs of every method: its parameters; and its time and peak memory for
    a training step and for reading `longest` tokens, each as a multiple of the median of RoPE's.
    """

    def times_rope(metric: str, name: str, what: str) -> str:
        """Return the median of a method's cost divided by RoPE's median, with its quartiles if they
        differ, as text; "-" if either cost was not measured.

        metric  "milliseconds" or "bytes"
        what    the call that was measured: "step" or "read"
        """
        costs_of_method, costs_of_rope = (
            select(rows, metric, model=each, what=what) for each in (name, "rope")
        )
        if not costs_of_method or not costs_of_rope:
            return "-"
        low, middle, high = np.percentile(costs_of_method[0]["values"], (25, 50, 75)) / np.median(
            costs_of_rope[0]["values"]
        )
        return f"{middle:.2f}" if low == high else f"{middle:.2f} ({low:.2f} to {high:.2f})"

    columns = (
        {"milliseconds": "time of", "bytes": "memory of"}
        if select(rows, "bytes")
        else {"milliseconds": "time of"}
    )
    calls = {"step": "a training step", "read": f"reading {longest} tokens"}
    cells = []
    for name in models:
        parameters = select(rows, "parameters", model=name)
        shown = f"{parameters[0]['mean']:,.0f}" if parameters else "as rope"
        cells.append(
            (name, shown, *(times_rope(metric, name, what) for metric in columns for what in calls))
        )
    titles = (f"{title} {call}, x rope" for title in columns.values() for call in calls.values())
    note = (
        "Untrained models, after all trainings of the study; the median of several calls and, in "
        "brackets, its quartiles. The optimizer is not counted."
    )
    return Table("Costs", ("method", "parameters", *titles), cells, note)


def found(rows: list[Row], name: str, length: int) -> Score | None:
    """Return 1 for each pass key that a method found and 0 for the others, [seeds, depths x
    samples]; None without rows.
    """
    return joined_score(rows, "found", model=name, length=length)


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """Return the claims of the authors of these methods, tested on these rows. `lengths` ascend
    from the trained length.
    """
    # `double` is the second length, twice the trained one, or the only length
    near, double, far = lengths[0], lengths[:2][-1], lengths[-1]
    losses = {
        length: {name: score(rows, "loss", model=name, length=length) for name in ALL}
        for length in lengths
    }
    hits = {name: found(rows, name, double) for name in ALL}
    missed = {name: Score(1 - each.values) for name, each in hits.items() if each is not None}
    better = ("pope", "fope", "rope++", "selective", "path", "ssmax", "lerope")
    result = [
        claim_order(f"At {near}, {name} has a lower loss than rope", losses[near], [name, "rope"])
        for name in better
    ]
    text = f"At {far}, without training at that length, pope has a lower loss than rope with yarn"
    result.append(claim_order(text, losses[far], ["pope", "yarn"]))
    for name in ("rerope", "self_extend", "dca"):
        text = f"At {far}, {name} has a lower loss than rope as it is"
        result.append(claim_order(text, losses[far], [name, "rope"], same_model=True))
    text = f"At {double}, drope misses fewer pass keys than rope with yarn"
    return [*result, claim_order(text, missed, [DROPE, "yarn"])]


STUDY = Study(
    "methods",
    ABOUT["methods"],
    PRESETS,
    run,
    findings,
)
