"""Positions that the caller gives to attention: what fits is used, anything else is refused."""

from dataclasses import replace

import pytest
import torch

from door import assert_refused
from ropewalk import axes
from ropewalk.attention import Attention
from ropewalk.encodings import ENCODINGS
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import LogN

BATCH, SEQ = 2, 5
ONE_AXIS = [name for name, encoding in ENCODINGS.items() if encoding.entry in ("input", "scores")]


def layer(name, **options):
    torch.manual_seed(0)
    return Attention(12, 2, encoding=name, length=16, **options).double()


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize(
    "shape", [(), (1,), (4,), (6,), (3, 5), (2, 4), (2, 1), (2, 3, 5), (1, 1, 2, 5)], ids=str
)
def test_positions_of_another_shape_are_refused(name, shape):
    x = torch.randn(BATCH, SEQ, 12).double()
    error = assert_refused(
        "positions", lambda: layer(name)(x, torch.zeros(shape, dtype=torch.int64))
    )
    assert error.value == list(shape)


@pytest.mark.parametrize("name", ONE_AXIS)
def test_a_one_axis_encoding_refuses_real_positions_and_several_axes(name):
    x, made = torch.randn(BATCH, SEQ, 12).double(), layer(name)
    for dtype in (torch.float32, torch.float64, torch.bool):
        assert_refused("positions", lambda dtype=dtype: made(x, torch.zeros(SEQ, dtype=dtype)))
    assert_refused("positions", lambda: made(x, torch.zeros(2, BATCH, SEQ, dtype=torch.int64)))
    assert_refused("positions", lambda: made(x, [0, 1, 2, 3, 4]))


@pytest.mark.parametrize("name", ONE_AXIS)
def test_positions_of_every_integer_dtype_and_shape_give_the_same_output(name):
    x, made, at = (
        torch.randn(BATCH, SEQ, 12).double(),
        layer(name, causal=ENCODINGS[name].causal_only),
        torch.arange(SEQ) + 3,
    )
    expected = made(x, at.expand(BATCH, -1)).out
    for given in (at, at[None], at.to(torch.int32), at.to(torch.uint8)):
        torch.testing.assert_close(made(x, given).out, expected, atol=1e-12, rtol=1e-9)


def test_a_layer_with_a_temperature_refuses_positions_of_another_length():
    x = torch.randn(BATCH, SEQ, 12).double()
    assert_refused("positions", lambda: layer("rope", temperature=LogN(16))(x, torch.arange(4)))


def test_fractional_rope_and_no_encoding_accept_real_coordinates():
    x, at = torch.randn(BATCH, SEQ, 16).double(), torch.rand(2, BATCH, SEQ, dtype=torch.float64)
    for encoding in (RopeSpec(8, axes=replace(axes.axial(2, 2), fractional=True)), "none"):
        assert Attention(16, 2, encoding=encoding).double()(x, at).out.shape == x.shape


@pytest.mark.parametrize("name", ["rope", "relative_bias", "fope"])
@pytest.mark.parametrize("length", [0, -3, 2.0])
def test_a_trained_length_is_at_least_one_token(name, length):
    assert_refused("length", lambda: Attention(16, 2, encoding=name, length=length))
    Attention(16, 2, encoding=name, length=1)(torch.randn(1, 3, 16))
