"""Keys of a rope that are null: absent for some engines, an error or a value for others. Seen in
runs of every engine.
"""

from __future__ import annotations

import copy

import pytest
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ropewalk.config.hf import from_hf
from ropewalk.engines.audit import audit
from ropewalk.tensor_frequencies import ladder

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 20,
    "max_position_embeddings": 2048,
    "rope_theta": 5e4,
}
TRAINED = "original_max_position_embeddings"
YARN = {"rope_type": "yarn", "factor": 4.0, TRAINED: 512}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 512,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "factor": 4.0,
    TRAINED: 512,
}
LATENT = {"model_type": "deepseek_v3", "qk_rope_head_dim": 16}
VISION = {"model_type": "qwen2_vl_text"}


def refusing(model, scaling, key):
    """The engines that do not start if a key of the scaling is null, in either spelling; all others
    compute something.
    """
    found = []
    for name in ("rope_scaling", "rope_parameters"):
        rope = {**scaling, key: None, **({"rope_theta": 5e4} if name == "rope_parameters" else {})}
        config = {**SIZES, "model_type": "llama", **model, name: rope}
        problems = {finding.engine: finding.problem or "" for finding in audit(config).findings}
        assert not any(problem.startswith("not known") for problem in problems.values())
        found.append({engine for engine, problem in problems.items() if problem})
    return found


@pytest.mark.parametrize(
    ("model", "scaling", "key", "expected"),
    [
        ({}, YARN, "attention_factor", set()),
        ({}, YARN, "truncate", set()),
        ({}, YARN, "mscale", {"mlx-lm"}),
        ({}, YARN, "mscale_all_dim", {"mlx-lm"}),
        ({}, {**YARN, "factor": 1.0}, "mscale", set()),
        ({}, YARN, "attn_factor", {"sglang"}),
        ({}, YARN, "beta_fast", {"vllm", "sglang", "mlx-lm"}),
        ({}, YARN, "beta_slow", {"vllm", "sglang", "mlx-lm"}),
        ({}, YARN, TRAINED, {"hf", "vllm", "sglang", "mlx-lm", "llama.cpp"}),
        ({}, LLAMA3, TRAINED, {"hf", "vllm", "sglang", "mlx-lm", "llama.cpp"}),
        (
            {"model_type": "qwen3", "head_dim": 16},
            LLAMA3,
            TRAINED,
            {"hf", "vllm", "sglang", "mlx-lm"},
        ),
        ({TRAINED: 512}, LONGROPE, TRAINED, {"mlx-lm"}),
        (
            {"model_type": "qwen3", "head_dim": 16, TRAINED: 512},
            LONGROPE,
            TRAINED,
            {"sglang", "mlx-lm"},
        ),
        ({}, {"rope_type": "default"}, "factor", {"sglang"}),
        (LATENT, YARN, "mscale", {"vllm", "sglang", "mlx-lm"}),
        (LATENT, YARN, "mscale_all_dim", {"vllm", "sglang", "mlx-lm"}),
        (LATENT, YARN, "beta_slow", {"vllm", "sglang", "mlx-lm"}),
        (LATENT, YARN, "attn_factor", {"sglang"}),
        (VISION, {**YARN, "mrope_section": [2, 3, 3]}, "mscale", {"sglang", "mlx-lm"}),
    ],
)
def test_which_engines_refuse_a_key_that_is_null(model, scaling, key, expected):
    v4, v5 = refusing(model, scaling, key)
    assert v4 == expected
    # most models of mlx-lm do not read rope_parameters at all
    assert v5 - {"mlx-lm"} == expected - {"mlx-lm"}


def test_a_null_truncate_is_false_in_transformers():
    config = {
        **SIZES,
        "model_type": "llama",
        "rope_parameters": {**YARN, "rope_theta": 5e4, "truncate": None},
    }
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](
        AutoConfig.for_model(**copy.deepcopy(config)), device=None
    )
    assert ladder(from_hf(config)).radians.tolist() == pytest.approx(theirs.tolist(), rel=1e-6)
    rounded = {**config, "rope_parameters": {**config["rope_parameters"], "truncate": True}}
    assert from_hf(config).scaling != from_hf(rounded).scaling


@pytest.mark.parametrize("truncate", [None, False])
def test_transformers_rounds_the_band_of_families_with_a_rope_for_each_layer_type(truncate):
    scaling = {**YARN, "truncate": truncate}
    config = {
        **SIZES,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "layer_types": ["full_attention"],
        "rope_scaling": scaling,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    theirs = model.model.rotary_emb.full_attention_inv_freq.tolist()
    (finding,) = (each for each in audit(config).of("hf") if each.layer_type == "full_attention")
    assert finding.radians == pytest.approx(theirs, rel=1e-6)


def test_a_null_in_a_scaling_that_transformers_does_not_read_is_no_error():
    scaling = {
        "type": "llama3",
        **{key: value for key, value in LLAMA3.items() if key != "rope_type"},
        TRAINED: None,
    }
    config = {
        **SIZES,
        "model_type": "gemma3_text",
        "head_dim": 16,
        "layer_types": ["full_attention"],
        "rope_scaling": scaling,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    theirs = model.model.rotary_emb.full_attention_inv_freq.tolist()
    (finding,) = (each for each in audit(config).of("hf") if each.layer_type == "full_attention")
    assert finding.radians == pytest.approx(theirs, rel=1e-6)
    assert all(each.problem is None for each in audit(config).of("sglang"))
    olmo = audit({**config, "model_type": "olmo3"})
    assert all(TRAINED in (each.problem or "") for each in olmo.of("sglang"))
    assert all(each.problem is None for each in olmo.of("hf"))


def test_a_null_fraction_is_an_error_in_the_rope_and_the_whole_head_beside_it_in_transformers():
    """The same config was run: 64 pairs of 128 dimensions, where half of the head is usual."""
    rope = {"rope_type": "default", "rope_theta": 5e4}
    config = {**SIZES, "model_type": "glm4", "head_dim": 16}
    inside = {**config, "rope_parameters": {**rope, "partial_rotary_factor": None}}
    beside = {**config, "partial_rotary_factor": None, "rope_parameters": rope}
    refused = "refused: partial_rotary_factor must be a number or absent, not null"
    for engine in ("hf", "vllm"):
        (finding,) = audit(inside).of(engine)
        assert finding.problem == refused
    assert audit(beside).of("sglang")[0].problem == refused
    (transformers,) = audit(beside).of("hf")
    assert (transformers.problem, len(transformers.radians)) == (None, 8)


@pytest.mark.parametrize(("length", "runs"), [(512, True), (600, False), (2048, False)])
def test_the_table_of_a_longrope_in_ministral_3_ends_at_the_trained_length(length, runs):
    """Seen in a run: SGLang's model passes the trained length on as the served one."""
    rope = {key: value for key, value in LONGROPE.items() if key != TRAINED}
    config = {
        **SIZES,
        "model_type": "ministral3",
        "head_dim": 16,
        TRAINED: 512,
        "rope_scaling": rope,
    }
    assert (audit(config, length=length).of("sglang")[0].problem is None) == runs
