"""The loss of a Decoder: which targets it takes, the padding of a mixture of experts, how sums over
chunks of tokens round.
"""

import pytest
import torch
from tiny_decoder import VOCAB, make, tokens
from torch.nn import functional as F

from door import assert_refused
from ropewalk.models.decoder_loss import IGNORED, token_loss

EXPERTS = {
    "num_experts": 5,
    "experts_per_token": 2,
    "moe_intermediate_size": 11,
    "router_aux_coef": 0.7,
}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_has_the_loss_of_the_row_alone(side):
    model, row = make(**EXPERTS), tokens(1, 6)
    size = (4, 0) if side == "left" else (0, 4)
    padded = torch.nn.functional.pad(row, size, value=9)
    real = torch.nn.functional.pad(torch.ones_like(row, dtype=torch.bool), size)
    torch.testing.assert_close(
        model.loss(padded, padding=real), model.loss(row), atol=1e-10, rtol=1e-10
    )
    assert abs(model.loss(padded) - model.loss(row)) > 1e-3


@pytest.mark.parametrize("shape", [(1, 0), (0, 3)])
def test_experts_without_tokens_give_nothing_and_gradients_of_zero(shape):
    model, given = make(**EXPERTS), tokens(*shape)
    assert model(given).shape == (*shape, VOCAB)
    loss = model.loss(given)
    loss.backward()
    assert loss.item() == 0
    assert not any(parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_targets_of_every_integer_type_have_the_same_loss(dtype, gradients):
    model, given = make(), tokens()
    targets = tokens()
    targets[0, 2] = IGNORED
    with torch.set_grad_enabled(gradients):
        expected = F.cross_entropy(
            model(given).flatten(0, 1), targets.flatten(), ignore_index=IGNORED
        )
        torch.testing.assert_close(model.loss(given, targets.to(dtype)), expected)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("value", [-1, -101, VOCAB])
def test_a_target_that_is_no_token_is_refused(value, gradients):
    model, given = make(), tokens()
    targets = given.clone()
    targets[1, 3] = value
    with torch.set_grad_enabled(gradients):
        assert assert_refused("targets", lambda: model.loss(given, targets)).value == value


@pytest.mark.parametrize(
    "change",
    [torch.Tensor.double, torch.Tensor.bool, torch.Tensor.flatten, torch.Tensor.tolist, torch.t],
)
def test_targets_of_another_type_or_shape_are_refused(change):
    model, given = make(), tokens()
    assert_refused("targets", lambda: model.loss(given, change(given)))


@pytest.mark.parametrize("chunks", [1, 2])
def test_the_gradient_of_16_bit_weights_is_rounded_once(chunks):
    """All four tokens of the vocabulary are equally likely, so the gradient of one that is no target
    is a quarter of the sum of x, which is exact in each chunk.
    """
    x, weight = (
        torch.randn(2, 200).bfloat16(),
        torch.zeros(4, 200, dtype=torch.bfloat16, requires_grad=True),
    )
    if chunks == 1:
        x[1] = 0  # the sum of x is then exact too
    loss = token_loss(x, weight, torch.tensor([0, 1]), max_logits=8 // chunks)
    (0.75 * loss).backward()
    exact = x.double().sum(0) / 4 * 0.75 / 2  # the mean of two tokens
    assert torch.equal(weight.grad[2:], exact.bfloat16().expand(2, -1))
