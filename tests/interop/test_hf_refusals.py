"""A wrong key is refused by its own name, and a key that is not read is named in a warning."""

from __future__ import annotations

import warnings

import pytest
import torch
from config_samples import LLAMA, LLAMA3, LONGROPE, YARN, refused

from ropewalk.config.hf import explain, from_hf
from tensor_forms import tensors


@pytest.mark.parametrize(
    "rope", [YARN, LLAMA3, {**LONGROPE, "factor": 4.0}], ids=lambda rope: rope["rope_type"]
)
def test_a_trained_length_must_be_given_where_no_length_is(rope):
    without = {
        key: value for key, value in rope.items() if key != "original_max_position_embeddings"
    }
    config = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    refused({**config, "rope_scaling": without}, "original_max_position_embeddings")
    assert (
        from_hf({**LLAMA, "rope_scaling": without}).scaling.original_length
        == LLAMA["max_position_embeddings"]
    )


@pytest.mark.parametrize("key", ["factor", "low_freq_factor", "high_freq_factor"])
def test_llama3_needs_its_three_numbers(key):
    for rope in (
        {**LLAMA3, key: None},
        {name: value for name, value in LLAMA3.items() if name != key},
    ):
        refused({**LLAMA, "max_position_embeddings": 512, "rope_scaling": rope}, key)


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": -1}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"rope_scaling": {**YARN, "attention_factor": "abc"}}, "attention_factor"),
        (
            {"rope_scaling": {**YARN, "original_max_position_embeddings": 0}},
            "original_max_position_embeddings",
        ),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5, "beta_slow": 2}}, "beta_fast"),
        ({"rope_scaling": {**YARN, "truncate": 1}}, "truncate"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "high_freq_factor"),
        ({"rope_scaling": {**LONGROPE, "short_factor": [1.0] * 7}}, "short_factor"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [1.0] * 7 + [0]}}, "long_factor[7]"),
        ({"rope_scaling": {**LONGROPE, "long_factor": "abc"}}, "long_factor"),
        ({"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"rope_type": ["yarn"], "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"type": 5}}, "type"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_type"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_type"),
        ({"rope_scaling": "linear"}, "rope_scaling"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_scaling": YARN, "rope_parameters": {**YARN, "factor": 2.0}}, "factor"),
        ({"hidden_size": 65}, "hidden_size"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": True}, "num_attention_heads"),
        ({"hidden_size": 60}, "hidden_size"),
        ({"head_dim": 2**40}, "head_dim"),
        ({"head_dim": 15}, "head_dim"),
        ({"head_dim": 16.0}, "head_dim"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 1.5},
            "partial_rotary_factor",
        ),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor": 0.45},
            "partial_rotary_factor",
        ),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 1]}}, "mrope_section"),
        (
            {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, "2"]}},
            "mrope_section[2]",
        ),
        ({"rope_scaling": {"rope_type": "default", "mrope_section": "422"}}, "mrope_section"),
        (
            {
                "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
                "max_position_embeddings": None,
            },
            "max_position_embeddings",
        ),
        (
            {
                "rope_scaling": {"rope_type": "dynamic", "factor": 2.0},
                "max_position_embeddings": "4096",
            },
            "max_position_embeddings",
        ),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"model_type": 5}, "model_type"),
        ({"model_type": "nanochat"}, "model_type"),
        ({"model_type": "dinov3_vit", "rope_theta": 100.0}, "model_type"),
        (
            {
                "model_type": "hunyuan_vl_text",
                "rope_scaling": {"type": "xdrope", "alpha": 1e3, "xdrope_section": [2, 2, 2, 2]},
            },
            "xdrope_section",
        ),
        ({"model_type": "falcon", "alibi": True}, "alibi"),
        ({"model_type": "esm", "position_embedding_type": "absolute"}, "position_embedding_type"),
        ({"model_type": "bert"}, "rope_parameters or rope_theta"),
        ({"model_type": "minimind", "inference_rope_scaling": True}, "rope_scaling"),
        ({"text_config": "x"}, "text_config"),
        ({"model_type": "smollm3", "no_rope_layers": 3}, "no_rope_layers"),
        (
            {
                "model_type": "minimax_m2",
                "head_dim": 16,
                "rotary_dim": 8,
                "partial_rotary_factor": 0.75,
            },
            "rotary_dim",
        ),
        (
            {
                "model_type": "phimoe",
                "rope_scaling": {**LONGROPE, "short_mscale": 1.0, "long_mscale": 2.0},
            },
            "long_mscale",
        ),
        ({"rope_parameters": {"full_attention": YARN}, "rope_scaling": YARN}, "rope_scaling"),
        ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 1e4}}, "rope_parameters"),
    ],
)
def test_a_wrong_value_is_refused_by_its_own_name(keys, field):
    """It is not accepted with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused({**LLAMA, **keys}, field)


def test_an_error_names_the_key_path_and_the_value():
    error = refused({**LLAMA, "rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "factor")
    assert "rope_scaling.factor" in str(error)
    assert "0.5" in str(error)


@pytest.mark.parametrize("config", [None, 5, [1], object()])
def test_what_is_no_config_is_refused(config):
    refused(config, "config")


def test_llama4_scouts_equal_band_ends_are_accepted():
    """low_freq_factor == high_freq_factor leaves no middle band, and its 0/0 reaches no frequency."""
    rope = {**LLAMA3, "high_freq_factor": 1.0}
    assert bool(torch.isfinite(tensors(from_hf({**LLAMA, "rope_scaling": rope})).radians).all())


@pytest.mark.parametrize(
    ("keys", "warning"),
    [
        (
            {
                "rope_scaling": {
                    "rope_type": "linear",
                    "factor": 2.0,
                    "truncate": True,
                    "beta_fast": 1,
                }
            },
            "beta_fast, truncate",
        ),
        ({"rope_parameters": {"rope_type": "default", "factor": 2.0}}, "factor"),
        ({"rope_parameters": {"rope_theta": 1e6}, "rope_theta": 1e4}, "rope_theta is 1000000.0"),
        (
            {"rope_parameters": {"rope_theta": 1e4, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta: not read",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"model_type": "minimax", "rotary_dim": 8}, "rotary_dim"),
        ({"model_type": "minimax_m3_vl_text", "rotary_dim": 8}, "rotary_dim"),
        (
            {"model_type": "minimax_m3_vl_text", "rotary_dim": 8, "partial_rotary_factor": 0.25},
            "rotates 32 of 128",
        ),
        ({"rotary_dim": 8, "rope_scaling": YARN}, "rotary_dim"),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}, "rope_theta": 5.0}},
            "rope_parameters.rope_theta",
        ),
        (
            {
                "model_type": "qwen2_vl",
                "rope_scaling": {
                    "type": "mrope",
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            },
            "mrope_interleaved",
        ),
        (
            {"original_max_position_embeddings": 512, "rope_scaling": YARN},
            "original_max_position_embeddings",
        ),
    ],
)
def test_keys_that_are_not_read_are_named(keys, warning):
    with pytest.warns(UserWarning, match=warning):
        from_hf({**LLAMA, **keys})
    assert any(warning in text for text in explain({**LLAMA, **keys}).warnings)
