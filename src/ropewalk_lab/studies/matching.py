"""Study `matching`: find which of two long texts is about the same subject as a third; texts are
truncated short or long.

The setting `data` can name a file of CAIL2019-SCM. Otherwise cases are generated; for a known share
of them the evidence comes after the short length, so that the best possible accuracy of both models
can be computed.

Words of this module:
  row      one measurement of a model: 1 for each triplet that it gets "wrong", else 0; its fields
           are `cut`, the characters at which texts are cut, `encoding` and `seed`. Models read
           bytes: a character of a generated text is one, a Chinese one three
  job      one call of a function such as `measure`; a runner runs the jobs for the settings and the
           seeds of the study, and stores their rows
  triplet  texts A, B and C; the label says which of B and C is closer to A
  facts    what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk_lab import objectives
from ropewalk_lab.batches import Batch
from ropewalk_lab.matching import Triplet, TripletBatches, read_triplets, split_triplets
from ropewalk_lab.scores import Score
from ropewalk_lab.studies.findings import (
    Claim,
    Findings,
    Ours,
    Table,
    claim_order,
    line_figure,
    percent,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, row, score, scores_by
from ropewalk_lab.studies.study import Study
from ropewalk_lab.studies.training import make_preset, train_or_load

#: the subjects of cases
MATTERS = ("theft", "fraud", "arson", "libel", "debts", "hoax!", "piracy", "bribes")
#: the other words of a case
WORDS = (
    "the",
    "court",
    "heard",
    "that",
    "both",
    "sides",
    "had",
    "met",
    "in",
    "town",
    "and",
    "wrote",
    "down",
    "what",
    "was",
    "said",
    "before",
    "noon",
    "on",
    "a",
    "day",
    "of",
    "rain",
    "so",
    "clerk",
    "kept",
    "it",
    "under",
    "seal",
)
#: the share of cases whose evidence is within the short length
EARLY = 0.25
#: the divisor of the cosines before the softmax
TEMPERATURE = 0.05

PRESETS = presets_of("matching")


def generated(count: int, short: int, long: int, seed: int = 0) -> list[Triplet]:
    """Return `count` generated triplets in which two texts share a subject. In about the share
    EARLY of the triplets, all texts name their subject in the first `short` characters, in the
    others after these; every text has `long` characters.
    """
    draw = random.Random(seed)
    triplets = []
    for _ in range(count):
        subject, other = draw.sample(MATTERS, 2)
        low, high = (0, short) if draw.random() < EARLY else (short, long)
        a, same, different = (
            _case(draw, each, low, high, long) for each in (subject, subject, other)
        )
        triplets.append(
            Triplet(a, same, different, "B")
            if draw.random() < 0.5
            else Triplet(a, different, same, "C")
        )
    return triplets


def _case(draw: random.Random, subject: str, low: int, high: int, size: int) -> str:
    """Return a text of `size` characters: random words, and the subject in brackets between the
    characters `low` and `high`.
    """
    marked, text = f" [{subject}] ", ""
    while len(text) < size:
        text += draw.choice(WORDS) + " "
    start = draw.randint(low, high - len(marked))
    return (text[:start] + marked + text[start + len(marked) :])[:size]


def reachable(length: int, settings: dict[str, Any]) -> float:
    """Return the best possible accuracy on the first `length` characters of generated texts,
    `short` or `long`; where the evidence is cut off, half of the guesses are right.
    """
    return 1.0 if length >= settings["long"] else EARLY + (1 - EARLY) / 2


def models(settings: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return {name in table 5 of the RoFormer paper: (characters at which our texts are cut, encoding)
    of the model that stands for it}; `short` stands for its 512 and `long` for its 1,024.
    """
    short, long = settings["short"], settings["long"]
    return {
        "BERT-512": (short, "learned"),
        "RoFormer-512": (short, "rope"),
        "RoFormer-1024": (long, "rope"),
    }


def triplets_of(
    data: str, count: int, short: int, long: int
) -> tuple[list[Triplet], list[Triplet]]:
    """Return (train, valid) triplets from the file `data`; if it is "", of `count` generated ones,
    for which `short` and `long` are the numbers of characters (see `generated`).
    """
    return split_triplets(read_triplets(data) if data else generated(count, short, long))


def cut_texts(
    cut: int, train: list[Triplet], valid: list[Triplet]
) -> tuple[list[Triplet], list[Triplet], int]:
    """Return (train, valid, length): the triplets with the first `cut` characters of each text, and
    the largest number of bytes of a text.
    """
    splits = [
        [replace(each, a=each.a[:cut], b=each.b[:cut], c=each.c[:cut]) for each in triplets]
        for triplets in (train, valid)
    ]
    texts = (text for each in chain(*splits) for text in (each.a, each.b, each.c))
    return splits[0], splits[1], max(len(text.encode()) for text in texts)


def run(runner: JobRunner) -> dict[str, Any]:
    """Train every model of `models` on the same cases, for each seed; return the facts for the
    report.
    """
    settings = runner.settings
    shared = runner.pick("preset", "changes", "short", "long", "batch", "steps", "count", "data")
    runner.run(
        Job(
            f"{encoding}-{cut}-{seed}",
            measure,
            {"cut": cut, "encoding": encoding, "seed": seed, **shared},
        )
        for seed in runner.seeds
        for cut, encoding in models(settings).values()
    )
    train, valid = triplets_of(
        settings["data"], settings["count"], settings["short"], settings["long"]
    )
    return {
        "triplets": {
            "train": len(train),
            "valid": len(valid),
            "source": settings["data"] or "generated",
        }
    }


def measure(
    workspace: Workspace,
    *,
    cut: int,
    encoding: str,
    seed: int,
    preset: str,
    changes: list[str],
    short: int,
    long: int,
    batch: int,
    steps: int,
    count: int,
    data: str,
) -> list[Row]:
    """Train a model on the first `cut` characters of each text, and measure its errors on held-out
    triplets; return the rows.

    preset, changes           the training preset, and changes of its settings
    batch, steps              of the training: triplets in a step, and steps
    data, count, short, long  of the triplets, as in `triplets_of`
    """
    train, valid, length = cut_texts(cut, *triplets_of(data, count, short, long))
    stage = f"train.stages=[{{length={length}, batch={batch}, steps={steps}}}]"
    # without a head, the model returns the hidden states that `cosines` compares
    full_preset = make_preset(
        preset, [*changes, stage, "data.objective=triplets"], seed, head="none", encoding=encoding
    )
    batches = TripletBatches(train, "triplets", seed=seed)
    model = train_or_load(
        workspace,
        f"matching-{encoding}-{cut}-{seed}",
        full_preset,
        batches=batches,
        objective=contrast,
    ).model
    # without `shuffle`, the triplets keep their order, and B and C their places
    hits = right(model, TripletBatches(valid, "triplets", shuffle=False), length, workspace.device)
    return [row("wrong", 1 - hits, cut=cut, encoding=encoding, seed=seed)]


def cosines(model: nn.Module, batch: Batch) -> Tensor:
    """Return the cosines [N, 2] of text A with texts B and C in N samples; a text's vector is the
    mean over its tokens without padding.
    """
    # `padding` is True for real tokens, or None if all are
    hidden, is_real = objectives.predict(model, batch).float(), batch.padding
    weights = torch.ones_like(hidden[..., :1]) if is_real is None else is_real.unsqueeze(-1).float()
    return objectives.cosines((hidden * weights).sum(1) / weights.sum(1))


def contrast(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a softmax over both cosines, summed over the triplets; the target is the
    text that is closer to A. Unlike a margin loss, it keeps a gradient for small differences.
    """
    return F.cross_entropy(cosines(model, batch) / TEMPERATURE, batch.targets, reduction="sum")


def right(
    model: nn.Module, batches: TripletBatches, length: int, device: torch.device, size: int = 64
) -> np.ndarray:
    """Return 1.0 for each triplet whose label is predicted correctly and 0.0 for the others, [N].
    Texts are cut to `length` tokens; the model reads `size` triplets at once.
    """
    hits = []
    with torch.no_grad():
        for start in range(0, len(batches.triplets), size):
            index = np.arange(start, min(start + size, len(batches.triplets)))
            batch = batches.batch(index, length).to(device)
            hits.append((cosines(model, batch).argmax(-1) == batch.targets).cpu().numpy())
    return np.concatenate(hits).astype(np.float64)


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the accuracy by length and encoding, beside the best possible one."""
    settings, is_generated = facts["settings"], not facts["settings"]["data"]
    cells, our_cells = [], {}
    for name, (cut, encoding) in models(settings).items():
        best = f"{reachable(cut, settings):.1%}" if is_generated else "-"
        accuracy = _accuracy(rows, cut, encoding)
        cells.append(
            (
                str(cut),
                encoding,
                percent(accuracy),
                best,
                str(accuracy.windows if accuracy is not None else 0),
            )
        )
        our_cells[name] = (str(cut), percent(accuracy))
    note = (
        "The best possible model guesses if the evidence is beyond its length."
        if is_generated
        else ""
    )
    columns = ("characters", "encoding", "accuracy", "best possible", "cases")
    table = Table("Accuracy by length of the texts", columns, cells, note)
    cuts = [settings["short"], settings["long"]]
    series = {}
    for encoding in ("rope", "learned"):
        wrong = scores_by(rows, "wrong", "cut", cuts, encoding=encoding)
        series[encoding] = (list(wrong), [100 * (1 - each.mean) for each in wrong.values()])
    if is_generated:
        series["best possible"] = (cuts, [100 * reachable(cut, settings) for cut in cuts])
    figure = line_figure(
        series, title="Matching cases by length", x="characters of each text", y="% right"
    )
    ours = {"roformer-cail": Ours(("characters", "accuracy"), our_cells)}
    return Findings([table], {"matching": figure}, claims(rows, settings), ours)


def _accuracy(rows: list[Row], cut: int, encoding: str) -> Score | None:
    """Return the accuracy of the model with this encoding on texts cut at `cut` characters; None if
    it was not measured.
    """
    wrong = score(rows, "wrong", cut=cut, encoding=encoding)
    return None if wrong is None else Score(1 - wrong.values)


def claims(rows: list[Row], settings: dict[str, Any]) -> list[Claim]:
    """Return the claims that longer texts give fewer errors, and that RoPE gives fewer than learned
    positions.
    """
    short, long = settings["short"], settings["long"]
    by_cut = {
        f"error at {cut}": score(rows, "wrong", cut=cut, encoding="rope") for cut in (long, short)
    }
    by_encoding = {
        f"error of {name}": score(rows, "wrong", cut=short, encoding=name)
        for name in ("rope", "learned")
    }
    return [
        claim_order(
            f"Reading {long} characters instead of {short} gives fewer errors", by_cut, list(by_cut)
        ),
        claim_order(
            f"On {short} characters, RoPE has fewer errors than learned positions",
            by_encoding,
            list(by_encoding),
        ),
    ]


STUDY = Study(
    "matching",
    ABOUT["matching"],
    PRESETS,
    run,
    findings,
    ("roformer-cail",),
)
