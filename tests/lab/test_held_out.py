"""The evaluation on held-out parts: how much is read at once, what the bar shows, several ranks,
and what is refused.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from lab_tiny import write_text
from torch.nn import functional as F

from finetune_tiny import write_checkpoint, write_triplets
from ropewalk.errors import RopeError
from ropewalk_lab import held_out
from ropewalk_lab.batches import Batch
from ropewalk_lab.data import Part
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.finetuning import evaluate_file
from ropewalk_lab.held_out import measure
from ropewalk_lab.labelled import Example, ExampleBatches
from ropewalk_lab.matching import Triplet, TripletBatches
from ropewalk_lab.runs import make_trainer
from ropewalk_lab.settings import read_preset


class Text:
    """Samples of language modelling: every token of a sample is the sample's number modulo 3, and
    every target is 1.
    """

    fingerprint = "text"

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def batch(self, index: np.ndarray, length: int) -> Batch:
        tokens = torch.from_numpy(index % 3)[:, None].repeat(1, length)
        return Batch(tokens, torch.ones_like(tokens), tokens.numel())


def knows_a_third(tokens: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
    """Return the logits of a model that predicts each token to follow itself; it is right at the
    token 1 alone.
    """
    return F.one_hot(tokens, 3).float()


def test_a_pass_of_a_language_model_has_at_most_64_mebi_logits():
    sizes = []

    def predict(tokens):
        sizes.append(tokens.numel())
        return knows_a_third(tokens)

    measure(predict, Part(Text(2**16), 300), "causal", 8)
    assert sum(sizes) == 300 * 8
    assert max(sizes) == 2**26 // 2**16


@pytest.mark.parametrize("objective", ["pairs", "triplets", "classes"])
def test_a_pass_has_at_most_16384_tokens_whatever_the_rows_of_a_sample(objective):
    if objective == "classes":
        batches = ExampleBatches(
            [Example(f"text {i}", None, "ab"[i % 2]) for i in range(300)], ("a", "b")
        )
    else:
        batches = TripletBatches(
            [Triplet(f"a {i}", f"b {i}", f"c {i}", "B") for i in range(300)], objective
        )
    sizes = []

    def predict(tokens, **_):
        sizes.append(tokens.numel())
        return torch.zeros(len(tokens), 1 if objective == "pairs" else 2)

    measure(predict, Part(batches, 300), objective, 64)
    assert 8192 < max(sizes) <= 16_384


def test_the_bar_counts_the_samples_of_the_part(monkeypatch):
    shown = []

    class Bar:
        def __init__(self, title, total, done, enabled):
            shown.append((title, total, done))

        def show(self, done, text):
            shown.append((done, text))

        def close(self):
            shown.append("closed")

    monkeypatch.setattr(held_out, "Progress", Bar)
    monkeypatch.setattr(held_out, "MAX_TOKENS", 2 * 4)
    measure(knows_a_third, Part(Text(8), 5, first=99), "causal", 4, progress="evaluate valid")
    # the model is right where the sample's number modulo 3 is 1: of 99 to 103 at 100 and 103
    shares = [(2, "accuracy 50.0%"), (4, "accuracy 25.0%"), (5, "accuracy 40.0%")]
    assert shown == [("evaluate valid", 5, 0), *shares, "closed"]


def test_a_context_run_sums_loss_hits_and_count_over_the_ranks():
    """A context run of one rank takes the path of several: loss, hits and count are summed over the
    ranks.
    """
    found = measure(knows_a_third, Part(Text(8), 6), "causal", 4, Parallel(kind="context"))
    right, wrong = (
        -F.log_softmax(torch.tensor(logits), 0)[1].item()
        for logits in ([0.0, 1.0, 0.0], [1.0, 0.0, 0.0])
    )
    assert (found.accuracy, found.count) == (pytest.approx(1 / 3), 24)
    assert found.loss == pytest.approx((right + 2 * wrong) / 3, rel=1e-6)


@pytest.mark.parametrize("objective", ["pairs", "triplets", "classes"])
def test_samples_without_a_label_count_in_no_share_and_get_a_choice(objective):
    """A model that always chooses the first is right in two of the three samples with a label."""
    labels = ("B", None, "C", None, "B")
    if objective == "classes":
        batches = ExampleBatches([Example("x", None, each) for each in labels], ("B", "C"))
        batches = replace(batches, shuffle=False)
        of_sample = torch.tensor([[2.0, 1.0]])  # the logits of both classes
        right, wrong = (-F.log_softmax(of_sample[0], 0)[i].item() for i in (0, 1))
    else:
        batches = TripletBatches(
            [Triplet("x", "y", "z", each) for each in labels], objective, shuffle=False
        )
        if objective == "pairs":
            of_sample = torch.tensor([[2.0], [1.0]])  # the scores of (A, B) and (A, C)
            right, wrong = (-F.log_softmax(of_sample[:, 0], 0)[i].item() for i in (0, 1))
        else:
            of_sample = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # A is B, and not C
            right, wrong = 0.0, 1.2  # the cosines differ by 1, and the margin is 0.2

    def first(tokens, **_):
        return of_sample.repeat(len(tokens) // len(of_sample), 1)

    found = measure(first, Part(batches, 5), objective, 8)
    assert (found.accuracy, found.count) == (pytest.approx(2 / 3), 3)
    assert found.loss == pytest.approx((2 * right + wrong) / 3, rel=1e-6)
    assert found.error == pytest.approx((2 / 9 / 3) ** 0.5)
    assert found.choices == (0,) * 5


def test_a_length_of_0_and_an_absent_model_are_refused(tmp_path):
    folder = write_checkpoint(tmp_path / "model", head="classification", num_labels=1)
    (folder / "ropewalk.json").write_text(
        json.dumps({"objective": "pairs", "length": 8, "tokenizer": "vocab.txt"})
    )
    with pytest.raises(RopeError, match="length: must be an integer from 1"):
        evaluate_file(folder, write_triplets(tmp_path / "t.json", 3), length=0)
    with pytest.raises(RopeError, match="model: must be the folder of a checkpoint"):
        evaluate_file(tmp_path / "absent", tmp_path / "t.json")


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_first_rank_records_the_model_of_a_run(tmp_path, rank):
    changes = [f"data.source={write_text(tmp_path / 'text')}", f"data.cache={tmp_path / 'cache'}"]
    (tmp_path / "run").mkdir()
    make_trainer(
        read_preset("smoke", changes),
        tmp_path / "run",
        parallel=Parallel(rank=rank),
        progress=False,
    )
    assert (tmp_path / "run" / "run.json").exists() == (rank == 0)
