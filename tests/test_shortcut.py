"""Known kinds of calls: the second call of a kind skips the checks, and one that looks alike but is not does not."""

import pytest
import torch

import ropewalk as rw
from helpers import definition
from ropewalk import tokens
from ropewalk.kernels import available

pytestmark = pytest.mark.skipif(available("cpu")["cpu"] is not None, reason="the native kernel was not built here")
SPEC = rw.RopeSpec(10)


def long_way(*_, **__):
    raise AssertionError("the long way was taken")


def draw(heads: int) -> torch.Tensor:
    return torch.randn(2, heads, 7, 10)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_a_repeated_call_goes_straight_to_the_kernel_and_is_right(monkeypatch, given, inplace):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    where = lambda start: {"positions": torch.arange(start, start + 7).repeat(2, 1)} if given else {"offset": start}
    rope(q.clone(), k.clone(), **where(5), inplace=inplace)
    monkeypatch.setattr(tokens, "make_turn", long_way)
    positions = torch.arange(1000, 1007).expand(2, 7)
    given_q, given_k = q.clone(), k.clone()
    turned = rope(given_q, given_k, **where(1000), inplace=inplace)
    assert (turned[0] is given_q, turned[1] is given_k) == (inplace, inplace)
    for found, x in zip(turned, (q, k), strict=True):
        torch.testing.assert_close(found, definition(x, SPEC, positions).float())


def test_what_the_kernel_cannot_reach_takes_the_long_way_and_is_right():
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    for start in (-50, 2**20 - 3, 10**7):
        found = rope(q, k, offset=start)[0]
        torch.testing.assert_close(found, definition(q, SPEC, torch.arange(start, start + 7).expand(2, 7)).float())


@pytest.mark.parametrize("offset", [2**62, -(2**62), 2**70, -(2**70)])
def test_an_offset_no_integer_can_hold_is_refused(offset):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    with pytest.raises(rw.RopeError, match="offset"):
        rope(q, k, offset=offset)


@pytest.mark.parametrize("change", ["gradient", "strides", "dtype", "length of positions", "subclass"])
def test_a_call_of_another_kind_is_checked_again(monkeypatch, change):
    rope, q, k = rw.Rope(SPEC), draw(3), draw(1)
    rope(q, k, offset=5)
    monkeypatch.setattr(tokens, "make_turn", long_way)
    q = {
        "gradient": lambda: q.clone().requires_grad_(),
        "strides": lambda: q.transpose(1, 2).contiguous().transpose(1, 2),
        "dtype": lambda: q.bfloat16(),
        "length of positions": lambda: q,
        "subclass": lambda: torch.nn.Parameter(q, requires_grad=False),
    }[change]()
    positions = {"positions": torch.arange(6)} if change == "length of positions" else {"offset": 5}
    with pytest.raises(AssertionError, match="long way"):
        rope(q, k, **positions)
