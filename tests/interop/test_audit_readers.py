"""What each engine makes of a config that leaves keys out, or has keys that the engine treats in
its own way: worked out by hand.

The defaults and refusals are those in the sources of the engines; runs of them showed the same.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropewalk.engines.audit import ENGINES, audit, in_one_line

#: heads of 16 dimensions
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "vocab_size": 20,
    "head_dim": 16,
    "max_position_embeddings": 16384,
}
LAYERS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LATENT = {
    "model_type": "deepseek_v3",
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 8,
    "rope_theta": 1e4,
    "first_k_dense_replace": 2,
}
MROPE = {
    "hidden_size": 512,
    "num_attention_heads": 4,
    "head_dim": 128,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
}
MROPE_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
    "mrope_section": [16, 24, 24],
}


def of(engine, layer_type="full_attention", **keys):
    """The finding of an engine for one layer type of a small model; a key that is None is left out."""
    config = {key: value for key, value in {**SIZES, **keys}.items() if value is not None}
    (finding,) = (each for each in audit(config).of(engine) if each.layer_type == layer_type)
    return finding


def ladder(theta, size=16):
    return theta ** -(np.arange(0, size, 2) / size)


def llama3(theta, length):
    """Llama 3's frequencies: those with more than 4 turns in the trained length stay, those below 1
    are divided by 8.
    """
    radians = ladder(theta)
    share = np.clip((length * radians / (2 * math.pi) - 1) / (4 - 1), 0, 1)
    return radians * (share + (1 - share) / 8)


def yarn(theta, length, factor):
    low, high = (
        16 * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in (32, 1)
    )
    low, high = max(math.floor(low), 0), min(math.ceil(high), 15)
    ramp = np.clip((np.arange(8) - low) / (high - low), 0, 1)
    return ladder(theta) * (1 - ramp + ramp / factor)


def m(factor):
    return 0.1 * math.log(factor) + 1


@pytest.mark.parametrize("engine", ["mlx-lm", "llama.cpp"])
@pytest.mark.parametrize("given", [None, 512])
def test_the_trained_length_of_llama_3_is_8192_where_it_is_missing(engine, given):
    rope = {**LLAMA3, **({} if given is None else {"original_max_position_embeddings": given})}
    finding = of(engine, model_type="llama", rope_theta=5e5, rope_scaling=rope)
    np.testing.assert_allclose(finding.radians, llama3(5e5, given or 8192), rtol=1e-9)
    # the served length, which transformers takes
    assert not np.allclose(llama3(5e5, 16384), llama3(5e5, 8192), rtol=1e-6)


def test_the_trained_length_of_yarn_is_4096_in_mlx_where_it_is_missing():
    finding = of(
        "mlx-lm",
        model_type="llama",
        rope_theta=1e4,
        rope_scaling={"rope_type": "yarn", "factor": 4.0},
    )
    np.testing.assert_allclose(finding.radians, yarn(1e4, 4096, 4.0), rtol=1e-9)
    assert not np.allclose(yarn(1e4, 4096, 4.0), yarn(1e4, 16384, 4.0), rtol=1e-6)


@pytest.mark.parametrize(
    ("engine", "model_type", "theta"),
    [
        ("mlx-lm", "cohere", 8e6),
        ("mlx-lm", "starcoder2", 1e5),
        ("mlx-lm", "mixtral", 1e6),
        ("mlx-lm", "gemma2", 1e4),
        ("llama.cpp", "gemma2", 1e4),
    ],
)
def test_engines_have_a_theta_of_their_own_where_it_is_missing(engine, model_type, theta):
    finding = of(engine, model_type=model_type)
    np.testing.assert_allclose(finding.radians, ladder(theta), rtol=1e-9)


def test_mlx_has_a_rope_of_its_own_for_gemma_4_without_rope_parameters():
    keys = {
        "model_type": "gemma4_text",
        "global_head_dim": 16,
        "rope_scaling": {"type": "linear", "factor": 4.0},
        **LAYERS,
    }
    full, sliding = (of("mlx-lm", each, **keys) for each in ("full_attention", "sliding_attention"))
    np.testing.assert_allclose(full.radians, [*ladder(1e6)[:2], *[0.0] * 6], rtol=1e-9)
    np.testing.assert_allclose(sliding.radians, ladder(1e4), rtol=1e-9)


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model_type": "exaone4", "rope_theta": 1e6}, "rope_scaling must be given"),
        (
            {
                "model_type": "exaone4",
                "rope_theta": 1e6,
                "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 512},
            },
            None,
        ),
        (
            {"model_type": "qwen2_moe", "rope_theta": 1e6, "rope_scaling": YARN},
            "only linear is taken",
        ),
        (
            {
                "model_type": "qwen2_moe",
                "rope_theta": 1e6,
                "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 512},
            },
            "only linear is taken",
        ),
        (
            {
                "model_type": "qwen2_moe",
                "rope_theta": 1e6,
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            None,
        ),
    ],
)
def test_which_scalings_models_of_mlx_accept(keys, reason):
    problem = audit({**SIZES, **keys}).of("mlx-lm")[-1].problem
    assert problem is None if reason is None else reason in problem


def test_the_keys_that_mlx_does_not_read_are_named():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    for keys in (
        {"attention_factor": 1.0},
        {"truncate": False},
        {"attention_factor": 1.0, "truncate": False},
    ):
        (rule,) = of(
            "mlx-lm", model_type="llama", rope_theta=1e4, rope_scaling={**rope, **keys}
        ).rules
        assert (rule.about, rule.does) == (", ".join(keys), "not read")


@pytest.mark.parametrize(
    ("model_type", "keys", "runs"),
    [
        ("hunyuan_v1_dense", {}, True),
        ("hunyuan_v1_dense", {"max_position_embeddings": 262_144}, True),
        ("hunyuan_v1_dense", {"max_position_embeddings": 16_384}, False),
        ("hunyuan_v1_dense", {"rope_theta": 2e4}, False),
        ("hunyuan_v1_dense", {"alpha": 50.0}, True),
        ("hunyuan_v1_moe", {"head_dim": 128, "hidden_size": 256, "num_attention_heads": 2}, True),
        ("hunyuan_v1_moe", {"head_dim": 128, "hidden_size": 128, "num_attention_heads": 2}, False),
        ("hunyuan_v1_moe", {"head_dim": 128, "alpha": 50.0}, False),
        ("hunyuan_v1_moe", {}, False),
    ],
)
def test_llama_cpp_converts_hunyuan_with_the_keys_of_its_checkpoints_alone(model_type, keys, runs):
    rope = {"type": "dynamic", "alpha": keys.get("alpha", 1000.0), "factor": 1.0}
    other = {key: value for key, value in keys.items() if key != "alpha"}
    given = {
        "model_type": model_type,
        "rope_theta": 1e4,
        "max_position_embeddings": 32_768,
        "rope_scaling": rope,
        **other,
    }
    problem = of("llama.cpp", **given).problem
    assert problem is None if runs else "released checkpoints" in problem


def test_llama_cpp_takes_1_for_a_missing_mscale_of_latent_attention():
    """And the betas are named as not read for all but Ministral 3."""
    rope = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 512}
    assert of("llama.cpp", **LATENT, rope_scaling=rope).magnitude == pytest.approx(m(40))
    other = {**rope, "beta_slow": 4.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
    for model_type, is_named in (("ministral3", False), ("llama", True)):
        rules = of("llama.cpp", model_type=model_type, rope_theta=1e4, rope_scaling=other).rules
        assert any(rule.about == "beta_fast, beta_slow" for rule in rules) == is_named, model_type


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize("engine", ["hf", "vllm", "llama.cpp"])
def test_phimoe_runs_with_longrope_and_is_refused_with_another_scaling(engine):
    mscales = {"short_mscale": 1.2, "long_mscale": 1.2}
    keys = {"model_type": "phimoe", "rope_theta": 1e4, "original_max_position_embeddings": 4096}
    (found,) = audit(
        {**SIZES, **keys, "rope_scaling": {**LONG, **mscales}}, length=16384, max_model_len=16384
    ).of(engine)
    # transformers' model takes the short factors, the others the long ones
    slower = 1 if engine == "hf" else 2
    np.testing.assert_allclose(found.radians, ladder(1e4) / slower, rtol=1e-9)
    refused = of(engine, **keys, rope_scaling={**YARN, "rope_type": "yarn"}).problem
    assert engine == "llama.cpp" or refused == "refused: phimoe does not accept rope_type yarn"


def test_ministral_3_takes_16384_for_its_served_length_in_sglang():
    rope = {**LONG, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
    sizes = {**SIZES, "model_type": "ministral3", "max_position_embeddings": 32768}
    for keys, magnitude in (
        ({}, math.sqrt(1 + math.log(16) / math.log(1024))),
        ({"short_mscale": 1.1, "long_mscale": 1.3}, 1.3),
    ):
        found = audit({**sizes, "rope_parameters": {**rope, **keys}}, length=4096).of("sglang")[0]
        assert found.magnitude == pytest.approx(magnitude)


def test_sglang_rotates_whole_heads_of_gemma_4_without_a_fraction():
    ropes = {
        "full_attention": {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    keys = {"model_type": "gemma4_text", "global_head_dim": 16, "rope_parameters": ropes, **LAYERS}
    np.testing.assert_allclose(of("sglang", **keys).radians, ladder(5e4), rtol=1e-9)
    ropes["full_attention"]["partial_rotary_factor"] = 0.5
    np.testing.assert_allclose(of("sglang", **keys).radians, ladder(5e4, 8), rtol=1e-9)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_axes_are_chunked_unless_the_config_says_that_they_are_interleaved(engine):
    rope = {"rope_type": "default", "mrope_section": [24, 20, 20]}
    keys = {**MROPE, "model_type": "qwen3_vl_text"}
    assert of(engine, **keys, rope_scaling=rope).axis_of_pair == (0,) * 24 + (1,) * 20 + (2,) * 20
    interleaved = of(engine, **keys, rope_scaling={**rope, "mrope_interleaved": True}).axis_of_pair
    assert (
        interleaved == (0, 1, 2) * 20 + (0,) * 4 == of("hf", **keys, rope_scaling=rope).axis_of_pair
    )


def test_yarn_with_axes_takes_no_mscale_in_sglang():
    keys = {**MROPE, "model_type": "qwen2_vl"}
    assert of("sglang", **keys, rope_scaling=MROPE_YARN).problem is None
    assert (
        "neither mscale" in of("sglang", **keys, rope_scaling={**MROPE_YARN, "mscale": 1.0}).problem
    )


def test_latent_attention_reads_no_attention_factor_in_vllm():
    rope = {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 0.8,
    }
    assert of("hf", **LATENT, rope_scaling=rope).magnitude == 0.8
    found = of("vllm", **LATENT, rope_scaling=rope)
    assert found.magnitude == pytest.approx(m(40))
    assert any(
        rule.does.startswith("mscale keys read, attention_factor not read") for rule in found.rules
    )
    assert of("vllm", **LATENT).agrees


def test_a_scaled_partial_rope_of_latent_attention_fails_in_transformers():
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    for keys, fails in (
        ({"rope_scaling": rope, "partial_rotary_factor": 0.5}, True),
        ({"rope_scaling": rope}, False),
    ):
        config = {**SIZES, **LATENT, **keys}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
        if fails:
            with pytest.raises(RuntimeError):
                model(torch.zeros(1, 3, dtype=torch.long))
        else:
            model(torch.zeros(1, 3, dtype=torch.long))
        assert (of("hf", **config).problem or "").startswith("refused") == fails


def test_only_olmo_3_has_a_theta_that_its_sliding_layers_do_not_read():
    gemma = {"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 1e4, **LAYERS}
    olmo = {"model_type": "olmo3", "rope_theta": 1e6, **LAYERS}
    for layer_type in LAYERS["layer_types"]:
        for engine in ("hf", "vllm"):
            found = of(engine, layer_type, **gemma)
            assert (found.problem, found.rules) == (None, ())
        rules = of("hf", layer_type, **olmo).rules
        assert any(rule.about == "rope_theta" for rule in rules) == (
            layer_type == "sliding_attention"
        )


def test_a_finding_in_words_has_the_reason_or_the_difference():
    new = audit({**SIZES, "model_type": "falcon_mamba", "rope_theta": 1e4})
    line = "vLLM: not known: how vLLM builds the rope of falcon_mamba"
    assert line in str(new)
    assert in_one_line(new.of("vllm")[0]) == line.replace(":", " at 16384 tokens:", 1)
    result = audit(
        {**MROPE, "model_type": "qwen2_vl", "rope_scaling": {**MROPE_YARN, "attention_factor": 1.0}}
    )
    text = str(result)
    assert "transformers: the reference, magnitude 1" in text
    vllm = result.of("vllm")[0].difference
    assert (
        "vLLM: 23 pairs differ, the first is pair 24, 0.1 rad off from distance "
        f"{vllm.until_tenth:,} ("
    ) in text
    # text tokens have one position on all axes, so no angle of theirs is off
    assert (
        f"mlx-lm: logits x {m(4) ** 2:.4g}, 48 pairs differ, the first is pair 16, never 0.1 rad "
        "off ("
    ) in text
    assert all(f"{engine.title}: " in text for engine in ENGINES.values())
