"""Study `decay`: attention weight by distance in trained models, compared with RoFormer's upper
bound.

Words of this module:
  row    one measurement: a metric ("weight", "bound", "wavelength"), its values, and fields that
         say what was measured, such as `model` and `distance`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  score  the values [seeds, windows] of the rows with given fields
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab import analysis
from ropewalk_lab.studies import training
from ropewalk_lab.studies.findings import Claim, Findings, Ours, Table, claim_order, line_figure
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, score, scores_by
from ropewalk_lab.studies.study import Study

PRESETS = presets_of("decay")
#: the name of RoFormer's bound in the rows and in the table
BOUND = "bound for RoPE, base 10,000"
#: names of the two pairs of which the wavelength is stated
FASTEST, SLOWEST = "fastest", "slowest"
#: the head size of the classic plot of the bound, and of the stated wavelengths
HEAD_DIM = 128


def run(runner: JobRunner) -> dict[str, Any]:
    """Measure the attention of the models of the study `encodings`; return the facts for the
    report.
    """
    settings, shared = runner.settings, runner.pick("preset", "changes", "windows")
    runner.run_each(measure, "encoding", settings["encodings"], **shared)
    return training.preset_facts(settings["preset"], settings["changes"])


def measure(
    workspace: Workspace, *, encoding: str, seed: int, preset: str, changes: list[str], windows: int
) -> list[Row]:
    """Return rows with attention weights by distance, at 1, 2, 4, ... tokens: the mean over layers,
    heads and queries in the last quarter of a window.

    With RoPE also rows with RoFormer's bound, as a share of that at distance 0, and with the
    wavelengths of the fastest and the slowest pair, both for heads of HEAD_DIM.

    preset, changes  the training preset, and changes of its settings
    windows          the number of held-out windows
    """
    full_preset = training.make_preset(preset, changes, seed, encoding=encoding)
    model = training.train_or_load(workspace, f"{encoding}-{seed}", full_preset).model
    length = training.trained_length(full_preset)
    first_query = 3 * length // 4
    # without the last token of a window, which is a target alone
    text = training.held_out_windows(full_preset, windows, length)[:, :-1]
    weights = weights_by_distance(
        model, torch.from_numpy(text.astype(np.int64)).to(workspace.device), first_query
    )
    distances = [2**power for power in range(first_query.bit_length())]
    rows = [
        row("weight", weights[:, n].numpy(), model=encoding, seed=seed, distance=n)
        for n in distances
    ]
    if encoding == "rope":
        radians = analysis.radians(RopeSpec(head_dim=HEAD_DIM))
        bound = analysis.decay(radians, distances) / analysis.decay(radians, [0])
        rows += [
            row("bound", value, model=BOUND, seed=seed, distance=n)
            for n, value in zip(distances, bound, strict=True)
        ]
        fastest, *_, slowest = measured_wavelengths(RopeSpec(head_dim=HEAD_DIM))
        rows += [
            row("wavelength", value, seed=seed, pair=pair)
            for pair, value in ((FASTEST, fastest), (SLOWEST, slowest))
        ]
    return rows


def measured_wavelengths(spec: RopeSpec) -> list[float]:
    """Return the number of tokens in which each pair makes one turn, fastest pair first. It is
    computed from the angle by which `Rope` rotates the pair at position 1.
    """
    cos, sin = (table[0].double() for table in Rope(spec).cos_sin(torch.tensor([1])))
    return (2 * torch.pi / torch.atan2(sin, cos)).tolist()


@torch.no_grad()
def weights_by_distance(model: nn.Module, tokens: torch.Tensor, first: int) -> torch.Tensor:
    """Return the mean attention weight [windows, first + 1] by distance from 0 to `first`, over all
    layers, heads and queries at positions >= `first`, for tokens [windows, S].
    """
    layers = list(model.layers)  # type: ignore[call-overload, arg-type]
    inputs: list[torch.Tensor] = []  # of the attention of each layer, recorded in a forward pass
    hooks = [
        layer.input_layernorm.register_forward_hook(lambda _m, _i, out: inputs.append(out))
        for layer in layers
    ]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    positions, by_layer = torch.arange(tokens.shape[1], device=tokens.device), []
    for layer, x in zip(layers, inputs, strict=True):
        # [B, S, S], the mean over heads
        weights = layer.self_attn(x, positions, return_weights=True).weights.float().mean(1)
        # the weights of a query from distance 0, its own key, to distance `first`
        by_distance = [
            weights[:, query, : query + 1].flip(-1)[:, : first + 1]
            for query in range(first, tokens.shape[1])
        ]
        by_layer.append(torch.stack(by_distance).mean(0))
    return torch.stack(by_layer).mean(0).double().cpu()


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the attention weight by distance as a table and a figure, the claim, and our values
    beside published ones.
    """
    distances, models = distinct(rows, "weight", "distance"), distinct(rows, "weight", "model")
    means = {}
    for name in models:
        means[name] = [
            each.mean
            for each in scores_by(rows, "weight", "distance", distances, model=name).values()
        ]
    bound = [each.mean for each in scores_by(rows, "bound", "distance", distances).values()]
    lines = means | ({BOUND: bound} if bound else {})
    cells = [(name, *(f"{value:.4f}" for value in values)) for name, values in lines.items()]
    note = (
        "Mean over windows, layers, heads and late queries. The bound is relative to distance 0, "
        "for a head size of 128."
    )
    table = Table("Attention weight by distance", ("model", *map(str, distances)), cells, note)
    # without the bound, which is a share of that at distance 0, and no attention weight
    series = {name: (distances, values) for name, values in means.items()}
    figure = line_figure(
        series, title="Attention by distance", x="distance", y="weight", log_y=True
    )
    wavelengths = {pair: score(rows, "wavelength", pair=pair) for pair in (FASTEST, SLOWEST)}
    ours = Ours(
        ("tokens",),
        {pair: (f"{each.mean:,.2f}",) for pair, each in wavelengths.items() if each is not None},
    )
    # "unaliased-length": the published table of the tokens until a pair repeats
    return Findings([table], {"decay": figure}, claims(rows, distances), {"unaliased-length": ours})


def claims(rows: list[Row], distances: list[int]) -> list[Claim]:
    """Return the claim that a trained RoPE model attends less at larger distances."""
    near, middle, far = distances[0], distances[len(distances) // 2], distances[-1]
    weights = {
        str(distance): score(rows, "weight", model="rope", distance=distance)
        for distance in (far, middle, near)
    }
    text = (
        f"A RoPE model attends less at distance {far} than at distance {middle}, and less at "
        f"{middle} than at {near}"
    )
    return [claim_order(text, weights, list(weights), same_model=True)]


STUDY = Study("decay", ABOUT["decay"], PRESETS, run, findings, ("unaliased-length",))
