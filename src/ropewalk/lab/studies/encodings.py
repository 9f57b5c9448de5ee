"""`encodings`: every way to tell a model where a token is, trained alike, and then read beyond the trained length."""

from __future__ import annotations

from typing import Any

from torch import nn

from ropewalk.encodings import ENCODINGS, Encoding
from ropewalk.lab.studies.page import Claim, Page, Table, by_length, lines, lower, not_higher, number, within
from ropewalk.lab.studies.rows import Row, chosen, known, row, score
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

#: RoPE whose queries see as many tokens as in training, wherever they are
WINDOW = "rope, sliding window"
#: encodings of one axis that a decoder can use
TEXT = [name for name in ENCODINGS if name not in ("rope_2d", "rope_3d", "t5")]
CORE = ["rope", "alibi", "sinusoidal", "none"]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "encodings": CORE, "multiples": [1, 2, 4], "windows": 6, "seeds": 1},
    "cpu": {
        "preset": "cpu", "changes": CPU_CHANGES, "encodings": [*CORE, "learned", "xpos", "t5_causal", "kerple_log", "nezha"],
        "multiples": [1, 2, 4, 8], "windows": 24, "seeds": 1,
    },
    "gpu": {
        "preset": "gpu", "changes": GPU_CHANGES, "encodings": TEXT,
        "multiples": [1, 2, 4, 8, 16], "windows": 64, "seeds": 1,
    },
    "cluster": {
        "preset": "cluster", "changes": [], "encodings": TEXT, "multiples": [1, 2, 4, 8, 16], "windows": 128, "seeds": 3,
    },
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """One model for each encoding and seed."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "multiples", "windows")}
    names, seeds = s["encodings"], workshop.seeds
    workshop.each(Job(f"{n}-{seed}", measure, {"encoding": n, "seed": seed, **shared}) for seed in seeds for n in names)
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def measure(
    place: Place, *, encoding: str, seed: int, preset: str, changes: list[str], multiples: list[int], windows: int
) -> list[Row]:
    """Train one model and read its losses at every length."""
    wanted = preset_of(preset, changes, seed, encoding=encoding)
    done = trained(place, f"{encoding}-{seed}", wanted)
    length = length_of(wanted)
    lengths = [length * multiple for multiple in multiples]
    text = held_out_windows(wanted, windows, lengths[-1])
    what: dict[str, Any] = {"model": encoding, "seed": seed}
    # a table of positions has none beyond the trained length
    rows = measured(done.model, text, lengths[:1] if ENCODINGS[encoding].bounded else lengths, length, **what)
    rows.append(row("seconds per step", done.seconds / done.steps, **what))
    rows.append(row("parameters", positional_parameters(done.model), **what))
    if encoding == "rope":
        sliding = ("sliding",) * len(done.model.layers)  # type: ignore[arg-type]
        windowed = migrate(done.model, "rope", window=length, layer_types=sliding).model
        rows += measured(windowed, text, lengths, length, model=WINDOW, seed=seed)
    return rows


def positional_parameters(model: nn.Module) -> int:
    """How many trained numbers belong to the encoding, in all layers."""
    own = {id(p): p.numel() for module in model.modules() if isinstance(module, Encoding) for p in module.parameters()}
    return sum(own.values())


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Losses by length, what each encoding is, and the order the noise allows."""
    models, lengths = known(rows, "loss", "model"), sorted(known(rows, "loss", "length"))
    series = {m: by_length(rows, lengths, model=m) for m in models}
    trained_at = lengths[0]
    title = f"Loss on the same last {trained_at} tokens, trained at {trained_at}"
    figure = lines(series, title=title, x="tokens of context", y="loss, nats per byte")
    return Page([_losses(rows, models, lengths), _properties(rows, models)], {"encodings": figure}, claims(rows, lengths))


def _losses(rows: list[Row], models: list[str], lengths: list[int]) -> Table:
    cells = [(m, *(number(score(rows, "loss", model=m, length=n)) for n in lengths)) for m in models]
    cells.sort(key=lambda cell: cell[1])
    note = f"Nats per byte, on the same last {lengths[0]} tokens of held-out windows; ± is the standard error of the mean."
    return Table("Loss by context length", ("encoding", *map(str, lengths)), cells, note)


def _properties(rows: list[Row], models: list[str]) -> Table:
    base = score(rows, "seconds per step", model="none")
    cells = []
    for name in models:
        if name not in ENCODINGS:
            continue
        kind, cost = ENCODINGS[name], score(rows, "seconds per step", model=name)
        times = f"{cost.mean / base.mean:.2f}" if cost and base else "-"
        parameters = chosen(rows, "parameters", model=name)[0]["mean"]
        yes_no = ("yes" if kind.relative else "no", "yes" if kind.linear else "no", "yes" if kind.bounded else "no")
        cells.append((name, kind.door, *yes_no, f"{parameters:,.0f}", times))
    columns = ("encoding", "acts on", "relative", "linear attention", "bounded", "parameters", "time, x none")
    return Table("What each encoding is", columns, cells, "time: of a training step, on this machine, with whatever else it did.")


def claims(rows: list[Row], lengths: list[int]) -> list[Claim]:
    """What published work leads one to expect at this size, judged by these rows."""
    near = lengths[0]
    far = 4 * near if 4 * near in lengths else lengths[-1]
    losses = {n: {m: score(rows, "loss", model=m, length=n) for m in known(rows, "loss", "model")} for n in (near, far)}
    alibi, window = (losses[far].get(m) for m in ("alibi", WINDOW))
    return [
        lower(f"At the trained length ({near}): RoPE < ALiBi < sinusoidal < none in loss", losses[near], CORE),
        not_higher(f"ALiBi at {far} stays within 0.05 of its loss at {near}", alibi, losses[near].get("alibi"), 0.05),
        lower(f"Beyond it, at {far}, plain RoPE loses to ALiBi", losses[far], ["alibi", "rope"]),
        within(
            f"RoPE with a sliding window of {near} is flat from {2 * near} to {far}",
            window, score(rows, "loss", model=WINDOW, length=2 * near), 0.05,
        ),
        not_higher(
            f"RoPE with a sliding window at {far} is no worse than RoPE at {near}", window, losses[near].get("rope"), 0.05
        ),
    ]  # fmt: skip


STUDY = Study(
    "encodings", "Which encoding learns best at the trained length, and which still works beyond it?", PRESETS, run, page,
    ("roformer-mlm", "alibi-extrapolation", "nope-causal", "nope-length-generalisation"),
)  # fmt: skip
