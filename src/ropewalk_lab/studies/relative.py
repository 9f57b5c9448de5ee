"""Study `relative`: do logits stay the same if all positions are shifted? Nothing is trained.

Words of this module:
  row       one measurement: how far the logits "moved" in each window, with the fields `model` (the
            encoding), `shift` of all positions, and `seed`
  relative  a declared property of an encoding: only differences of positions count
  facts     what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.spec import RopeSpec
from ropewalk_lab.studies.findings import FAILS, HOLDS, Claim, Findings, Table, line_figure
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import NOT_FINITE, Row, distinct, row, select
from ropewalk_lab.studies.study import Study

#: RoPE with angles in float32, as most libraries compute them
FLOAT32 = "rope, float32 angles"
#: logits count as unchanged if they change by less than this share of their standard deviation
UNCHANGED = 1e-3
PRESETS = presets_of("relative")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run one job for each seed, which measures all encodings, since the models are small and
    random; return the facts for the report.
    """
    shared = runner.pick("names", "shifts", "windows", "length")
    runner.run(Job(f"shifts-{seed}", measure, {"seed": seed, **shared}) for seed in runner.seeds)
    return {}


def measure(
    workspace: Workspace,
    *,
    seed: int,
    names: list[str],
    shifts: list[int],
    windows: int,
    length: int,
) -> list[Row]:
    """Return rows with the largest change of a logit in each window, relative to the standard
    deviation of all logits, if all positions are shifted.

    seed     of the weights and of the tokens, which are random
    names    of the encodings: names of ENCODINGS, or FLOAT32
    shifts   the numbers of positions
    windows  how many rows of tokens the model reads
    length   the tokens in each
    """
    rows = []
    for name in names:
        torch.manual_seed(seed)
        encoding = RopeSpec(head_dim=32, precision="hf") if name == FLOAT32 else name
        # large weights, because with nearly uniform attention no encoding would affect the logits
        sizes: dict[str, Any] = {
            "vocab_size": 64,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_layers": 2,
            "num_heads": 4,
        }
        config = DecoderConfig(
            **sizes, encoding=encoding, length=length, init_std=0.15, tie_embeddings=False
        )
        model = Decoder(config).to(workspace.device).eval()
        tokens = torch.randint(
            64, (windows, length), generator=torch.Generator().manual_seed(seed)
        ).to(workspace.device)
        positions = torch.arange(length, device=workspace.device)
        with torch.no_grad():
            unshifted = model(tokens, positions).double()
            for shift in shifts:
                change = (model(tokens, positions + shift).double() - unshifted).abs().amax(
                    (1, 2)
                ) / unshifted.std()
                rows.append(row("moved", change.cpu().numpy(), model=name, shift=shift, seed=seed))
    return rows


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the change of the logits by encoding and by shift of all positions, beside the
    declared property `relative`.
    """
    shifts = distinct(rows, "moved", "shift")
    cells, wrong, series = [], [], {}
    for name in distinct(rows, "moved", "model"):
        changes = [
            max(max(each["values"]) for each in select(rows, "moved", model=name, shift=shift))
            for shift in shifts
        ]
        # FLOAT32 is not in ENCODINGS; RoPE is relative, and rounding errors alone break it
        declared = ENCODINGS[name].relative if name in ENCODINGS else True
        texts = (f"{change:.1e}" if change < NOT_FINITE else "overflows" for change in changes)
        cells.append((name, "yes" if declared else "no", *texts))
        # a logarithmic axis has no 0, and an overflow has no place on it; NaN draws no point
        series[name] = (
            shifts,
            [max(change, 1e-9) if change < NOT_FINITE else float("nan") for change in changes],
        )
        # the claim is about the largest shift, and not about the rounding errors of FLOAT32
        if name in ENCODINGS and declared != (changes[-1] < UNCHANGED):
            wrong.append(name)
    note = (
        "Largest change of a logit, relative to the standard deviation of all, if all positions "
        "are shifted."
    )
    table = Table(
        "Change by a shift",
        ("encoding", "declared relative", *(f"by {shift:,}" for shift in shifts)),
        cells,
        note,
    )
    text = (
        f"A shift of {shifts[-1]:,} changes logits by less than {UNCHANGED:g} for all relative "
        "encodings, and only for these"
    )
    claim = Claim(
        text, FAILS if wrong else HOLDS, f"except {', '.join(wrong)}" if wrong else "no exceptions"
    )
    title = "Change of the logits by a shift"
    figure = line_figure(
        series, title=title, x="shift of all positions", y="change (0 as 1e-9)", log_y=True
    )
    return Findings([table], {"relative": figure}, [claim])


STUDY = Study("relative", ABOUT["relative"], PRESETS, run, findings)
