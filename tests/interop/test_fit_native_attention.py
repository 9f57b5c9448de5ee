"""The native attention in a transformers model gives the losses of torch's attention; where it
cannot be used, the model keeps its own.
"""

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import ropewalk as rw
from ropewalk.kernels.cpu import attention
from ropewalk_lab.fit import cpu as native
from ropewalk_lab.fit.cpu import NATIVE_ATTENTION, native_attention
from ropewalk_lab.fit.reader import Reader

needs_library = pytest.mark.skipif(
    not attention.available(), reason="the library has attention for 64-bit ARM only"
)
TOKENS = torch.randint(96, (2, 70), generator=torch.Generator().manual_seed(1))
SIZES = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
}


def make(model=LlamaForCausalLM, config=LlamaConfig, implementation="sdpa", **keys):
    torch.manual_seed(0)
    return model._from_config(config(**SIZES, **keys), attn_implementation=implementation).eval()


@pytest.fixture
def calls(monkeypatch):
    """The shapes of the queries that the library computed."""
    shapes, attend = [], attention.attend
    monkeypatch.setattr(
        native.attention,
        "attend",
        lambda q, *rest: shapes.append(tuple(q.shape)) or attend(q, *rest),
    )
    return shapes


@needs_library
def test_losses_by_native_attention_are_those_by_torch(calls):
    model = make()
    own = Reader(model).losses(TOKENS)
    with native_attention(model) as name:
        found = Reader(model).losses(TOKENS)
    assert name == "ropewalk"
    assert calls.count((2, 6, 70, 8)) == 2  # once for each layer
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-5)
    assert model.config._attn_implementation == "sdpa"


@needs_library
def test_a_layer_with_a_window_or_a_soft_cap_keeps_its_own_attention(calls):
    windowed = make(MistralForCausalLM, MistralConfig, sliding_window=16)
    own = windowed(TOKENS).logits
    with torch.no_grad(), native_attention(windowed):
        torch.testing.assert_close(windowed(TOKENS).logits, own)
    assert (
        not calls
    )  # the text is longer than the window, so attention gets a mask and stays torch's
    capped = make(
        Gemma2ForCausalLM, Gemma2Config, implementation="eager", attn_logit_softcapping=5.0
    )
    with native_attention(capped) as name:
        assert name == "the model's own"
        assert capped.config._attn_implementation == "eager"


@needs_library
def test_padded_texts_and_decoded_tokens_use_the_attention_of_torch(calls):
    model, mask = make(), torch.ones(2, 70, dtype=torch.long)
    mask[0, :9] = 0
    with torch.no_grad():
        own = model(TOKENS, attention_mask=mask).logits
        with native_attention(model):
            torch.testing.assert_close(model(TOKENS, attention_mask=mask).logits[:, 9:], own[:, 9:])
            assert not calls
            first = model(TOKENS[:, :69], use_cache=True)
            last = model(TOKENS[:, 69:], past_key_values=first.past_key_values).logits[:, 0]
        assert len(calls) == 2  # both layers for the text, but not for the token after it
        torch.testing.assert_close(last, model(TOKENS).logits[:, -1], rtol=1e-3, atol=1e-3)


@needs_library
def test_fit_uses_native_attention_and_restores_the_attention_of_the_model(calls):
    model = make()
    result = rw.fit(
        model,
        to=96,
        text=torch.arange(400) % 96,
        methods=["yarn", "self_extend"],
        windows=2,
        long_ppl=False,
    )
    assert result.facts["attention"] == "ropewalk"
    assert {shape[2] for shape in calls} >= {96}
    assert model.config._attn_implementation == "sdpa"


def test_without_the_library_the_model_keeps_its_own_attention(monkeypatch):
    monkeypatch.setattr(attention, "_attend", None)
    model = make()
    with native_attention(model) as name:
        assert name == "the model's own"
        assert model.config._attn_implementation == "sdpa" != NATIVE_ATTENTION
