"""Study `extend`: a RoPE model at 2 to 16 times its trained length, with several methods, zero-shot
and after fine-tuning.

Words of this module:
  row    one measurement: a metric, its values, and fields. "loss" and "accuracy" have a value for
         each window; "factors" has those that a search for LongRoPE found, and no `length`.
         `method` extends the model to `factor` times its trained length; `length` is that of the
         text; `tuned` the number of fine-tuning steps, 0 for none. The method "none" is the
         unchanged model, and its factor 1 the trained length
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  score  the values [seeds, windows] of the rows with given fields
  facts  what a report says of the run beside its rows: settings, seeds, texts
  ours   our values beside a published table, by the name of that table
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ropewalk.models.migrate import migrate
from ropewalk_lab.settings import Preset
from ropewalk_lab.studies import training
from ropewalk_lab.studies.extension_methods import (
    LONGROPE,
    NONE,
    rope_spec,
    search_longrope,
    spec_for,
)
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Ours,
    Table,
    cell,
    claim_order,
    claim_within,
    line_figure,
    ours_by_name,
    percent,
    score_rows,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score, scores_by, select
from ropewalk_lab.studies.study import Study

#: names in published tables -> ours
PUBLISHED_NAMES = {
    "none": NONE,
    "PI": "linear",
    "NTK": "ntk",
    "YaRN": "yarn",
    "dynamic NTK": "dynamic",
    "searched": LONGROPE,
}
PRESETS = presets_of("extend")


def run(runner: JobRunner) -> dict[str, Any]:
    """Measure the RoPE model of each seed with each method without training, then fine-tune it with
    each method of the setting `tuned_methods` at each factor of `tuned_factors`; return facts for
    the report.
    """
    settings, shared = runner.settings, runner.pick("preset", "changes", "windows")
    options = runner.pick("methods", "factors", "search")
    # besides the losses, rows with the metric "factors": those that the search for LongRoPE found
    rows = runner.run(
        Job(f"zero-shot-{seed}", zero_shot, shared | options | {"seed": seed})
        for seed in runner.seeds
    )
    jobs = []
    for seed in runner.seeds:
        for factor in settings["tuned_factors"]:
            for method in settings["tuned_methods"]:
                searched = (
                    select(rows, "factors", seed=seed, factor=factor) if method == LONGROPE else []
                )
                arguments = {
                    "method": method,
                    "factor": factor,
                    "seed": seed,
                    "factors": searched[0]["values"] if searched else None,
                    "steps": settings["tuned_steps"],
                    "rate": settings["tuned_rate"],
                    "multiples": [1, *settings["factors"]],
                }
                jobs.append(Job(f"tuned-{method}-{factor}-{seed}", tuned, shared | arguments))
    runner.run(jobs)
    return training.preset_facts(settings["preset"], settings["changes"])


def _rope_model(
    workspace: Workspace, preset: str, changes: list[str], seed: int
) -> tuple[Preset, nn.Module]:
    """Return the preset and the RoPE model of the study `encodings`, which is trained if no study
    has done so yet.
    """
    full_preset = training.make_preset(preset, changes, seed, encoding="rope")
    return full_preset, training.train_or_load(workspace, f"rope-{seed}", full_preset).model


def zero_shot(
    workspace: Workspace,
    *,
    seed: int,
    preset: str,
    changes: list[str],
    methods: list[str],
    factors: list[int],
    windows: int,
    search: dict[str, int],
) -> list[Row]:
    """Return rows with the losses of every method and factor without training, at the trained
    length and at factor times that length, and with LongRoPE's factors; first the losses of the
    unchanged model, as factor 1.

    preset, changes  the training preset, and changes of its settings
    windows          the number of held-out windows
    search           sizes of the search for LongRoPE's factors: its population, its rounds and the
                     windows of text it measures
    """
    full_preset, model = _rope_model(workspace, preset, changes, seed)
    plain, length = rope_spec(model), training.trained_length(full_preset)
    text = training.held_out_windows(full_preset, windows, max(factors) * length)
    rows = training.loss_rows(
        model, text, [length], length, method=NONE, seed=seed, tuned=0, factor=1
    )
    options = {name: value for name, value in search.items() if name != "windows"}
    for factor in factors:
        for method in methods:
            fields: dict[str, Any] = {"method": method, "seed": seed, "tuned": 0, "factor": factor}
            searched = None
            if method == LONGROPE:
                # of the text to train on, since the losses are measured on held-out text
                search_text = training.corpus_of(full_preset).train.windows(
                    search["windows"], factor * length + 1
                )
                searched = search_longrope(model, search_text, factor, length, seed=seed, **options)
                rows.append(row("factors", searched, **fields))
            longer = migrate(model, spec_for(method, plain, factor, length, searched)).model
            rows += training.loss_rows(longer, text, [length, factor * length], length, **fields)
    return rows


def tuned(
    workspace: Workspace,
    *,
    seed: int,
    preset: str,
    changes: list[str],
    method: str,
    factor: int,
    factors: list[float] | None,
    windows: int,
    steps: int,
    rate: float,
    multiples: list[int],
) -> list[Row]:
    """Fine-tune the RoPE model at `factor` times its trained length, then measure it at `multiples`
    of the trained length; return the rows.

    preset, changes  the training preset, and changes of its settings
    factors          the searched factors of LongRoPE, None for other methods
    windows          the number of held-out windows
    steps, rate      of the fine-tuning: its steps and its learning rate
    """
    full_preset, model = _rope_model(workspace, preset, changes, seed)
    length, batch = training.trained_length(full_preset), full_preset.train.stages[0].batch
    longer = migrate(model, spec_for(method, rope_spec(model), factor, length, factors)).model
    # a smaller batch, so that a step has about as many tokens as before
    tuning = training.fine_tuning(
        full_preset, factor * length, max(1, batch // factor), steps, rate, seed
    )
    # identifies the model that the training starts from
    origin = f"rope-{seed} {method} {factor} {factors}"
    trainer = training.train_or_load(
        workspace, f"{method}-{factor}x-{seed}", tuning, start=longer, origin=origin
    )
    text = training.held_out_windows(full_preset, windows, max(multiples) * length)
    lengths = [multiple * length for multiple in multiples]
    return training.loss_rows(
        trainer.model, text, lengths, length, method=method, seed=seed, tuned=steps, factor=factor
    )


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the losses zero-shot and after fine-tuning, a figure, the claims, and our values
    beside published ones.
    """
    trained = select(rows, "loss", tuned=0, factor=1)[0]["length"]
    factors = [factor for factor in distinct(rows, "loss", "factor", tuned=0) if factor > 1]
    measured = distinct(rows, "loss", "method", tuned=0)
    # "none" is among them only if it was measured beyond the trained length too
    methods = [
        method
        for method in measured
        if select(rows, "loss", tuned=0, method=method, factor=factors[0])
    ]
    unchanged = score(rows, "loss", tuned=0, factor=1)
    columns = ("method", *(f"{factor}x = {factor * trained}" for factor in factors))
    note = (
        f"Nats per byte on the same last {trained} tokens. At {trained}, unchanged: "
        f"{cell(unchanged)}."
    )
    zero_shot_rows = _zero_shot_rows(rows, trained)
    tables = [
        Table(
            "Zero-shot",
            columns,
            score_rows(zero_shot_rows, "loss", "method", methods, "factor", factors),
            note,
        )
    ]
    # text of the trained length, read with a method for longer text
    short = [row for row in _untuned(rows) if row["length"] == trained and row["factor"] > 1]
    if short:
        columns = ("method", *(f"factor {factor}" for factor in factors))
        note = (
            f"The loss on text of the trained length, {trained}, with each factor. Unchanged: "
            f"{cell(unchanged)}."
        )
        tables.append(
            Table(
                "Short text",
                columns,
                score_rows(short, "loss", "method", methods, "factor", factors),
                note,
            )
        )
    series = {}
    for method in methods:
        losses = (
            unchanged,
            *(score(zero_shot_rows, "loss", method=method, factor=factor) for factor in factors),
        )
        series[method] = ([1, *factors], [loss.mean if loss else float("nan") for loss in losses])
    title = "Zero-shot, beyond the trained length"
    figures = {"extend": line_figure(series, title=title, x="times the trained length", y="loss")}
    return Findings(
        tables + _tuned_tables(rows),
        figures,
        claims(rows, factors, trained),
        ours=_ours(rows, factors, trained),
    )


def losses_beyond(rows: list[Row]) -> tuple[int, dict[tuple[str, int], float]]:
    """Return the trained length, and {(method, factor): the loss without fine-tuning at factor
    times that length}; of several seeds, the last counts. With the factor 1 there is ("none", 1)
    alone.
    """
    trained = select(rows, "loss", tuned=0, factor=1)[0]["length"]
    found = {(row["method"], row["factor"]): row["mean"] for row in _zero_shot_rows(rows, trained)}
    return trained, found


def _untuned(rows: list[Row]) -> list[Row]:
    """Return the rows with losses of models that were not fine-tuned."""
    return [row for row in rows if row["metric"] == "loss" and not row["tuned"]]


def _tuned(rows: list[Row]) -> list[Row]:
    """Return the rows with losses of fine-tuned models."""
    return [row for row in rows if row["metric"] == "loss" and row["tuned"]]


def _zero_shot_rows(rows: list[Row], trained: int) -> list[Row]:
    """Return the rows with losses without fine-tuning at the length that their factor is for: the
    factor times the trained length `trained`.
    """
    return [row for row in _untuned(rows) if row["length"] == row["factor"] * trained]


def _ours(rows: list[Row], factors: list[int], trained: int) -> dict[str, Ours]:
    """Return our values for each published table, at the factors 8 and 4, which are close to the
    published ones. If one of the two was not measured, the last of `factors` is used in its place.
    """
    far, middle = (factor if factor in factors else factors[-1] for factor in (8, 4))
    accuracy = {
        published: percent(
            score(rows, "accuracy", method=method, tuned=0, factor=far, length=far * trained)
        )
        for published, method in PUBLISHED_NAMES.items()
    }
    zero_shot_rows = [row for row in _zero_shot_rows(rows, trained) if row["factor"] in (1, middle)]
    tuned_rows = [row for row in _tuned(rows) if row["factor"] == middle]
    lengths = [trained, middle * trained]
    unchanged = ours_by_name(zero_shot_rows, {"unchanged": NONE}, "method", lengths)
    tuned_names = {"fine-tuned directly": NONE, "interpolated and fine-tuned": "linear"}
    fine_tuned = ours_by_name(tuned_rows, tuned_names, "method", lengths)
    return {
        "ntk-zero-shot": Ours(
            (f"accuracy at {far * trained}",), {name: (text,) for name, text in accuracy.items()}
        ),
        "interpolation": Ours(unchanged.columns, unchanged.cells | fine_tuned.cells),
        "yarn": ours_by_name(tuned_rows, PUBLISHED_NAMES, "method", lengths[1:]),
        "longrope": ours_by_name(zero_shot_rows, PUBLISHED_NAMES, "method", lengths[1:]),
    }


def _tuned_tables(rows: list[Row]) -> list[Table]:
    """Return one table per factor: the loss of each fine-tuned method at every length."""
    tables = []
    for factor in distinct(_tuned(rows), "loss", "factor"):
        of_factor = select(_tuned(rows), "loss", factor=factor)
        methods = distinct(of_factor, "loss", "method")
        lengths = distinct(of_factor, "loss", "length")
        cells = score_rows(of_factor, "loss", "method", methods, "length", lengths)
        title = f"After {of_factor[0]['tuned']} steps at {factor}x"
        note = "Loss at every length, with the factor of the fine-tuning."
        tables.append(Table(title, ("method", *map(str, lengths)), cells, note))
    return tables


def claims(rows: list[Row], factors: list[int], trained: int) -> list[Claim]:
    """Return the claims that methods have the order of published zero-shot tables, that fine-tuning
    helps, that LongRoPE's search beats YaRN, and what dynamic YaRN does to text of the trained
    length. Claims about methods that were not measured are left out, except the first.
    """
    # every preset measures and fine-tunes at 4
    factor = 4 if 4 in factors else factors[-1]
    methods = distinct(rows, "loss", "method", tuned=0)
    zero_shot = scores_by(
        rows, "loss", "method", methods, tuned=0, factor=factor, length=factor * trained
    )
    text = (
        f"Zero-shot at {factor}x, the loss rises in the order yarn, ntk, none (no scaling), linear"
    )
    result = [claim_order(text, zero_shot, ["yarn", "ntk", "none", "linear"], same_model=True)]
    tuned_rows = [row for row in _tuned(rows) if row["factor"] == factor]
    for method, scaling in {"none": "no scaling", "yarn": "yarn"}.items():
        tuned_loss = score(tuned_rows, "loss", method=method, length=factor * trained)
        if tuned_loss is not None:
            text = f"A little training at {factor}x with {scaling} lowers the loss at {factor}x"
            pair = {"tuned": tuned_loss, "zero-shot": zero_shot.get(method)}
            result.append(claim_order(text, pair, ["tuned", "zero-shot"], same_model=True))
    if "longrope" in zero_shot:
        text = f"The LongRoPE search beats YaRN zero-shot at {factor}x"
        result.append(claim_order(text, zero_shot, ["longrope", "yarn"], same_model=True))
    # text of the trained length, read with the largest factor
    short_text = {"tuned": 0, "factor": factors[-1], "length": trained}
    short = {
        method: score(rows, "loss", method=method, **short_text)
        for method in ("dynamic_yarn", "yarn")
    }
    if short["dynamic_yarn"] is not None:
        text = f"Dynamic YaRN does not change the loss on text of {trained} tokens"
        result.append(
            claim_within(text, short["dynamic_yarn"], score(rows, "loss", tuned=0, factor=1), 0.001)
        )
        text = (
            f"On text of {trained} tokens, dynamic YaRN has a lower loss than YaRN with a factor "
            f"of {factors[-1]}"
        )
        result.append(claim_order(text, short, ["dynamic_yarn", "yarn"], same_model=True))
    return result


STUDY = Study(
    "extend",
    ABOUT["extend"],
    PRESETS,
    run,
    findings,
    ("interpolation", "ntk-zero-shot", "yarn", "longrope"),
)
