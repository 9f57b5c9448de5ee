"""The loss of a mixture of experts: padding is no token to any of its parts."""

import pytest
import torch
from tiny_decoder import make, tokens

EXPERTS = {"num_experts": 5, "experts_per_token": 2, "moe_intermediate_size": 11, "router_aux_coef": 0.7}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_row_has_the_loss_of_the_row_alone(side):
    model, row = make(**EXPERTS), tokens(1, 6)
    size = (4, 0) if side == "left" else (0, 4)
    padded = torch.nn.functional.pad(row, size, value=9)
    real = torch.nn.functional.pad(torch.ones_like(row, dtype=torch.bool), size)
    torch.testing.assert_close(model.loss(padded, padding=real), model.loss(row), atol=1e-10, rtol=1e-10)
    assert abs(model.loss(padded) - model.loss(row)) > 1e-3
