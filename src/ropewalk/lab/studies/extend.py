"""`extend`: a RoPE model read at 2 to 16 times its length, by every method, at once and after a little training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn

from ropewalk.lab.schedule import Stage
from ropewalk.lab.settings import Preset
from ropewalk.lab.studies.extension import LONGROPE, METHODS, NONE, searched, spec_for
from ropewalk.lab.studies.page import Claim, Page, Table, lines, lower, number
from ropewalk.lab.studies.rows import Row, chosen, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import (
    CPU_CHANGES,
    GPU_CHANGES,
    corpus_of,
    facts_of,
    held_out_windows,
    length_of,
    measured,
    preset_of,
    trained,
)
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.models.migrate import migrate
from ropewalk.spec import RopeSpec

ALL = [NONE, *METHODS, LONGROPE]
_SHORT = {"population": 8, "rounds": 2, "windows": 2}

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "smoke", "changes": [], "methods": ALL, "factors": [2, 4], "windows": 6, "search": _SHORT,
        "tuned_methods": [NONE, "yarn"], "tuned_factors": [4], "tuned_steps": 4, "tuned_rate": 6e-4, "seeds": 1,
    },
    "cpu": {
        "preset": "cpu", "changes": CPU_CHANGES, "methods": ALL, "factors": [2, 4, 8], "windows": 24,
        "search": {"population": 8, "rounds": 5, "windows": 4},
        "tuned_methods": [NONE, "linear", "yarn"], "tuned_factors": [4], "tuned_steps": 60, "tuned_rate": 6e-4, "seeds": 1,
    },
    "gpu": {
        "preset": "gpu", "changes": GPU_CHANGES, "methods": ALL,
        "factors": [2, 4, 8, 16], "windows": 64, "search": {"population": 32, "rounds": 10, "windows": 8},
        "tuned_methods": ALL, "tuned_factors": [2, 4, 8, 16], "tuned_steps": 40, "tuned_rate": 6e-4, "seeds": 1,
    },
    "cluster": {
        "preset": "cluster", "changes": [], "methods": ALL, "factors": [2, 4, 8, 16], "windows": 128,
        "search": {"population": 64, "rounds": 40, "windows": 16},
        "tuned_methods": ALL, "tuned_factors": [2, 4, 8, 16], "tuned_steps": 100, "tuned_rate": 3e-4, "seeds": 3,
    },
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """Each seed's model at once, then every fine-tuning."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "windows")}
    rows = workshop.each(
        Job(
            f"zero-shot-{seed}", zero_shot, shared | {name: s[name] for name in ("methods", "factors", "search")} | {"seed": seed}
        )
        for seed in workshop.seeds
    )
    jobs = []
    for seed in workshop.seeds:
        for factor in s["tuned_factors"]:
            for method in s["tuned_methods"]:
                found = chosen(rows, "factors", seed=seed, factor=factor) if method == LONGROPE else []
                own = {"method": method, "factor": factor, "seed": seed, "factors": found[0]["values"] if found else None}
                rest = {"steps": s["tuned_steps"], "rate": s["tuned_rate"], "multiples": [1, *s["factors"]]}
                jobs.append(Job(f"tuned-{method}-{factor}-{seed}", tuned, shared | own | rest))
    workshop.each(jobs)
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def _plain(place: Place, preset: str, changes: list[str], seed: int) -> tuple[Preset, nn.Module, RopeSpec]:
    """The model that `encodings` calls rope; it is trained once for both."""
    wanted = preset_of(preset, changes, seed, encoding="rope")
    model = trained(place, f"rope-{seed}", wanted).model
    return wanted, model, model.layers[0].self_attn.encoding.rope.spec  # type: ignore[union-attr, index]


def zero_shot(
    place: Place, *, seed: int, preset: str, changes: list[str], methods: list[str], factors: list[int], windows: int,
    search: dict[str, int],
) -> list[Row]:  # fmt: skip
    """Every method at every factor, on the length the factor is meant for."""
    wanted, model, plain = _plain(place, preset, changes, seed)
    length = length_of(wanted)
    text = held_out_windows(wanted, windows, max(factors) * length)
    rows = measured(model, text, [length], length, method=NONE, seed=seed, tuned=0, factor=1)
    own = {name: value for name, value in search.items() if name != "windows"}
    for factor in factors:
        for method in methods:
            what: dict[str, Any] = {"method": method, "seed": seed, "tuned": 0, "factor": factor}
            found = None
            if method == LONGROPE:
                seen = corpus_of(wanted).train.windows(search["windows"], factor * length + 1)
                found = searched(model, seen, factor, length, seed=seed, **own)
                rows.append(row("factors", found, **what))
            longer = migrate(model, spec_for(method, plain, factor, length, found)).model
            rows += measured(longer, text, [factor * length], length, **what)
    return rows


def tuned(
    place: Place, *, seed: int, preset: str, changes: list[str], method: str, factor: int, factors: list[float] | None,
    windows: int, steps: int, rate: float, multiples: list[int],
) -> list[Row]:  # fmt: skip
    """A little training at the longer length, then every length."""
    wanted, model, plain = _plain(place, preset, changes, seed)
    length, stage = length_of(wanted), wanted.train.stages[0]
    longer = migrate(model, spec_for(method, plain, factor, length, factors)).model
    stages = (Stage(factor * length, max(1, stage.batch // factor), steps),)
    # samples are counted on from where the first training ended, or it would see the same text again
    train = replace(wanted.train, stages=stages, learning_rate=rate, warmup=min(10, steps // 4), seed=seed + 1000)
    origin = f"rope-{seed} {method} {factor} {factors}"
    done = trained(place, f"{method}-{factor}x-{seed}", replace(wanted, train=train), start=longer, origin=origin)
    text = held_out_windows(wanted, windows, max(multiples) * length)
    lengths = [multiple * length for multiple in multiples]
    return measured(done.model, text, lengths, length, method=method, seed=seed, tuned=steps, factor=factor)


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Zero-shot and fine-tuned tables, a figure, and the order the noise allows."""
    start = chosen(rows, "loss", tuned=0, factor=1)[0]["length"]
    factors = [f for f in known(rows, "loss", "factor", tuned=0) if f > 1]
    methods = [m for m in known(rows, "loss", "method", tuned=0) if chosen(rows, "loss", tuned=0, method=m, factor=factors[0])]
    grid = {m: [score(rows, "loss", tuned=0, method=m, factor=f) for f in factors] for m in methods}
    within = score(rows, "loss", tuned=0, factor=1)
    columns = ("method", *(f"{f}x = {f * start}" for f in factors))
    note = f"Nats per byte on the same last {start} tokens. At {start}, untouched: {number(within)}."
    tables = [Table("Zero-shot", columns, [(m, *map(number, found)) for m, found in grid.items()], note)]
    series = {m: ([1, *factors], [s.mean if s else float("nan") for s in (within, *found)]) for m, found in grid.items()}
    figures = {"extend": lines(series, title="Zero-shot, beyond the trained length", x="times the trained length", y="loss")}
    tables += _tuned_tables(rows)
    return Page(tables, figures, claims(rows, factors, start))


def _tuned_tables(rows: list[Row]) -> list[Table]:
    tables = []
    after = [r for r in rows if r["metric"] == "loss" and r["tuned"]]
    for factor in dict.fromkeys(r["factor"] for r in after):
        own = [r for r in after if r["factor"] == factor]
        lengths = known(own, "loss", "length")
        cells = [(m, *(number(score(own, "loss", method=m, length=n)) for n in lengths)) for m in known(own, "loss", "method")]
        title = f"After {own[0]['tuned']} steps at {factor}x"
        tables.append(
            Table(title, ("method", *map(str, lengths)), cells, "Loss at every length; the factor stays as it was trained.")
        )
    return tables


def claims(rows: list[Row], factors: list[int], start: int) -> list[Claim]:
    """The order of published zero-shot tables, and what a little training does."""
    at = 4 if 4 in factors else factors[-1]
    zero = {m: score(rows, "loss", tuned=0, method=m, factor=at) for m in known(rows, "loss", "method", tuned=0)}
    found = [
        lower(
            f"Zero-shot at {at}x: YaRN < NTK < none < interpolation in loss",
            zero,
            ["yarn", "ntk", "none", "linear"],
            same_model=True,
        ),
    ]
    for method in ("none", "yarn"):
        after = [r for r in rows if r["metric"] == "loss" and r["tuned"] and r["factor"] == at]
        pair = {"tuned": score(after, "loss", method=method, length=at * start), "zero-shot": zero.get(method)}
        if pair["tuned"] is not None:
            text = f"A little training at {at}x lowers the loss there ({method})"
            found.append(lower(text, pair, ["tuned", "zero-shot"], same_model=True))
    if "longrope" in zero:
        found.append(lower(f"The LongRoPE search beats YaRN zero-shot at {at}x", zero, ["longrope", "yarn"], same_model=True))
    return found


STUDY = Study(
    "extend", "How far beyond its trained length can a RoPE model be read, by which method?", PRESETS, run, page,
    ("interpolation", "ntk-zero-shot", "yarn", "longrope"),
)  # fmt: skip
