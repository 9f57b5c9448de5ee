"""The score of LongRoPE2's search counts the answer's tokens and no others."""

import math

import numpy as np
import pytest
import torch

from ropewalk_lab import needle
from ropewalk_lab.batches import IGNORED, TaskBatches
from ropewalk_lab.needle import answer_loss

VOCABULARY = 264


def test_the_answer_loss_ignores_all_other_tokens():
    uniform = lambda tokens: torch.zeros(*tokens.shape, VOCABULARY)
    assert answer_loss(uniform, 160, count=3) == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    task = TaskBatches("passkey", options=(("depth", 0.0),))
    batch = task.batch(np.array([1 << 41]), 160)

    def knows(answer: bool):
        """Return a model that is sure of the right token at the answer if `answer`, else at all
        other tokens.
        """
        sure = (batch.targets != IGNORED) == answer
        logits = torch.zeros(1, 160, VOCABULARY)
        right = torch.where(
            batch.targets == IGNORED, torch.roll(batch.inputs, -1, 1), batch.targets
        )
        return lambda tokens: logits.scatter(
            -1, right.long()[..., None], 50.0 * sure[..., None].float()
        )

    assert answer_loss(knows(True), 160, count=1) < 1e-6
    assert answer_loss(knows(False), 160, count=1) == pytest.approx(math.log(VOCABULARY), rel=1e-6)


def test_every_text_is_read_once_however_many_fit_in_a_batch(monkeypatch):
    seen = []

    def model(tokens):
        seen.extend(tokens.tolist())
        return (
            torch.zeros(*tokens.shape, VOCABULARY)
            + tokens[..., None].sin() * torch.arange(VOCABULARY) / 50
        )

    whole, texts = answer_loss(model, 160, count=5), list(seen)
    seen.clear()
    monkeypatch.setattr(needle, "MAX_TOKENS", 330)
    assert answer_loss(model, 160, count=5) == pytest.approx(whole, rel=1e-6)
    assert seen == texts
    assert len({tuple(text) for text in texts}) == 5


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("task", ["passkey", "recall"])
def test_the_texts_are_of_the_task_and_the_seed_and_state_the_answer_at_their_start(task, seed):
    seen = []

    def model(tokens):
        seen.append(tokens)
        return torch.zeros(*tokens.shape, VOCABULARY)

    answer_loss(model, 160, count=4, seed=seed, task=task)
    answers = TaskBatches(task, seed=seed, options=(("depth", 0.0),))
    expected = answers.batch((1 << 41) + np.arange(4), 160)
    assert torch.equal(seen[0], expected.inputs.long())
    text = bytes(seen[0][0].tolist())
    assert task != "passkey" or text.startswith(b"The pass key is ")


def test_ten_texts_are_read_unless_told_and_logits_of_16_bits_are_widened():
    rows = []
    values = torch.linspace(-3, 3, VOCABULARY).bfloat16()

    def model(tokens):
        rows.append(len(tokens))
        return values.expand(*tokens.shape, VOCABULARY)

    found = answer_loss(model, 160)
    assert sum(rows) == 10
    answers = TaskBatches("passkey", options=(("depth", 0.0),))
    targets = answers.batch((1 << 41) + np.arange(10), 160).targets
    asked = targets[targets != IGNORED].long()
    expected = -torch.log_softmax(values.double(), -1)[asked].mean()
    assert found == pytest.approx(expected.item(), rel=1e-6)
