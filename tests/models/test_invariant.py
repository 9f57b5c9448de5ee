"""An invariant Decoder: the bits of a row depend on the row alone, and the values are those of the
ordinary forward.
"""

import pytest
import torch

from door import assert_refused
from ropewalk.attention import KVCache
from ropewalk.kernels.invariant.api import attention
from ropewalk.models import Decoder, DecoderConfig

SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 12,
    "init_std": 0.3,
}
OPTIONS = {
    "plain": {},
    "head norm and biases": {"qk_norm": True, "qkv_bias": True, "o_bias": True},
    "window": {"window": 3, "layer_types": ("sliding", "full")},
    "two axes": {"encoding": "rope_2d"},
}


def model_of(options=None, dtype=torch.float32, **how):
    torch.manual_seed(3)
    return Decoder(DecoderConfig(**SIZES, **(options or {})), **how).to(dtype).eval()


def draw(*shape):
    return torch.randint(0, 61, shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_values_are_those_of_the_ordinary_forward(options):
    model, tokens = model_of(options, torch.float64), draw(3, 9)
    padding = torch.ones(3, 9, dtype=torch.bool)
    padding[1, :4] = False
    expected = model(tokens, padding=padding)
    model.invariant = True
    torch.testing.assert_close(
        model(tokens, padding=padding)[padding], expected[padding], rtol=1e-6, atol=1e-6
    )


def test_attention_without_queries_is_empty():
    q, k = torch.zeros(2, 0, 4, 6), torch.zeros(2, 2, 3, 6)
    assert attention(q, k, k, torch.zeros(2, dtype=torch.int64), 1.0).shape == q.shape


@torch.no_grad()
@pytest.mark.parametrize(
    ("options", "dtype"),
    [*zip(OPTIONS.values(), (torch.float32, torch.bfloat16, *[torch.float32] * 2), strict=True)],
    ids=OPTIONS,
)
def test_a_row_has_the_same_bits_in_every_batch_chunk_and_cache(options, dtype):
    model, tokens = model_of(options, dtype, invariant=True), draw(3, 11)
    alone = model(tokens[1:2])[0]
    assert torch.equal(model(tokens)[1], alone)
    assert torch.equal(model(tokens[[1, 0]])[0], alone)
    # a library's matrix product may add in another order for one token than for several
    caches = model.caches()
    steps = [model(token, caches=caches) for token in tokens[1:2].split(1, dim=1)]
    assert torch.equal(torch.cat(steps, dim=1)[0], alone)
    for kind in ("growing", "static"):
        caches = model.caches(kind, 11 if kind == "static" else None)
        parts = [model(part, caches=caches) for part in tokens.split((5, 1, 4, 1), dim=1)]
        assert torch.equal(torch.cat(parts, dim=1)[1], alone)
    # a row padded on the left has the same positions
    padded = torch.cat((draw(2, 3), tokens[:2]), dim=1)
    real = torch.ones_like(padded, dtype=torch.bool)
    real[1, :3] = False
    assert torch.equal(model(padded, padding=real)[1, 3:], alone)


def test_generation_gives_the_tokens_and_logits_of_a_forward_over_its_text():
    model, tokens = model_of(), draw(4, 5)
    together = model.generate(tokens, 6, invariant=True)
    assert model.invariant is False  # invariant=True was for that call only
    for row in range(4):
        assert torch.equal(
            model.generate(tokens[row : row + 1], 6, invariant=True)[0], together[row]
        )
    model.invariant = True
    with torch.no_grad():
        forced = model(together[:, :-1])
        caches = model.caches()
        logits = [model(tokens, caches=caches)[:, -1]]
        logits += [model(new[:, None], caches=caches)[:, 0] for new in together[:, 5:-1].unbind(1)]
    assert torch.equal(torch.stack(logits, dim=1), forced[:, 4:])
    assert torch.equal(forced[:, 4:].argmax(-1), together[:, 5:])


def test_the_gradients_are_those_of_the_ordinary_forward():
    tokens, gradients = draw(2, 7), []
    for invariant in (False, True):
        model = model_of({"qk_norm": True}, torch.float64, invariant=invariant).train()
        model.loss(tokens).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, rtol=1e-6, atol=1e-8, msg=name)


def test_what_cannot_be_invariant_is_refused():
    tokens = draw(2, 6)
    right = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    model = model_of(invariant=True)
    assert_refused("documents", lambda: model(tokens, documents=torch.zeros_like(tokens)))
    assert_refused("padding", lambda: model(tokens, padding=right))
    assert_refused("caches", lambda: model(tokens, caches=model.caches("sliding", 4)))
    assert_refused("caches", lambda: model(tokens, caches=[KVCache(rotated=False)] * 2))
    # a bias on the scores, also beside a rotation
    biased = [{"encoding": name} for name in ("alibi", "rope_alibi", "rope_bias")]
    for options in (*biased, {"activation": "gelu"}, {"attention": "linear"}):
        other = model_of(options, invariant=True)
        assert_refused("invariant", lambda other=other: other(tokens))
    dropped = model_of({"dropout": 0.1}, invariant=True)
    dropped(tokens)
    assert_refused("invariant", lambda: dropped.train()(tokens))
