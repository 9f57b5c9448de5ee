"""Rules of reading and writing a config: which key takes precedence, what `explain` lists, and the
exact keys of `to_hf`.
"""

from __future__ import annotations

import warnings

import pytest
from config_samples import LLAMA, YARN, refused

from ropewalk import RopeError, RopeSpec
from ropewalk.config.checks import section_sizes
from ropewalk.config.file import text_owner
from ropewalk.config.hf import explain, from_hf, layer_specs, to_hf
from ropewalk.config.keys import FRACTION_KEYS
from ropewalk.frequencies import Yarn
from ropewalk.interop.extend.model import extend

LATENT = {
    "model_type": "deepseek_v3",
    "qk_rope_head_dim": 16,
    "rope_theta": 1e4,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize("value", [0, -0.5, 1.5, True])
@pytest.mark.parametrize("key", FRACTION_KEYS)
def test_an_impossible_fraction_is_refused_where_no_fraction_is_read(key, value):
    """Latent attention reads no fraction: its config gives the rotated part of the head as a size."""
    refused({**LATENT, key: value}, key)


def test_a_huge_section_is_refused_before_it_is_counted_out():
    with pytest.raises(
        RopeError, match=r"mrope_section\[1\]: must be an integer from 0 to \d{3,6};"
    ):
        section_sizes("mrope_section", [4, 2**40])


@pytest.mark.parametrize("where", ["rope_parameters", "rope_scaling"])
def test_an_unknown_key_of_a_rope_is_not_taken_for_a_layer_type(where):
    assert "must not be in a rope: nothing reads it" in str(
        refused({**LLAMA, where: {**YARN, "colour": 1}}, "colour")
    )


def test_an_unknown_key_inside_the_rope_of_a_layer_type_is_not_taken_for_a_layer_type():
    ropes = {"full_attention": {"rope_theta": 1e4, "colour": 1}}
    error = refused({**LLAMA, "rope_parameters": ropes}, "colour", per_layer=True)
    assert "must not be in a rope: nothing reads it" in str(error)


def test_a_null_theta_is_read_where_the_code_then_rotates_nothing():
    rope = {"rope_type": "default", "rope_theta": None}
    assert from_hf(
        {"model_type": "olmo_hybrid", "head_dim": 8, "rope_parameters": rope}, per_layer=True
    ) == {"full_attention": None}
    refused({**LLAMA, "rope_parameters": rope}, "rope_theta")


def test_both_spellings_of_interleaved_sections_are_read():
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]}
    specs = [
        from_hf({"head_dim": 16, "rope_parameters": {**rope, key: True}})
        for key in ("interleaved", "mrope_interleaved")
    ]
    # time, height and width in turn, and the rest is time
    assert [spec.axes.axis_of_pair for spec in specs] == [(0, 1, 2, 0, 1, 2, 0, 0)] * 2
    refused({"head_dim": 16, "rope_parameters": {**rope, "half": True}}, "half")


def test_the_fraction_in_the_rope_takes_precedence():
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    config = {"model_type": "gpt_neox", "head_dim": 16, "rope_parameters": rope, "rotary_pct": 0.25}
    with pytest.warns(
        UserWarning,
        match=r"rope_parameters.partial_rotary_factor is 0.5, config.rotary_pct is 0.25; the former",
    ):
        assert from_hf(config).rotated_dims == 8


@pytest.mark.parametrize("keys", [{}, {"rope_theta": 1e4}])
def test_a_raised_theta_is_written_under_the_name_that_transformers_reads(keys):
    config = {**LLAMA, **keys}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        extend(config, "ntk", factor=4.0)
    # theta * factor^(d / (d - 2)) for heads of 16 dimensions
    assert config["rope_theta"] == pytest.approx(1e4 * 4 ** (16 / 14))
    assert "rotary_emb_base" not in config


def entries(config) -> dict[str, dict]:
    return explain(config).as_dict()["full_attention"]


def test_the_output_layout_is_listed_only_where_it_differs():
    assert entries(LATENT)["layout_out"] == {"value": "half", "source": "code of deepseek_v3"}
    assert entries(LATENT)["layout"] == {"value": "interleaved", "source": "code of deepseek_v3"}
    assert "layout_out" not in entries(LLAMA)


def test_only_values_of_the_config_and_defaults_of_the_code_are_listed():
    found = entries({**LLAMA, "rope_scaling": YARN})
    assert found.keys() == {"rope_type", "theta", "head_dim", "factor", "original_length", "layout"}
    assert found["factor"] == {"value": 4.0, "source": "rope_scaling.factor"}
    assert found["theta"] == {"value": 1e4, "source": "default of llama"}
    minimind = entries(
        {
            "model_type": "minimind",
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_scaling": YARN,
        }
    )
    assert minimind["attention_factor"] == {"value": 1.0, "source": "default of minimind"}


def test_a_factor_that_follows_from_two_lengths_says_so():
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    found = entries({**LLAMA, "rope_scaling": {**rope, "original_max_position_embeddings": 1024}})
    assert found["factor"] == {"value": 4.0, "source": "max_position_embeddings / original_length"}


def test_a_temperature_is_listed_with_its_layers():
    layers = explain({"model_type": "llama4_text", "head_dim": 8, "num_hidden_layers": 4}).as_dict()
    assert layers["no_rope"]["temperature"]["source"] == "code of llama4_text"
    assert "temperature" not in layers["full_attention"]


def test_the_specs_of_layers_are_read_without_warnings():
    config = {
        **LLAMA,
        "num_hidden_layers": 2,
        "rope_theta": 1e4,
        "rope_scaling": {**YARN, "attn_factor": 0.9},
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = layer_specs(config)
    assert first == second
    assert first.scaling == Yarn(factor=4.0, original_length=1024)


def test_a_part_of_a_config_is_written_in_place():
    text = {"model_type": "llama"}
    assert text_owner({"text_config": text}) is text
    assert text_owner({"thinker_config": {"text_config": text}}) is text
    assert text_owner({"text_config": None, "llm_config": text}) is text
    assert text_owner(text) is text


KEYS = {
    "default, 4": (RopeSpec(16), 4, {"head_dim": 16, "rope_theta": 1e4, "rope_scaling": None}),
    "default, 5": (
        RopeSpec(16),
        5,
        {"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    ),
    "a part, 4": (
        RopeSpec(16, rotary_dim=4),
        4,
        {"head_dim": 16, "rope_theta": 1e4, "rope_scaling": None, "partial_rotary_factor": 0.25},
    ),
    "yarn, 5": (
        RopeSpec(16, scaling=Yarn(factor=4.0, original_length=1024)),
        5,
        {
            "head_dim": 16,
            "max_position_embeddings": 4096,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": True,
                "original_max_position_embeddings": 1024,
            },
        },
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_a_spec_is_written_with_these_keys_and_no_others(name):
    spec, version, keys = KEYS[name]
    assert to_hf(spec, version=version) == keys


SIZES = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("given", "head_dim"),
    [({"head_dim": 8}, 8), ({"head_dim": None, "kv_channels": 8}, 8), ({"head_dim": None}, 16)],
)
def test_a_null_key_leaves_the_value_to_another_name_of_it(given, head_dim):
    assert from_hf({**SIZES, "rope_theta": 500.0, **given}).head_dim == head_dim


@pytest.mark.parametrize(("other", "warned"), [(0.25, False), (0.5, True)])
def test_a_key_that_is_not_read_is_warned_about_only_if_it_says_something_else(other, warned):
    """GPT-NeoX reads rotary_pct; the same number under the other name does no harm."""
    config = {**SIZES, "model_type": "gpt_neox", "rotary_pct": 0.25, "partial_rotary_factor": other}
    said = explain(config).warnings
    expected = "config.partial_rotary_factor = 0.5 is ignored: gpt_neox reads rotary_pct"
    assert list(said) == ([expected] if warned else [])
    assert from_hf_quietly(config).rotary_dim == 4


def from_hf_quietly(config):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return from_hf(config)


def test_the_warning_that_a_model_is_unknown_comes_first():
    rope = {"rope_type": "default", "rope_theta": 700.0}
    config = {**SIZES, "model_type": "nobody", "rope_theta": 500.0, "rope_parameters": rope}
    first, second = explain(config).warnings
    assert first.startswith("model_type: 'nobody' is not known")
    assert second == (
        "rope_parameters.rope_theta is 700.0, config.rope_theta is 500.0; the former is used"
    )
    assert from_hf_quietly(config).theta == 700
