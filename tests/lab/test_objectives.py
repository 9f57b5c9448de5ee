"""Every loss is its formula, summed over the targets that count."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk_lab import objectives
from ropewalk_lab.batches import IGNORED, Batch
from ropewalk_lab.objectives import OBJECTIVES, SCORES, ModelWithObjective


class Known(nn.Module):
    """A model whose output is known; it keeps what it was called with."""

    def __init__(self, output):
        super().__init__()
        self.output, self.called = output, []

    def forward(self, tokens, **named):
        self.called.append((tokens, named))
        return self.output


def batch_of(targets, **named):
    targets = torch.tensor(targets)
    count = int((targets != IGNORED).sum())
    return Batch(torch.zeros(1, 1, dtype=torch.int64), targets, count, **named)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def log_share(logits, target):
    """log of the softmax of one target, in Python's floats."""
    values = [float(value) for value in logits]
    return values[target] - math.log(sum(math.exp(value) for value in values))


@pytest.mark.parametrize("name", ["causal", "masked"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_of_language_is_summed_over_the_targets_that_count(name, dtype):
    logits = random(2, 3, 5).to(dtype)
    targets = [[0, IGNORED, 4], [IGNORED, IGNORED, 2]]
    found = OBJECTIVES[name](Known(logits), batch_of(targets))
    expected = -sum(
        log_share(logits[row, place], target)
        for row, line in enumerate(targets)
        for place, target in enumerate(line)
        if target != IGNORED
    )
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_a_model_with_a_loss_of_its_own_gives_a_mean_that_is_multiplied_by_the_targets():
    class WithLoss(nn.Module):
        def loss(self, inputs, targets, **named):
            self.got = inputs, targets, named
            return torch.tensor(0.5)

    model = WithLoss()
    batch = batch_of([[1, IGNORED, 2]], documents=torch.ones(1, 3))
    assert OBJECTIVES["causal"](model, batch).item() == 1.0
    assert model.got[0] is batch.inputs
    assert model.got[1] is batch.targets
    assert list(model.got[2]) == ["documents"]


@pytest.mark.parametrize("name", ["masked", "pairs", "classes", "triplets"])
def test_the_model_gets_every_tensor_of_the_batch(name):
    shapes = {"masked": (2, 3, 5), "pairs": (4, 1), "classes": (2, 3), "triplets": (6, 4)}
    targets = [[1, 1, 1]] * 2 if name == "masked" else [0, 1]
    model = Known(random(*shapes[name]))
    batch = batch_of(targets, padding=torch.ones(1, 1), types=torch.zeros(1, 1))
    OBJECTIVES[name](model, batch)
    ((tokens, named),) = model.called
    assert tokens is batch.inputs
    assert list(named) == ["types", "padding"]
    assert named["padding"] is batch.padding
    assert named["types"] is batch.types


def test_a_pair_of_rows_is_one_choice():
    """Rows (A, B) and (A, C) of the first sample, then those of the second."""
    scores = torch.tensor([[1.0], [3.0], [0.5], [-2.0], [4.0], [0.0]])
    assert SCORES["pairs"](scores).tolist() == [[1, 3], [0.5, -2], [4, 0]]
    found = OBJECTIVES["pairs"](Known(scores), batch_of([0, 0, IGNORED]))
    expected = -log_share([1.0, 3.0], 0) - log_share([0.5, -2.0], 0)
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_triplets_are_compared_by_the_cosines_of_a_with_b_and_with_c():
    vectors = random(6, 3).double()
    cosine = lambda x, y: float((x * y).sum() / (x.norm() * y.norm()))
    with_b = [cosine(vectors[3 * i], vectors[3 * i + 1]) for i in range(2)]
    with_c = [cosine(vectors[3 * i], vectors[3 * i + 2]) for i in range(2)]
    found = SCORES["triplets"](vectors)
    assert found.flatten().tolist() == pytest.approx(
        [with_b[0], with_c[0], with_b[1], with_c[1]], rel=1e-6
    )
    # the length of a vector does not matter
    longer = vectors * torch.tensor([1, 2, 3, 4, 5, 6])[:, None]
    assert torch.allclose(SCORES["triplets"](longer), found)
    for targets in ([0, 1], [1, 0], [IGNORED, 1]):
        expected = 0.0
        for i, target in enumerate(targets):
            if target != IGNORED:
                lead = (with_b[i] - with_c[i]) * (1 if target == 0 else -1)
                expected += max(0.0, 0.2 - lead)
        loss = OBJECTIVES["triplets"](Known(vectors), batch_of(targets))
        assert loss.item() == pytest.approx(expected, abs=1e-6)
    # with a margin of 3 every sample has a loss, unless it does not count
    leads = [b - c for b, c in zip(with_b, with_c, strict=True)]
    for targets in ([0, 1], [IGNORED, 1], [0, IGNORED], [IGNORED, IGNORED]):
        signs = [{0: 1, 1: -1}.get(target) for target in targets]
        expected = sum(3 - lead * sign for lead, sign in zip(leads, signs, strict=True) if sign)
        loss = objectives.triplets(Known(vectors), batch_of(targets), margin=3.0)
        assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_a_row_has_one_class():
    logits = random(3, 4).bfloat16()
    found = OBJECTIVES["classes"](Known(logits), batch_of([3, IGNORED, 0]))
    expected = -log_share(logits[0], 3) - log_share(logits[2], 0)
    assert found.item() == pytest.approx(expected, rel=1e-6)
    assert SCORES["classes"](logits).dtype == torch.float32


def test_an_output_may_be_a_tensor_or_have_logits_and_nothing_else():
    logits = torch.ones(2)
    assert objectives.logits_of(logits) is logits
    assert objectives.logits_of(SimpleNamespace(logits=logits)) is logits
    for other in ([1.0], SimpleNamespace(logits=None), None):
        with pytest.raises(RopeError, match="model: must return a tensor"):
            objectives.logits_of(other)


def test_a_model_with_an_objective_may_be_asked_for_another():
    model = ModelWithObjective(Known(torch.ones(1)), lambda model, batch: torch.tensor(1.0))
    batch = batch_of([0])
    assert model(batch) == 1
    assert model(batch, lambda model, batch: torch.tensor(2.0)) == 2
    assert set(OBJECTIVES) == set(SCORES)
