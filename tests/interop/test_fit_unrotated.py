"""`fit` on models of which no layer, or not every layer, is rotated."""

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, DecoderConfig

TOKENS = torch.randint(64, (1000,), generator=torch.Generator().manual_seed(1))


def decoder(**options):
    torch.manual_seed(2)
    return Decoder(
        DecoderConfig(64, 16, 32, num_layers=2, num_heads=2, length=32, **options)
    ).eval()


@pytest.mark.parametrize("make", [lambda: decoder(encoding="alibi"), None], ids=["ALiBi", "Bloom"])
def test_a_model_without_rotation_is_measured_as_it_is(make):
    model = (
        make()
        if make
        else BloomForCausalLM(
            BloomConfig(vocab_size=64, hidden_size=16, n_layer=1, n_head=2)
        ).eval()
    )
    found = rw.fit(model, 128, text=TOKENS, windows=3, trained=32, methods=["linear"])
    assert found.recommendation.method == "none"
    assert set(found.skipped) == {"linear"}


def test_a_search_needs_rotation():
    with pytest.raises(RopeError, match=r"search: must be 0 for a model without RoPE.*; got 16$"):
        rw.fit(decoder(encoding="alibi"), 128, text=TOKENS, windows=3, search=16)


def test_a_scaling_leaves_layers_without_positions_unrotated():
    model = decoder(layer_types=("nope", "full"))
    found = rw.fit(model, 64, text=TOKENS, windows=3, methods=["linear"])
    assert not found.skipped
    (row,) = (
        r
        for r in found.rows
        if (r["method"], r.get("window"), r.get("length")) == ("linear", 0, 64)
    )
    rope = model.layers[1].self_attn.encoding
    rope.rope = rw.Rope(rope.rope.spec.with_(scaling=rw.frequencies.Linear(2.0)))
    with torch.no_grad():
        logits = model(TOKENS[None, :64])[0, :-1].double()
    assert row["loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(logits, TOKENS[1:64])), rel=1e-5
    )
