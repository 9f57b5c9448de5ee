"""`migrate`: a trained sinusoidal model gets RoPE and a little training; beside it, what it would have been otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ropewalk.lab.schedule import Stage
from ropewalk.lab.studies.page import Claim, Page, Table, lines, lower, number
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
from ropewalk.models.migrate import migrate

KEPT, MOVED, FRESH = "sinusoidal, trained on", "migrated to RoPE", "RoPE from scratch"
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "from": "sinusoidal", "steps": [0, 4], "rate": 1e-3, "windows": 4, "seeds": 1},
    "cpu": {
        "preset": "cpu", "changes": CPU_CHANGES, "from": "sinusoidal", "steps": [0, 60], "rate": 1e-3, "windows": 24, "seeds": 1,
    },
    "gpu": {
        "preset": "gpu", "changes": GPU_CHANGES, "from": "sinusoidal", "steps": [0, 20, 80, 200], "rate": 1e-3, "windows": 64,
        "seeds": 1,
    },
    "cluster": {
        "preset": "cluster", "changes": [], "from": "sinusoidal", "steps": [0, 50, 200], "rate": 3e-4, "windows": 64, "seeds": 3,
    },
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """Three ways for each seed and number of steps; the first model is trained before they part."""
    s = workshop.settings
    shared = {"preset": s["preset"], "changes": s["changes"], "source": s["from"], "rate": s["rate"], "windows": s["windows"]}
    for steps in s["steps"]:
        ways = (KEPT, MOVED, FRESH) if steps else (KEPT, MOVED)
        workshop.each(
            Job(
                f"{way.replace(' ', '-').replace(',', '')}-{steps}-{seed}",
                measure,
                {"way": way, "steps": steps, "seed": seed, **shared},
            )
            for seed in workshop.seeds
            for way in ways
        )
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def measure(
    place: Place, *, way: str, steps: int, seed: int, preset: str, changes: list[str], source: str, rate: float, windows: int
) -> list[Row]:
    """One way, trained for some steps, at the trained length and twice that."""
    wanted = preset_of(preset, changes, seed, encoding=source)
    length, stage = length_of(wanted), wanted.train.stages[0]
    model = None if way == FRESH else trained(place, f"{source}-{seed}", wanted).model
    if way == MOVED and model is not None:
        model = migrate(model, "rope").model
    if steps:
        train = replace(
            wanted.train,
            stages=(Stage(length, stage.batch, steps),),
            learning_rate=rate,
            warmup=min(10, steps // 4),
            seed=seed + 1000,
        )
        after = replace(wanted, train=train, model=wanted.model | ({"encoding": "rope"} if way != KEPT else {}))
        model = trained(place, f"migrate-{steps}-{seed}", after, start=model, origin=f"{way} {source} {seed}").model
    text = held_out_windows(wanted, windows, 2 * length)
    assert model is not None  # only RoPE from scratch starts without one, and it is trained
    return measured(model, text, [length, 2 * length], length, way=way, steps=steps, seed=seed)


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Loss by way and steps, at two lengths."""
    lengths, steps, ways = known(rows, "loss", "length"), known(rows, "loss", "steps"), known(rows, "loss", "way")
    tables = [
        Table(
            f"Loss at {n} tokens", ("way", *(f"after {s} steps" for s in steps)),
            [(w, *(number(score(rows, "loss", way=w, steps=s, length=n)) for s in steps)) for w in ways],
        )
        for n in lengths
    ]  # fmt: skip
    series = {}
    for way in ways:
        found = [(s, x.mean) for s in steps if (x := score(rows, "loss", way=way, steps=s, length=lengths[0]))]
        series[way] = ([s for s, _ in found], [mean for _, mean in found])
    figure = lines(series, title="Migration to RoPE", x="steps of training after the switch", y="loss", log=False)
    return Page(tables, {"migrate": figure}, claims(rows, lengths, steps[-1]))


def claims(rows: list[Row], lengths: list[int], steps: int) -> list[Claim]:
    """Whether old weights help, and whether the switch pays."""
    near, far = ({w: score(rows, "loss", way=w, steps=steps, length=n) for w in (KEPT, MOVED, FRESH)} for n in lengths)
    return [
        lower(f"After {steps} steps a migrated model is ahead of RoPE from scratch", near, [MOVED, FRESH]),
        lower(f"After {steps} steps it is ahead of the model it came from, trained on as long", near, [MOVED, KEPT]),
        lower(f"At {lengths[1]} tokens, twice the trained length, it is ahead of it too", far, [MOVED, KEPT]),
    ]


STUDY = Study("migrate", "Can a trained model change to RoPE, and is it worth it?", PRESETS, run, page)
