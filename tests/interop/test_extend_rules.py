"""Rules of `extend`: its report, which changes its undo notices, which angles of rotary modules it
recognises, and the hook that follows each call's length.
"""

from __future__ import annotations

import copy
import math
import re
import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from extend_models import fresh, lengthen
from extend_tiny import tiny
from hf_families import CASES
from installed import config_of, needs_v5
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import ropewalk as rw
from ropewalk import RopeError, from_hf
from ropewalk.frequencies import DynamicYarn
from ropewalk.interop.extend.angles import served_layers
from ropewalk.interop.extend.keys import config_change
from ropewalk.interop.extend.remapped_model import _layers_to_remap
from ropewalk.interop.patch.length_hook import LengthHook, length_hook

CONFIG = {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 64, "rope_theta": 1e4}


def test_the_text_of_a_report_has_a_line_for_each_key_that_changed():
    lines = str(lengthen(dict(CONFIG), "linear")).splitlines()
    assert lines[0] == "linear x 4 on full_attention"
    assert "  rope_scaling: None -> {'rope_type': 'linear', 'factor': 4.0}" in lines


def test_the_repr_of_a_report_shows_its_results_alone():
    """Not the whole model, nor how the change is undone."""
    text = repr(lengthen(fresh("llama"), "linear"))
    assert text.startswith("Extension(kind='linear', factor=4.0, specs=")
    assert "LlamaForCausalLM" not in text
    assert re.findall(r"\b_\w+=", text) == []


@pytest.mark.parametrize("use_cope", [False, True])
def test_extending_a_clipped_config_keeps_the_trained_length_of_its_scaling(use_cope):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    config = {**CONFIG, "use_cope": use_cope, "rope_scaling": yarn}
    lengthen(config, "yarn", overwrite=True)
    assert config["rope_scaling"]["original_max_position_embeddings"] == 16


@pytest.mark.parametrize("scaling", [None, {"rope_type": "linear", "factor": 4.0}])
def test_clipping_a_clipped_config_clips_it_once(scaling):
    config = {**CONFIG, "use_cope": True, "rope_scaling": scaling}
    found = config_change(config, "clipped", overwrite=True).specs["full_attention"]
    assert found == from_hf({**config, "use_cope": True})


class Config(SimpleNamespace):
    """A config object that is none of transformers."""

    def to_dict(self) -> dict:
        return copy.deepcopy(vars(self))

    @classmethod
    def from_dict(cls, keys: dict) -> Config:
        return cls(**keys)


def test_a_key_that_a_config_object_did_not_have_is_gone_after_undo():
    keys = {key: value for key, value in CONFIG.items() if key != "max_position_embeddings"}
    config = Config(**keys)
    report = lengthen(config, "yarn", original_length=64)
    assert config.max_position_embeddings == 256
    report.undo()
    assert vars(config) == keys


def refuses_to_undo(report, key: str) -> None:
    with pytest.raises(RopeError, match=f"{key}: must still be") as error:
        report.undo()
    assert error.value.field == key


def test_undo_notices_an_object_in_the_place_of_null():
    config = {"model_type": "llama", "head_dim": 16, "max_position_embeddings": 64}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config |= {"rope_parameters": rope, "rope_scaling": dict(rope)}
    report = lengthen(config, "linear")
    assert config["rope_scaling"] is None
    config["rope_scaling"] = dict(rope)
    refuses_to_undo(report, "rope_scaling")


def test_undo_notices_a_key_that_was_taken_out_of_the_rope():
    config = dict(CONFIG)
    report = lengthen(config, "yarn")
    del config["rope_scaling"]["factor"]
    refuses_to_undo(report, "rope_scaling")


def test_undo_accepts_further_keys_inside_the_rope_of_a_layer_type():
    """transformers adds keys there itself."""
    ropes = {
        name: {"rope_type": "default", "rope_theta": 1e4}
        for name in ("full_attention", "sliding_attention")
    }
    config = {
        "model_type": "gemma3_text",
        "head_dim": 16,
        "max_position_embeddings": 64,
        "rope_parameters": ropes,
    }
    config["layer_types"] = list(ropes)
    before = copy.deepcopy(config)
    report = lengthen(config, "linear")
    config["rope_parameters"]["full_attention"]["truncate"] = True
    report.undo()
    assert config == before


@pytest.mark.parametrize("name", ["llama-2", "cohere", "gpt-oss", "qwen2-vl"])
@needs_v5("builds some of these modules from numbers")
def test_the_angles_of_a_familys_own_module_are_recognised_and_no_others(name):
    """The four modules give each pair's entry twice in halves, twice as neighbours, once, or for
    positions on three axes.
    """
    case = CASES[name]
    (spec,) = {each for each in from_hf(case.config, per_layer=True).values() if each is not None}
    specs = {"right": spec, "wrong": replace(spec, theta=2 * spec.theta)}
    assert served_layers("rotary_emb", case.rotary_module(), specs, [8, 64, 65]) == {
        None: {"right"}
    }


def yarn_of_transformers(length: int, theta: float = 1e4) -> tuple[torch.Tensor, float]:
    """inv_freq and magnitude of YaRN in transformers, whose factor is the length over 64, for heads
    of 16 dimensions.
    """
    rope = {
        "rope_type": "yarn",
        "factor": max(1.0, length / 64),
        "original_max_position_embeddings": 64,
        "rope_theta": theta,
    }
    keys = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 64,
    }
    return ROPE_INIT_FUNCTIONS["yarn"](
        config_of("llama", **keys, rope_parameters=rope), device=None
    )


@needs_v5("reads the factor of yarn otherwise")
@pytest.mark.parametrize("length", [9, 64, 65, 200])
def test_the_hook_returns_tables_of_yarn_for_the_longest_position_and_keeps_the_module(length):
    module = CASES["llama-2"].rotary_module()
    spec = replace(from_hf(CASES["llama-2"].config), scaling=DynamicYarn(64))
    assert spec.head_dim == 16
    hook = LengthHook({"full_attention": spec})
    assert length_hook(module) is None
    module.register_forward_hook(hook, with_kwargs=True)
    assert length_hook(module) is hook
    before = module.inv_freq.clone()
    cos, sin = module(torch.zeros(1), position_ids=torch.tensor([[0, length - 1], [3, 5]]))
    radians, magnitude = yarn_of_transformers(length)
    assert torch.equal(module.inv_freq, before)
    assert magnitude == pytest.approx(max(1.0, 1 + 0.1 * math.log(length / 64)))
    angles = torch.cat([5 * radians.double()] * 2)
    torch.testing.assert_close(cos[1, 1].double(), angles.cos() * magnitude, rtol=0, atol=1e-5)
    torch.testing.assert_close(sin[1, 1].double(), angles.sin() * magnitude, rtol=0, atol=1e-5)


@needs_v5("reads the factor of yarn otherwise")
def test_threads_of_different_lengths_share_a_module():
    """A long call runs from start to end after the hooks of a short one and before its forward."""
    module = CASES["llama-2"].rotary_module()
    spec = replace(from_hf(CASES["llama-2"].config), scaling=DynamicYarn(64))
    module.register_forward_hook(LengthHook({"full_attention": spec}), with_kwargs=True)
    short, long = torch.arange(16)[None], torch.arange(200)[None]
    expected = module(torch.zeros(1), position_ids=short)
    entered, ended = threading.Event(), threading.Event()
    found = {}

    def wait(module, args, kwargs):
        if kwargs["position_ids"] is short:
            entered.set()
            assert ended.wait(30)

    def read_short():
        found["short"] = module(torch.zeros(1), position_ids=short)

    module.register_forward_pre_hook(wait, with_kwargs=True)
    thread = threading.Thread(target=read_short)
    thread.start()
    assert entered.wait(30)
    found["long"] = module(torch.zeros(1), position_ids=long)
    ended.set()
    thread.join(30)
    assert found["long"][0].shape[1] == 200
    for ours, alone in zip(found["short"], expected, strict=True):
        assert torch.equal(ours, alone)


@needs_v5("has a module for each layer type")
def test_the_hook_sets_the_frequencies_of_the_layer_type_that_is_asked_for():
    rope = {"rope_type": "default", "rope_theta": 1e4}
    types = ["sliding_attention", "full_attention"]
    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 2,
        "layer_types": types,
    }
    config = config_of("gemma3_text", **sizes, rope_parameters={name: dict(rope) for name in types})
    module = CASES["gemma-3 full"].rotary_class(config)
    specs = from_hf(config, per_layer=True)
    # the other layer type comes first, and has another theta
    other = replace(specs["sliding_attention"], scaling=DynamicYarn(64), theta=500.0)
    hook = LengthHook(
        {
            "sliding_attention": other,
            "full_attention": replace(specs["full_attention"], scaling=DynamicYarn(64)),
        }
    )
    last = torch.tensor([[0, 199]])
    found = hook.at_length(module, last, "full_attention")
    torch.testing.assert_close(
        found.full_attention_inv_freq, yarn_of_transformers(200)[0], rtol=1e-6, atol=0
    )
    unscaled = torch.tensor([1e4 ** (-i / 8) for i in range(8)])
    torch.testing.assert_close(found.sliding_attention_inv_freq, unscaled, rtol=1e-6, atol=0)
    found = hook.at_length(module, last, "sliding_attention")
    torch.testing.assert_close(
        found.sliding_attention_inv_freq, yarn_of_transformers(200, 500.0)[0], rtol=1e-6, atol=0
    )
    assert found.sliding_attention_attention_scaling == pytest.approx(1 + 0.1 * math.log(200 / 64))
    module.register_forward_hook(hook, with_kwargs=True)
    cos, sin = module(torch.zeros(1), last, layer_type="sliding_attention")
    expected = type(module).forward(found, torch.zeros(1), last, "sliding_attention")
    for ours, theirs in zip((cos, sin), expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_a_served_length_that_the_replaced_scaling_raised_is_the_trained_one_again(kind):
    """A config scaled with yarn and extended again equals the config that was never scaled, extended
    once.
    """
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    scaled, plain = {**CONFIG, "rope_scaling": yarn}, {**CONFIG, "max_position_embeddings": 16}
    lengthen(scaled, kind, overwrite=True)
    lengthen(plain, kind)
    assert scaled == plain
    assert scaled["max_position_embeddings"] == 16


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny("llama"),
        lambda: rw.Decoder(rw.models.DecoderConfig(61, 24, 32, 2, 4, 2, length=8)),
    ],
)
@pytest.mark.parametrize(
    "unused", [{"search": sum}, {"search_options": {"rounds": 1}}, {"overwrite": True}]
)
def test_arguments_without_effect_are_refused(make, unused):
    with pytest.raises(RopeError, match=f"{next(iter(unused))}: must be left out"):
        rw.extend(make(), "rerope", factor=4, **unused)


def test_an_empty_list_of_layer_types_is_refused():
    rule = "layer_types: must name at least one of full_attention; got \\[\\]"
    with pytest.raises(RopeError, match=rule):
        rw.extend(tiny("llama"), "linear", factor=4, layer_types=[])


def test_more_arguments_without_effect_are_refused():
    decoder = rw.Decoder(rw.models.DecoderConfig(61, 24, 32, 2, 4, 2, length=8))
    with pytest.raises(RopeError, match="layer_types: must be left out"):
        rw.extend(decoder, "rerope", factor=4, layer_types=["full_attention"])
    with pytest.raises(RopeError, match="original_length"):
        rw.extend(decoder, "rerope", factor=4, original_length=0)
    with pytest.raises(RopeError, match="search_options: must be left out"):
        rw.extend(tiny("llama"), "linear", factor=4, search_options={"rounds": 1})


@pytest.mark.parametrize("method", ["longrope", "longrope2"])
def test_options_that_a_search_does_not_have_are_refused(method):
    search = lambda **options: rw.extend(
        tiny("llama"), "longrope", factor=4, search=sum, search_options=options
    )
    with pytest.raises(RopeError, match=r"search_options: must be one of method, .*; got 'round'"):
        search(method=method, round=3)
    with pytest.raises(RopeError, match=r"search_options: must be one of method, .*; got 'loss'"):
        search(method=method, loss=3)
    with pytest.raises(RopeError, match="search_options: must be a dict"):
        rw.extend(tiny("llama"), "longrope", factor=4, search=sum, search_options=["rounds"])
    with pytest.raises(RopeError, match="search_options: must be left out without a search="):
        rw.extend(
            tiny("llama"), "longrope", factor=4, long_factor=[2.0] * 4, search_options={"rounds": 3}
        )


def test_a_decoder_without_rope_raises_an_error():
    with pytest.raises(RopeError, match="model: must have layers with RoPE to be remapped"):
        rw.extend(
            rw.Decoder(rw.models.DecoderConfig(61, 24, 32, 2, 4, 2, length=8, encoding="alibi")),
            "rerope",
            factor=4,
        )


def test_a_remapping_leaves_out_every_layer_with_a_window():
    types = ["full_attention", "hybrid_sliding", "sliding_attention", "chunked_attention"]
    config = {**CONFIG, "num_hidden_layers": 4, "layer_types": types}
    assert list(_layers_to_remap(config, None)) == [0]


def test_a_length_below_that_of_a_scaled_config_is_told_with_the_factor_it_needs():
    """Llama 3.1's 131,072 tokens are 16 times its trained 8,192."""
    config = {
        "model_type": "llama",
        "hidden_size": 48,
        "num_attention_heads": 4,
        "max_position_embeddings": 131_072,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }
    told = (
        r"falls from 131,072 tokens \(max_position_embeddings\) to 32,768: .* trained length, 8,192; "
        r"4 times 131,072 .* factor=64$"
    )
    with pytest.warns(UserWarning, match=told):
        report = rw.extend(copy.deepcopy(config), "yarn", factor=4, overwrite=True)
    assert "falls from 131,072" in str(report)
    # linear and dynamic keep the trained length as max_position_embeddings
    with pytest.warns(UserWarning, match="falls from 131,072 tokens .* to 32,768"):
        report = rw.extend(copy.deepcopy(config), "dynamic", factor=4, overwrite=True)
    assert report.changes["max_position_embeddings"] == (131_072, 8192)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        longer = rw.extend(config, "yarn", factor=64, overwrite=True)
    assert longer.changes["max_position_embeddings"] == (131_072, 524_288)
