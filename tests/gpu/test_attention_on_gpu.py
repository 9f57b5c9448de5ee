"""Attention on a CUDA device against the float64 definition: fused softmax, FlexAttention, and
linear attention's kernels.
"""

import copy
import sys
from pathlib import Path

import pytest
import torch

from ropewalk.attention import Attention, KVCache
from ropewalk.errors import RopeError

sys.path.append(str(Path(__file__).parents[1] / "attention"))
from definition import attention_by_definition

pytestmark = pytest.mark.gpu
BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, MODEL_DIM = 2, 37, 4, 2, 16, 24


@pytest.fixture(autouse=True)
def _nothing_compiled():
    """Forget what earlier tests compiled: torch gives up after eight variants of a function."""
    torch.compiler.reset()


def rules(kind):
    if kind == "window":
        return {"window": 5}, {}
    if kind == "padding":
        return {}, {"padding": torch.arange(SEQ).expand(BATCH, SEQ) >= torch.tensor([[3], [0]])}
    if kind == "documents":
        return {}, {"documents": (torch.arange(SEQ) // torch.tensor([[11], [8]])).contiguous()}
    return {"causal": kind == "causal"}, {}


@pytest.mark.parametrize(
    ("backend", "encoding"), [("sdpa", "rope"), ("sdpa", "alibi"), ("flex", "rope")]
)
@pytest.mark.parametrize("kind", ["causal", "window", "padding", "documents", "bidirectional"])
def test_every_backend_equals_the_definition_with_gradients(backend, encoding, kind):
    options, call = rules(kind)
    exact = Attention(
        MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, encoding=encoding, **{"causal": True} | options
    ).double()
    layer = copy.deepcopy(exact).float().cuda()
    layer.backend = backend
    x = torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64, requires_grad=True)
    positions = torch.arange(SEQ).expand(BATCH, SEQ)
    expected, _ = attention_by_definition(exact, x, positions, **call)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), x)
    near = x.detach().float().cuda().requires_grad_()
    got = layer(near, positions.cuda(), **{name: t.cuda() for name, t in call.items()}).out
    (got_grad,) = torch.autograd.grad(got.square().sum(), near)
    torch.testing.assert_close(got.cpu().double(), expected, atol=3e-5, rtol=1e-3)
    torch.testing.assert_close(got_grad.cpu().double(), expected_grad, atol=3e-4, rtol=1e-3)


def test_a_long_sequence_with_a_window_takes_flex_attention_by_itself():
    layer = Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, window=5).cuda()
    chosen = [
        layer.backend_for(torch.zeros(1, tokens, MODEL_DIM, device="cuda"))[0]
        for tokens in (SEQ, 2048)
    ]
    assert chosen == ["sdpa", "flex"]


def test_flex_attention_of_many_lengths_windows_and_offsets_is_compiled_few_times():
    """Torch gives up after eight compilations, and then forms all scores."""
    layer = Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, window=5, backend="flex").cuda()
    with torch.no_grad(), torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        for window in (5, 50, 500):
            layer.window = window
            for tokens in (2048, 2100, 2222, 3001, 4096):
                x = torch.randn(1, tokens, MODEL_DIM, device="cuda")
                cache = KVCache()
                pieces = [layer(piece, cache=cache).out for piece in x.split(1500, dim=1)]
                layer.backend = "sdpa"
                torch.testing.assert_close(
                    torch.cat(pieces, dim=1), layer(x).out, atol=3e-4, rtol=1e-3
                )
                layer.backend = "flex"


@pytest.mark.parametrize("window", [None, 5])
def test_decoding_token_by_token_equals_the_whole_pass(window):
    layer = Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, window=window).cuda()
    x = torch.randn(BATCH, SEQ, MODEL_DIM, device="cuda")
    whole, cache = layer(x).out, KVCache()
    pieces = [layer(piece, cache=cache).out for piece in x.split([20, 1, 1, 15], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=3e-5, rtol=1e-3)


def test_flex_attention_refuses_a_bias_with_the_reason():
    layer = Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, encoding="alibi", backend="flex").cuda()
    with pytest.raises(RopeError, match="bias"):
        layer(torch.zeros(1, SEQ, MODEL_DIM, device="cuda"))
