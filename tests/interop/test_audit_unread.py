"""Configs that engines read otherwise than one would think: what runs of them showed, by numbers
worked out here.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropewalk.engines import ENGINES, audit
from ropewalk.errors import RopeError

SIZES = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "factor": 8.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
FACTORS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
GEMMA = {
    **SIZES,
    "model_type": "gemma3_text",
    "head_dim": 64,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window_pattern": 2,
}


def found(config, layer_type="full_attention", **served):
    """{engine: its finding} for one layer type, from the rules alone."""
    result = audit(config, records={}, **served)
    return {f.engine: f for f in result.findings if f.layer_type == layer_type}


def ladder(theta, size=64):
    return theta ** -(np.arange(0, size, 2) / size)


def problems(config, **served):
    """{engine: "runs", "refused" or "not known"}."""
    return {
        engine: (finding.problem or "runs").split(":")[0]
        for engine, finding in found(config, **served).items()
    }


def spelled(rope, version):
    """A config of Gemma 3 with this rope in its full layers, as transformers 4 or 5 spells it."""
    if version == 4:
        return {**GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": rope}
    sliding = {"rope_type": "default", "rope_theta": 1e4}
    ropes = {"full_attention": {"rope_theta": 1e6, **rope}, "sliding_attention": sliding}
    return {**GEMMA, "rope_parameters": ropes}


@pytest.mark.parametrize("version", [4, 5])
def test_sglang_scales_the_full_layers_of_gemma_3(version):
    """The rotary module of each layer is unscaled, but the model passes cos and sin of its own."""
    for engine in ("hf", "vllm", "sglang"):
        linear = found(spelled(LINEAR, version))[engine]
        np.testing.assert_allclose(linear.radians, ladder(1e6) / 8, rtol=1e-9, err_msg=engine)
        yarn = found(spelled({**YARN, "attention_factor": 1.25}, version))[engine]
        assert yarn.magnitude == 1.25
        assert yarn.radians[-1] == pytest.approx(ladder(1e6)[-1] / 4)
        sliding = found(spelled(LINEAR, version), "sliding_attention")[engine]
        np.testing.assert_allclose(sliding.radians, ladder(1e4), rtol=1e-9)


def test_sglang_makes_the_table_of_gemma_3_once():
    """So LongRoPE has its short factors at every length, and a band is not rounded."""
    short = [1 + 0.02 * pair for pair in range(32)]
    rope = {
        "rope_type": "longrope", "short_factor": short, "long_factor": [9.0] * 32,
        "original_max_position_embeddings": 2048,
    }  # fmt: skip
    for length in (2048, 8192):
        radians = found(spelled(rope, 4), length=length)["sglang"].radians
        np.testing.assert_allclose(radians, ladder(1e6) / short, rtol=1e-9)
    exact, rounded = (
        found(spelled({**YARN, "truncate": truncate}, 5))["sglang"].radians
        for truncate in (False, True)
    )
    low, high = (
        64 * math.log(2048 / (turns * 2 * math.pi)) / (2 * math.log(1e6)) for turns in (32, 1)
    )
    for radians, (start, end) in (
        (exact, (low, high)),
        (rounded, (math.floor(low), math.ceil(high))),
    ):
        ramp = np.clip((np.arange(32) - start) / (end - start), 0, 1)
        np.testing.assert_allclose(radians, ladder(1e6) * (1 - ramp + ramp / 4), rtol=1e-9)


def test_sglang_scales_no_sliding_layer_of_gemma_3_and_fails_with_a_part_of_the_head():
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {**LINEAR, "rope_theta": 1e4},
    }
    sliding = found({**GEMMA, "rope_parameters": ropes}, "sliding_attention")
    np.testing.assert_allclose(sliding["sglang"].radians, ladder(1e4), rtol=1e-9)
    np.testing.assert_allclose(sliding["hf"].radians, ladder(1e4) / 8, rtol=1e-9)
    assert problems(spelled({**LINEAR, "partial_rotary_factor": 0.5}, 5))["sglang"] == "refused"


def test_gpt_j_runs_in_four_engines():
    config = {
        "model_type": "gptj", "n_embd": 128, "n_head": 2, "n_layer": 2, "n_positions": 2048,
        "rotary_dim": 32,
    }  # fmt: skip
    results = found(config)
    for engine in ("hf", "sglang", "mlx-lm", "vllm"):
        np.testing.assert_allclose(results[engine].radians, ladder(1e4, 32), rtol=1e-9)
    assert results["llama.cpp"].problem.startswith("refused")


def test_what_engines_do_with_phi_3_of_type_yarn():
    """With factors it means LongRoPE; vLLM refuses the name, and mlx-lm drops the scaling."""
    rope = {"type": "yarn", **FACTORS}
    config = {**SIZES, "model_type": "phi3", "rope_theta": 1e4, "rope_scaling": rope}
    config["original_max_position_embeddings"] = 2048
    assert problems(config, length=8192) == {
        "hf": "runs", "vllm": "refused", "sglang": "runs", "mlx-lm": "runs",
        "llama.cpp": "not known",
    }  # fmt: skip
    results = found(config, length=8192)
    np.testing.assert_allclose(results["hf"].radians, ladder(1e4) / 2, rtol=1e-9)
    np.testing.assert_allclose(results["sglang"].radians, ladder(1e4) / 2, rtol=1e-9)
    np.testing.assert_allclose(results["mlx-lm"].radians, ladder(1e4), rtol=1e-9)
    assert results["mlx-lm"].magnitude == 1
    without = {**config, "rope_scaling": {**YARN, "type": "yarn"}}
    del without["rope_scaling"]["rope_type"]
    assert problems(without) == {
        "hf": "refused", "vllm": "refused", "sglang": "refused", "mlx-lm": "refused",
        "llama.cpp": "not known",
    }  # fmt: skip


LATENT = {
    "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 64, "kv_lora_rank": 32,
    "q_lora_rank": 32,
}  # fmt: skip


def test_which_longrope_factors_engines_use_for_minicpm_3():
    """vLLM chooses the factors by the length it is started for, SGLang by the last position, mlx-lm
    has the long ones.
    """
    long = [1 + 0.9 * pair for pair in range(16)]
    rope = {
        "rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": long,
        "original_max_position_embeddings": 2048,
    }  # fmt: skip
    config = {**SIZES, **LATENT, "model_type": "minicpm3", "rope_theta": 1e4, "rope_scaling": rope}
    plain, slow = ladder(1e4, 32), ladder(1e4, 32) / long
    for served, expected in (
        ({"length": 2048}, {"vllm": slow, "sglang": plain, "mlx-lm": slow, "hf": plain}),
        ({"length": 2048, "max_model_len": 2048}, {"vllm": plain, "sglang": plain, "mlx-lm": slow}),
        ({"length": 8192}, {"vllm": slow, "sglang": slow, "mlx-lm": slow, "hf": slow}),
    ):
        results = found(config, **served)
        for engine, radians in expected.items():
            np.testing.assert_allclose(results[engine].radians, radians, rtol=1e-9)
            assert results[engine].magnitude == pytest.approx(
                math.sqrt(1 + math.log(4) / math.log(2048))
            )
    unscaled = {key: value for key, value in config.items() if key != "rope_scaling"}
    assert problems(unscaled)["mlx-lm"] == "refused"


@pytest.mark.parametrize("key", ["rotary_pct", "rotary_emb_fraction"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "mistral"])
@pytest.mark.parametrize("scaling", [None, {**LINEAR, "factor": 4.0}])
def test_only_vllm_reads_rotary_pct_and_rotates_a_quarter_of_the_head(key, model_type, scaling):
    config = {**SIZES, "model_type": model_type, "rope_theta": 1e4, key: 0.25}
    results = found({**config, "rope_scaling": scaling})
    slower = 1 if scaling is None else 4
    for engine, finding in results.items():
        expected = ladder(1e4, 16 if engine == "vllm" else 64) / slower
        np.testing.assert_allclose(finding.radians, expected, rtol=1e-9, err_msg=engine)


ROPES = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}


@pytest.mark.parametrize(
    ("model_type", "transformers"),
    [("llama", "runs"), ("mistral", "runs"), ("qwen2", "refused"), ("qwen3", "refused"),
     ("granite", "runs"), ("smollm3", "refused")],
)  # fmt: skip
def test_which_engines_refuse_ropes_by_layer_type_in_a_family_without_layer_types(
    model_type, transformers
):
    config = {**SIZES, "model_type": model_type, "head_dim": 64, "rope_parameters": ROPES}
    verdicts = problems(config)
    assert verdicts["hf"] == transformers
    assert verdicts["vllm"] == verdicts["sglang"] == "refused"
    if transformers == "runs":
        for theta in ({}, {"rope_theta": 5e5}):
            radians = found({**config, **theta})["hf"].radians
            np.testing.assert_allclose(radians, ladder(theta.get("rope_theta", 1e4)), rtol=1e-9)


def test_ropes_by_layer_type_leave_a_family_without_layer_types_the_theta_of_its_class():
    config = {**SIZES, "model_type": "apertus", "head_dim": 64, "rope_parameters": ROPES}
    np.testing.assert_allclose(found(config)["hf"].radians, ladder(12e6), rtol=1e-9)


def test_which_engines_refuse_type_mrope_in_a_text_model():
    rope = {"type": "mrope", "mrope_section": [8, 12, 12]}
    config = {**SIZES, "model_type": "qwen2", "rope_theta": 1e6, "rope_scaling": rope}
    assert problems(config) == {
        "hf": "refused", "vllm": "runs", "sglang": "refused", "mlx-lm": "runs",
        "llama.cpp": "runs",
    }  # fmt: skip


LLAMA = {**SIZES, "model_type": "llama", "rope_theta": 1e4}


def test_which_engines_run_with_a_float_length_that_from_hf_refuses():
    inside = {**LLAMA, "rope_scaling": {**YARN, "original_max_position_embeddings": 2048.0}}
    assert problems(inside) == {
        "hf": "runs", "vllm": "runs", "sglang": "runs", "mlx-lm": "runs", "llama.cpp": "refused",
    }  # fmt: skip
    same = {**LLAMA, "rope_scaling": YARN}
    for engine in ("hf", "vllm", "sglang", "mlx-lm"):
        assert found(inside)[engine].radians == found(same)[engine].radians
    assert "must be an integer" in audit(inside).warnings[0]
    outside = problems({**LLAMA, "max_position_embeddings": 8192.0})
    assert outside == {**dict.fromkeys(ENGINES, "refused"), "mlx-lm": "runs"}


@pytest.mark.parametrize("version", [4, 5])
def test_which_of_type_and_rope_type_each_engine_reads(version):
    """transformers and SGLang read rope_type, mlx-lm reads type, llama.cpp reads type before v5,
    and vLLM refuses the config.
    """
    rope = {**YARN, "type": "linear"}
    config = {**SIZES, "model_type": "qwen3", "head_dim": 64, "rope_theta": 1e4}
    key = "rope_scaling" if version == 4 else "rope_parameters"
    if version == 5:
        del config["rope_theta"]
        rope["rope_theta"] = 1e4
    results = found({**config, key: rope})
    yarn = 0.1 * math.log(4) + 1
    assert results["vllm"].problem.startswith("refused: rope_type and type")
    magnitudes = {engine: f.magnitude for engine, f in results.items() if engine != "vllm"}
    assert magnitudes == pytest.approx(
        {"hf": yarn, "sglang": yarn, "mlx-lm": 1.0, "llama.cpp": 1.0 if version == 4 else yarn}
    )
    assert results["mlx-lm"].radians[0] == 0.25
    assert any("type is read" in rule.does for rule in results["mlx-lm"].rules)


def test_mlx_lm_and_llama_cpp_know_full_layers_of_gemma_3_by_a_period():
    """With layers of full attention elsewhere, these rotate as the others do."""
    ropes = {
        "full_attention": {**LINEAR, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    config = {**GEMMA, "sliding_window_pattern": 6, "rope_parameters": ropes}
    for engine, finding in found(config).items():
        is_sliding = engine in ("mlx-lm", "llama.cpp")
        expected = ladder(1e4) if is_sliding else ladder(1e6) / 8
        np.testing.assert_allclose(finding.radians, expected, rtol=1e-9, err_msg=engine)


@pytest.mark.parametrize("local", [{}, {"rope_local_base_freq": 2e4}])
def test_one_rope_for_all_layer_types_of_gemma_3_is_read_by_llama_cpp_alone(local):
    """Only llama.cpp reads it; the others have the defaults of the config class."""
    six = {
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "sliding_window_pattern": 6,
    }
    config = {**GEMMA, **six, **local, "rope_parameters": {**LINEAR, "rope_theta": 5e5}}
    for engine, finding in found(config).items():
        expected = ladder(5e5) / 8 if engine == "llama.cpp" else ladder(1e6)
        np.testing.assert_allclose(finding.radians, expected, rtol=1e-9, err_msg=engine)
    for engine, finding in found(config, "sliding_attention").items():
        theta = local.get("rope_local_base_freq", 1e4)
        np.testing.assert_allclose(finding.radians, ladder(theta), rtol=1e-9, err_msg=engine)


@pytest.mark.parametrize("value", ["x", 3, [1], True, 0.5])
def test_a_rope_that_is_no_object_is_warned_of_by_name(value):
    config = {**SIZES, "model_type": "llama", "rope_theta": 1e4, "rope_scaling": value}
    result = audit(config, records={})
    assert "rope_scaling" in result.warnings[0]
    assert {finding.problem.split(":")[0] for finding in result.findings} == {"refused"}


@pytest.mark.parametrize(
    "wrong", ["nan", "inf", "9" * 5000, [0, 0, 0], [1, -1, 0], 1e308, 2**70, {}]
)
@pytest.mark.parametrize("key", ["factor", "mrope_section", "rope_type", "beta_fast", "rope_theta"])
def test_a_wrong_value_in_a_rope_raises_nothing_but_a_rope_error(key, wrong):
    for model_type in ("llama", "qwen2_vl_text", "gpt_oss"):
        rope = {"rope_type": "yarn", "factor": "4.0", "original_max_position_embeddings": 16}
        config = {**SIZES, "model_type": model_type, "rope_scaling": {**rope, key: wrong}}
        try:
            audit({**config, "rope_theta": 1e4})
        except RopeError as error:
            assert error.field  # noqa: PT017


QWEN = {
    **SIZES,
    "model_type": "qwen3_5_text",
    "head_dim": 256,
    "full_attention_interval": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
}


def test_qwen_3_5_rotates_a_quarter_of_its_heads_with_sections_that_add_up_to_it():
    named = {"architectures": ["Qwen3_5ForConditionalGeneration"]}
    outer = {**named, "model_type": "qwen3_5", "text_config": QWEN}
    for config in (QWEN, outer):
        for engine, finding in found(config).items():
            if engine == "mlx-lm" and config is QWEN:
                assert finding.problem.startswith("refused")  # no model of that name
                continue
            assert finding.problem is None, engine
            assert finding.radians == pytest.approx(ladder(1e7), rel=1e-12)
            has_axes = engine in ("hf", "sglang", "llama.cpp") or (
                engine == "vllm" and config is outer
            )
            assert finding.axis_of_pair[:4] == ((0, 1, 2, 0) if has_axes else (0, 0, 0, 0))


def test_vllm_reads_the_keys_beside_the_rope_of_mimo():
    config = {**SIZES, "model_type": "mimo_v2_flash", "head_dim": 192, "swa_rope_theta": 1e4}
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 5e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    beside = {"rope_theta": 5e6, "partial_rotary_factor": 1 / 3}
    for keys, full, size in (({"rope_parameters": ropes}, 1e6, 192), (beside, 5e6, 64)):
        for layer_type, theta in (("full_attention", full), ("sliding_attention", 1e4)):
            radians = found({**config, **keys}, layer_type)["vllm"].radians
            rotating = [each for each in radians if each]
            assert rotating == pytest.approx(ladder(theta, size), rel=1e-12)


@pytest.mark.parametrize("value", ["dynamic", [LINEAR], 4.0])
def test_a_rope_that_is_no_object_is_an_error_unless_the_engine_reads_none(value):
    config = {**SIZES, "model_type": "gemma2", "head_dim": 64, "rope_theta": 1e4}
    written = {**config, "rope_scaling": value}
    assert problems(written) == {
        "hf": "refused", "vllm": "refused", "sglang": "refused", "mlx-lm": "runs",
        "llama.cpp": "refused",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [("factor", "4x"), ("factor", [4.0]), ("rope_theta", [1e4]), ("rope_theta", "10,000")],
)
def test_engines_that_read_a_rope_refuse_a_value_that_is_no_number(key, value):
    rope = {"rope_theta": 1e4, **LINEAR, key: value}
    read = problems({**SIZES, "model_type": "llama", "rope_parameters": rope})
    # mlx-lm's Llama does not read rope_parameters
    assert read["mlx-lm"] == "runs"
    assert {read[engine] for engine in ("hf", "vllm", "sglang")} == {"refused"}


def test_a_rope_under_the_name_of_no_layer_type_is_not_read():
    """Seen in runs: transformers and llama.cpp leave it alone, vLLM and SGLang take it for a value of
    the rope.
    """
    ropes = {name: {"rope_type": "default", "rope_theta": 5e4} for name in ("global", "local")}
    config = {**SIZES, "model_type": "qwen3", "head_dim": 64, "rope_parameters": ropes}
    found = {finding.engine: finding for finding in audit(config, records={}).findings}
    for engine in ("hf", "llama.cpp"):
        assert found[engine].radians[1] == pytest.approx(1e4 ** (-1 / 32))
    assert found["vllm"].problem.startswith("refused")
    assert found["sglang"].problem.startswith("refused")


def test_a_missing_family_is_refused_whatever_its_rope_is():
    rope = {"rope_type": "no such name", "factor": 2.0}
    config = {**SIZES, "model_type": "falcon", "rope_theta": 1e4, "rope_scaling": rope}
    assert problems(config)["mlx-lm"] == "refused"


@pytest.mark.parametrize(
    "wrong",
    [
        {"rope_scaling": {"rope_type": {"name": "yarn"}, "factor": 2.0}},
        {"rope_scaling": {"rope_type": "", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": math.nan}},
        {"rope_scaling": {"rope_type": "linear", "factor": {"value": 2.0}}},
        {"rope_scaling": {**YARN, "beta_slow": -1.0}},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": -1}},
        {"layer_types": "full_attention"},
        {"max_position_embeddings": True},
        {"num_attention_heads": None},
    ],
    ids=lambda wrong: str(next(iter(wrong.values())))[:40],
)
def test_transformers_refuses_what_is_no_rope_and_audit_says_so(wrong):
    """Each of these raises an error in transformers 5.22.2, or computes angles that are not a
    number.
    """
    config = {**SIZES, "model_type": "llama", "rope_theta": 1e4, **wrong}
    assert problems(config, length=4096)["hf"] == "refused"


def test_a_key_that_no_rule_is_about_is_not_known():
    config = {**SIZES, "model_type": "llama", "rope_theta": math.inf}
    assert set(problems(config).values()) == {"not known"}


def test_a_config_of_which_no_layer_rotates_has_findings():
    config = {**SIZES, "model_type": "smollm3", "no_rope_layers": [0, 0]}
    results = found(config)
    assert results["hf"].problem is None
    assert not any(results["hf"].radians)


def test_heads_of_zamba2_are_twice_as_wide_without_a_key():
    config = {**SIZES, "model_type": "zamba2", "use_mem_rope": True}
    np.testing.assert_allclose(found(config)["hf"].radians, ladder(1e4, 128), rtol=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"layer_types": 5},
        {"layer_types": [[1]]},
        {"architectures": [[1]]},
        {"head_dim": float("inf")},
        {"head_dim": float("nan")},
        {"num_hidden_layers": {}, "rope_scaling": [None]},
    ],
    ids=str,
)
def test_values_of_no_type_that_a_class_takes_raise_no_error_of_python(change):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, **change}
    found = audit({**config, "max_position_embeddings": 128})
    assert {f.engine for f in found.findings} == set(ENGINES)


@pytest.mark.parametrize("model_type", [["llama"], {"a": 1}])
def test_a_model_type_that_is_no_name_is_refused(model_type):
    text = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    config = {**text, "model_type": model_type, "max_position_embeddings": 128}
    with pytest.raises(RopeError, match="model_type: must be a name"):
        audit(config)


@pytest.mark.parametrize(
    "layer_types",
    [["chunked_attention"] * 4, ["chunked_attention"] * 3 + ["full_attention"]],
    ids=["chunked", "three chunked"],
)
@pytest.mark.parametrize("more", [{}, {"no_rope_layer_interval": 1}], ids=["", "interval"])
def test_an_engine_may_rotate_another_layer_type_where_none_rotates(layer_types, more):
    """The fourth layer, which mlx-lm does not rotate, may be the only one of its type."""
    config = {**SIZES, "model_type": "llama4_text", "rope_theta": 5e5, "head_dim": 64, **more}
    config |= {"num_hidden_layers": 4, "layer_types": layer_types, "no_rope_layers": [0] * 4}
    results = found(config, "chunked_attention")
    assert not any(results["hf"].radians)
    for engine in ("mlx-lm", "sglang"):
        assert results[engine].difference.pairs == 32
