"""LongCE by its formula, however many tokens a chunk has."""

import math

import pytest
import torch

from ropewalk_lab import long_ce
from ropewalk_lab.long_ce import chunked_loss, token_weights

TOKENS, WIDTH, WORDS = 11, 4, 6


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


HIDDEN, HEAD = random(TOKENS, WIDTH), random(WIDTH, WORDS, seed=1)
TARGETS = torch.arange(TOKENS) % WORDS


def losses():
    """The loss of each token, in Python's floats."""
    logits = (HIDDEN.double() @ HEAD.double()).tolist()
    return [
        math.log(sum(math.exp(x) for x in row)) - row[target]
        for row, target in zip(logits, TARGETS.tolist(), strict=True)
    ]


@pytest.mark.parametrize("chunk", [1, 3, 4, TOKENS, 50])
@pytest.mark.parametrize("context", [1, 2, 5, 11, 40])
def test_a_token_weighs_what_a_long_context_helps_it_whatever_the_chunks(
    monkeypatch, chunk, context
):
    monkeypatch.setattr(long_ce, "MAX_LOGITS", chunk * WORDS + 1)
    full = losses()
    short = [
        loss + gain for loss, gain in zip(full, random(TOKENS, seed=2).mul(2).tolist(), strict=True)
    ]
    expected = 0.0
    for place, (a, b) in enumerate(zip(short, full, strict=True)):
        # token 0 has no loss, so the loss at place 0 is that of token 1; a token before `context`
        # has all earlier tokens in its short context too, so it weighs 1
        weight = 1.0 if place + 1 < context else min(math.exp(a - b), 5.0)
        expected += weight * b
    found = chunked_loss(HIDDEN, lambda x: x @ HEAD, TARGETS, WORDS, torch.tensor(short), context)
    assert found.item() == pytest.approx(expected / TOKENS, rel=1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 50])
def test_without_weights_it_is_the_mean_cross_entropy_in_float32(monkeypatch, chunk):
    monkeypatch.setattr(long_ce, "MAX_LOGITS", chunk * WORDS)
    seen = []

    def head(x):
        seen.append(len(x))
        return (x @ HEAD).bfloat16()

    found = chunked_loss(HIDDEN, head, TARGETS, WORDS)
    assert found.dtype == torch.float32
    rounded = (HIDDEN @ HEAD).bfloat16().double()
    expected = -torch.log_softmax(rounded, -1)[torch.arange(TOKENS), TARGETS].mean()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    assert max(seen) == min(chunk, TOKENS)
    assert sum(seen) == TOKENS


def test_weights_have_no_gradient_and_are_at_most_five():
    short = torch.tensor([9.0, 1.0, 1.0, 0.0], requires_grad=True)
    full = torch.tensor([0.0, 0.0, 1.0, 1.0], requires_grad=True)
    weights = token_weights(short, full, 1)
    assert not weights.requires_grad
    assert weights.tolist() == pytest.approx([5, math.e, 1, 1 / math.e])
    assert token_weights(short, full, 3).tolist() == pytest.approx([1, 1, 1, 1 / math.e])


def test_the_gradient_is_that_of_the_weighted_losses():
    hidden = HIDDEN.clone().requires_grad_()
    short = torch.tensor(losses()) + 0.5
    chunked_loss(hidden, lambda x: x @ HEAD, TARGETS, WORDS, short).backward()
    shares = torch.softmax(HIDDEN @ HEAD, -1)
    shares[torch.arange(TOKENS), TARGETS] -= 1
    expected = math.exp(0.5) * shares @ HEAD.T / TOKENS
    torch.testing.assert_close(hidden.grad, expected)
