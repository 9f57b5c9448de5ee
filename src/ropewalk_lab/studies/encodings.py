"""Study `encodings`: models that differ only in their positional encoding, measured at and beyond
the trained length.

Words of this module:
  row    one measurement: a metric, its values, and fields. "loss" and "accuracy" have a value for
         each window, and the fields `model`, `seed` and `length`; "seconds per step" and
         "parameters" (those of the encoding) have one value, and `model` and `seed`. `model` is
         the encoding, or WINDOW
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  score  the values [seeds, windows] of the rows with given fields
  facts  what a report says of the run beside its rows: settings, seeds, texts
  ours   our values beside a published table, by the name of that table
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ropewalk.encodings import ENCODINGS, Encoding
from ropewalk.models.migrate import migrate
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Ours,
    Table,
    by_length,
    cell,
    claim_not_higher,
    claim_order,
    claim_within,
    line_figure,
    ours_by_name,
    percent,
    score_rows,
)
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score, scores_by, select
from ropewalk_lab.studies.study import Study

#: the RoPE model with attention limited to a window of the trained length
WINDOW = "rope, sliding window"
#: names in published tables -> ours
PUBLISHED_NAMES = {
    "RoPE": "rope",
    "rotary": "rope",
    "learned": "learned",
    "absolute": "learned",
    "sinusoidal": "sinusoidal",
    "ALiBi": "alibi",
    "T5 bias": "t5_causal",
    "none": "none",
}
#: the encodings whose order a claim is about, the lowest loss first
CORE = ["rope", "alibi", "sinusoidal", "none"]

PRESETS = presets_of("encodings")


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each encoding and seed; return the facts for the report."""
    settings, shared = runner.settings, runner.pick("preset", "changes", "multiples", "windows")
    runner.run_each(measure, "encoding", settings["encodings"], **shared)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace,
    *,
    encoding: str,
    seed: int,
    preset: str,
    changes: list[str],
    multiples: list[int],
    windows: int,
) -> list[Row]:
    """Train one model and measure its loss at every multiple of the trained length (with a bounded
    encoding only at the first), its speed and its positional parameters; return the rows.

    The loss of the RoPE model is measured twice: also with attention limited to a sliding window,
    without further training.

    workspace        the device, and the folder of trained models
    preset, changes  the training preset, and changes of its settings
    multiples        the lengths, as multiples of the trained length
    windows          the number of held-out windows
    """
    full_preset = training.make_preset(preset, changes, seed, encoding=encoding)
    trainer = training.train_or_load(workspace, f"{encoding}-{seed}", full_preset)
    model: Any = trainer.model
    length = training.trained_length(full_preset)
    lengths = [length * multiple for multiple in multiples]
    text = training.held_out_windows(full_preset, windows, lengths[-1])
    fields: dict[str, Any] = {"model": encoding, "seed": seed}
    # a bounded encoding has no positions beyond the trained length
    rows = training.loss_rows(
        model, text, lengths[:1] if ENCODINGS[encoding].bounded else lengths, length, **fields
    )
    # the seconds of several steps are in the log's line of the last of them
    seconds = sum(line.get("seconds", 0.0) for line in trainer.log.rows())
    rows.append(row("seconds per step", seconds / trainer.step, **fields))
    rows.append(row("parameters", positional_parameters(model), **fields))
    if encoding == "rope":
        windowed = migrate(
            model, "rope", window=length, layer_types=("sliding",) * len(model.layers)
        ).model
        rows += training.loss_rows(windowed, text, lengths, length, model=WINDOW, seed=seed)
    return rows


def positional_parameters(model: nn.Module) -> int:
    """Return the number of parameters of the encodings of all layers; a parameter that layers share
    counts once.
    """
    encodings = (module for module in model.modules() if isinstance(module, Encoding))
    sizes = {
        id(parameter): parameter.numel()
        for encoding in encodings
        for parameter in encoding.parameters()
    }
    return sum(sizes.values())


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the table of the loss by length, the lowest loss at the trained length first; the
    properties of each encoding; a figure of the loss; the claims; and our values for the published
    tables.
    """
    models, lengths = distinct(rows, "loss", "model"), sorted(distinct(rows, "loss", "length"))
    near = scores_by(rows, "loss", "model", models, length=lengths[0])
    cells = score_rows(
        rows, "loss", "model", sorted(models, key=lambda name: near[name].mean), "length", lengths
    )
    note = (
        f"Nats per byte, on the same last {lengths[0]} tokens of held-out windows; ± is the "
        "standard error of the mean."
    )
    losses = Table("Loss by context length", ("encoding", *map(str, lengths)), cells, note)
    series = {name: by_length(rows, lengths, model=name) for name in models}
    title = f"Loss on the same last {lengths[0]} tokens, trained at {lengths[0]}"
    figure = line_figure(series, title=title, x="tokens of context", y="loss, nats per byte")
    return Findings(
        [losses, _properties(rows, models)],
        {"encodings": figure},
        claims(rows, lengths),
        _ours(rows, lengths),
    )


def _ours(rows: list[Row], lengths: list[int]) -> dict[str, Ours]:
    """Return our values for each published table, by the name of that table. `lengths` ascend from
    the trained length.
    """
    trained = lengths[0]
    accuracy = {
        published: percent(score(rows, "accuracy", model=name, length=trained))
        for published, name in PUBLISHED_NAMES.items()
    }
    losses = ours_by_name(rows, PUBLISHED_NAMES, "model", [trained])
    with_accuracy = {name: (*cells, accuracy[name]) for name, cells in losses.cells.items()}
    beyond = {}
    for multiple in (1, 2, 4, 8):
        # our loss at a multiple of the trained length, beside the published one at the same
        # multiple of 512
        length = multiple * trained
        beyond[str(512 * multiple)] = (
            str(length),
            cell(score(rows, "loss", model="rope", length=length)),
        )
    return {
        "glue": Ours((*losses.columns, f"accuracy of the next byte at {trained}"), with_accuracy),
        "beyond-512": Ours(("length", "loss of RoPE"), beyond),
        "alibi-extrapolation": ours_by_name(rows, PUBLISHED_NAMES, "model", lengths),
        "nope-causal": losses,
        # at the second length, twice the trained one
        "nope-length-generalisation": ours_by_name(rows, PUBLISHED_NAMES, "model", lengths[1:2]),
    }


def _properties(rows: list[Row], models: list[str]) -> Table:
    """Return a table of the properties and costs of those of `models` that ENCODINGS has; WINDOW is
    not one of them.
    """
    seconds_of_none = score(rows, "seconds per step", model="none")
    cells = []
    for name in models:
        if name not in ENCODINGS:
            continue
        encoding, seconds = ENCODINGS[name], score(rows, "seconds per step", model=name)
        times = f"{seconds.mean / seconds_of_none.mean:.2f}" if seconds and seconds_of_none else "-"
        parameters = select(rows, "parameters", model=name)[0]["mean"]
        yes_no = (
            "yes" if each else "no"
            for each in (encoding.relative, encoding.linear, encoding.bounded)
        )
        cells.append((name, encoding.entry, *yes_no, f"{parameters:,.0f}", times))
    columns = (
        "encoding",
        "acts on",
        "relative",
        "linear attention",
        "bounded",
        "parameters",
        "time, x none",
    )
    note = (
        "time: of a training step, measured while other models may have been training on the same "
        "machine."
    )
    return Table("Properties of each encoding", columns, cells, note)


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """Return the claims that published results suggest for models of this size, tested on these
    rows. `lengths` ascend from the trained length.
    """
    near = lengths[0]
    # four times the trained length; if that was not measured, the longest
    far = 4 * near if 4 * near in lengths else lengths[-1]
    models = distinct(rows, "loss", "model")
    at_near, at_far = (
        scores_by(rows, "loss", "model", models, length=length) for length in (near, far)
    )
    alibi, window = at_far.get("alibi"), at_far.get(WINDOW)
    return [
        claim_order(
            f"At the trained length ({near}), the loss rises in the order {', '.join(CORE)}",
            at_near,
            CORE,
        ),
        claim_not_higher(
            f"ALiBi at {far} stays within 0.05 of its loss at {near}",
            alibi,
            at_near.get("alibi"),
            0.05,
        ),
        claim_order(
            f"At {far}, beyond the trained length, ALiBi has a lower loss than plain RoPE",
            at_far,
            ["alibi", "rope"],
        ),
        claim_within(
            f"RoPE with a sliding window of {near} is flat from {2 * near} to {far}",
            window,
            score(rows, "loss", model=WINDOW, length=2 * near),
            0.05,
        ),
        claim_not_higher(
            f"RoPE with a sliding window at {far} is no worse than RoPE at {near}",
            window,
            at_near.get("rope"),
            0.05,
        ),
    ]


STUDY = Study(
    "encodings",
    ABOUT["encodings"],
    PRESETS,
    run,
    findings,
    (
        "glue",
        "beyond-512",
        "roformer-mlm",
        "alibi-extrapolation",
        "nope-causal",
        "nope-length-generalisation",
    ),
)
