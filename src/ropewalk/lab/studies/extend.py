"""Study `extend`: a RoPE model at 2 to 16 times its trained length, with every method, zero-shot and after fine-tuning."""

from __future__ import annotations

from typing import Any

from torch import nn

from ropewalk.lab.settings import Preset
from ropewalk.lab.studies import training
from ropewalk.lab.studies.extension_methods import LONGROPE, METHODS, NONE, rope_spec, search_longrope, spec_for
from ropewalk.lab.studies.findings import (
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
)  # fmt: skip
from ropewalk.lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk.lab.studies.rows import Row, distinct, row, score, scores_by, select
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import CPU_CHANGES, GPU_CHANGES
from ropewalk.models.migrate import migrate

#: names in published tables -> ours
PUBLISHED_NAMES = {"none": NONE, "PI": "linear", "NTK": "ntk", "YaRN": "yarn", "dynamic NTK": "dynamic", "searched": LONGROPE}
ALL = [NONE, *METHODS, LONGROPE]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "smoke", "changes": [], "methods": ALL, "factors": [2, 4], "windows": 6,
        "search": {"population": 8, "rounds": 2, "windows": 2},
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


def run(runner: JobRunner) -> dict[str, Any]:
    """Measure each seed's model without training, then fine-tune it with each method and factor; return facts for the report."""
    settings, shared = runner.settings, runner.pick("preset", "changes", "windows")
    options = runner.pick("methods", "factors", "search")
    rows = runner.run(Job(f"zero-shot-{seed}", zero_shot, shared | options | {"seed": seed}) for seed in runner.seeds)
    jobs = []
    for seed in runner.seeds:
        for factor in settings["tuned_factors"]:
            for method in settings["tuned_methods"]:
                searched = select(rows, "factors", seed=seed, factor=factor) if method == LONGROPE else []
                own = {"method": method, "factor": factor, "seed": seed, "factors": searched[0]["values"] if searched else None}
                rest = {"steps": settings["tuned_steps"], "rate": settings["tuned_rate"], "multiples": [1, *settings["factors"]]}
                jobs.append(Job(f"tuned-{method}-{factor}-{seed}", tuned, shared | own | rest))
    runner.run(jobs)
    return training.preset_facts(settings["preset"], settings["changes"])


def _rope_model(workspace: Workspace, preset: str, changes: list[str], seed: int) -> tuple[Preset, nn.Module]:
    """Return the preset and the RoPE model of the study `encodings`, which is trained if no study has done so yet."""
    chosen = training.make_preset(preset, changes, seed, encoding="rope")
    return chosen, training.train_or_load(workspace, f"rope-{seed}", chosen).model


def zero_shot(
    workspace: Workspace, *, seed: int, preset: str, changes: list[str], methods: list[str], factors: list[int], windows: int,
    search: dict[str, int],
) -> list[Row]:  # fmt: skip
    """Return the losses of every method and factor without training, at the trained length and at factor times that length."""
    chosen, model = _rope_model(workspace, preset, changes, seed)
    plain, length = rope_spec(model), training.trained_length(chosen)
    text = training.held_out_windows(chosen, windows, max(factors) * length)
    rows = training.loss_rows(model, text, [length], length, method=NONE, seed=seed, tuned=0, factor=1)
    options = {name: value for name, value in search.items() if name != "windows"}
    for factor in factors:
        for method in methods:
            fields: dict[str, Any] = {"method": method, "seed": seed, "tuned": 0, "factor": factor}
            searched = None
            if method == LONGROPE:
                search_text = training.corpus_of(chosen).train.windows(search["windows"], factor * length + 1)
                searched = search_longrope(model, search_text, factor, length, seed=seed, **options)
                rows.append(row("factors", searched, **fields))
            longer = migrate(model, spec_for(method, plain, factor, length, searched)).model
            rows += training.loss_rows(longer, text, [length, factor * length], length, **fields)
    return rows


def tuned(
    workspace: Workspace, *, seed: int, preset: str, changes: list[str], method: str, factor: int, factors: list[float] | None,
    windows: int, steps: int, rate: float, multiples: list[int],
) -> list[Row]:  # fmt: skip
    """Fine-tune at the longer length, then measure at every length; return the rows."""
    chosen, model = _rope_model(workspace, preset, changes, seed)
    length, batch = training.trained_length(chosen), chosen.train.stages[0].batch
    longer = migrate(model, spec_for(method, rope_spec(model), factor, length, factors)).model
    second = training.fine_tuning(chosen, factor * length, max(1, batch // factor), steps, rate, seed)
    origin = f"rope-{seed} {method} {factor} {factors}"
    done = training.train_or_load(workspace, f"{method}-{factor}x-{seed}", second, start=longer, origin=origin)
    text = training.held_out_windows(chosen, windows, max(multiples) * length)
    lengths = [multiple * length for multiple in multiples]
    return training.loss_rows(done.model, text, lengths, length, method=method, seed=seed, tuned=steps, factor=factor)


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the losses zero-shot and after fine-tuning, a figure, and the claims."""
    start = select(rows, "loss", tuned=0, factor=1)[0]["length"]
    factors = [f for f in distinct(rows, "loss", "factor", tuned=0) if f > 1]
    methods = [m for m in distinct(rows, "loss", "method", tuned=0) if select(rows, "loss", tuned=0, method=m, factor=factors[0])]
    trained = score(rows, "loss", tuned=0, factor=1)
    columns = ("method", *(f"{f}x = {f * start}" for f in factors))
    note = f"Nats per byte on the same last {start} tokens. At {start}, unchanged: {cell(trained)}."
    at_factor = _at_factor(rows, start)
    tables = [Table("Zero-shot", columns, score_rows(at_factor, "loss", "method", methods, "factor", factors), note)]
    short = [r for r in rows if r["metric"] == "loss" and not r["tuned"] and r["length"] == start and r["factor"] > 1]
    if short:
        columns = ("method", *(f"factor {f}" for f in factors))
        note = f"The loss on text of the trained length, {start}, with each factor. Unchanged: {cell(trained)}."
        tables.append(Table("Short text", columns, score_rows(short, "loss", "method", methods, "factor", factors), note))
    series = {}
    for method in methods:
        losses = (trained, *(score(at_factor, "loss", method=method, factor=f) for f in factors))
        series[method] = ([1, *factors], [s.mean if s else float("nan") for s in losses])
    title = "Zero-shot, beyond the trained length"
    figures = {"extend": line_figure(series, title=title, x="times the trained length", y="loss")}
    return Findings(tables + _tuned_tables(rows), figures, claims(rows, factors, start), _ours(rows, factors, start))


def _at_factor(rows: list[Row], start: int) -> list[Row]:
    """Return the zero-shot losses at the length that each factor is for."""
    return [r for r in rows if r["metric"] == "loss" and not r["tuned"] and r["length"] == r["factor"] * start]


def _ours(rows: list[Row], factors: list[int], start: int) -> dict[str, Ours]:
    """Return our values beside published tables; theirs have factors of about 8, 4 and 2."""
    far, middle = (n if n in factors else factors[-1] for n in (8, 4))
    accuracy = {
        name: percent(score(rows, "accuracy", method=own, tuned=0, factor=far, length=far * start))
        for name, own in PUBLISHED_NAMES.items()
    }
    zero = [r for r in _at_factor(rows, start) if r["factor"] in (1, middle)]
    after = [r for r in rows if r["metric"] == "loss" and r["tuned"] and r["factor"] == middle]
    lengths = [start, middle * start]
    changed = ours_by_name(zero, {"unchanged": NONE}, "method", lengths)
    tuned_names = {"fine-tuned directly": NONE, "interpolated and fine-tuned": "linear"}
    return {
        "ntk-zero-shot": Ours((f"accuracy at {far * start}",), {name: (text,) for name, text in accuracy.items()}),
        "interpolation": Ours(changed.columns, changed.cells | ours_by_name(after, tuned_names, "method", lengths).cells),
        "yarn": ours_by_name(after, PUBLISHED_NAMES, "method", lengths[1:]),
        "longrope": ours_by_name(zero, PUBLISHED_NAMES, "method", lengths[1:]),
    }


def _tuned_tables(rows: list[Row]) -> list[Table]:
    """Return one table per factor: the loss of each fine-tuned method at every length."""
    tables = []
    after = [r for r in rows if r["metric"] == "loss" and r["tuned"]]
    for factor in distinct(after, "loss", "factor"):
        own = select(after, "loss", factor=factor)
        methods, lengths = distinct(own, "loss", "method"), distinct(own, "loss", "length")
        cells = score_rows(own, "loss", "method", methods, "length", lengths)
        title = f"After {own[0]['tuned']} steps at {factor}x"
        note = "Loss at every length, with the factor of the fine-tuning."
        tables.append(Table(title, ("method", *map(str, lengths)), cells, note))
    return tables


def claims(rows: list[Row], factors: list[int], start: int) -> list[Claim]:
    """Claim the order of methods that published zero-shot tables have, and that fine-tuning helps."""
    at = 4 if 4 in factors else factors[-1]
    methods = distinct(rows, "loss", "method", tuned=0)
    zero = scores_by(rows, "loss", "method", methods, tuned=0, factor=at, length=at * start)
    text = f"Zero-shot at {at}x: YaRN < NTK < none < interpolation in loss"
    result = [claim_order(text, zero, ["yarn", "ntk", "none", "linear"], same_model=True)]
    after = [r for r in rows if r["metric"] == "loss" and r["tuned"] and r["factor"] == at]
    for method in ("none", "yarn"):
        pair = {"tuned": score(after, "loss", method=method, length=at * start), "zero-shot": zero.get(method)}
        if pair["tuned"] is not None:
            text = f"A little training at {at}x lowers the loss there ({method})"
            result.append(claim_order(text, pair, ["tuned", "zero-shot"], same_model=True))
    if "longrope" in zero:
        text = f"The LongRoPE search beats YaRN zero-shot at {at}x"
        result.append(claim_order(text, zero, ["longrope", "yarn"], same_model=True))
    short = {m: score(rows, "loss", method=m, tuned=0, factor=factors[-1], length=start) for m in ("dynamic_yarn", "yarn")}
    if short["dynamic_yarn"] is not None:
        text = f"Dynamic YaRN leaves text of {start} tokens as it was"
        result.append(claim_within(text, short["dynamic_yarn"], score(rows, "loss", tuned=0, factor=1), 0.001))
        text = f"On text of {start} tokens, dynamic YaRN has a lower loss than YaRN with a factor of {factors[-1]}"
        result.append(claim_order(text, short, ["dynamic_yarn", "yarn"], same_model=True))
    return result


STUDY = Study(
    "extend", "How far beyond its trained length can a RoPE model be used, and with which method?", PRESETS, run, findings,
    ("interpolation", "ntk-zero-shot", "yarn", "longrope"),
)  # fmt: skip
