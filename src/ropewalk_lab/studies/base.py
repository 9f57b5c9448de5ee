"""Study `base`: plain RoPE with bases from 100 to 100,000."""

from __future__ import annotations

from typing import Any

from ropewalk_lab.studies import training
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
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.rows import Row, distinct, score
from ropewalk_lab.studies.study import Study
from ropewalk_lab.studies.training import CPU_CHANGES, GPU_CHANGES

STANDARD = 10_000.0
BASES = [100.0, 1_000.0, 10_000.0, 100_000.0]
_MULTIPLES = [1, 2, 4, 8, 16]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "smoke",
        "changes": [],
        "bases": [100.0, 1e4],
        "multiples": [1, 2],
        "windows": 6,
        "seeds": 2,
    },
    "cpu": {
        "preset": "cpu",
        "changes": CPU_CHANGES,
        "bases": BASES,
        "multiples": _MULTIPLES,
        "windows": 24,
        "seeds": 1,
    },
    "gpu": {
        "preset": "gpu",
        "changes": GPU_CHANGES,
        "bases": BASES,
        "multiples": _MULTIPLES,
        "windows": 64,
        "seeds": 3,
    },
    "cluster": {
        "preset": "cluster",
        "changes": [],
        "bases": BASES,
        "multiples": _MULTIPLES,
        "windows": 128,
        "seeds": 3,
    },
}


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each base and seed; return the facts for the report."""
    settings, shared = runner.settings, runner.pick("preset", "changes", "multiples", "windows")
    runner.run_each(measure, "base", settings["bases"], lambda base: f"base-{base:g}", **shared)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace,
    *,
    base: float,
    seed: int,
    preset: str,
    changes: list[str],
    multiples: list[int],
    windows: int,
) -> list[Row]:
    """Train with one base and measure the loss at every length; return the rows."""
    full_preset = training.make_rope_preset(preset, changes, seed, base)
    return training.train_and_measure(
        workspace, f"base-{base:g}-{seed}", full_preset, multiples, windows, base=base, seed=seed
    )


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss by base and length as a table and a figure, the claims, and our values beside
    published ones.
    """
    bases, lengths = distinct(rows, "loss", "base"), distinct(rows, "loss", "length")
    cells = [
        (f"{float(base):,.0f}", *losses)
        for base, *losses in score_rows(rows, "loss", "base", bases, "length", lengths)
    ]
    series = {f"base {base:,.0f}": by_length(rows, lengths, base=base) for base in bases}
    note = "Nats per byte, zero-shot beyond the first length."
    table = Table("Loss by base and context length", ("base", *map(str, lengths)), cells, note)
    figure = line_figure(
        series, title="Loss by base", x="tokens of context", y="loss, nats per byte"
    )
    return Findings(
        [table],
        {"base": figure},
        claims(rows, bases, lengths),
        {"base-ablation": _ours(rows, bases, lengths[0])},
    )


def _ours(rows: list[Row], bases: list[float], length: int) -> Ours:
    """Return our loss and accuracy for each base, as columns to add to the published table."""
    cells = {}
    for base in bases:
        loss, accuracy = (
            score(rows, metric, base=base, length=length) for metric in ("loss", "accuracy")
        )
        cells[f"{base:,.0f}"] = (cell(loss), percent(accuracy))
    return Ours((f"loss at {length}", f"accuracy of the next byte at {length}"), cells)


def claims(rows: list[Row], bases: list[float], lengths: list[int]) -> list[Claim]:
    """Return the claims that base 10,000 has a lower loss than every other base, at the shortest
    and the longest length.
    """
    result = []
    for length in dict.fromkeys((lengths[0], lengths[-1])):  # once if they are the same
        losses = {
            f"{base:,.0f}": score(rows, "loss", base=base, length=length)
            for base in (STANDARD, *bases)
        }
        for other in (f"{base:,.0f}" for base in bases if base != STANDARD):
            text = f"At {length}, base {STANDARD:,.0f} has a lower loss than base {other}"
            result.append(claim_order(text, losses, [f"{STANDARD:,.0f}", other]))
    return result


STUDY = Study(
    "base",
    "What does the base of plain RoPE change, at the trained length and beyond?",
    PRESETS,
    run,
    findings,
    ("base-ablation", "base-bounds", "base-scaling-laws"),
)
