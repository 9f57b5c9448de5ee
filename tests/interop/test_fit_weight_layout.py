"""The layout of weights while `fit` reads texts."""

import pytest
import torch
from torch import nn

from ropewalk.kernels.cpu import attention
from ropewalk_lab.fit.cpu import weights_by_columns


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.inner, self.head = (
            nn.Embedding(20, 8),
            nn.Linear(8, 12),
            nn.Linear(8, 20, bias=False),
        )
        self.wide = nn.Linear(12, 8).double()
        self.head.weight = self.embed.weight


@pytest.mark.skipif(
    not attention.available(), reason="weights change their layout on 64-bit ARM only"
)
def test_linear_layers_keep_their_values_and_get_their_layout_back():
    torch.manual_seed(0)
    model, x = Model(), torch.randn(5, 8)
    values, pointers = (
        model.inner.weight.detach().clone(),
        {id(each) for each in model.parameters()},
    )
    expected = x.double() @ values.double().T + model.inner.bias.double()
    with weights_by_columns(model):
        assert model.inner.weight.stride() == (1, 12)
        assert torch.equal(model.inner.weight, values)
        torch.testing.assert_close(model.inner(x).double(), expected, rtol=1e-5, atol=1e-6)
        assert model.embed.weight.is_contiguous()  # rows are looked up in it
        assert model.wide.weight.is_contiguous()  # float64
    assert model.inner.weight.is_contiguous()
    assert torch.equal(model.inner.weight, values)
    assert {id(each) for each in model.parameters()} == pointers
    assert model.head.weight is model.embed.weight


def test_weights_keep_their_layout_where_the_kernel_is_not_available(monkeypatch):
    monkeypatch.setattr(attention, "available", lambda: False)
    model = Model()
    with weights_by_columns(model):
        assert model.inner.weight.is_contiguous()
