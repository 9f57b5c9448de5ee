"""`matching`: which of two long texts is about the same case, when the reader is cut off early or late.

With `data` set to a file of CAIL2019-SCM the real triplets are used. Without it cases are generated whose evidence lies
beyond the short cut-off for a known share of them, so that what either reader can reach is known beforehand.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.lab.batches import Batch
from ropewalk.lab.matching import Triplet, TripletBatches, read_triplets, split_triplets
from ropewalk.lab.objectives import answers
from ropewalk.lab.studies.page import Claim, Page, Table, lower
from ropewalk.lab.studies.rows import Row, known, row, score
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.training import preset_of, trained
from ropewalk.lab.studies.workshop import Job, Place, Workshop

#: what a case can be about
MATTERS = ("theft", "fraud", "arson", "libel", "debts", "hoax!", "piracy", "bribes")
#: what every case says
WORDS = (
    "the", "court", "heard", "that", "both", "sides", "had", "met", "in", "town", "and", "wrote", "down", "what", "was", "said",
    "before", "noon", "on", "a", "day", "of", "rain", "so", "clerk", "kept", "it", "under", "seal",
)  # fmt: skip
#: of this share of the cases the evidence stands early enough for the short reader
EARLY = 0.25
TEMPERATURE = 0.05
_LARGE = ["model.hidden_size=256", "model.intermediate_size=1024", "model.num_layers=4", "train.precision=bfloat16"]

PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "preset": "mlm", "changes": ["model.hidden_size=32", "model.intermediate_size=64", "train.warmup=2"],
        "short": 24, "long": 56, "batch": 4, "steps": 6, "count": 120, "data": "", "seeds": 1,
    },
    "cpu": {
        "preset": "mlm", "changes": [], "short": 48, "long": 96, "batch": 16, "steps": 600, "count": 4000, "data": "", "seeds": 1,
    },
    "gpu": {
        "preset": "mlm", "changes": [*_LARGE, "train.learning_rate=5e-4", "train.warmup=200"],
        "short": 128, "long": 256, "batch": 64, "steps": 600, "count": 10000, "data": "", "seeds": 2,
    },
    "cluster": {
        "preset": "mlm", "changes": [*_LARGE, "train.learning_rate=3e-4", "train.warmup=200"],
        "short": 512, "long": 1024, "batch": 64, "steps": 3000, "count": 20000, "data": "", "seeds": 3,
    },
}  # fmt: skip


def generated(count: int, short: int, long: int, seed: int = 0) -> list[Triplet]:
    """Cases of `long` characters: A and B share a matter, C has another; EARLY of them say it within `short`."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        matter, other = draw.sample(MATTERS, 2)
        low, high = (0, short) if draw.random() < EARLY else (short, long)
        a, b, c = (_case(draw, about, low, high, long) for about in (matter, matter, other))
        found.append(Triplet(a, b, c, "B") if draw.random() < 0.5 else Triplet(a, c, b, "C"))
    return found


def _case(draw: random.Random, matter: str, low: int, high: int, size: int) -> str:
    """Words that say nothing, with one matter that lies wholly between `low` and `high`."""
    said, text = f" [{matter}] ", ""
    while len(text) < size:
        text += draw.choice(WORDS) + " "
    at = draw.randint(low, high - len(said))
    return (text[:at] + said + text[at + len(said) :])[:size]


def reachable(length: int, settings: dict[str, Any]) -> float:
    """The accuracy of a perfect reader of the first `length` characters of generated cases: blind, it is right half the time."""
    return 1.0 if length >= settings["long"] else EARLY + (1 - EARLY) / 2


def triplets_of(data: str, count: int, short: int, long: int) -> tuple[list[Triplet], list[Triplet]]:
    """(train, valid), no A on both sides."""
    return split_triplets(read_triplets(data) if data else generated(count, short, long))


def run(workshop: Workshop) -> dict[str, Any]:
    """A short and a long reader for each seed, on the same cases."""
    s = workshop.settings
    shared = {name: s[name] for name in ("preset", "changes", "short", "long", "batch", "steps", "count", "data")}
    cuts = (s["short"], s["long"])
    workshop.each(
        Job(f"cut-{cut}-{seed}", measure, {"cut": cut, "seed": seed, **shared}) for seed in workshop.seeds for cut in cuts
    )
    train, valid = triplets_of(s["data"], s["count"], s["short"], s["long"])
    return {"triplets": {"train": len(train), "valid": len(valid), "source": s["data"] or "generated"}}


def measure(
    place: Place, *, cut: int, seed: int, preset: str, changes: list[str], short: int, long: int, batch: int, steps: int,
    count: int, data: str,
) -> list[Row]:  # fmt: skip
    """Train one reader that sees `cut` characters of each text, and count what it gets right of held-out cases."""
    stage = f"train.stages=[{{length={cut}, batch={batch}, steps={steps}}}]"
    wanted = preset_of(preset, [*changes, stage, "data.objective=triplets"], seed, head="none")
    train, valid = triplets_of(data, count, short, long)
    batches = TripletBatches(train, "triplets", seed=seed)
    model = trained(place, f"matching-{cut}-{seed}", wanted, batches=batches, objective=contrast).model
    hits = right(model, TripletBatches(valid, "triplets", swap=False), cut, place.device)
    return [row("wrong", 1 - hits, cut=cut, seed=seed)]


def nearness(model: nn.Module, batch: Batch) -> Tensor:
    """The cosines of A with B and with C, [B, 2]; a text stands at the mean of what the model makes of its real tokens."""
    hidden, real = answers(model, batch).float(), batch.padding
    weights = torch.ones_like(hidden[..., :1]) if real is None else real.unsqueeze(-1).float()
    vectors = F.normalize((hidden * weights).sum(1) / weights.sum(1), dim=-1)
    a, b, c = vectors.unflatten(0, (-1, 3)).unbind(1)
    return torch.stack(((a * b).sum(-1), (a * c).sum(-1)), dim=-1)


def contrast(model: nn.Module, batch: Batch) -> Tensor:
    """A softmax over both cosines: unlike a margin, it pulls as long as an answer is unsure."""
    return F.cross_entropy(nearness(model, batch) / TEMPERATURE, batch.targets, reduction="sum")


def right(model: nn.Module, batches: TripletBatches, length: int, device: torch.device, size: int = 64) -> np.ndarray:
    """Whether the nearer text of each triplet is the one its label names: float64 [N]."""
    found = []
    with torch.no_grad():
        for start in range(0, len(batches.triplets), size):
            index = np.arange(start, min(start + size, len(batches.triplets)))
            batch = batches.batch(index, length).on(device)
            found.append((nearness(model, batch).argmax(-1) == batch.targets).cpu().numpy())
    return np.concatenate(found).astype(np.float64)


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Accuracy by cut-off, beside what a perfect reader could have."""
    settings, generated_ = facts["settings"], not facts["settings"]["data"]
    cells = []
    for cut in known(rows, "wrong", "cut"):
        wrong = score(rows, "wrong", cut=cut)
        best = f"{reachable(cut, settings):.1%}" if generated_ else "-"
        if wrong is not None:
            cells.append((str(cut), f"{1 - wrong.mean:.1%} ± {wrong.error:.1%}", best, str(wrong.windows)))
    note = "A perfect reader of generated cases guesses where the evidence lies beyond its cut-off." if generated_ else ""
    table = Table("Accuracy by cut-off", ("characters read", "accuracy", "perfect reader", "cases"), cells, note)
    return Page([table], {}, claims(rows, settings))


def claims(rows: list[Row], settings: dict[str, Any]) -> list[Claim]:
    """The long reader is right more often."""
    wrong = {str(cut): score(rows, "wrong", cut=cut) for cut in (settings["long"], settings["short"])}
    text = f"Reading {settings['long']} characters instead of {settings['short']} is right more often"
    return [lower(text, wrong, list(wrong))]


STUDY = Study(
    "matching", "Does a longer cut-off find the matching case more often, as in CAIL2019-SCM?", PRESETS, run, page,
    ("roformer-cail",),
)  # fmt: skip
