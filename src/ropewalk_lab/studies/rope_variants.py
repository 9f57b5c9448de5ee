"""Studies `base` and `frequencies`: a model for each variant of RoPE, and its loss by length.

A table of rope_variants.toml says what such a study varies and how a variant is named. A variant of
`frequencies` may also be any scaling of SCALINGS. "geometric + yarn" is the model of the variant
"geometric", read beyond its trained length with "yarn", a method of the study `extend`.

Words of this module:
  row    one measurement: a metric ("loss", "accuracy"; "alpha", how far learned frequencies moved),
         its values, and fields: the variant, under the name `field` of its table, `seed`, `text`
         if the setting "texts" is given, and `length` except for "alpha"
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  facts  what a report says of the run beside its rows: settings, seeds, texts
  ours   our values beside a published table, by the name of that table
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from ropewalk.errors import RopeError, choice
from ropewalk.frequencies import SCALINGS
from ropewalk.models.migrate import migrate
from ropewalk_lab.data_files import toml_beside
from ropewalk_lab.studies import training
from ropewalk_lab.studies.extension_methods import METHODS, rope_spec, spec_for
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
from ropewalk_lab.studies.rows import Row, digest, distinct, row, score, select
from ropewalk_lab.studies.study import Study

#: between a variant that is trained and the method that it is read with: "geometric + yarn"
SEPARATOR = " + "


@dataclass(frozen=True)
class RopeVariants:
    """A table of rope_variants.toml.

    field      the field of the rows that names a variant
    setting    the setting of the study that lists the variants
    reference  claims compare every other variant with this one
    label      how a variant is written in a figure and in a claim, a format
    title      of the tables and figures
    published  names of published tables
    variants   {name: the fields of its RopeSpec}; empty: a variant is a base, theta
    """

    field: str
    setting: str
    reference: Any
    label: str
    title: str
    published: list[str]
    variants: dict[str, dict[str, Any]] = dataclass_field(default_factory=dict)

    def rope(self, variant: Any) -> dict[str, Any]:
        """Return the fields of the RopeSpec that a variant is trained with.

        In a table without `variants` the variant is a base. Otherwise it is a name of `variants` or
        of SCALINGS, after which SEPARATOR and a method may follow, as in "geometric + yarn"; the
        method does not change the training.
        """
        if not self.variants:
            return {"theta": variant}
        trained, method = parts(variant)
        choice(self.setting, trained, self.variants | SCALINGS)
        if method:
            choice(f"{self.setting}, method", method, METHODS)
        fields = dict(self.variants.get(trained, {"scaling": trained}))
        if scaling := fields.get("scaling"):
            if method:  # the scaling of the method would replace that of the training
                rule = f"must name a method after variants of plain RoPE only, not after {trained}"
                raise RopeError(self.setting, rule, variant)
            try:
                fields["scaling"] = SCALINGS[scaling]()
            except TypeError as error:  # it has fields without a default
                rule = f"must be a scaling that is made without arguments ({error})"
                raise RopeError(self.setting, rule, scaling) from None
        return fields


def parts(variant: Any) -> tuple[Any, str]:
    """Return the variant that is trained, and the method that it is read with, "" if none."""
    if not isinstance(variant, str):
        return variant, ""
    trained, _, method = variant.partition(SEPARATOR)
    return trained, method


TABLES = {name: RopeVariants(**table) for name, table in toml_beside(__file__).items()}


def run(study: str, runner: JobRunner) -> dict[str, Any]:
    """Train one model for each variant, text and seed, in a job named as "base-10000-0"; return the
    facts for the report.

    study   a name of TABLES: its table says which setting lists the variants
    runner  the settings and the seeds; without "texts", models train on the text of the preset
    """
    settings, table = runner.settings, TABLES[study]
    shared = runner.pick("preset", "changes", "multiples", "windows")
    # every name is checked before the first training
    formulas = {each: formula(study, each, settings) for each in settings[table.setting]}
    jobs = [
        Job(
            "-".join((file_name(variant), *([text] if text else []), str(seed))),
            measure,
            {"study": study, "variant": variant, "text": text, "seed": seed, **shared}
            | ({"formula": formulas[variant]} if formulas[variant] else {}),
        )
        for seed in runner.seeds
        for text in settings.get("texts", [""])
        for variant in settings[table.setting]
    ]
    runner.run(jobs)
    return training.preset_facts(settings["preset"], settings["changes"])


def formula(study: str, variant: Any, settings: dict[str, Any]) -> str:
    """Return a hash of the frequencies of a scaling that the table lacks, "" for other variants.

    A user may change the formula and keep its name; the models and rows of the old one are then not
    used again.
    """
    table = TABLES[study]
    preset = training.make_rope_preset(
        settings["preset"], settings["changes"], 0, **table.rope(variant)
    )
    known = not table.variants or parts(variant)[0] in table.variants
    return "" if known else digest(preset.model["encoding"].frequencies())


def file_name(variant: Any) -> str:
    """Return the name of a variant for files: without spaces, slashes, commas and plus signs."""
    return f"base-{variant:g}" if isinstance(variant, float) else variant.translate(_PLAIN)


_PLAIN = str.maketrans({" ": "-", "/": "-", ",": None, "+": "with"})


def measure(
    workspace: Workspace,
    *,
    study: str,
    variant: Any,
    text: str,
    seed: int,
    preset: str,
    changes: list[str],
    multiples: list[int],
    windows: int,
    formula: str = "",
) -> list[Row]:
    """Train one variant and measure its loss at every length and, for a variant without a method,
    how far its learned frequencies moved; return the rows.

    study      a name of TABLES: its table says what a variant is
    variant    a base, a name of the table or of a scaling; with " + " and a method of `extend`, the
               model is read with this method beyond the trained length, its factor being the
               multiple
    text       a source of text, "" for that of the preset
    preset     the training preset; `changes` of its settings
    multiples  the lengths, as multiples of the trained length
    windows    the number of held-out windows
    formula    a hash of the frequencies, for those that their name does not identify
    """
    table, (trained, method) = TABLES[study], parts(variant)
    if text:
        changes = [*changes, f"data.source={text}"]
    full_preset = training.make_rope_preset(preset, changes, seed, **table.rope(variant))
    name = "-".join((file_name(trained), *([text] if text else []), str(seed)))
    fields = {table.field: variant, **({"text": text} if text else {}), "seed": seed}
    model = training.train_or_load(workspace, name, full_preset, origin=formula).model
    length = training.trained_length(full_preset)
    held_out = training.held_out_windows(full_preset, windows, max(multiples) * length)
    rows = []
    for multiple in multiples:
        reader = model
        if method and multiple > 1:
            reader = migrate(model, spec_for(method, rope_spec(model), multiple, length)).model
        rows += training.loss_rows(reader, held_out, [multiple * length], length, **fields)
    moved = log_scales(model)
    # with a method, the frequencies learned are those of the variant without it, which has its rows
    return [*rows, *([row("alpha", moved, **fields)] if moved.size and not method else [])]


def log_scales(model: nn.Module) -> np.ndarray:
    """Return alpha [N] of every learned frequency omega exp(alpha), over all layers and pairs of a
    model; empty if none is learned.
    """
    found = [value for name, value in model.named_parameters() if name.endswith("log_scale")]
    return np.concatenate([np.zeros(0), *(value.detach().cpu().double() for value in found)])


def findings(study: str, rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss by variant and length as tables and figures, the claims, and our values
    beside published ones.
    """
    table = TABLES[study]
    variants, lengths = distinct(rows, "loss", table.field), distinct(rows, "loss", "length")
    tables, figures, claims = [], {}, []
    for text in distinct(rows, "loss", "text") if "text" in rows[0] else [None]:
        where = {} if text is None else {"text": text}
        suffix = "" if text is None else f", {TEXTS.get(text, text)}"  # for titles and claims
        cells = [
            (label(table, variant, short=True), *losses)
            for variant, (_, *losses) in zip(
                variants,
                score_rows(rows, "loss", table.field, variants, "length", lengths, **where),
                strict=True,
            )
        ]
        note = "Nats per byte, zero-shot beyond the first length."
        columns = (table.field, *map(str, lengths))
        tables.append(Table(f"{table.title} and context length{suffix}", columns, cells, note))
        series = {
            label(table, variant): by_length(rows, lengths, **{table.field: variant}, **where)
            for variant in variants
        }
        y = "loss, nats per byte"
        drawn = line_figure(series, title=table.title + suffix, x="tokens of context", y=y)
        figures[study if text is None else f"{study}-{text}"] = drawn
        claims += _claims(table, rows, variants, lengths, suffix, where)
    if select(rows, "alpha"):
        tables.append(_alphas(rows))
    ours = {}
    if study == "base":
        tables.append(_by_use(rows, variants, lengths))
        ours["base-ablation"] = _ours(rows, variants, lengths[0])
    return Findings(tables, figures, claims, ours)


#: sources of text -> their names in a table
TEXTS = {"stdlib": "code", "prose": "prose"}


def label(table: RopeVariants, variant: Any, *, short: bool = False) -> str:
    """Return a variant as text; with `short` a base is its number alone: "10,000" instead of "base
    10,000".
    """
    return (
        f"{variant:,.0f}" if short and isinstance(variant, float) else table.label.format(variant)
    )


def _alphas(rows: list[Row]) -> Table:
    """Return a table of how far training moved learned frequencies from where they began."""
    cells = []
    for each in select(rows, "alpha"):
        alphas = np.array(each["values"])
        largest, middle = np.abs(alphas).max(), np.median(np.abs(alphas))
        factors = f"{np.exp(alphas.min()):.3f} to {np.exp(alphas.max()):.3f}"
        text = TEXTS.get(each.get("text", ""), each.get("text", "-"))
        cells.append((text, str(each["seed"]), f"{middle:.4f}", f"{largest:.4f}", factors))
    note = (
        "A learned frequency is omega_i exp(alpha_i), over all layers and pairs; alpha begins at 0."
    )
    columns = ("text", "seed", "median |alpha|", "largest |alpha|", "exp(alpha)")
    return Table("How far learned frequencies moved", columns, cells, note)


def _by_use(rows: list[Row], bases: list[float], lengths: list[int]) -> Table:
    """Return how far the loss with each base is above the lowest: at the trained length, at the
    next one, and at the longest.
    """
    uses = {"short, as trained": lengths[0], "long, twice that": lengths[min(1, len(lengths) - 1)]}
    uses[f"extrapolation, {lengths[-1] // lengths[0]}x"] = lengths[-1]
    means = {
        use: [by_length(rows, [length], base=base)[1][0] for base in bases]
        for use, length in uses.items()
    }
    cells = [
        (f"{base:,.0f}", *(f"+{means[use][i] - min(means[use]):.3f}" for use in uses))
        for i, base in enumerate(bases)
    ]
    note = "Loss above that of the best base in the column, nats per byte."
    return Table("Base by use", ("base", *uses), cells, note)


def _ours(rows: list[Row], bases: list[float], length: int) -> Ours:
    """Return our loss and accuracy for each base, as columns to add to the published table."""
    cells = {}
    for base in bases:
        loss, accuracy = (
            score(rows, metric, base=base, length=length) for metric in ("loss", "accuracy")
        )
        cells[f"{base:,.0f}"] = (cell(loss), percent(accuracy))
    return Ours((f"loss at {length}", f"accuracy of the next byte at {length}"), cells)


def _claims(
    table: RopeVariants,
    rows: list[Row],
    variants: Sequence[Any],
    lengths: list[int],
    suffix: str,
    where: dict[str, str],
) -> list[Claim]:
    """Return claims about the loss at the shortest and at the longest length: that of the reference
    of `table` is lower than that of every other variant, and that of every variant without a method
    is lower than that of every variant with one.

    suffix  names the text in a claim, such as ", prose"; "" if all models train on one text
    where   fields that the rows must have
    """
    result = []
    with_method = [each for each in variants if parts(each)[1]]
    # (the variant with the lower loss, the other); the reference is in the first list alone
    orders = [(table.reference, each) for each in variants if each != table.reference]
    orders += [
        (each, other)
        for other in with_method
        for each in variants
        if each != table.reference and each not in with_method
    ]
    for length in dict.fromkeys((lengths[0], lengths[-1])):  # once if they are the same
        losses = {
            label(table, each): score(
                rows, "loss", **{table.field: each, "length": length}, **where
            )
            for each in (table.reference, *variants)
        }
        for first, other in ((label(table, one), label(table, two)) for one, two in orders):
            text = f"At {length}{suffix}, {first} has a lower loss than {other}"
            result.append(claim_order(text, losses, [first, other]))
    return result


STUDIES = [
    Study(
        name,
        ABOUT[name],
        presets_of(name),
        partial(run, name),
        partial(findings, name),
        tuple(table.published),
    )
    for name, table in TABLES.items()
]
