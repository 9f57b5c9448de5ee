"""`decay`: how attention falls with distance, in trained models and in the bound that RoFormer gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ropewalk import analysis
from ropewalk.lab.studies.page import Claim, Page, Table, lines, lower
from ropewalk.lab.studies.rows import Row, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import CPU_CHANGES, GPU_CHANGES, facts_of, held_out_windows, length_of, preset_of, trained
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.spec import RopeSpec

_NAMES = ["rope", "alibi", "none"]
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"preset": "smoke", "changes": [], "encodings": ["rope", "none"], "windows": 4, "seeds": 1},
    "cpu": {"preset": "cpu", "changes": CPU_CHANGES, "encodings": _NAMES, "windows": 24, "seeds": 1},
    "gpu": {
        "preset": "gpu", "changes": GPU_CHANGES, "encodings": _NAMES, "windows": 64,
        "seeds": 1,
    },
    "cluster": {"preset": "cluster", "changes": [], "encodings": _NAMES, "windows": 64, "seeds": 3},
}  # fmt: skip
BOUND = "bound for RoPE, base 10,000"


def run(workshop: Workshop) -> dict[str, Any]:
    """The models of `encodings`, read for their attention."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "windows")}
    names, seeds = s["encodings"], workshop.seeds
    workshop.each(Job(f"{n}-{seed}", measure, {"encoding": n, "seed": seed, **shared}) for seed in seeds for n in names)
    return facts_of(preset_of(s["preset"], s["changes"], 0))


def measure(place: Place, *, encoding: str, seed: int, preset: str, changes: list[str], windows: int) -> list[Row]:
    """Mean attention weight by distance of the queries in the last quarter, over layers and heads."""
    wanted = preset_of(preset, changes, seed, encoding=encoding)
    model = trained(place, f"{encoding}-{seed}", wanted).model
    length = length_of(wanted)
    tokens = torch.from_numpy(held_out_windows(wanted, windows, length)[:, :-1].astype(np.int64)).to(place.device)
    spread = weights_by_distance(model, tokens, 3 * length // 4)
    distances = [2**n for n in range((3 * length // 4).bit_length())]
    rows = [row("weight", spread[:, d].numpy(), model=encoding, seed=seed, distance=d) for d in distances]
    if encoding == "rope":
        radians = analysis.radians(RopeSpec(head_dim=128))
        bound = analysis.decay(radians, distances) / analysis.decay(radians, [0])
        rows += [row("bound", value, model=BOUND, seed=seed, distance=d) for d, value in zip(distances, bound, strict=True)]
    return rows


@torch.no_grad()
def weights_by_distance(model: nn.Module, tokens: torch.Tensor, first: int) -> torch.Tensor:
    """[windows, first + 1]: the mean weight that queries from `first` on give to the key at each distance."""
    layers = list(model.layers)  # type: ignore[call-overload, arg-type]
    seen: list[torch.Tensor] = []
    hooks = [layer.input_layernorm.register_forward_hook(lambda _m, _i, out: seen.append(out)) for layer in layers]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    positions, found = torch.arange(tokens.shape[1], device=tokens.device), []
    for layer, x in zip(layers, seen, strict=True):
        weights = layer.self_attn(x, positions, return_weights=True).weights.float().mean(1)  # [B, S, S]
        rows = [weights[:, query].flip(-1)[:, -(query + 1) :][:, : first + 1] for query in range(first, tokens.shape[1])]
        found.append(torch.stack(rows).mean(0))
    return torch.stack(found).mean(0).double().cpu()


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Weight by distance."""
    distances, models = known(rows, "weight", "distance"), known(rows, "weight", "model")
    means = {m: [s.mean for d in distances if (s := score(rows, "weight", model=m, distance=d))] for m in models}
    cells = [(m, *(f"{mean:.4f}" for mean in found)) for m, found in means.items()]
    bound = [s.mean for d in distances if (s := score(rows, "bound", distance=d))]
    cells += [(BOUND, *(f"{value:.4f}" for value in bound))] if bound else []
    note = "Mean over windows, layers, heads and late queries. The bound is relative to distance 0, heads of 128."
    table = Table("Attention weight by distance", ("model", *map(str, distances)), cells, note)
    figure = lines(
        {m: (distances, y) for m, y in means.items()}, title="Attention by distance", x="distance", y="weight", log_y=True
    )
    return Page([table], {"decay": figure}, claims(rows, distances))


def claims(rows: list[Row], distances: list[int]) -> list[Claim]:
    """That a trained RoPE model attends less the farther it looks."""
    near, middle, far = distances[0], distances[len(distances) // 2], distances[-1]
    found = {str(d): score(rows, "weight", model="rope", distance=d) for d in (far, middle, near)}
    return [
        lower(
            f"A RoPE model attends less at {far} than at {middle}, and less there than at {near}",
            found,
            list(found),
            same_model=True,
        )
    ]


STUDY = Study("decay", "Does attention fall with distance?", PRESETS, run, page)
