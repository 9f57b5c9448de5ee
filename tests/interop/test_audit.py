"""Each engine's numbers by hand: the disagreements that users ran into, from the formulas and not
from our own output.

tests/interop/test_engine_runs.py compares the same rules with what the engines computed.
"""

from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
from installed import config_of, needs_v5
from transformers import Gemma3TextConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from ropewalk import RopeError
from ropewalk.engines import ENGINES, REFERENCE, audit
from ropewalk.engines.difference import Rotation, compare
from ropewalk.engines.recorded import load

OTHERS = [name for name in ENGINES if name != REFERENCE]
BASE = {
    "model_type": "llama",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "head_dim": 128,
    "rope_theta": 1e6,
}
MINIMIND = {
    **BASE,
    "head_dim": 96,
    "max_position_embeddings": 32768,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 2048,
        "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0,
    },
}  # fmt: skip
PHI = {
    "model_type": "phi3",
    "hidden_size": 80,
    "num_attention_heads": 8,
    "rope_theta": 1e4,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0] * 5,
        "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0],
    },
}
DYNAMIC = {
    **BASE,
    "max_position_embeddings": 4096,
    "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
}
QWEN_VL = {
    "model_type": "qwen2_vl",
    "hidden_size": 512,
    "num_attention_heads": 4,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
}
QWEN_VL_YARN = {
    **QWEN_VL,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "mrope_section": [16, 24, 24],
    },
}
CONFIGS = {
    "minimind": MINIMIND,
    "phi": PHI,
    "dynamic": DYNAMIC,
    "qwen_vl": QWEN_VL,
    "qwen_vl_yarn": QWEN_VL_YARN,
}


def one(config, engine, **how):
    (finding,) = audit(config, **how).of(engine)
    return finding


def m(factor, weight=1.0):
    return 0.1 * weight * math.log(factor) + 1


def ladder(dim, theta):
    return theta ** -(np.arange(0, dim, 2) / dim)


def band(dim, theta, length, fast=32, slow=1):
    return tuple(
        dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (fast, slow)
    )


def yarn(dim, theta, factor, low, high):
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return ladder(dim, theta) * (1 - ramp + ramp / factor)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 3.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "mscale": 0.7,
            "mscale_all_dim": 1.0,
        },
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [3.0] * 8,
            "original_max_position_embeddings": 1024,
        },
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=lambda rope: rope["rope_type"],
)
@pytest.mark.parametrize("length", [1000, 5000])
def test_the_reference_values_are_those_of_transformers(rope, length):
    keys = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 4096}
    config = config_of("llama", **keys, rope_parameters={**rope, "rope_theta": 1e4})
    radians, magnitude = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, device=None, seq_len=length)
    finding = one(config, "hf", length=length)
    np.testing.assert_allclose(finding.radians, radians.double().numpy(), rtol=1e-6)
    assert finding.magnitude == pytest.approx(magnitude, rel=1e-12)


@needs_v5("has no rope_parameters by layer type")
def test_the_reference_does_not_read_truncate_beside_layer_types():
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 1e4,
        "truncate": False,
    }
    config = Gemma3TextConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=2048,
        num_hidden_layers=6,
        rope_parameters={
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    )
    radians, _ = ROPE_INIT_FUNCTIONS["yarn"](config, layer_type="full_attention")
    found = {f.engine: f for f in audit(config).findings if f.layer_type == "full_attention"}
    np.testing.assert_allclose(found["hf"].radians, radians.double().numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        found["vllm"].radians, yarn(32, 1e4, 4.0, *np.maximum(band(32, 1e4, 512), 0)), rtol=1e-9
    )
    assert found["vllm"].difference.first_pair is not None


@pytest.mark.parametrize("engine", ["sglang", "mlx-lm", "llama.cpp"])
def test_minimind_sets_attention_factor_1_and_these_engines_use_1_277(engine):
    assert one(MINIMIND, "hf").magnitude == 1.0
    finding = one(MINIMIND, engine)
    assert finding.magnitude == pytest.approx(1.2772588722239782)
    assert finding.difference.temperature == pytest.approx(1.2772588722239782**2)
    assert finding.difference.first_pair is None
    assert finding.difference.until_tenth is None
    assert finding.difference.score_worst == pytest.approx(1.2772588722239782**2 - 1)
    assert finding.rules


def test_vllm_reads_attention_factor():
    assert one(MINIMIND, "vllm").agrees


def test_findings_name_the_sources_of_their_rules_and_say_if_runs_agree():
    named = {
        engine: " ".join(r.reference for r in one(MINIMIND, engine).rules) for engine in OTHERS
    }
    assert "yarn.py" in named["sglang"]
    assert "rope_utils.py" in named["mlx-lm"]
    assert "llama.cpp#17945" in named["llama.cpp"]
    assert all(rule.read.startswith("2026-") for f in audit(MINIMIND).findings for rule in f.rules)
    for engine, release in ENGINES.items():
        finding, words = one(MINIMIND, engine), f"rule, {release.title} {release.version}"
        assert (finding.known, finding.version) == ("rule", load()[engine].version)
        assert finding.evidence == (
            f"{words}, read {release.read}; runs of this family and scaling agree"
        )
    assert "runs" not in audit({**MINIMIND, "model_type": "cwm"}).of("vllm")[0].evidence


@pytest.mark.parametrize(
    ("extra", "model_type", "expected"),
    [
        # factor 64 with 1.0 asked for runs with 1.4159, except in vLLM since 0.30
        (
            {"factor": 64.0, "attention_factor": 1.0},
            "llama",
            {"hf": 1.0, **dict.fromkeys(OTHERS, m(64)), "vllm": 1.0},
        ),
        # both keys 1 cancel for those who read them
        (
            {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
            "ministral3",
            {"hf": 1.0, "vllm": 1.0, "sglang": 1.0, "llama.cpp": 1.0},
        ),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, "llama", {"hf": 1.0, "llama.cpp": m(16)}),
        # llama.cpp takes mscale for 1 whatever it is
        (
            {"mscale": 0.5, "mscale_all_dim": 0.8, "llama_4_scaling_beta": 0.1},
            "ministral3",
            {"hf": m(16, 0.5) / m(16, 0.8), "llama.cpp": m(16) / m(16, 0.8)},
        ),
        # one key alone counts in mlx-lm only
        (
            {"mscale": 0.5},
            "llama",
            {"hf": m(16), "vllm": m(16), "sglang": m(16), "mlx-lm": m(16, 0.5), "llama.cpp": m(16)},
        ),
        # a key of SGLang alone multiplies
        (
            {"attn_factor": 0.5},
            "llama",
            {"hf": m(16), "vllm": m(16), "sglang": 0.5 * m(16), "mlx-lm": m(16)},
        ),
        ({}, "llama", dict.fromkeys(ENGINES, m(16))),
    ],
)
def test_the_magnitude_of_yarn_follows_the_keys_that_each_engine_reads(extra, model_type, expected):
    rope = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048, **extra}
    config = {
        **BASE,
        "model_type": model_type,
        "max_position_embeddings": 32768,
        "rope_scaling": rope,
    }
    for engine, magnitude in expected.items():
        finding = one(config, engine)
        assert finding.magnitude == pytest.approx(magnitude), engine
        same = magnitude == pytest.approx(expected["hf"])
        assert finding.agrees == same, engine
        assert same or finding.rules, engine


@pytest.mark.parametrize(("weight", "others"), [(0.707, 1.0), (1.0, 1.0)])
def test_all_engines_agree_on_the_yarn_of_deepseek_v3(weight, others):
    rope = {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": weight,
        "mscale_all_dim": weight,
    }
    config = {
        "model_type": "deepseek_v3",
        "qk_rope_head_dim": 64,
        "rope_theta": 1e4,
        "max_position_embeddings": 163840,
    }
    for finding in audit({**config, "rope_scaling": rope}).findings:
        assert finding.magnitude == pytest.approx(others), finding.engine
        assert finding.agrees, finding.engine


def test_mrope_with_yarn_gets_the_band_of_four_times_the_length_in_vllm():
    assert band(128, 1e6, 32768) == pytest.approx((23.6, 39.7), abs=0.05)
    assert band(128, 1e6, 4 * 32768) == pytest.approx((30.0, 46.1), abs=0.05)
    expected = {
        "hf": yarn(128, 1e6, 4.0, 23, 40),
        "vllm": yarn(128, 1e6, 4.0, 30, 47),
        "llama.cpp": yarn(128, 1e6, 4.0, 23, 40),
    }
    for engine, radians in expected.items():
        np.testing.assert_allclose(one(QWEN_VL_YARN, engine).radians, radians, rtol=1e-9)
    finding = one(QWEN_VL_YARN, "vllm")
    # pairs 0 ... 23 keep their pace in both; from 24 on only the reference slows
    assert finding.difference.first_pair == 24
    assert finding.difference.pairs == 46 - 23
    gap = np.abs(expected["hf"] - expected["vllm"]).max()
    assert finding.difference.until_tenth == next(p for p in range(10**6) if p * gap > 0.1)
    assert finding.difference.until_half_turn == next(p for p in range(10**6) if p * gap > math.pi)
    # as a text model the same config is read alike
    text = {**BASE, "max_position_embeddings": 131072}
    text["rope_scaling"] = {
        k: v for k, v in QWEN_VL_YARN["rope_scaling"].items() if k != "mrope_section"
    }
    assert one(text, "vllm").agrees


def test_mlx_rotates_every_pair_by_the_first_axis():
    for engine in ("hf", "vllm", "sglang", "llama.cpp"):
        assert one(QWEN_VL, engine).axis_of_pair == (0,) * 16 + (1,) * 24 + (2,) * 24
    finding = one(QWEN_VL, "mlx-lm")
    assert finding.axis_of_pair == (0,) * 64
    found = finding.difference
    assert (found.first_pair, found.pairs, found.tokens, found.temperature) == (
        16,
        48,
        "image",
        1.0,
    )
    fastest = ladder(128, 1e6)[16]
    assert found.until_tenth == next(p for p in range(10**6) if p * fastest > 0.1)
    worst = max(abs(np.exp(1j * w * d) - 1) for d in range(1, 33) for w in ladder(128, 1e6)[16:])
    assert found.score_worst == pytest.approx(worst)


def test_magnitudes_that_differ_by_rounding_scale_no_logit():
    found = compare(Rotation((1.0, 0.1), 1.0, (0, 0)), Rotation((1.0, 0.2), 1 + 1e-7, (0, 0)), 100)
    assert (found.first_pair, found.temperature) == (1, 1.0)


SHORT, LONG = (1.0,) * 5, (1.0, 2.0, 4.0, 8.0, 16.0)


@pytest.mark.parametrize(
    ("length", "max_model_len", "expected"),
    [
        (
            4096,
            131072,
            {"hf": SHORT, "vllm": LONG, "sglang": SHORT, "mlx-lm": LONG, "llama.cpp": LONG},
        ),
        (
            4096,
            4096,
            {"hf": SHORT, "vllm": SHORT, "sglang": SHORT, "mlx-lm": LONG, "llama.cpp": SHORT},
        ),
        # transformers counts tokens, SGLang asks for a position past the length: one token later
        (
            4097,
            131072,
            {"hf": LONG, "vllm": LONG, "sglang": SHORT, "mlx-lm": LONG, "llama.cpp": LONG},
        ),
        (4098, 131072, dict.fromkeys(ENGINES, LONG)),
    ],
)
def test_each_engine_chooses_the_factors_of_longrope_by_another_length(
    length, max_model_len, expected
):
    plain = ladder(10, 1e4)
    for engine, factors in expected.items():
        finding = one(PHI, engine, length=length, max_model_len=max_model_len)
        np.testing.assert_allclose(finding.radians, plain / factors, rtol=1e-12, err_msg=engine)
        assert finding.magnitude == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))
        assert finding.agrees == (factors == expected["hf"])
        assert finding.agrees or finding.difference.first_pair == 1
        assert any(rule.about == "length switching" for rule in finding.rules)


def test_without_a_length_engines_are_compared_at_the_trained_and_the_served_one():
    assert [f.length for f in audit(PHI).of("vllm")] == [4096, 131072]
    assert [f.length for f in audit(DYNAMIC).of("vllm")] == [4096, 16384]
    assert [f.length for f in audit(DYNAMIC, max_model_len=1000).of("hf")] == [1000]
    assert [f.length for f in audit(MINIMIND).of("vllm")] == [32768]


def test_magnitudes_that_a_longrope_config_gives_are_not_read_by_every_engine():
    asked = {**PHI, "rope_scaling": {**PHI["rope_scaling"], "attention_factor": 1.5}}
    by_length = math.sqrt(1 + math.log(32) / math.log(4096))
    assert one(asked, "hf", length=9000).magnitude == 1.5
    for engine in OTHERS:
        finding = one(asked, engine, length=9000, max_model_len=131072)
        assert finding.magnitude == pytest.approx(by_length)
        assert any(rule.about == "attention_factor" for rule in finding.rules)
    by_key = {
        **PHI,
        "rope_scaling": {**PHI["rope_scaling"], "short_mscale": 1.1, "long_mscale": 1.2},
    }
    for engine, magnitude in {
        "hf": by_length,
        "vllm": 1.2,
        "sglang": 1.2,
        "mlx-lm": by_length,
    }.items():
        finding = one(by_key, engine, length=9000, max_model_len=131072)
        assert finding.magnitude == pytest.approx(magnitude), engine
        if engine in ("vllm", "sglang"):
            assert any("1.2, from a key of its own" in str(rule) for rule in finding.rules), (
                finding.rules
            )


@pytest.mark.parametrize("length", [3000, 6000, 16384])
def test_dynamic_ntk_changes_with_the_length_only_in_transformers_and_mlx(length):
    def slowed(inner):
        return ladder(128, 1e6 * inner ** (128 / 126))

    expected = {
        "hf": slowed(4 * max(length, 4096) / 4096 - 3),
        "vllm": ladder(128, 1e6),
        "sglang": slowed(4 * 4 - 3),
        "mlx-lm": slowed(4 * max(length, 4096) / 4096 - 3),
        "llama.cpp": ladder(128, 1e6),
    }
    for engine, radians in expected.items():
        finding = one(DYNAMIC, engine, length=length)
        np.testing.assert_allclose(finding.radians, radians, rtol=1e-9, err_msg=engine)
        assert finding.agrees == np.allclose(radians, expected["hf"], rtol=1e-6, atol=0)


def test_vllm_starts_a_longrope_for_the_trained_length_by_default():
    plain = ladder(10, 1e4)
    np.testing.assert_allclose(one(PHI, "vllm", length=9000).radians, plain / SHORT, rtol=1e-12)
    np.testing.assert_allclose(
        one(PHI, "vllm", length=9000, max_model_len=131072).radians, plain / LONG, rtol=1e-12
    )


def test_a_partial_rope_that_transformers_ignores_is_obeyed_by_vllm():
    config = {**BASE, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25}
    finding = one(config, "vllm")
    np.testing.assert_allclose(finding.radians, ladder(32, 1e6), rtol=1e-9)
    assert (finding.difference.first_pair, finding.difference.pairs) == (1, 63)
    assert one(config, "llama.cpp").agrees


def test_a_band_that_is_not_rounded_is_rounded_by_two_engines():
    rope = {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    config = {
        **BASE,
        "head_dim": 64,
        "rope_theta": 150000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": rope,
    }
    low, high = band(64, 150000.0, 4096)
    exact, rounded = (
        yarn(64, 150000.0, 32.0, low, high),
        yarn(64, 150000.0, 32.0, math.floor(low), math.ceil(high)),
    )
    for engine in ENGINES:
        radians = rounded if engine in ("mlx-lm", "llama.cpp") else exact
        finding = one(config, engine)
        np.testing.assert_allclose(finding.radians, radians, rtol=1e-9, err_msg=engine)
        assert finding.agrees == (radians is exact)


def test_a_change_of_scores_is_the_norm_of_the_difference_of_two_rotations():
    config = {**BASE, "head_dim": 10, "rope_theta": 100.0, "max_position_embeddings": 200}
    config["rope_scaling"] = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 50,
        "attention_factor": 1.3,
        "truncate": False,
    }
    hf, mlx = (one(config, engine, length=40) for engine in ("hf", "mlx-lm"))

    def rotation(radians, size, distance):
        blocks = np.zeros((10, 10))
        for i, w in enumerate(radians):
            c, s = math.cos(w * distance), math.sin(w * distance)
            blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = size**2 * np.array([[c, -s], [s, c]])
        return blocks

    gaps = [
        rotation(mlx.radians, mlx.magnitude, d) - rotation(hf.radians, hf.magnitude, d)
        for d in range(1, 41)
    ]
    assert mlx.difference.score_worst == pytest.approx(max(np.linalg.norm(gap, 2) for gap in gaps))
    singular = [np.linalg.svd(gap, compute_uv=False) for gap in gaps]
    assert mlx.difference.score_mean == pytest.approx(np.mean(singular))
    at = mlx.difference.first_pair
    assert (mlx.difference.reference_radians, mlx.difference.engine_radians) == (
        hf.radians[at],
        mlx.radians[at],
    )


@pytest.mark.parametrize(
    "rope",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ],
    ids=lambda rope: "default" if rope is None else rope["rope_type"],
)
def test_all_engines_agree_on_these_scalings(rope):
    config = {**BASE, "max_position_embeddings": 32768, "rope_scaling": rope}
    assert audit(config).disagreements == ()
    assert [f.engine for f in audit(config).findings] == list(ENGINES)


def test_servers_do_not_slow_a_proportional_rope():
    rope = {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.5,
        "factor": 4.0,
        "rope_theta": 1e6,
    }
    config = {
        "model_type": "gemma4_text",
        "head_dim": 128,
        "global_head_dim": 128,
        "max_position_embeddings": 32768,
        "rope_parameters": {"full_attention": rope},
    }
    radians = np.where(np.arange(64) < 32, ladder(128, 1e6), 0)
    for engine in ("vllm", "sglang", "llama.cpp"):
        np.testing.assert_allclose(one(config, engine).radians, radians, err_msg=engine)
    for engine in ("hf", "mlx-lm"):
        np.testing.assert_allclose(one(config, engine).radians, radians / 4, err_msg=engine)


#: model types that transformers has code for and no rules file lists
UNKNOWN = ("falcon_mamba",)
ERNIE = {
    "model_type": "ernie4_5_vl_moe_text",
    "hidden_size": 256,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}


def test_engines_are_not_compared_with_a_guess_at_the_rope_of_an_unknown_family():
    """vLLM has code for ChatGLM: 10,000 times rope_ratio. transformers and this package have none."""
    config = {"model_type": "chatglm", "kv_channels": 128, "rope_ratio": 500, "seq_length": 4096}
    result = audit(config, length=4096)
    (vllm,) = result.of("vllm")
    assert (vllm.problem, vllm.difference) == (None, None)
    assert vllm.radians[1] == pytest.approx(5e6 ** (-2 / 64))
    assert result.of("hf")[0].problem is not None


@pytest.mark.parametrize(
    ("config", "unknown"),
    [
        (ERNIE, [name for name in OTHERS if name not in ("mlx-lm", "vllm")]),
        *(({**MINIMIND, "model_type": name}, list(ENGINES)) for name in UNKNOWN),
    ],
    ids=["ernie", *UNKNOWN],
)
def test_what_was_not_read_is_not_known(config, unknown):
    result = audit(config)
    problems = [f for f in result.findings if f.problem and not f.problem.startswith("refused")]
    assert [f.engine for f in problems] == unknown
    for finding in problems:
        assert finding.problem.startswith("not known")
        assert (finding.known, finding.rules) == ("not known", ())
        assert (finding.radians, finding.magnitude, finding.difference, finding.agrees) == (
            (),
            None,
            None,
            False,
        )
        assert finding not in result.disagreements


@pytest.mark.parametrize("name", ["new", "internlm2", "orion", "baichuan"])
def test_a_model_type_that_an_engine_has_no_code_for_is_refused(name):
    """transformers' own list says which model types it has code for; mlx-lm has one for InternLM2."""
    assert name not in CONFIG_MAPPING_NAMES
    found = {
        finding.engine: finding for finding in audit({**MINIMIND, "model_type": name}).findings
    }
    for engine in ("hf", "vllm", "sglang"):
        assert found[engine].problem.startswith("refused: ")
        assert "trust_remote_code" in found[engine].problem
    has_no_model = "mlx-lm has no model" in (found["mlx-lm"].problem or "")
    assert has_no_model == (name != "internlm2")


def test_what_a_checkpoints_own_code_computes_is_not_known():
    own_code = {"auto_map": {"AutoModelForCausalLM": "modeling_new.NewForCausalLM"}}
    found = audit({**MINIMIND, "model_type": "new", **own_code})
    for engine in ("hf", "vllm", "sglang"):
        assert found.of(engine)[0].problem.startswith("not known: ")
    assert found.of("mlx-lm")[0].problem.startswith("refused: ")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_result_is_plain_data_and_the_config_is_left_alone(name):
    config = copy.deepcopy(CONFIGS[name])
    result = audit(config)
    assert config == CONFIGS[name]
    data = json.loads(json.dumps(result.as_dict()))
    assert data["reference"] == REFERENCE
    assert {finding["engine"] for finding in data["findings"]} == set(ENGINES)
    assert all(rule["reference"] and rule["read"] for f in data["findings"] for rule in f["rules"])
    text = str(result)
    assert all(engine.title in text for engine in ENGINES.values())
    assert all(rule.does in text for f in result.findings for rule in f.rules)


def test_audit_reads_a_file_and_warns_of_keys_that_are_not_read(tmp_path):
    rope = {**MINIMIND["rope_scaling"], "finetuned": True}
    (tmp_path / "config.json").write_text(json.dumps({**MINIMIND, "rope_scaling": rope}))
    result = audit(tmp_path)
    assert one(tmp_path / "config.json", "sglang").magnitude == pytest.approx(m(16))
    assert any("finetuned" in text for text in result.warnings)
    assert "warning: finetuned" in str(result)


def test_without_a_served_length_it_is_the_trained_length_times_the_factor():
    rope = MINIMIND["rope_scaling"]
    assert audit({**BASE, "rope_scaling": rope}).max_model_len == 32768


def test_a_config_without_a_rotated_layer_has_no_angles():
    found = audit({**MINIMIND, "layer_types": ["linear_attention"]})
    assert [(f.problem, f.radians) for f in found.of("hf")] == [(None, ())]
    assert all(f.problem.startswith("not known: whether") for f in found.of("vllm"))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: audit(BASE), "max_model_len"),
        (lambda: audit(MINIMIND, length=0), "length"),
        (lambda: audit(MINIMIND, max_model_len=0), "max_model_len"),
        (lambda: audit(MINIMIND).of("tgi"), "engine"),
    ],
)
def test_what_cannot_be_audited_is_refused(call, field):
    with pytest.raises(RopeError) as error:
        call()
    assert error.value.field == field
