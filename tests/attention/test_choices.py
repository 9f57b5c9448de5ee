"""The choices of an attention layer: which exclude each other, and that all layers share them."""

import dataclasses

import pytest
import torch
from torch import nn

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import Attention, LatentAttention
from ropewalk.attention.choices import (
    Choices,
    FurtherChoices,
    HeadNorm,
    LearnedSinks,
    ProjectionBias,
    RotatedValues,
)
from ropewalk.attention.remap import ReRope
from ropewalk.attention.softmax import SoftmaxAttention
from ropewalk.encodings import Sizes
from ropewalk.encodings.plus import RotaryPlus
from ropewalk.encodings.rotary import Rotary
from ropewalk.temperatures import LogN

DIM, HEADS = 16, 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"causl": True}, "causl"),
        ({"learned_sinks": True}, "learned_sinks"),
        ({"window": 0}, "window"),
        ({"dropout": 1.5}, "dropout"),
        ({"scale": 0.0}, "scale"),
        ({"backend": "fast"}, "backend"),
        ({"backend": "sdpa", "sinks": LearnedSinks()}, "backend"),
        ({"temperature": 2.0}, "temperature"),
        ({"sinks": True}, "sinks"),
        ({"values": True}, "values"),
        ({"qk_norm": True}, "qk_norm"),
        ({"sinks": LearnedSinks(), "remapping": ReRope(4)}, "sinks"),
        ({"values": RotatedValues(), "remapping": ReRope(4)}, "values"),
        ({"remapping": ReRope(4), "causal": False}, "remapping"),
        ({"remapping": "rerope"}, "remapping"),
        ({"encoding": "xpos", "causal": False}, "encoding"),
        ({"encoding": "nezha", "scale": 0.5, "causal": False}, "scale"),
        ({"encoding": RotaryPlus(Sizes(HEADS, 8, DIM, 64)), "sinks": LearnedSinks()}, "sinks"),
    ],
)
def test_the_error_for_a_bad_choice_names_it(options, field):
    assert_refused(field, lambda: Attention(DIM, HEADS, **options))


def test_further_choices_lists_every_choice_without_its_own_argument():
    named = {"causal", "window", "dropout"}
    names = {field.name for field in dataclasses.fields(Choices)}
    assert set(FurtherChoices.__annotations__) == names - named


def test_equal_choices_compare_and_hash_equal():
    for make in (HeadNorm, LearnedSinks, ProjectionBias, RotatedValues, Choices):
        assert make() == make()
        assert hash(make()) == hash(make())


def test_bias_adds_biases_to_the_named_projections_only():
    layer = Attention(DIM, HEADS, bias=ProjectionBias(qkv=False, out=True))
    assert layer.q_proj.bias is layer.k_proj.bias is layer.v_proj.bias is None
    assert layer.o_proj.bias is not None
    assert all(
        each.bias is not None
        for each in Attention(DIM, HEADS, bias=True).children()
        if isinstance(each, nn.Linear)
    )


def test_a_subclass_that_defines_only_projections_attends_as_attention():
    class OneMatrix(SoftmaxAttention):
        """q, k and v are one tensor."""

        def __init__(self, choices):
            super().__init__((HEADS, HEADS, 8), Rotary(Sizes(HEADS, 8, DIM, 64)), choices)
            self.proj, self.o_proj = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def project(self, x):
            heads = self.proj(x).unflatten(-1, (HEADS, 8)).transpose(1, 2)
            return heads, heads, heads

    x = torch.randn(2, 7, DIM, dtype=torch.float64)
    for choices in (Choices(window=3), Choices(sinks=LearnedSinks(), temperature=LogN(4))):
        own = OneMatrix(choices).double()
        given = {name: value for name, value in vars(choices).items() if value is not None}
        same = Attention(DIM, HEADS, bias=True, **given).double()
        for linear in (same.q_proj, same.k_proj, same.v_proj):
            linear.load_state_dict(own.proj.state_dict())
        same.o_proj.load_state_dict(own.o_proj.state_dict())
        torch.testing.assert_close(own(x).out, same(x).out)
        whole, cache = own(x).out, rw.KVCache()
        parts = [own(x[:, :4], cache=cache).out, own(x[:, 4:], cache=cache).out]
        torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def test_latent_attention_has_its_own_projections_and_no_others():
    sizes = {"kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "value_dim": 6}
    names = {name.partition(".")[0] for name in LatentAttention(DIM, HEADS, **sizes).state_dict()}
    assert names == {"q_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"}
    names = {
        name.partition(".")[0]
        for name in LatentAttention(
            DIM, HEADS, **sizes, q_rank=4, sinks=LearnedSinks()
        ).state_dict()
    }
    assert {"q_a_proj", "q_a_layernorm", "q_b_proj", "sinks"} <= names
    assert "q_proj" not in names
