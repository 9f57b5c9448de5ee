"""Study `decay`: attention weight by distance in trained models, compared with RoFormer's upper bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk import analysis
from ropewalk.lab.studies import training
from ropewalk.lab.studies.findings import Claim, Findings, Ours, Table, claim_order, line_figure
from ropewalk.lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk.lab.studies.rows import Row, distinct, row, score, scores_by
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import CPU_CHANGES, GPU_CHANGES
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

_NAMES = ["rope", "alibi", "none"]
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "encodings": ["rope", "none"], "windows": 4, "seeds": 1},
    "cpu": {"preset": "cpu", "changes": CPU_CHANGES, "encodings": _NAMES, "windows": 24, "seeds": 1},
    "gpu": {"preset": "gpu", "changes": GPU_CHANGES, "encodings": _NAMES, "windows": 64, "seeds": 1},
    "cluster": {"preset": "cluster", "changes": [], "encodings": _NAMES, "windows": 64, "seeds": 3},
}
BOUND = "bound for RoPE, base 10,000"
FASTEST, SLOWEST = "fastest", "slowest"
#: the head size of the classic plot of the bound, and of the stated wavelengths
HEAD_DIM = 128


def run(runner: JobRunner) -> dict[str, Any]:
    """Measure the attention of the models of the study `encodings`; return the facts for the report."""
    settings, shared = runner.settings, runner.pick("preset", "changes", "windows")
    names, seeds = settings["encodings"], runner.seeds
    runner.run(Job(f"{n}-{seed}", measure, {"encoding": n, "seed": seed, **shared}) for seed in seeds for n in names)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(workspace: Workspace, *, encoding: str, seed: int, preset: str, changes: list[str], windows: int) -> list[Row]:
    """Measure attention weights by distance: the mean over layers, heads and the queries in the last quarter of each window."""
    chosen = training.make_preset(preset, changes, seed, encoding=encoding)
    model = training.train_or_load(workspace, f"{encoding}-{seed}", chosen).model
    length = training.trained_length(chosen)
    text = training.held_out_windows(chosen, windows, length)[:, :-1]
    weights = weights_by_distance(model, torch.from_numpy(text.astype(np.int64)).to(workspace.device), 3 * length // 4)
    distances = [2**n for n in range((3 * length // 4).bit_length())]
    rows = [row("weight", weights[:, d].numpy(), model=encoding, seed=seed, distance=d) for d in distances]
    if encoding == "rope":
        radians = analysis.radians(RopeSpec(head_dim=HEAD_DIM))
        bound = analysis.decay(radians, distances) / analysis.decay(radians, [0])
        rows += [row("bound", value, model=BOUND, seed=seed, distance=d) for d, value in zip(distances, bound, strict=True)]
        fastest, *_, slowest = measured_wavelengths(RopeSpec(head_dim=HEAD_DIM))
        rows += [row("wavelength", value, seed=seed, pair=pair) for pair, value in ((FASTEST, fastest), (SLOWEST, slowest))]
    return rows


def measured_wavelengths(spec: RopeSpec) -> list[float]:
    """Return the number of tokens after which each pair has made one turn, from its rotation between two tokens."""
    cos, sin = (table[0].double() for table in Rope(spec).cos_sin(torch.tensor([1])))
    return (2 * torch.pi / torch.atan2(sin, cos)).tolist()


@torch.no_grad()
def weights_by_distance(model: nn.Module, tokens: torch.Tensor, first: int) -> torch.Tensor:
    """Return the mean attention weight by distance of the queries at positions >= `first`, [windows, first + 1]."""
    layers = list(model.layers)  # type: ignore[call-overload, arg-type]
    inputs: list[torch.Tensor] = []
    hooks = [layer.input_layernorm.register_forward_hook(lambda _m, _i, out: inputs.append(out)) for layer in layers]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    positions, by_layer = torch.arange(tokens.shape[1], device=tokens.device), []
    for layer, x in zip(layers, inputs, strict=True):
        weights = layer.self_attn(x, positions, return_weights=True).weights.float().mean(1)  # [B, S, S]
        rows = [weights[:, query].flip(-1)[:, -(query + 1) :][:, : first + 1] for query in range(first, tokens.shape[1])]
        by_layer.append(torch.stack(rows).mean(0))
    return torch.stack(by_layer).mean(0).double().cpu()


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the attention weight by distance."""
    distances, models = distinct(rows, "weight", "distance"), distinct(rows, "weight", "model")
    means = {m: [s.mean for s in scores_by(rows, "weight", "distance", distances, model=m).values()] for m in models}
    bound = [s.mean for s in scores_by(rows, "bound", "distance", distances).values()]
    cells = [(m, *(f"{mean:.4f}" for mean in y)) for m, y in (means | ({BOUND: bound} if bound else {})).items()]
    note = "Mean over windows, layers, heads and late queries. The bound is relative to distance 0, for a head size of 128."
    table = Table("Attention weight by distance", ("model", *map(str, distances)), cells, note)
    series = {m: (distances, y) for m, y in means.items()}
    figure = line_figure(series, title="Attention by distance", x="distance", y="weight", log_y=True)
    repeats = {pair: score(rows, "wavelength", pair=pair) for pair in (FASTEST, SLOWEST)}
    ours = Ours(("tokens",), {pair: (f"{found.mean:,.2f}",) for pair, found in repeats.items() if found is not None})
    return Findings([table], {"decay": figure}, claims(rows, distances), {"unaliased-length": ours})


def claims(rows: list[Row], distances: list[int]) -> list[Claim]:
    """Return the claims that a trained RoPE model attends less at larger distances."""
    near, middle, far = distances[0], distances[len(distances) // 2], distances[-1]
    weights = {str(d): score(rows, "weight", model="rope", distance=d) for d in (far, middle, near)}
    text = f"A RoPE model attends less at {far} than at {middle}, and less there than at {near}"
    return [claim_order(text, weights, list(weights), same_model=True)]


STUDY = Study("decay", "Does attention fall with distance?", PRESETS, run, findings, ("unaliased-length",))
