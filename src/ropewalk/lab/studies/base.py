"""Study `base`: plain RoPE with bases from 100 to 100,000."""

from __future__ import annotations

from typing import Any

from ropewalk.lab.studies import training
from ropewalk.lab.studies.findings import Claim, Findings, Table, by_length, claim_order, line_figure, score_rows
from ropewalk.lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk.lab.studies.rows import Row, distinct, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import CPU_CHANGES, GPU_CHANGES
from ropewalk.spec import RopeSpec

BASES = [100.0, 1_000.0, 10_000.0, 100_000.0]
_MULTIPLES = [1, 2, 4, 8, 16]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "bases": [100.0, 1e4], "multiples": [1, 2], "windows": 6, "seeds": 2},
    "cpu": {
        "preset": "cpu", "changes": CPU_CHANGES, "bases": [100.0, 1e4], "multiples": _MULTIPLES, "windows": 24, "seeds": 1,
    },
    "gpu": {"preset": "gpu", "changes": GPU_CHANGES, "bases": BASES, "multiples": _MULTIPLES, "windows": 64, "seeds": 3},
    "cluster": {"preset": "cluster", "changes": [], "bases": BASES, "multiples": _MULTIPLES, "windows": 128, "seeds": 3},
}  # fmt: skip


def run(runner: JobRunner) -> dict[str, Any]:
    """Train one model for each base and seed."""
    s, shared = runner.settings, runner.pick("preset", "changes", "multiples", "windows")
    runner.run(
        Job(f"base-{base:g}-{seed}", measure, {"base": base, "seed": seed, **shared})
        for seed in runner.seeds
        for base in s["bases"]
    )
    return training.preset_facts(s["preset"], s["changes"])


def measure(
    workspace: Workspace, *, base: float, seed: int, preset: str, changes: list[str], multiples: list[int], windows: int
) -> list[Row]:
    """Train with one base and measure the loss at every length."""
    plain = training.make_preset(preset, changes, seed)
    head_dim = plain.model.get("head_dim", plain.model["hidden_size"] // plain.model["num_heads"])
    with_base = training.make_preset(preset, changes, seed, encoding=RopeSpec(head_dim=head_dim, theta=base))
    name = f"base-{base:g}-{seed}"
    return training.train_and_measure(workspace, name, with_base, multiples, windows, base=base, seed=seed)


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss by base and length."""
    bases, lengths = distinct(rows, "loss", "base"), distinct(rows, "loss", "length")
    cells = [(f"{float(name):,.0f}", *rest) for name, *rest in score_rows(rows, "loss", "base", bases, "length", lengths)]
    series = {f"base {base:,.0f}": by_length(rows, lengths, base=base) for base in bases}
    note = "Nats per byte, zero-shot beyond the first length."
    table = Table("Loss by base and context length", ("base", *map(str, lengths)), cells, note)
    figure = line_figure(series, title="Loss by base", x="tokens of context", y="loss, nats per byte")
    return Findings([table], {"base": figure}, claims(rows, bases, lengths))


def claims(rows: list[Row], bases: list[float], lengths: list[int]) -> list[Claim]:
    """Compare the smallest base with 10,000 at the shortest and the longest length."""
    small, standard = bases[0], 10_000.0
    result = []
    for length in (lengths[0], lengths[-1]):
        pair = {f"{b:,.0f}": score(rows, "loss", base=b, length=length) for b in (small, standard)}
        result.append(claim_order(f"At {length}, base {small:,.0f} has a lower loss than base {standard:,.0f}", pair, list(pair)))
    return result


STUDY = Study(
    "base", "What does the base of plain RoPE change, at the trained length and beyond?", PRESETS, run, findings,
    ("roformer-base", "base-bounds", "base-scaling-laws"),
)  # fmt: skip
