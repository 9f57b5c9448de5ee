"""Attention and steps whose bits do not depend on the batch, run by Triton's interpreter.

`test_decode_kernels.py` starts this file in a process of its own; tests/gpu runs them compiled.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from ropewalk.kernels import invariant
from ropewalk.kernels.decode_step.definition import Norm
from ropewalk.kernels.invariant import launch
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decode_step import DecodeStep, captured_step

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the kernels")


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    """Make segments of 16 keys, so that a few keys fill several; replace the replay of a graph by a
    call of the function that would be captured.
    """
    for name, size in {"QUERIES": 16, "KEYS": 32, "SEGMENT": 16, "AT_ONCE": 2}.items():
        monkeypatch.setattr(launch, name, size)
    monkeypatch.setattr(
        DecodeStep,
        "_capture",
        lambda self, model: setattr(
            self, "graph", SimpleNamespace(replay=partial(self._run, model))
        ),
    )


def dense(q, k, v, first_keys, scale, window):
    """Return the attention of q [B, S, H, D] by all its scores, in float64."""
    q, k, v = q.double().transpose(1, 2), k.double(), v.double()
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    own = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None]
    key = torch.arange(k.shape[2])
    seen = (key <= own) & (key >= first_keys[:, None, None]) & (key > own - (window or 1 << 30))
    scores = (q @ k.mT * scale).masked_fill(~seen[:, None], float("-inf"))
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2)


@pytest.mark.parametrize(("heads", "dims", "window"), [((1, 1), 16, None), ((3, 1), 12, 21)])
def test_attention_is_right_and_a_query_alone_has_the_same_bits(heads, dims, window):
    """The queries are the last 9 of 75 tokens, some of them padding; a query alone gets the same
    bits as among the others.
    """
    torch.manual_seed(1)
    q = torch.randn(2, 9, heads[0], dims)
    k, v = (torch.randn(2, heads[1], 75, dims) for _ in range(2))
    first = torch.tensor([0, 70])
    found = invariant.attention(q, k, v, first, 0.3, window)
    torch.testing.assert_close(
        found.double(), dense(q, k, v, first, 0.3, window), rtol=0, atol=2e-6
    )
    for token in (4, 8):
        keys = 75 - 8 + token
        alone = invariant.attention(
            q[:, token : token + 1], k[:, :, :keys], v[:, :, :keys], first, 0.3, window
        )
        assert torch.equal(alone[:, 0], found[:, token])


def test_a_token_over_keys_of_one_segment_is_right():
    torch.manual_seed(4)
    q, k, v = torch.randn(2, 1, 3, 12), *(torch.randn(2, 1, 14, 12) for _ in range(2))
    first = torch.tensor([0, 9])
    found = invariant.attention(q, k, v, first, 0.3)
    want = dense(q, k, v, first, 0.3, None)
    torch.testing.assert_close(found.double(), want, rtol=0, atol=2e-6)


@pytest.mark.parametrize("depth", [40, 1020, 2100, 4200])
@pytest.mark.parametrize("finish", ["store", "add", "gate"])
def test_products_of_small_integers_are_exact_for_one_row_and_for_several(depth, finish):
    """Sums of small integers are exact in any order, so one that leaves a term out is seen. Triton's
    interpreter cannot multiply bfloat16.
    """
    torch.manual_seed(depth)
    rows, columns = 3, 21
    x, weight = (
        torch.randint(-3, 4, (count, depth)).to(torch.float16)
        for count in (rows, 2 * columns if finish == "gate" else columns)
    )
    bias, residual = torch.randint(-9, 9, (len(weight),)), torch.randint(-9, 9, (rows, columns))
    if finish == "gate":
        weight = weight / 16  # the sigmoid of a large sum would overflow in NumPy
    bias, residual = bias.to(x.dtype), residual.to(x.dtype) if finish == "add" else None
    sums = x.double() @ weight.double().T + bias.double()
    if finish == "gate":
        first, second = sums.chunk(2, dim=-1)
        want = F.silu(first) * second
    else:
        want = sums if residual is None else sums + residual.double()
    for given in (slice(0, rows), slice(1, 2)):
        added = None if residual is None else residual[given]
        found = launch.product(x[given], weight, bias, added, finish == "gate")
        if finish == "gate":
            torch.testing.assert_close(found.double(), want[given], rtol=5e-3, atol=1e-6)
        else:
            assert torch.equal(found, want[given].to(x.dtype))


@pytest.mark.parametrize("gate", [False, True])
def test_a_row_that_the_product_norms_has_the_bits_of_one_that_was_normed_before(gate):
    torch.manual_seed(5)
    dtype = torch.float16
    x, weight, norm = torch.randn(1, 2100), torch.randn(14, 2100) / 50, torch.rand(2100)
    x, weight, norm = x.to(dtype), weight.to(dtype), Norm(norm.to(dtype), 1e-5)
    out = torch.empty(1, 7 if gate else 14, dtype=dtype)
    launch.product_into(x, weight, out, norm=norm, gate=gate)
    before = launch.normed(x, norm.weight, norm.eps)
    assert torch.equal(out, launch.product(before, weight, None, None, gate))
    want = F.rms_norm(x.double(), (2100,), norm.weight.double(), norm.eps) @ weight.double().T
    if gate:
        want = F.silu(want[:, :7]) * want[:, 7:]
    assert (out.double() - want).norm() < 1e-2 * want.norm()


# NumPy's warnings about the last two rows
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_the_norm_is_right_for_rows_of_any_size_and_shows_what_is_not_finite():
    torch.manual_seed(6)
    x, weight = torch.randn(7, 45), torch.rand(45)
    x[1] *= 1e15
    x[2] *= 1e-15
    x[3] = 0.0
    x[4, 7], x[5, 8], x[6, 9] = 1e8, float("inf"), float("nan")
    found = launch.normed(x, weight, 1e-5)
    want = F.rms_norm(x.double(), (45,), weight.double(), 1e-5)
    torch.testing.assert_close(found[:5].double(), want[:5], rtol=1e-6, atol=1e-9)
    assert found[5:].isnan().all()


@pytest.mark.parametrize("window", [None, 21])
def test_gradients_of_attention_are_right_and_0_for_queries_that_see_no_key(window):
    torch.manual_seed(3)
    q, k, v = torch.randn(2, 9, 3, 8), *(torch.randn(2, 1, 75, 8) for _ in range(2))
    first, factors = torch.tensor([0, 70]), torch.randn(2, 9, 3, 8)
    ours = [t.clone().requires_grad_() for t in (q, k, v)]
    (invariant.attention(*ours, first, 0.3, window) * factors).sum().backward()
    theirs = [t.double().requires_grad_() for t in (q, k, v)]
    # row 1 has real keys from 70 on; its 9 queries are the tokens 66 to 74, so the first 4 see no key
    rows = [(theirs[0][:1], 0, 75), (theirs[0][1:, 4:], 70, 75)]
    for row, (queries, begin, end) in enumerate(rows):
        keys, values = (t[row : row + 1, :, begin:end] for t in theirs[1:])
        mixed = dense(queries, keys, values, torch.tensor([0]), 0.3, window)
        (mixed * factors[row : row + 1, -queries.shape[1] :]).sum().backward()
    for found, want in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found.grad.double(), want.grad, rtol=0, atol=5e-6)
    assert not ours[0].grad[1, :4].any()


def test_a_captured_step_has_the_bits_of_the_forward():
    torch.manual_seed(2)
    config = DecoderConfig(
        vocab_size=11, hidden_size=16, intermediate_size=12, num_layers=1, num_heads=2,
        num_kv_heads=1, head_dim=8, init_std=0.3, qk_norm=True,
    )  # fmt: skip
    model = Decoder(config, invariant=True).eval()
    tokens = torch.randint(0, 11, (2, 19))
    padding = torch.ones_like(tokens, dtype=torch.bool)
    padding[1, :2] = False
    with torch.no_grad():
        forced = model(tokens, padding=padding)
        caches = model.caches()
        model(tokens[:, :17], padding=padding[:, :17], caches=caches)
        with captured_step(model, 2, 19) as step:
            step.start(caches)
            for token in (17, 18):
                assert torch.equal(step(tokens[:, token]), forced[:, token])
