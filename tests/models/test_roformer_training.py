"""A RoFormer in training: dropout where transformers has it, and new heads that begin as new models
do.
"""

import pytest
import torch
from roformer_cases import BERTS, ROFORMERS, answer, theirs, words

from door import assert_refused
from ropewalk.models import HEADS, RoFormer, RoFormerConfig
from ropewalk.models.roformer_checkpoint import from_transformers

CASES = [("RoFormer", name) for name in ROFORMERS] + [("Bert", name) for name in BERTS]


@pytest.mark.parametrize(("family", "name"), CASES, ids=lambda value: value)
def test_dropout_acts_where_it_does_in_transformers(family, name):
    """The same random numbers drop the same values, as long as every dropout is met in the same
    order and shape.
    """
    peer = theirs(family, name, hidden_dropout_prob=0.4).train()
    model = from_transformers(peer)
    assert model.training
    tokens, types = words((2, 7), name)
    got = []
    for run in (lambda: answer(peer, tokens, types), lambda: model(tokens, types=types)):
        torch.manual_seed(5)
        got.append(run())
    torch.testing.assert_close(got[1], got[0], atol=1e-5, rtol=1e-5)
    assert not torch.equal(model(tokens, types=types), got[1])


SIZES = {
    "vocab_size": 40,
    "hidden_size": 96,
    "num_layers": 1,
    "num_heads": 2,
    "intermediate_size": 96,
    "initializer_range": 0.05,
}


@pytest.mark.parametrize("training", [True, False])
def test_a_new_head_keeps_the_mode_of_the_model(training):
    model = RoFormer(RoFormerConfig(**SIZES)).train(training)
    assert {part.training for part in model.with_head("classification").modules()} == {training}


@pytest.mark.parametrize("saves", [True, False])
def test_a_new_head_recomputes_its_layers_if_the_model_does(saves):
    """In training a layer is called again in the backward pass."""
    model = RoFormer(RoFormerConfig(**SIZES)).train()
    model.gradient_checkpointing = saves
    calls = []
    model.layers[0].register_forward_pre_hook(lambda *_: calls.append(None))
    model.with_head("classification")(torch.tensor([[3, 5]])).sum().backward()
    assert len(calls) == (2 if saves else 1)


@pytest.mark.parametrize("head", HEADS)
def test_a_new_head_begins_as_in_a_new_model(head):
    """Normal weights of the config's deviation, and no bias; torch's own linear layers begin
    otherwise.
    """
    made = (
        RoFormer(RoFormerConfig(**SIZES))
        .with_head(head, num_labels=30, summary_projection=True)
        .head
    )
    for name, weight in made.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" not in name:
            assert weight.std().item() == pytest.approx(
                0.05, rel=0.25 if weight.numel() < 500 else 0.06
            ), name


@pytest.mark.parametrize(
    "changes",
    [{"causal": True}, {"encoding": "alibi", "num_layers": 7}, {"dropout": 0.5}, {"wings": 2}],
    ids=str,
)
def test_a_new_head_does_not_change_the_shared_layers(changes):
    model = RoFormer(RoFormerConfig(**SIZES))
    assert assert_refused(
        "changes", lambda: model.with_head("causal_lm", **changes)
    ).value == sorted(changes)


def test_a_new_head_may_repeat_fields_and_have_its_own_matrix():
    model = RoFormer(RoFormerConfig(**SIZES, causal=True)).with_head(
        "causal_lm", causal=True, tie_embeddings=False
    )
    assert model.head.decoder.weight.shape == (40, 96)
    assert model.config == RoFormerConfig(
        **SIZES, causal=True, head="causal_lm", tie_embeddings=False
    )


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_the_padding_token_begins_as_zero_and_no_other_does(norm):
    model = RoFormer(RoFormerConfig(**SIZES, norm=norm, pad_token=3))
    zero = (model.embeddings.words.weight == 0).all(dim=1)
    assert zero.nonzero().flatten().tolist() == [3]
    model(torch.tensor([[3, 5]])).sum().backward()
    assert not model.embeddings.words.weight.grad[3].any()
