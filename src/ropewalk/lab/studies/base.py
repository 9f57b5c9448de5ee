"""`base`: the one number of plain RoPE, from 100 to 100,000."""

from __future__ import annotations

from typing import Any

from ropewalk.lab.studies.page import Claim, Page, Table, by_length, lines, lower, number
from ropewalk.lab.studies.rows import Row, known, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import (
    CPU_CHANGES,
    GPU_CHANGES,
    facts_of,
    held_out_windows,
    length_of,
    measured,
    preset_of,
    trained,
)
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.spec import RopeSpec

BASES = [100.0, 1_000.0, 10_000.0, 100_000.0]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "bases": [100.0, 1e4], "multiples": [1, 2], "windows": 6, "seeds": 2},
    "cpu": {
        "preset": "cpu",
        "changes": CPU_CHANGES,
        "bases": [100.0, 1e4],
        "multiples": [1, 2, 4, 8, 16],
        "windows": 24,
        "seeds": 1,
    },
    "gpu": {"preset": "gpu", "changes": GPU_CHANGES, "bases": BASES, "multiples": [1, 2, 4, 8, 16], "windows": 64, "seeds": 3},
    "cluster": {"preset": "cluster", "changes": [], "bases": BASES, "multiples": [1, 2, 4, 8, 16], "windows": 128, "seeds": 3},
}


def run(workshop: Workshop) -> dict[str, Any]:
    """One model for each base and seed."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "multiples", "windows")}
    workshop.each(
        Job(f"base-{base:g}-{seed}", measure, {"base": base, "seed": seed, **shared})
        for seed in workshop.seeds
        for base in s["bases"]
    )
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def measure(
    place: Place, *, base: float, seed: int, preset: str, changes: list[str], multiples: list[int], windows: int
) -> list[Row]:
    """Train with one base, read at every length."""
    plain = preset_of(preset, changes, seed)
    head_dim = plain.model.get("head_dim", plain.model["hidden_size"] // plain.model["num_heads"])
    wanted = preset_of(preset, changes, seed, encoding=RopeSpec(head_dim=head_dim, theta=base))
    done = trained(place, f"base-{base:g}-{seed}", wanted)
    length = length_of(wanted)
    lengths = [length * multiple for multiple in multiples]
    return measured(done.model, held_out_windows(wanted, windows, lengths[-1]), lengths, length, base=base, seed=seed)


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Losses by base and length."""
    bases, lengths = known(rows, "loss", "base"), known(rows, "loss", "length")
    cells = [(f"{base:,.0f}", *(number(score(rows, "loss", base=base, length=n)) for n in lengths)) for base in bases]
    series = {f"base {base:,.0f}": by_length(rows, lengths, base=base) for base in bases}
    table = Table(
        "Loss by base and context length", ("base", *map(str, lengths)), cells, "Nats per byte, zero-shot beyond the first."
    )
    figure = lines(series, title="One base or another", x="tokens of context", y="loss, nats per byte")
    return Page([table], {"base": figure}, claims(rows, bases, lengths))


def claims(rows: list[Row], bases: list[float], lengths: list[int]) -> list[Claim]:
    """Near and far, the smallest base against the usual one; the noise decides."""
    small, usual = bases[0], 10_000.0
    found = []
    for length in (lengths[0], lengths[-1]):
        pair = {f"{b:,.0f}": score(rows, "loss", base=b, length=length) for b in (small, usual)}
        found.append(lower(f"At {length}, base {small:,.0f} has a lower loss than base {usual:,.0f}", pair, list(pair)))
    return found


STUDY = Study(
    "base", "What does the base of plain RoPE change, at the trained length and beyond?", PRESETS, run, page,
    ("roformer-base", "base-bounds", "base-scaling-laws"),
)  # fmt: skip
