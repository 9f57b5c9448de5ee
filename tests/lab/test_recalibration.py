"""DroPE: a trained decoder without its RoPE, and the training that makes it work again."""

import math

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk_lab.recalibration import recalibrate


def test_the_example_score_without_rotation_is_the_published_number():
    """methods.md, section 4: q[p, c] = cos(.5 p + c), k[p, c] = sin(.3 p + .7 c); no rotation."""
    c = np.arange(8)
    assert np.cos(1.5 + c) @ np.sin(0.3 + 0.7 * c) == pytest.approx(-2.099333, abs=1e-6)


def test_dropping_rope_keeps_every_weight_and_forgets_positions():
    model = rw.Decoder(rw.models.DecoderConfig(17, 16, 24, 2, 2, length=8)).eval()
    done = rw.models.migrate(model, to="drope")
    assert done.dropped == done.initialised == ()
    tokens = torch.arange(6)[None]
    shuffled = torch.tensor([[3, 0, 5, 1, 4, 2]])
    # in the first layer, the last token's attention depends only on which tokens there are, not on
    # their order or positions
    layer = done.model.layers[0].self_attn
    x = torch.randn(1, 6, 16)
    assert torch.allclose(
        layer(x).out[:, -1], layer(x[:, [4, 2, 0, 1, 3, 5]]).out[:, -1], atol=1e-6
    )
    assert torch.equal(done.model(tokens), done.model(tokens, positions=shuffled))
    assert not torch.equal(model(tokens), model(tokens, positions=shuffled))
    with pytest.raises(RopeError, match="to: must be one of drope"):
        rw.models.migrate(model, to="nothing")


def test_recalibration_lowers_the_loss_and_repeats():
    torch.manual_seed(0)
    tokens = torch.arange(12).repeat(8, 1) % 5  # each token follows from the one before
    model = rw.Decoder(rw.models.DecoderConfig(17, 16, 24, 1, 2, length=12))
    first = recalibrate(model, tokens, 30, batch=4, rate=1e-2, warmup=5)
    assert first[-1] < 0.3 * first[0]
    dropped = rw.models.migrate(model, to="drope").model
    before = dropped.loss(tokens).item()
    copies = [rw.models.migrate(model, to="drope").model for _ in range(2)]
    losses = [recalibrate(copy, tokens, 10, batch=4, rate=3e-3, warmup=2) for copy in copies]
    assert losses[0] == losses[1]
    assert copies[0].loss(tokens).item() < before
    with pytest.raises(RopeError, match="tokens"):
        recalibrate(model, tokens[0], 1)


def test_recalibration_logs_every_step_with_its_loss():
    torch.manual_seed(0)
    model, reported = rw.Decoder(rw.models.DecoderConfig(17, 16, 24, 1, 2, length=12)), []
    losses = recalibrate(
        model,
        torch.arange(12).repeat(8, 1) % 5,
        4,
        rate=1e-2,
        log=lambda *step: reported.append(step),
    )
    assert reported == list(enumerate(losses))
    assert len(set(losses)) == 4


def test_an_error_leaves_the_model_in_the_mode_it_had():
    torch.manual_seed(0)
    model = rw.Decoder(rw.models.DecoderConfig(30, 16, 24, num_layers=1, num_heads=2)).eval()
    with pytest.raises(IndexError):
        recalibrate(model, torch.full((2, 5), 30), 1)  # no such token
    assert not model.training


def tiny():
    torch.manual_seed(0)
    return rw.Decoder(rw.models.DecoderConfig(17, 16, 24, 1, 2, length=12))


@pytest.mark.parametrize(
    ("options", "batch", "rate", "warmup", "seed"),
    [({}, 8, 1e-4, 100, 0), ({"batch": 3, "rate": 0.01, "warmup": 2, "seed": 5}, 3, 0.01, 2, 5)],
)
def test_recalibration_is_the_loop_written_by_hand(options, batch, rate, warmup, seed):
    """AdamW as in DroPE: betas 0.9 and 0.95, a decay of 0.1, gradients of a norm up to 1, a linear
    warm-up to a constant rate, rows drawn at random.
    """
    tokens = torch.randint(17, (20, 12), generator=torch.Generator().manual_seed(9))
    by_hand, ours = tiny(), tiny()
    generator, losses = torch.Generator().manual_seed(seed), []
    parameters = list(by_hand.parameters())
    first, second = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    for step in range(5):
        rows = torch.randint(20, (batch,), generator=generator)
        loss = by_hand.loss(tokens[rows])
        grads = torch.autograd.grad(loss, parameters)
        norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        grads = [grad * min(1.0, 1 / (norm + 1e-6)) for grad in grads]
        now = rate * min(1.0, (step + 1) / warmup)
        with torch.no_grad():
            for p, grad, m, v in zip(parameters, grads, first, second, strict=True):
                p.mul_(1 - now * 0.1)
                m.mul_(0.9).add_(0.1 * grad)
                v.mul_(0.95).add_(0.05 * grad.square())
                size = (v / (1 - 0.95 ** (step + 1))).sqrt() + 1e-8
                p.sub_(now * m / (1 - 0.9 ** (step + 1)) / size)
        losses.append(loss.item())
    assert recalibrate(ours, tokens, 5, **options) == pytest.approx(losses, rel=1e-4)
    for mine, theirs in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_in_the_mode_it_had_and_in_training_mode_while_it_learns(training):
    model, modes = tiny().train(training), []
    model.norm.train(not training)
    tokens = torch.arange(12).repeat(8, 1)
    recalibrate(model, tokens, 2, log=lambda *_: modes.append(model.training))
    assert modes == [True, True]
    assert model.training == training
    assert model.norm.training != training


def test_frozen_parameters_stay_as_they_are():
    model = tiny()
    model.embed_tokens.requires_grad_(False)
    before = model.embed_tokens.weight.clone()
    recalibrate(model, torch.arange(12).repeat(8, 1), 2, rate=0.1, warmup=0)
    assert torch.equal(model.embed_tokens.weight, before)
