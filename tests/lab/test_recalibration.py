"""DroPE: a trained decoder without its RoPE, and the training that makes it work again."""

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
    # attention in the last token sees a set of tokens, so their order and their positions do not
    # matter in the first layer
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
