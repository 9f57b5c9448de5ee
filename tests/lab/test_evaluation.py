"""Evaluation by models whose answers are known: uniform, a table of pairs, one that knows the task."""

import math

import numpy as np
import pytest
import torch
from lab_tiny import tiny_corpus, tiny_model
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk_lab.batches import TaskBatches
from ropewalk_lab.evaluation import (
    depth_grid,
    evaluating,
    losses_and_hits,
    losses_by_length,
    sliding_losses,
    tail_means,
    task_hits,
)


def uniform_model(tokens):
    return torch.zeros(*tokens.shape, 264)


def pair_model(tokens):
    """Logits that depend on the last token alone."""
    return torch.sin(torch.arange(264)[None] * (1 + torch.arange(264)[:, None]) / 40.0)[tokens] * 3


@pytest.fixture
def windows(tmp_path):
    return tiny_corpus(tmp_path).train.windows(9, 65)


def test_uniform_predictions_have_the_loss_log_of_the_vocabulary_size(windows):
    for values in losses_by_length(uniform_model, windows, [16, 64], 8).values():
        assert values == pytest.approx(np.full(9, math.log(264)))


def test_a_model_of_one_token_has_the_same_loss_at_every_context_length(windows):
    found = losses_by_length(pair_model, windows, [8, 16, 64], 8)
    tokens = torch.from_numpy(windows.astype(np.int64))
    expected = F.cross_entropy(
        pair_model(tokens[:, -9:-1]).flatten(0, 1), tokens[:, -8:].flatten(), reduction="none"
    )
    for length in (8, 16, 64):
        assert found[length] == pytest.approx(expected.view(9, 8).mean(1).numpy())
    hits = tail_means(pair_model, windows, 16, 8)[1]
    assert hits == pytest.approx(
        (pair_model(tokens[:, -9:-1]).argmax(-1) == tokens[:, -8:]).double().mean(1).numpy()
    )


def test_the_loss_at_a_length_is_that_of_the_tail_read_after_that_many_tokens(windows):
    """The loss at length L is that of a window's last 8 tokens, when the model reads its last L."""
    model = tiny_model()
    found = losses_by_length(model, windows, [16, 48], 8)
    tokens = torch.from_numpy(windows.astype(np.int64))
    for length in (16, 48):
        logits = model(tokens[:, -length - 1 : -1])[:, -8:]
        expected = (
            F.cross_entropy(logits.flatten(0, 1), tokens[:, -8:].flatten(), reduction="none")
            .view(9, 8)
            .mean(1)
        )
        assert found[length] == pytest.approx(expected.detach().numpy(), abs=1e-6)
    assert not np.allclose(found[16], found[48], atol=1e-6)
    assert model.training


def test_sliding_losses_use_no_more_context_than_the_width(windows):
    model = tiny_model()
    tokens = torch.from_numpy(windows.astype(np.int64))
    one_by_one = []
    for back in range(10):
        end = 65 - back
        logits = model(tokens[:, end - 13 : end - 1])[:, -1]
        one_by_one.append(F.cross_entropy(logits, tokens[:, end - 1], reduction="none"))
    expected = torch.stack(one_by_one).mean(0).detach().numpy()
    assert sliding_losses(model, windows, 12, 10, stride=1) == pytest.approx(expected, abs=1e-6)


def test_a_chunk_as_wide_as_the_window_gives_the_loss_of_one_pass(windows):
    model = tiny_model()
    expected = losses_by_length(model, windows, [64], 10)[64]
    assert sliding_losses(model, windows, 64, 10, stride=10) == pytest.approx(expected, abs=1e-6)
    assert sliding_losses(pair_model, windows, 12, 10, stride=3) == pytest.approx(
        losses_by_length(pair_model, windows, [12], 10)[12]
    )


class Knows:
    """Answers the pass key where it was stated in the last `reach` tokens, and 0 elsewhere."""

    def __init__(self, reach):
        self.reach = reach

    def __call__(self, tokens):
        logits = torch.zeros(*tokens.shape, 264)
        for row, text in enumerate(bytes(r.tolist()) for r in tokens.to(torch.uint8)):
            seen = text[-self.reach :]
            where = seen.find(b"The pass key is ")
            key = seen[where + 16 : where + 21]
            for place, digit in enumerate(key):
                logits[row, len(text) - 5 + place, digit] = 1
        return logits


def test_a_model_that_sees_150_tokens_finds_pass_keys_only_within_them():
    grid = depth_grid(Knows(150), [120, 300], [0.0, 1.0], 6)
    assert {place: values.mean() for place, values in grid.items()} == {
        (120, 0.0): 1,
        (120, 1.0): 1,
        (300, 0.0): 0,
        (300, 1.0): 1,
    }


def test_a_sample_is_solved_when_every_token_is_right():
    sample = TaskBatches("copy").sample((1 << 40) + np.arange(5), 20)

    def nearly(tokens):
        logits = F.one_hot(torch.from_numpy(sample.tokens[:, 1:].astype(np.int64)), 264).float()
        logits[2, 15] = 0  # one token of one sample is answered wrongly
        return logits

    assert task_hits(nearly, TaskBatches("copy"), 20, 5).tolist() == [1, 1, 0, 1, 1]


def test_evaluation_does_not_see_training_samples():
    first = TaskBatches("copy").batch(np.arange(100), 20).inputs
    later = TaskBatches("copy").batch((1 << 40) + np.arange(100), 20).inputs
    assert not {bytes(r.tolist()) for r in first} & {bytes(r.tolist()) for r in later}


def test_lengths_beyond_the_window_or_below_the_tail_are_refused(windows):
    # windows of 65 tokens, so 64 targets; the loss is that of the last 8
    with pytest.raises(RopeError, match="lengths"):
        losses_by_length(uniform_model, windows, [65], 8)
    with pytest.raises(RopeError, match="lengths"):
        losses_by_length(uniform_model, windows, [7], 8)
    with pytest.raises(RopeError, match="tail"):
        losses_and_hits(uniform_model, windows, 65)


class Watched(torch.nn.Module):
    """A model that notes in which mode, on which tokens and with gradients or not it is called."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(264))
        self.seen, self.modes = [], []

    def forward(self, tokens):
        self.seen.append(tokens)
        self.modes.append((self.training, torch.is_grad_enabled()))
        return self.bias.expand(*tokens.shape, 264)


@pytest.mark.parametrize("was_training", [True, False])
def test_a_model_is_evaluated_without_dropout_and_left_as_it_was(windows, was_training):
    model = Watched().train(was_training)
    model.frozen = torch.nn.Identity().eval()
    losses_by_length(model, windows, [64], 8)
    task_hits(model, TaskBatches("copy"), 20, 2)
    sliding_losses(model, windows, 16, 8)
    assert set(model.modes) == {(False, False)}
    assert model.training == was_training
    assert not model.frozen.training


def test_chunks_start_half_a_width_apart_unless_told(windows):
    default, given = (
        sliding_losses(tiny_model(), windows, 12, 10, **options) for options in ({}, {"stride": 6})
    )
    assert default == pytest.approx(given, abs=1e-9)
    model = Watched()
    sliding_losses(model, windows, 16, 20)
    # the 20 losses take three chunks: of 8, 8 and 4 tokens, each read with 16 tokens of input
    assert [tuple(tokens.shape) for tokens in model.seen] == [(9, 16)] * 3


def test_samples_of_an_evaluation_begin_beyond_every_training_and_follow_the_seed():
    model = Watched()
    task_hits(model, TaskBatches("copy", seed=3), 20, 4)
    task_hits(model, TaskBatches("copy", seed=3), 20, 4, first=7)
    beyond, seventh = model.seen
    expected = TaskBatches("copy", seed=3)
    assert torch.equal(beyond, expected.batch((1 << 40) + np.arange(4), 20).inputs.long())
    assert torch.equal(seventh, expected.batch(7 + np.arange(4), 20).inputs.long())


def test_a_grid_is_of_its_task_its_seed_and_its_depths():
    model = Watched()
    grid = depth_grid(model, [60, 80], [0.0, 1.0], 3, task="recall", seed=4)
    assert list(grid) == [(60, 0.0), (60, 1.0), (80, 0.0), (80, 1.0)]
    for (length, depth), tokens in zip(grid, model.seen, strict=True):
        task = TaskBatches("recall", seed=4, options=(("depth", depth),))
        expected = task.batch((1 << 40) + np.arange(3), length).inputs
        assert torch.equal(tokens, expected.long())


def test_logits_of_16_bits_are_widened_before_the_loss(windows):
    exact = torch.randn(264, generator=torch.Generator().manual_seed(0))
    model = lambda tokens: exact.bfloat16().expand(*tokens.shape, 264)
    losses, _ = losses_and_hits(model, windows, 8)
    targets = torch.from_numpy(windows[:, -8:].astype(np.int64))
    expected = -torch.log_softmax(exact.bfloat16().double(), -1)[targets]
    torch.testing.assert_close(losses.double(), expected, atol=1e-5, rtol=1e-5)


def test_tokens_are_on_the_device_that_is_given():
    moved = Watched()
    moved.bias = torch.nn.Parameter(torch.zeros(264, device="meta"))
    with evaluating(moved) as device:
        assert device.type == "meta"
    with evaluating(Watched(), torch.device("meta")) as device:
        assert device.type == "meta"
    with evaluating(uniform_model) as device:
        assert device.type == "cpu"
