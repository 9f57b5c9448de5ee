"""`relative`: does a model answer the same when all positions move together? Measured on logits, nothing is trained."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.lab.studies.page import FAILS, HOLDS, Claim, Page, Table
from ropewalk.lab.studies.rows import BROKEN, Row, chosen, known, row
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.spec import RopeSpec

#: RoPE as most libraries compute it
FLOAT32 = "rope, float32 angles"
NAMES = [name for name in ENCODINGS if name not in ("rope_2d", "rope_3d", "t5", "learned")] + [FLOAT32]
SHIFTS = [1, 1_000, 1_000_000]
#: logits that moved less than this share of their spread stayed where they were
STILL = 1e-3
_SIZES = {"names": NAMES, "shifts": SHIFTS, "windows": 8, "length": 48, "seeds": 1}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {**_SIZES, "names": ["rope", "alibi", "sinusoidal", FLOAT32], "windows": 2, "length": 12},
    "cpu": _SIZES, "gpu": _SIZES, "cluster": _SIZES,
}  # fmt: skip


def run(workshop: Workshop) -> dict[str, Any]:
    """One job for all encodings: models are small and random."""
    s = workshop.settings
    rest = {key: s[key] for key in ("names", "shifts", "windows", "length")}
    workshop.each(Job(f"shifts-{seed}", measure, {"seed": seed, **rest}) for seed in workshop.seeds)
    return {}


def measure(place: Place, *, seed: int, names: list[str], shifts: list[int], windows: int, length: int) -> list[Row]:
    """How far logits move, as a share of their spread, when every position moves by `shift`."""
    rows = []
    for name in names:
        torch.manual_seed(seed)
        encoding = RopeSpec(head_dim=32, precision="hf") if name == FLOAT32 else name
        # wide weights: attention must be sharp, or nothing would move whatever the encoding
        config = DecoderConfig(
            64, 128, 256, num_layers=2, num_heads=4, encoding=encoding, length=length, init_std=0.15, tie_embeddings=False
        )
        model = Decoder(config).to(place.device).eval()
        tokens = torch.randint(64, (windows, length), generator=torch.Generator().manual_seed(seed)).to(place.device)
        positions = torch.arange(length, device=place.device)
        with torch.no_grad():
            still = model(tokens, positions).double()
            for shift in shifts:
                moved = (model(tokens, positions + shift).double() - still).abs().amax((1, 2)) / still.std()
                rows.append(row("moved", moved.cpu().numpy(), model=name, shift=shift, seed=seed))
    return rows


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Movement by encoding and shift, beside what each encoding declares."""
    shifts = known(rows, "moved", "shift")
    cells, wrong = [], []
    for name in known(rows, "moved", "model"):
        largest = [max(max(r["values"]) for r in chosen(rows, "moved", model=name, shift=shift)) for shift in shifts]
        declared = ENCODINGS[name].relative if name in ENCODINGS else True
        cells.append((name, "yes" if declared else "no", *(f"{v:.1e}" if v < BROKEN else "overflows" for v in largest)))
        if name in ENCODINGS and declared != (largest[-1] < STILL):
            wrong.append(name)
    note = "Largest movement of a logit, as a share of the spread of all, when every position is moved."
    table = Table("Moved by a shift", ("encoding", "declared relative", *(f"by {s:,}" for s in shifts)), cells, note)
    text = f"Encodings that are declared relative, and only they, stay within {STILL:g} under a shift of {shifts[-1]:,}"
    return Page(
        [table], {}, [Claim(text, FAILS if wrong else HOLDS, f"otherwise: {', '.join(wrong)}" if wrong else "all of them")]
    )


STUDY = Study("relative", "Do scores depend on distance alone?", PRESETS, run, page)
