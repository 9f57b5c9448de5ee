"""What the families of transformers ask of their own ropes, asked of patched models: which scaling
changes which text.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from installed import config_of
from patch_models import SIZES, outputs, tokens
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from ropewalk.interop.patch.angles import LazyTable
from ropewalk.interop.patch.model import patch

TRAINED, FACTOR = 24, 10
SHORT, LONG = 10, TRAINED + TRAINED // 2
#: family -> (model_type, keys of its config, keys of its rope)
FAMILIES = {
    "llama": ("llama", {}, {}),
    "mistral": ("mistral", {"head_dim": 10}, {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"head_dim": 14}, {}),
    "gemma": ("gemma", {"head_dim": 10}, {}),
    "gemma-2": ("gemma2", {"head_dim": 10, "sliding_window": 64}, {}),
    "gpt-neox": ("gpt_neox", {}, {"partial_rotary_factor": 0.5}),
    "falcon": ("falcon", {"alibi": False}, {}),
    "stablelm": ("stablelm", {}, {"partial_rotary_factor": 0.5}),
    "phi": ("phi", {"num_key_value_heads": 3}, {"partial_rotary_factor": 0.5}),
    "cohere": ("cohere", {}, {}),
    "olmo": ("olmo", {}, {}),
    "granite": ("granite", {}, {}),
    "starcoder2": ("starcoder2", {}, {}),
}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": float(FACTOR)},
    "dynamic": {"rope_type": "dynamic", "factor": float(FACTOR)},
    "yarn": {
        "rope_type": "yarn",
        "factor": float(FACTOR),
        "original_max_position_embeddings": TRAINED,
    },
}
PHI3 = {
    "default": {},
    "longrope": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [3.0] * 8},
}
NEAR = {"rtol": 0, "atol": 1e-5}


def built(model_type: str, keys: dict, rope: dict, longest: int) -> nn.Module:
    config = config_of(
        model_type,
        **{
            **SIZES,
            "max_position_embeddings": longest,
            **keys,
            "rope_parameters": {"rope_theta": 1e4, **rope},
        },
    )
    torch.manual_seed(3)  # the same weights, whatever the rope
    model = AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.ndim > 1:
            weight.data.normal_(0, 0.3)
    return model


@cache
def own_model(family: str, name: str) -> nn.Module:
    """The model as transformers has it; copied before it is patched."""
    if family == "phi-3":
        longer = {} if name == "default" else {"original_max_position_embeddings": TRAINED}
        return built("phi3", longer, PHI3[name], TRAINED if name == "default" else FACTOR * TRAINED)
    model_type, keys, rope = FAMILIES[family]
    return built(
        model_type, keys, {**rope, **ROPES[name]}, FACTOR * TRAINED if name == "yarn" else TRAINED
    )


@cache
def patched_model(family: str, name: str) -> nn.Module:
    return patch(copy.deepcopy(own_model(family, name)))


def tables(model: nn.Module, length: int) -> Tensor:
    """cos and sin [2, tokens, dimensions] of the first tokens, from the model's rotary module."""
    module = next(each for each in model.modules() if hasattr(each, "inv_freq"))
    found = module(torch.zeros(1), torch.arange(length)[None])
    # still lazy: the model did not materialise them
    assert all(isinstance(table, LazyTable) for table in found)
    return torch.stack([table + 0 for table in found])[:, 0]


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ["default", "linear", "yarn"])
def test_the_tables_of_a_short_text_are_the_first_rows_of_those_of_a_long_text(family, name):
    model = patched_model(family, name)
    assert torch.equal(tables(model, SHORT), tables(model, LONG)[:, :SHORT])


def test_linear_slows_every_position_down(family):
    plain, slowed = (tables(patched_model(family, name), LONG) for name in ("default", "linear"))
    reached = slowed[:, ::FACTOR]
    assert_close(reached, plain[:, : reached.shape[1]], **NEAR)


def test_dynamic_leaves_short_text_alone_and_slows_long_text(family):
    plain, dynamic = (patched_model(family, name) for name in ("default", "dynamic"))
    before = tables(dynamic, SHORT)
    assert_close(before, tables(plain, SHORT), **NEAR)
    long, plain_long = tables(dynamic, LONG), tables(plain, LONG)
    assert not torch.allclose(long, plain_long, atol=1e-2)
    pace, plain_pace = (torch.atan2(table[1, 1], table[0, 1]) for table in (long, plain_long))
    assert (pace <= plain_pace + 1e-6).all()
    assert torch.equal(tables(dynamic, SHORT), before)  # long text leaves nothing behind


@pytest.mark.parametrize("length", [SHORT, LONG])
def test_yarn_changes_text_of_every_length(family, length):
    plain, yarn = (tables(patched_model(family, name), length) for name in ("default", "yarn"))
    assert not torch.allclose(plain[0], yarn[0], atol=1e-2)
    assert not torch.allclose(plain[1], yarn[1], atol=1e-2)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("name", ["linear", "dynamic", "yarn"])
@torch.no_grad()
def test_a_scaled_model_answers_short_text_as_before_only_if_it_is_dynamic(family, name):
    for length in (SHORT, LONG):
        ids = tokens(1, length)
        plain, scaled = (outputs(patched_model(family, each), ids) for each in ("default", name))
        assert torch.allclose(plain, scaled, atol=5e-5) == (name == "dynamic" and length == SHORT)
        own = outputs(own_model(family, name), ids)
        assert_close(scaled, own, rtol=0, atol=1e-4 * max(1.0, own.abs().max().item()))


@torch.no_grad()
def test_longrope_has_factors_for_short_text_and_others_for_long():
    """Phi-3 takes no other scaling; short factors of one change nothing but the magnitude."""
    plain, scaled = (patched_model("phi-3", name) for name in PHI3)
    size = (1 + torch.tensor(FACTOR).log() / torch.tensor(TRAINED).log()).sqrt()
    assert_close(tables(scaled, SHORT), size * tables(plain, SHORT), **NEAR)
    assert not torch.allclose(tables(scaled, LONG)[:, :SHORT], tables(scaled, SHORT), atol=1e-2)
    for length in (SHORT, LONG):
        own = outputs(own_model("phi-3", "longrope"), tokens(1, length))
        ours = outputs(scaled, tokens(1, length))
        assert_close(ours, own, rtol=0, atol=1e-4 * max(1.0, own.abs().max().item()))
        assert not torch.allclose(ours, outputs(plain, tokens(1, length)), atol=1e-2)
