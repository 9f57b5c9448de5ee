"""`fit` on models that the lab trained: no other method in its table beats the recommended one by
more than twice the error.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from lab_tiny import tiny_trainer

import ropewalk as rw
from ropewalk.frequencies import Default
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.spec import RopeSpec
from ropewalk_lab.batches import TextBatches
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.schedule import Stage
from ropewalk_lab.settings import Settings

LENGTH, TO = 64, 256


def trained(folder, theta: float, layers: int, steps: int) -> tuple[Decoder, torch.Tensor]:
    """A byte model that learned Python's documentation at LENGTH, and tokens that it was not
    trained on.
    """
    from pydoc_data.topics import topics

    (folder / "text").mkdir()
    for place, name in enumerate(sorted(topics)):
        (folder / "text" / f"{place}.txt").write_text(topics[name], encoding="utf-8")
    corpus = open_corpus(folder / "text", cache=folder / "cache")
    torch.manual_seed(int(theta) + layers)
    spec = RopeSpec(head_dim=16, theta=theta, scaling=Default())
    config = DecoderConfig(
        corpus.vocab_size,
        48,
        96,
        num_layers=layers,
        num_heads=3,
        head_dim=16,
        encoding=spec,
        length=LENGTH,
    )
    settings = Settings(
        stages=(Stage(LENGTH, 16, steps),), warmup=steps // 10, learning_rate=4e-3, log_every=50
    )
    batches = TextBatches(corpus.train, corpus.vocab_size, corpus.fingerprint, 0)
    trainer = tiny_trainer(folder, None, model=Decoder(config), batches=batches, settings=settings)
    trainer.run()
    return trainer.model.eval(), torch.as_tensor(np.array(corpus.valid.tokens), dtype=torch.long)


def measured(
    rows: list[dict], method: str, length: int = LENGTH, to: int = TO
) -> dict[str, np.ndarray]:
    """Return {measure: one value for each window or pass key}, lower is better, computed without
    the code of `fit.decide`.
    """
    own = sorted(
        (row for row in rows if row["method"] == method and row["metric"] == "text"),
        key=lambda row: row["window"],
    )
    far, near = ([row for row in own if row["length"] == each] for each in (to, length))
    found = {
        "far": np.array([row["bands"][-1] for row in far]),
        "near": np.array([row["loss"] for row in near]),
    }
    keys = sorted(
        (row["length"], row["depth"], 1 - row["found"])
        for row in rows
        if (row["method"], row["metric"]) == (method, "passkey")
    )
    if keys:
        found["far keys"] = np.array([missed for each, _, missed in keys if each > length])
        found["near keys"] = np.array([missed for each, _, missed in keys if each <= length])
    return found


def is_better(one: np.ndarray, other: np.ndarray) -> bool:
    gaps = other - one
    return gaps.mean() > 2 * gaps.std(ddof=1) / len(gaps) ** 0.5


def unbeaten(best: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Return whether `other` is better than `best` in no measure, or worse in at least one."""
    better = [measure for measure in best if is_better(other[measure], best[measure])]
    return not better or any(is_better(best[measure], other[measure]) for measure in best)


def test_no_method_beats_the_one_recommended_for_a_pretrained_model():
    """From the committed rows of SmolLM2 at four times its length."""
    folder = Path(__file__).parents[2] / "results" / "lab" / "h200_fit"
    facts = json.loads((folder / "fit.json").read_text())
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    lengths = facts["trained"], facts["to"]
    best = measured(rows, facts["recommended"]["method"], *lengths)
    assert {name: len(values) for name, values in best.items()} == {
        "far": 6,
        "near": 6,
        "far keys": 40,
        "near keys": 30,
    }
    for name in facts["methods"]:
        assert unbeaten(best, measured(rows, name, *lengths)), name


@pytest.mark.slow
@pytest.mark.parametrize(("theta", "layers"), [(10_000.0, 2), (500.0, 3)])
def test_no_method_beats_the_recommended_one(theta, layers, tmp_path, full):
    model, tokens = trained(tmp_path, theta, layers, 400 if full else 10)
    names = None if full else ["linear", "yarn", "self_extend"]
    found = rw.fit(
        model, TO, text=tokens, windows=8 if full else 5, methods=names, search=16 if full else 0
    )
    best = measured(found.rows, found.recommendation.method)
    for name in found.facts["methods"]:
        assert unbeaten(best, measured(found.rows, name)), (
            name,
            found.recommendation.method,
            str(found),
        )
    if full:  # trained well enough that a longer context without a method is harmful
        none = measured(found.rows, "none")
        assert found.recommendation.method != "none"
        assert is_better(best["far"], none["far"])
