"""Softmax and linear attention against the dense definition, for random documents, paddings,
windows, chunks and splits.
"""

import random

import pytest
import torch

import ropewalk as rw
from door import as_users_call
from ropewalk.attention import Attention, linear_attention
from ropewalk.attention.backends import ATTENTION_BACKENDS
from whole_sequence import (
    counted,
    linear,
    random_documents,
    random_padding,
    rotated,
    softmax,
    visible,
)

HEADS, KV_HEADS, HEAD_DIM = 2, 1, 4
ROPE = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))
REUSED = torch.tensor([[0, 0, 1, 1, 0, 0], [5, 3, 5, 3, 3, 5]])


@pytest.fixture(scope="module")
def draws(request):
    """The seeds of the draws, which run without the checks of types."""
    with as_users_call():
        yield range(1000 if request.config.getoption("--full") else 60)


def start(seed):
    torch.manual_seed(seed)
    return random.Random(seed)


def close(got, expected, message, bound=1e-10):
    torch.testing.assert_close(
        got, expected, atol=bound, rtol=0, msg=lambda text: f"{message}: {text}"
    )


def gradients(out, inputs):
    """Return the gradients of a loss that weighs every output differently."""
    weights = torch.arange(1.0, out.numel() + 1, dtype=out.dtype).cos().view_as(out)
    return torch.autograd.grad(
        (out * weights).sum(), inputs, allow_unused=True, materialize_grads=True
    )


def layers():
    """One layer for each combination of causality, window and backend."""
    torch.manual_seed(0)
    return [
        Attention(
            6, HEADS, KV_HEADS, HEAD_DIM, causal=causal, window=window, backend=backend
        ).double()
        for causal in (True, False)
        for window in (None, 1, 3)
        for backend in ATTENTION_BACKENDS
        if backend != "flex"  # compiled for CUDA only
    ]


def layer_by_definition(layer, x, padding, documents):
    batch, seq, _ = x.shape
    real = torch.ones(batch, seq, dtype=torch.bool) if padding is None else padding
    heads = lambda proj: (x @ proj.weight.T).view(batch, seq, -1, HEAD_DIM).transpose(1, 2)
    positions = counted(real, documents)
    q, k = rotated(heads(layer.q_proj), positions), rotated(heads(layer.k_proj), positions)
    allowed = visible(
        torch.arange(seq),
        causal=layer.causal,
        window=layer.window,
        padding=padding,
        documents=documents,
    )
    out = softmax(q, k, heads(layer.v_proj), allowed, HEAD_DIM**-0.5) * real[:, None, :, None]
    return out.transpose(1, 2).flatten(-2) @ layer.o_proj.weight.T


def test_softmax_attention_equals_the_definition(draws):
    every = layers()
    for seed in draws:
        draw, layer = start(seed), every[seed % len(every)]
        batch, seq = draw.randint(1, 3), draw.randint(1, 9)
        x = torch.randn(batch, seq, 6, dtype=torch.float64, requires_grad=True)
        tokens = {
            "padding": random_padding(draw, batch, seq),
            "documents": random_documents(draw, batch, seq),
        }
        got, expected = layer(x, **tokens).out, layer_by_definition(layer, x, **tokens)
        close(got, expected, seed)
        close(*(gradients(out, [x])[0] for out in (got, expected)), seed)


def test_linear_attention_equals_the_definition(draws):
    for seed in draws:
        draw = start(seed)
        batch, seq, causal = draw.randint(1, 3), draw.randint(1, 9), draw.random() < 0.6
        q, k, v = (
            torch.randn(batch, HEADS, seq, d, dtype=torch.float64, requires_grad=True)
            for d in (HEAD_DIM, HEAD_DIM, 3)
        )
        tokens = {
            "padding": random_padding(draw, batch, seq),
            "documents": random_documents(draw, batch, seq),
        }
        options = draw.choice([{"phi": "elu"}, {"phi": "relu"}, {"form": "cosine", "scale": 0.7}])
        got, _ = linear_attention(
            q, k, v, ROPE, causal=causal, chunk=draw.randint(1, 10), **tokens, **options
        )
        real = (
            torch.ones(batch, seq, dtype=torch.bool)
            if tokens["padding"] is None
            else tokens["padding"]
        )
        allowed = visible(torch.arange(seq), causal=causal, **tokens)
        expected = linear(q, k, v, counted(real, tokens["documents"]), allowed, **options)
        # padded queries may give any finite value, so they are not compared
        got, expected = (out * real[:, None, :, None] for out in (got, expected))
        close(got, expected, seed)
        for a, b in zip(*(gradients(out, [q, k, v]) for out in (got, expected)), strict=True):
            close(a, b, seed, 1e-8)


def test_linear_attention_in_pieces_equals_the_whole(draws):
    """Each piece goes on from the state of the one before; rows are padded differently in every
    piece.
    """
    for seed in draws:
        draw = start(seed)
        batch, sizes = draw.randint(1, 3), [draw.randint(0, 4) for _ in range(4)]
        q, k, v = (
            torch.randn(batch, HEADS, sum(sizes), d, dtype=torch.float64, requires_grad=True)
            for d in (HEAD_DIM, HEAD_DIM, 3)
        )
        padding = random_padding(draw, batch, sum(sizes))
        real = torch.ones(batch, sum(sizes), dtype=torch.bool) if padding is None else padding
        options, chunk = (
            draw.choice([{"phi": "elu"}, {"phi": "relu"}, {"form": "cosine", "scale": 0.7}]),
            draw.randint(1, 5),
        )
        pieces, state, begin = [], None, 0
        for size in sizes:
            part = slice(begin, begin := begin + size)
            tokens = {"padding": None if padding is None else padding[:, part], "state": state}
            out, state = linear_attention(
                *(t[:, :, part] for t in (q, k, v)), ROPE, chunk=chunk, **tokens, **options
            )
            pieces.append(out)
        expected = linear(
            q, k, v, counted(real), visible(torch.arange(sum(sizes)), padding=padding), **options
        )
        got, expected = (
            out * real[:, None, :, None] for out in (torch.cat(pieces, dim=2), expected)
        )
        close(got, expected, seed)
        assert torch.equal(state.count, real.sum(dim=-1)), seed
        for a, b in zip(*(gradients(out, [q, k, v]) for out in (got, expected)), strict=True):
            close(a, b, seed, 1e-8)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_a_document_number_used_again_is_the_same_document(chunk, causal):
    """Row 0 holds two documents of four and two tokens, row 1 two interleaved ones; each document is
    attended to as if it had a row of its own.
    """
    q, k, v = torch.randn(3, 2, HEADS, 6, HEAD_DIM, dtype=torch.float64)
    layer = Attention(6, HEADS, KV_HEADS, HEAD_DIM, causal=causal).double()
    x = torch.randn(2, 6, 6, dtype=torch.float64)
    got, packed = (
        linear_attention(q, k, v, ROPE, causal=causal, documents=REUSED, chunk=chunk)[0],
        layer(x, documents=REUSED).out,
    )
    for row, number in ((0, 0), (0, 1), (1, 3), (1, 5)):
        at = (REUSED[row] == number).nonzero().flatten()
        alone, _ = linear_attention(
            *(t[row : row + 1, :, at] for t in (q, k, v)), ROPE, causal=causal
        )
        close(got[row : row + 1, :, at], alone, (row, number))
        close(packed[row : row + 1, at], layer(x[row : row + 1, at]).out, (row, number))


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
def test_a_packed_row_goes_on_with_the_document_of_its_last_real_token(chunk):
    padding = torch.tensor([[True] * 6, [True, True, False, True, True, False]])
    q, k, v = torch.randn(3, 2, HEADS, 7, HEAD_DIM, dtype=torch.float64)
    _, state = linear_attention(
        *(t[:, :, :6] for t in (q, k, v)), ROPE, documents=REUSED, padding=padding, chunk=chunk
    )
    got, _ = linear_attention(*(t[:, :, 6:] for t in (q, k, v)), ROPE, state=state)
    numbers = torch.cat((REUSED, torch.tensor([[0], [3]])), dim=1)
    real = torch.cat((padding, torch.ones(2, 1, dtype=torch.bool)), dim=1)
    expected = linear(
        q, k, v, counted(real, numbers), visible(torch.arange(7), padding=real, documents=numbers)
    )
    close(got, expected[:, :, 6:], chunk)
    assert state.count.tolist() == [4, 3]


@pytest.mark.parametrize("documents", [None, torch.zeros(2, 0, dtype=torch.int64)])
@pytest.mark.parametrize("causal", [True, False])
def test_no_tokens_give_no_outputs_and_an_empty_state(causal, documents):
    q = torch.randn(2, HEADS, 0, HEAD_DIM)
    out, state = linear_attention(q, q, q, ROPE, causal=causal, documents=documents)
    assert out.shape == q.shape
    assert (state.kv_sum.count_nonzero(), state.count.tolist()) == (0, [0, 0])
    layer = Attention(6, HEADS, KV_HEADS, HEAD_DIM, causal=causal)
    assert layer(torch.randn(2, 0, 6), documents=documents).out.shape == (2, 0, 6)
