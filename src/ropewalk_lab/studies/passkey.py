"""Study `passkey`: find five digits that are stated once in a text; accuracy by length, depth,
extension method and base.

Words of this module:
  row    one measurement: 1 for each pass key "found", else 0; its fields are `base` (theta),
         `method`, `length` of the text, `depth` from 0 (start) to 1 (end), and `seed`; its mean is
         the share found
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  facts  what a report says of the run beside its rows: settings, seeds, texts
  ours   our values beside a published table, by the name of that table
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.models.migrate import migrate
from ropewalk_lab.batches import IGNORED, Batch, MixedBatches, TaskBatches, TextBatches
from ropewalk_lab.evaluation import depth_grid
from ropewalk_lab.objectives import predict
from ropewalk_lab.scores import Score
from ropewalk_lab.settings import Preset
from ropewalk_lab.studies import training
from ropewalk_lab.studies.extension_methods import NONE, rope_spec, spec_for
from ropewalk_lab.studies.findings import (
    FAILS,
    HOLDS,
    TIED,
    Claim,
    Findings,
    Ours,
    Table,
    claim_order,
    line_figure,
)
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, joined_score, row, select
from ropewalk_lab.studies.study import Study

#: a method works at a length if it finds this share of the pass keys
FOUND = 0.95

PRESETS = presets_of("passkey")


def row_by_row(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of language modelling where every row of the batch has the same weight,
    whatever its number of targets: the mean of the rows' mean losses, times `batch.count`, by which
    the trainer divides.
    """
    losses = F.cross_entropy(
        predict(model, batch).float().transpose(1, 2),
        batch.targets,
        reduction="none",
        ignore_index=IGNORED,
    )
    targets_per_row = (batch.targets != IGNORED).sum(1).clamp(min=1)
    return (losses.sum(1) / targets_per_row).mean() * batch.count


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each base and seed, and test it with every method; return the facts for
    the report.
    """
    settings = runner.settings
    shared = {name: value for name, value in settings.items() if name not in ("seeds", "bases")}
    runner.run_each(measure, "base", settings["bases"], lambda base: f"passkey-{base:g}", **shared)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace,
    *,
    base: float,
    seed: int,
    preset: str,
    changes: list[str],
    share: float,
    methods: list[str],
    multiples: list[int],
    depths: list[float],
    count: int,
) -> list[Row]:
    """Train on text and pass keys, then test at every length and depth; return the rows.

    base             the base theta of RoPE
    preset, changes  the training preset, and changes of its settings
    share            of the training samples that are pass keys, the others are text
    methods          extension methods, applied beyond the trained length
    multiples        the lengths, as multiples of the trained length
    depths           where a pass key lies, from 0 (start) to 1 (end)
    count            how many samples there are at each length and depth
    """
    full_preset = training.make_rope_preset(preset, changes, seed, theta=base)
    batches, length = passkey_batches(full_preset, share), training.trained_length(full_preset)
    name = f"passkey-{base:g}-{seed}"
    model = training.train_or_load(
        workspace, name, full_preset, batches=batches, objective=row_by_row
    ).model
    plain = rope_spec(model)
    rows = []
    for multiple in multiples:
        # the trained length needs no extension method
        for method in methods if multiple > 1 else [NONE]:
            longer = migrate(model, spec_for(method, plain, multiple, length)).model
            grid = depth_grid(
                longer, [multiple * length], depths, count, seed=seed, device=workspace.device
            )
            fields: dict[str, Any] = {"base": base, "method": method, "seed": seed}
            rows += [
                row("found", hits, length=tokens, depth=depth, **fields)
                for (tokens, depth), hits in grid.items()
            ]
    torch.cuda.empty_cache()  # frees the memory of the long texts; does nothing without a GPU
    return rows


def passkey_batches(preset: Preset, share: float) -> MixedBatches:
    """Return the text of a preset, mixed with pass keys, which are `share` of the samples."""
    corpus, seed = training.corpus_of(preset), preset.train.seed
    tokenizer = preset.data.get("tokenizer", "bytes")
    if tokenizer != "bytes":
        raise RopeError("data.tokenizer", "must be bytes: pass keys are made of bytes", tokenizer)
    text = TextBatches(corpus.train, corpus.vocab_size, corpus.fingerprint, seed)
    return MixedBatches(
        (text, TaskBatches("passkey", corpus.vocab_size, seed)), (1 - share, share), seed
    )


def _mean(rows: list[Row], **fields: Any) -> float | None:
    """Return the mean share of pass keys found in the rows with these fields; None if there are
    none.
    """
    means = [each["mean"] for each in select(rows, "found", **fields)]
    return sum(means) / len(means) if means else None


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the accuracy by base, method, length and depth, and the longest length at which each
    method works.
    """
    lengths, methods, bases = (
        distinct(rows, "found", field) for field in ("length", "method", "base")
    )
    tables, series = [], {}
    for base in bases:
        cells = []
        for method in methods:
            shares = {
                length: _mean(rows, base=base, method=method, length=length) for length in lengths
            }
            # at the trained length only the unchanged model (NONE) was measured, because that
            # length needs no method; its share stands in the line of every method
            shares[lengths[0]] = _mean(rows, base=base, method=NONE, length=lengths[0])
            cells.append((method, *map(_percent, shares.values()), _reach(shares)))
            series[f"{method}, base {base:,.0f}"] = (
                lengths,
                [100 * (share or 0) for share in shares.values()],
            )
        columns = ("method", *map(str, lengths), f"longest with {FOUND:.0%}")
        tables.append(
            Table(
                f"Pass keys found, base {base:,.0f}",
                columns,
                cells,
                "Mean over all depths and seeds.",
            )
        )
    tables.append(_depth_table(rows))
    figure = line_figure(series, title="Pass keys found", x="tokens", y="%")
    return Findings(
        tables,
        {"passkey": figure},
        claims(rows, lengths, bases),
        {"drope-needle": _ours(rows, lengths, bases[0])},
    )


def _depth_table(rows: list[Row]) -> Table:
    """Return the share of pass keys found by depth, for each base, method and length."""
    lengths, depths, methods, bases = (
        distinct(rows, "found", field) for field in ("length", "depth", "method", "base")
    )
    cells = []
    for base, method, length in product(bases, methods, lengths):
        fields = {"base": base, "method": method, "length": length}
        if select(rows, "found", **fields):
            shares = (_percent(_mean(rows, depth=depth, **fields)) for depth in depths)
            cells.append((f"{base:,.0f}, {method}, {length}", *shares))
    columns = ("base, method, length", *(f"{depth:.0%}" for depth in depths))
    return Table("By depth", columns, cells, "0 % is the start of the text.")


def _ours(rows: list[Row], lengths: list[int], base: float) -> Ours:
    """Return the pass keys found at twice the trained length by models with the base `base`, by the
    published names of the methods.
    """
    names = {"RoPE": NONE, "PI": "linear", "NTK": "ntk", "YaRN": "yarn"}
    double = 2 * lengths[0]
    cells = {
        published: (_percent(_mean(rows, base=base, method=method, length=double)),)
        for published, method in names.items()
    }
    return Ours((f"pass keys at {double}",), cells)


def _percent(share: float | None) -> str:
    """Return a share as a percentage, or "-" if it was not measured."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _reach(by_length: dict[int, float | None]) -> str:
    """Return the longest length up to which the share of pass keys found is never below FOUND, as
    text; "none" if it is below at the first length. `by_length` has a share, or None if it was not
    measured, for each length in ascending order.
    """
    reach = 0
    for length, share in by_length.items():
        if share is None or share < FOUND:
            break
        reach = length
    return str(reach) if reach else "none"


def missed(rows: list[Row], base: float, length: int, method: str = NONE) -> Score | None:
    """Return 1 for each pass key that was missed and 0 for the others, [seeds, depths x samples];
    None without rows.
    """
    found = joined_score(rows, "found", base=base, method=method, length=length)
    return None if found is None else Score(1 - found.values)


def claims(rows: list[Row], lengths: list[int], bases: list[float]) -> list[Claim]:
    """Return the claims that the task is solved at the trained length, and that at the two shortest
    lengths the other bases miss fewer pass keys than the first base.
    """
    result = []
    for base in bases:
        share = _mean(rows, base=base, method=NONE, length=lengths[0])
        assert share is not None  # `measure` tests the trained length with NONE
        count = sum(
            len(each["values"])
            for each in select(rows, "found", base=base, method=NONE, length=lengths[0])
        )
        # the standard error of a share, sqrt(share (1 - share) / count); at least 1 / count, so
        # that it is not 0 if all keys, or none, were found
        error = (max(share * (1 - share), 1 / count) / count) ** 0.5
        verdict = (
            HOLDS if share - 2 * error >= FOUND else FAILS if share + 2 * error < FOUND else TIED
        )
        text = (
            f"At the trained length ({lengths[0]}) at least {FOUND:.0%} of the pass keys are "
            f"found, base {base:,.0f}"
        )
        result.append(Claim(text, verdict, f"{share:.1%} ± {error:.1%} of {count}"))
    for other in bases[1:]:
        for length in lengths[:2]:
            pair = {f"{base:,.0f}": missed(rows, base, length) for base in (other, bases[0])}
            text = (
                f"At {length}, base {other:,.0f} misses fewer pass keys than base {bases[0]:,.0f}"
            )
            result.append(claim_order(text, pair, list(pair)))
    return result


STUDY = Study(
    "passkey",
    ABOUT["passkey"],
    PRESETS,
    run,
    findings,
    ("interpolation-passkey", "yarn-passkey", "drope-needle"),
)
