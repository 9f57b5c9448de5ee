"""Rules of `audit` that only unusual configs reach: what was seen in runs of the engines, and
transformers' own code.
"""

import copy
import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ropewalk.config.families import _shipped
from ropewalk.engines import ENGINES, audit
from ropewalk.engines.case import layer_types_of
from ropewalk.engines.extended import length_notes
from ropewalk.errors import RopeError
from ropewalk.interop.extend import extend

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 1,
    "intermediate_size": 32,
    "vocab_size": 20,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rope_theta": 5e4,
}
LINEAR = {"type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def one(config, engine, **served):
    (finding,) = (f for f in audit(config, **served).of(engine) if f.layer_type == "full_attention")
    return finding


@pytest.mark.parametrize("rope", [{"rope_type": "dynamic", "factor": 2.0}, YARN])
def test_a_clipped_scaling_is_compared_at_the_lengths_of_its_inner_scaling(rope):
    plain, clipped = (
        audit({"model_type": "llama", **SIZES, "rope_scaling": rope, "use_cope": cope})
        for cope in (False, True)
    )
    assert {finding.length for finding in clipped.findings} == {
        finding.length for finding in plain.findings
    }


@pytest.mark.parametrize(
    ("rope", "slower"), [(LINEAR, 1.0), ({**LINEAR, "rope_type": "linear"}, 4.0)]
)
def test_gemma_3_reads_the_name_of_a_scaling_only_under_rope_type(rope, slower):
    config = {
        **SIZES,
        "model_type": "gemma3_text",
        "rope_scaling": rope,
        "layer_types": ["full_attention"],
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    theirs = model.model.rotary_emb.full_attention_inv_freq.tolist()
    assert theirs[0] == 1.0 / slower
    assert one(config, "hf").radians == pytest.approx(theirs, rel=1e-6)
    assert (one(config, "vllm").problem is not None) == (slower == 1.0)


@pytest.mark.parametrize("model_type", ["llama", "ernie4_5"])
def test_a_scaled_partial_rope_fails_where_whole_heads_rotate(model_type):
    config = {**SIZES, "model_type": model_type, "rope_scaling": YARN, "partial_rotary_factor": 0.5}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 3, dtype=torch.long))
    assert one(config, "hf").problem.startswith("refused")


@pytest.mark.parametrize(
    ("engine", "scaling", "longest"),
    [
        ("vllm", None, 2048),
        ("vllm", {**LINEAR, "rope_type": "linear"}, 8192),
        ("vllm", YARN, 2048),
        ("sglang", None, 2048),
        ("sglang", {**LINEAR, "rope_type": "linear"}, 8192),
        ("sglang", YARN, 2048),
    ],
)
def test_servers_refuse_a_longer_limit_than_the_config_serves(engine, scaling, longest):
    config = {**SIZES, "model_type": "llama", "rope_scaling": scaling}
    assert one(config, engine, length=10, max_model_len=longest).problem is None
    assert "served length" in one(config, engine, length=10, max_model_len=longest + 1).problem
    assert one(config, "hf", length=10, max_model_len=longest + 1).problem is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("factor", "limit", "runs"),
    [(0.5, 2048, False), (0.5, 1024, True), (0.5, None, True), (-2.0, 10, False), (0.0, 10, False)],
)
def test_servers_multiply_the_served_length_by_the_factor_as_it_is_written(
    engine, factor, limit, runs
):
    """Phi passes no scaling in SGLang, and the factor still shortens the served length."""
    for model_type in ("llama", "phi") if runs or factor > 0 else ("llama",):
        rope = {"rope_type": "linear", "factor": factor}
        config = {**SIZES, "model_type": model_type, "rope_scaling": rope}
        found = one(config, engine, length=10, max_model_len=limit)
        assert (found.problem is None) == runs, found.problem


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_servers_take_the_served_length_of_the_class_where_a_config_has_none(engine):
    sizes = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"}
    text = {**sizes, "model_type": "llama"}
    llava = {"model_type": "llava", "architectures": ["LlavaForConditionalGeneration"]}
    for config in (text, {**llava, "text_config": text}):
        for limit, runs in ((2048, True), (2049, False)):
            found = one(config, engine, length=10, max_model_len=limit)
            assert (found.problem is None) == runs


@pytest.mark.parametrize("model_type", ["olmo3", "minimax_m2"])
def test_the_converter_of_llama_cpp_has_its_own_default_of_theta(model_type):
    config = {key: value for key, value in SIZES.items() if key != "rope_theta"}
    config |= {"model_type": model_type, "rotary_dim": 16, "layer_types": ["full_attention"]}
    assert one(config, "llama.cpp").radians[1] == pytest.approx(1e4 ** (-1 / 8))
    assert one(config, "hf").radians[1] != pytest.approx(1e4 ** (-1 / 8))


GEMMA_3 = {**SIZES, "model_type": "gemma3_text", "layer_types": ["full_attention"]}


@pytest.mark.parametrize(
    ("config", "multiplied", "refusing"),
    [
        ({**SIZES, "model_type": "llama"}, "vLLM and SGLang multiply", []),
        (
            GEMMA_3,
            "",
            ["VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"],
        ),
        ({**GEMMA_3, "model_type": "olmo3"}, "vLLM and SGLang multiply", []),
        (
            {
                **GEMMA_3,
                "model_type": "olmo3",
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e4}},
            },
            "vLLM multiplies",
            ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"],
        ),
    ],
)
def test_the_notes_say_which_engine_multiplies_the_served_length_and_which_refuse(
    config, multiplied, refusing
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same lines, about engines that differ
        extended = dict(config)
        assert extend(extended, "linear", factor=4).notes == (
            "max_position_embeddings stays the trained length",
        )
    others = list(length_notes(extended, 4 * config["max_position_embeddings"]))
    if multiplied:
        assert others.pop(0) == f"{multiplied} max_position_embeddings by factor"
    assert [note.split("set ")[1].split("=")[0] for note in others] == refusing


def test_what_transformers_can_load_is_what_its_own_list_says():
    assert ENGINES["hf"].loads(ENGINES) == set(CONFIG_MAPPING_NAMES)
    assert ENGINES["hf"].families >= set(_shipped()[0])
    # families without a row of facts have the standard keys
    assert ENGINES["hf"].families - set(_shipped()[0]) <= set(CONFIG_MAPPING_NAMES)
    found = audit({**SIZES, "model_type": "kimi_k2", "qk_rope_head_dim": 16})
    assert found.of("hf")[0].problem.startswith("refused: transformers has no code for kimi_k2")
    assert found.of("vllm")[0].agrees


LAYERS = {
    **SIZES,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 8,
}
SLIDING = {"rope_type": "default", "rope_theta": 1e4}


def test_a_trained_length_beside_ropes_by_layer_type_is_not_read():
    full = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4}
    config = {
        **LAYERS,
        "model_type": "olmo3",
        "original_max_position_embeddings": 512,
        "rope_parameters": {"full_attention": full, "sliding_attention": SLIDING},
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    assert one(config, "hf").radians == pytest.approx(
        model.model.rotary_emb.full_attention_inv_freq.tolist(), rel=1e-6
    )
    inside = {
        **config,
        "rope_parameters": {"full_attention": {**full, "original_max_position_embeddings": 512}},
    }
    assert one(inside, "hf").radians != one(config, "hf").radians


def test_gemma_4_needs_the_trained_length_in_its_rope():
    full = {
        "rope_type": "llama3",
        "rope_theta": 5e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    }
    ropes = {"full_attention": full, "sliding_attention": SLIDING}
    config = {
        **LAYERS,
        "model_type": "gemma4_text",
        "global_head_dim": 16,
        "rope_parameters": ropes,
    }
    with pytest.raises(KeyError, match="original_max_position_embeddings"):
        AutoConfig.for_model(**copy.deepcopy(config))
    for engine in ("hf", "vllm", "sglang"):
        assert all(
            "original_max_position_embeddings" in finding.problem
            for finding in audit(config).of(engine)
        ), engine


def test_a_partial_rope_whose_scaling_is_not_read_rotates_whole_heads():
    scaling = {"type": "linear", "factor": 4.0}
    config = {
        **LAYERS,
        "model_type": "olmo3",
        "rope_scaling": scaling,
        "partial_rotary_factor": 0.5,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    model(torch.zeros(1, 3, dtype=torch.long))
    assert one(config, "hf").radians == pytest.approx(
        model.model.rotary_emb.full_attention_inv_freq.tolist(), rel=1e-6
    )


def test_no_layer_type_runs_in_an_engine_that_refuses_another():
    config = {
        **LAYERS,
        "model_type": "gemma3_text",
        "rope_scaling": YARN,
        "partial_rotary_factor": 0.5,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**copy.deepcopy(config)))
    with pytest.raises(RuntimeError):
        model(torch.zeros(1, 3, dtype=torch.long))
    assert {finding.problem[:7] for finding in audit(config).of("hf")} == {"refused"}
    assert all(finding.radians == () for finding in audit(config).of("hf"))


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        (
            {"model_type": "phi3", "rope_scaling": {"rope_type": "default", "factor": 3.0}},
            "without original_max_position",
        ),
        (
            {
                "model_type": "phi3",
                "rope_scaling": {"rope_type": "default"},
                "original_max_position_embeddings": 512,
                "rope_theta": None,
            },
            "without rope_theta",
        ),
        ({"model_type": "nemotron", "head_dim": 32}, "hidden_size / num_attention_heads"),
    ],
)
def test_audit_names_why_llama_cpp_does_not_convert_or_load_a_config(keys, reason):
    """Seen in runs: the converter or the loader fails."""
    config = {key: value for key, value in {**SIZES, **keys}.items() if value is not None}
    assert reason in one(config, "llama.cpp").problem


def test_llama_cpp_reads_betas_of_ministral_3_and_not_of_llama():
    """Seen in a run of Ministral 3 with beta_slow 4: the frequencies are those of the config."""
    rope = {
        **YARN,
        "beta_slow": 4.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
        "rope_theta": 5e4,
    }
    for model_type, same in (("ministral3", True), ("llama", False)):
        config = {**SIZES, "model_type": model_type, "rope_parameters": rope}
        assert (one(config, "llama.cpp").radians == one(config, "hf").radians) == same, model_type


def test_llama_cpp_has_no_scaling_of_sliding_layers():
    """Seen in a run of Gemma 4 with linear scaling of its sliding layers."""
    full = {"rope_type": "proportional", "rope_theta": 5e4, "partial_rotary_factor": 0.25}
    ropes = {
        "full_attention": full,
        "sliding_attention": {**SLIDING, **LINEAR, "rope_type": "linear"},
    }
    config = {
        **LAYERS,
        "model_type": "gemma4_text",
        "global_head_dim": 16,
        "rope_parameters": ropes,
    }
    (finding,) = (
        each for each in audit(config).of("llama.cpp") if each.layer_type == "sliding_attention"
    )
    assert finding.radians[0] == 1.0


LINEAR_V5 = {"rope_type": "linear", "rope_theta": 5e4, "factor": 4.0}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("engine", "keys", "seen"),
    [
        (
            "vllm",
            {"model_type": "llama", "rope_parameters": {**LINEAR_V5, "factor": 4}},
            "write 2.0, not 2",
        ),
        (
            "sglang",
            {"model_type": "llama", "rope_parameters": {**LINEAR_V5, "factor": 4}},
            "write 2.0, not 2",
        ),
        (
            "vllm",
            {"model_type": "olmo2", "rope_parameters": {**LINEAR_V5, "factor": 4}},
            (5e4 ** (-1 / 8) / 4, 1.0),
        ),
        (
            "sglang",
            {"model_type": "granitemoe", "rope_parameters": LINEAR_V5},
            (5e4 ** (-1 / 8), 1.0),
        ),
        (
            "sglang",
            {"model_type": "exaone4", "head_dim": 32, "rope_parameters": LINEAR_V5},
            (1e6 ** (-1 / 8) / 4, 1.0),
        ),
        (
            "sglang",
            {"model_type": "cohere2", "head_dim": 32, "rope_parameters": LINEAR_V5},
            (5e4 ** (-1 / 8) / 4, 1.0),
        ),
        (
            "sglang",
            {"model_type": "gemma4_text", "global_head_dim": 16, "rope_scaling": LINEAR},
            (1e4 ** (-1 / 8), 1.0),
        ),
        ("sglang", {"model_type": "dots1", "rope_scaling": LINEAR}, (5e4 ** (-1 / 8) / 4, 1.0)),
        (
            "mlx-lm",
            {
                "model_type": "phi",
                "head_dim": 64,
                "rope_parameters": {**LINEAR_V5, "partial_rotary_factor": 0.5},
            },
            # heads of 16 dimensions, whatever head_dim says, of which 0.4 rotate
            (5e4 ** (-1 / 3), 1.0),
        ),
        (
            "mlx-lm",
            {"model_type": "llama", "rope_scaling": {**LONGROPE, "long_mscale": 1.4}},
            (5e4 ** (-1 / 8) / 2, (11 / 9) ** 0.5),
        ),
        ("llama.cpp", {"model_type": "helium"}, "does not convert helium"),
        ("llama.cpp", {"model_type": "bitnet"}, "does not convert bitnet"),
        (
            "llama.cpp",
            {
                "model_type": "cohere2",
                "rotary_pct": 1.0,
                "partial_rotary_factor": 0.5,
                "rope_scaling": LINEAR,
            },
            (5e4 ** (-1 / 8), 1.0),
        ),
        (
            "llama.cpp",
            {"model_type": "cohere2", "rotary_pct": 1.0, "head_dim": 32},
            "hidden_size / num_attention_heads",
        ),
        ("mlx-lm", {"model_type": "cohere2", "head_dim": 32}, "hidden_size / num_attention_heads"),
        ("mlx-lm", {"model_type": "helium", "head_dim": None}, "head_dim must be given"),
    ],
)
def test_audit_says_of_unusual_configs_what_runs_of_the_engines_showed(engine, keys, seen):
    """The second frequency and the magnitude that were read back, or why the engine did not start."""
    finding = audit({**SIZES, **keys}).of(engine)[-1]
    if isinstance(seen, str):
        assert seen in finding.problem
    else:
        assert (finding.radians[1], finding.magnitude) == pytest.approx(seen, rel=1e-6)


@pytest.mark.parametrize(("engine", "longest"), [("vllm", 8192), ("sglang", 8192)])
def test_a_factor_beside_an_unscaled_rope_multiplies_the_served_length(engine, longest):
    config = {
        **SIZES,
        "model_type": "llama",
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e4, "factor": 4.0},
    }
    assert one(config, engine, length=10, max_model_len=longest).problem is None
    assert one(config, engine, length=10, max_model_len=longest + 1).problem is not None


@pytest.mark.parametrize(("model_type", "seen"), [("olmoe", 2048), ("granite", 512)])
def test_which_trained_length_sglang_takes_if_the_rope_has_none(model_type, seen):
    """Seen in runs: OLMoE has the served length as trained length, Granite the one beside its rope."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e4}
    config = {**SIZES, "model_type": model_type, "rope_parameters": yarn}
    inside = {**config, "rope_parameters": {**yarn, "original_max_position_embeddings": seen}}
    beside = {**config, "original_max_position_embeddings": 512}
    assert one(beside, "sglang").radians == one(inside, "sglang").radians
    assert one(beside, "hf").radians == one({**inside, **beside}, "hf").radians


@pytest.mark.parametrize(("kind", "runs"), [("default", True), ("linear", False)])
def test_vllm_refuses_a_type_that_is_not_that_of_the_class(kind, runs):
    config = {**LAYERS, "model_type": "gemma3_text", "rope_scaling": {"type": kind, "factor": 2.0}}
    assert (one(config, "vllm").problem is None) == runs


def test_vllm_rotates_whole_heads_of_gpt_oss():
    config = {
        **SIZES,
        "model_type": "gpt_oss",
        "rope_scaling": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0},
    }
    part, whole = ({**config, "partial_rotary_factor": fraction} for fraction in (0.5, 1.0))
    assert audit(part).of("vllm")[0].radians == audit(whole).of("vllm")[0].radians


NARROW = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 512,
}


@pytest.mark.parametrize(
    ("engine", "keys", "runs"),
    [
        ("sglang", {"model_type": "hunyuan_v1_dense"}, False),
        ("sglang", {"model_type": "qwen3"}, False),
        ("sglang", {"model_type": "exaone4", "head_dim": 32}, False),
        ("sglang", {"model_type": "llama"}, True),
        ("sglang", {"model_type": "stablelm"}, True),
        ("mlx-lm", {"model_type": "llama"}, False),
        ("mlx-lm", {"model_type": "gemma3_text", "num_hidden_layers": 6}, False),
        # the only layer has a sliding window, and an unscaled rope
        ("mlx-lm", {"model_type": "gemma3_text", "num_hidden_layers": 1}, True),
        ("vllm", {"model_type": "qwen3"}, True),
    ],
)
def test_which_engines_fail_if_longrope_has_factors_for_only_the_rotated_pairs(engine, keys, runs):
    """Seen in runs: an error wherever the fraction of the head is not read and the factors are."""
    config = {**SIZES, "partial_rotary_factor": 0.5, "rope_scaling": NARROW, **keys}
    if "head_dim" in keys:
        config |= {"partial_rotary_factor": 0.25}
    # of layer types that the model has
    types = layer_types_of(config)
    findings = [each for each in audit(config).of(engine) if each.layer_type in types or not types]
    assert {finding.problem is None for finding in findings} == {runs}


@pytest.mark.parametrize(("name", "theta"), [("type", 1e4), ("rope_type", 5e6)])
def test_the_theta_of_qwen_3_vl_that_llama_cpp_uses_where_it_is_missing(name, theta):
    """Seen in runs: transformers 4.57 refuses a scaling named by `type`, and the converter then has
    no default.
    """
    config = {key: value for key, value in SIZES.items() if key != "rope_theta"}
    rope = {name: "linear", "factor": 4.0, "mrope_section": [4, 2, 2]}
    finding = audit({**config, "model_type": "qwen3_vl_text", "rope_scaling": rope}).of(
        "llama.cpp"
    )[0]
    assert finding.radians[1] == pytest.approx(theta ** (-1 / 8) / 4)


def test_llama_cpp_reads_the_trained_length_in_the_rope_of_phi_3():
    """Seen in a run: transformers reads the one beside the rope alone, and 4096 where there is
    none.
    """
    config = {
        **SIZES,
        "model_type": "phi3",
        "max_position_embeddings": 8192,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [2.0] * 8,
            "original_max_position_embeddings": 2048,
        },
    }
    found = {
        engine: one(config, engine, length=8192, max_model_len=8192).magnitude
        for engine in ("hf", "llama.cpp")
    }
    assert found == pytest.approx({"hf": (1 + 1 / 12) ** 0.5, "llama.cpp": (1 + 2 / 11) ** 0.5})


@pytest.mark.parametrize("model_type", ["gemma3_text", "gemma4_text"])
def test_a_key_beside_the_layer_types_changes_no_finding(model_type):
    ropes = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_theta": 1e4},
    }
    ropes["sliding_attention"]["rope_type"] = "default"
    config = {
        "model_type": model_type,
        "head_dim": 16,
        "global_head_dim": 16,
        "max_position_embeddings": 512,
    }
    stray = audit({**config, "rope_parameters": {**ropes, "rope_theta": 1e6}})
    assert stray.findings == audit({**config, "rope_parameters": ropes}).findings
    assert any("rope_theta: not read beside layer types" in text for text in stray.warnings)


def test_a_model_of_diffusers_is_refused():
    with pytest.raises(
        RopeError, match="_class_name: must not be in the config: none of these engines"
    ):
        audit({"_class_name": "FluxTransformer2DModel", "max_position_embeddings": 512})


def _read(engine, config, layer_type="full_attention"):
    found = audit(config, length=64, records={}).of(engine)
    return next(finding for finding in found if finding.layer_type == layer_type)


def test_mlx_reads_the_whole_config_of_a_text_model_and_not_its_text_config():
    keys = {"head_dim": 64, "hidden_size": 128, "num_attention_heads": 2}
    around = {"model_type": "cohere", "max_position_embeddings": 4096, **keys}
    inside = {**around, "rope_theta": 100_000.0}
    config = {**around, "rope_theta": 1_000.0, "text_config": inside}
    assert _read("mlx-lm", config).radians[1] == pytest.approx(1_000 ** (-1 / 32))
    assert _read("sglang", config).radians[1] == pytest.approx(1_000 ** (-1 / 32))
    assert _read("vllm", config).problem == (
        "refused: the text_config of a text model is an object without the keys that vLLM needs"
    )
    assert (_read("hf", config).problem or "").startswith("refused: the text_config")
    alone = {"model_type": "cohere", "text_config": inside}
    assert _read("mlx-lm", alone).problem == ("not known: the widths that the class has by default")
    needy = {**inside, "model_type": "qwen3"}
    assert _read("mlx-lm", {"model_type": "qwen3", "text_config": needy}).problem == (
        "refused: hidden_size must be given beside text_config"
    )


def test_llama_4_rotates_by_the_index_of_a_layer_in_mlx():
    needed = dict.fromkeys(ENGINES["mlx-lm"].needs["llama4"], 1)
    text = {
        **needed,
        "model_type": "llama4_text",
        "hidden_size": 128,
        "num_attention_heads": 2,
        "head_dim": 64,
        "rope_theta": 500_000.0,
        "rope_scaling": None,
        "max_position_embeddings": 4096,
        "num_hidden_layers": 4,
    }
    for layers, rotates in (([0, 0, 0, 0], True), ([0, 0, 0, 1], False), ([1, 1, 1, 0], True)):
        config = {"model_type": "llama4", "text_config": {**text, "no_rope_layers": layers}}
        finding = _read("mlx-lm", config)
        assert finding.problem is None
        assert any(finding.radians) is rotates
    # by layers that do not rotate in transformers the two differ
    found = _read(
        "mlx-lm", {"model_type": "llama4", "text_config": {**text, "no_rope_layers": [0] * 4}}
    )
    assert not found.agrees


def test_dbrx_has_its_theta_in_its_attention():
    config = {
        "model_type": "dbrx",
        "d_model": 64,
        "n_heads": 4,
        "n_layers": 1,
        "max_seq_len": 2048,
        "attn_config": {"rope_theta": 5e4},
    }
    assert one(config, "vllm").radians[1] == pytest.approx(5e4 ** (-1 / 8))


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang"])
def test_a_window_that_is_a_text_is_refused(engine):
    config = {"model_type": "mistral", **SIZES, "sliding_window": "4096"}
    with pytest.raises(Exception, match="sliding_window"):
        AutoConfig.for_model(**copy.deepcopy(config))
    assert one(config, engine).problem.startswith("refused")
    assert one({**config, "sliding_window": None}, engine).problem is None


@pytest.mark.parametrize(
    ("written", "magnitude"), [({}, 1.2772589), ({"attention_factor": 1.0}, 1.0)]
)
def test_nested_ropes_of_deepseek_v4_have_the_magnitude_of_their_factor(written, magnitude):
    main = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    yarn = {"factor": 16.0, "original_max_position_embeddings": 512, **written}
    config = {
        **SIZES,
        "model_type": "deepseek_v4",
        "head_dim": 64,
        "num_key_value_heads": 1,
        "layer_types": ["compressed_sparse_attention"],
        "rope_parameters": {"main": main, "compress": {**main, **yarn, "rope_type": "yarn"}},
    }
    findings = {each.layer_type: each for each in audit(config).of("hf")}
    assert findings["compress"].magnitude == pytest.approx(magnitude)


@pytest.mark.parametrize(
    ("engine", "keys", "says"),
    [
        ("sglang", {"model_type": "qwen3_next"}, "full_attention_interval"),
        ("llama.cpp", {"model_type": "falcon_h1", "lm_head_multiplier": 1.0}, "multipliers"),
        ("llama.cpp", {"model_type": "dots1", "scoring_func": "noaux_tc"}, "scoring_func"),
    ],
)
def test_keys_without_a_default_are_needed(engine, keys, says):
    names = {
        "qwen3_next": "Qwen3NextForCausalLM",
        "falcon_h1": "FalconH1ForCausalLM",
        "dots1": "Dots1ForCausalLM",
    }
    config = {**SIZES, **keys, "architectures": [names[keys["model_type"]]]}
    config["layer_types"] = ["full_attention"]
    finding = one(config, engine)
    assert finding.problem.startswith("refused")
    assert says in finding.problem


def test_every_second_layer_of_zaya_has_no_attention_in_sglang():
    config = {**SIZES, "model_type": "zaya", "num_hidden_layers": 2}
    config |= {"layer_types": ["hybrid", "hybrid_sliding"], "sliding_window": 64}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    config["rope_parameters"] = {"hybrid": rope, "hybrid_sliding": rope}
    findings = {each.layer_type: each for each in audit(config).of("sglang")}
    assert findings["hybrid"].radians
    assert not any(findings["hybrid_sliding"].radians)


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "gpt_oss", "rope_parameters": 5.0},
        # no layer rotates, and the served length is multiplied by an object
        {"model_type": "granitemoehybrid", "rope_parameters": {"factor": {}}},
    ],
)
def test_a_rope_or_a_factor_of_another_kind_is_no_error_of_python(keys):
    assert audit({**SIZES, **keys}, max_model_len=4096).findings


def test_a_layer_that_does_not_rotate_needs_no_notes_about_its_length():
    config = {**SIZES, "model_type": "exaone4", "layer_types": ["full_attention"]}
    assert length_notes({**config, "sliding_window": 64}, 8192) == ()


def test_a_rule_says_why_an_unscaled_layer_does_not_rotate():
    config = {**SIZES, "model_type": "smollm3", "num_hidden_layers": 4}
    finding = one({**config, "no_rope_layers": [0, 0, 0, 1]}, "llama.cpp")
    assert not any(finding.radians)
    assert [rule.about for rule in finding.rules] == ["no_rope_layers"]
