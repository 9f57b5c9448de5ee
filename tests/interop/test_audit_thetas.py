"""Ropes without a theta: the default of the layer type, that of another layer type, or an error.
Seen in runs of every engine.
"""

from __future__ import annotations

import copy

import pytest
from transformers import AutoConfig, AutoModel

from ropewalk.config.hf import from_hf
from ropewalk.engines.audit import audit
from ropewalk.tensor_frequencies import ladder

LAYERS = ["sliding_attention", "full_attention"]
SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 32,
    "vocab_size": 20,
    "pad_token_id": 0,
    "max_position_embeddings": 2048,
    "head_dim": 16,
    "layer_types": LAYERS,
    "sliding_window": 32,
}
DEFAULT = {"rope_type": "default"}
LINEAR = {"rope_type": "linear", "factor": 2.0}
TRAINED = "original_max_position_embeddings"
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED: 512,
}
GEMMA_4 = {
    **SIZES,
    "model_type": "gemma4_text",
    "global_head_dim": 16,
    "hidden_size_per_layer_input": 0,
}


@pytest.mark.parametrize(("full", "beside"), [(LINEAR, {}), (DEFAULT, {"rope_theta": 7e4})])
@pytest.mark.parametrize("model_type", ["gemma3_text", "olmo3", "modernbert"])
def test_a_rope_by_layer_type_without_a_theta_has_that_of_its_family(model_type, full, beside):
    # transformers writes into each
    ropes = {
        "full_attention": full,
        "sliding_attention": dict(DEFAULT),
    }
    config = {**SIZES, "model_type": model_type, "rope_parameters": ropes, **beside}
    rotary = _rotary(AutoModel.from_config(AutoConfig.for_model(**copy.deepcopy(config))))
    specs = from_hf(config, per_layer=True)
    for layer_type in LAYERS:
        theirs = getattr(rotary, f"{layer_type}_inv_freq").tolist()
        assert ladder(specs[layer_type]).radians.tolist() == pytest.approx(theirs, rel=1e-6), (
            layer_type
        )


def _rotary(model):
    return next(module for name, module in model.named_modules() if name.endswith("rotary_emb"))


@pytest.mark.parametrize("scaling", [LINEAR, LLAMA3])
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_which_engines_refuse_gemma_4_with_one_rope_and_no_theta(key, scaling):
    """SGLang does not read the rope, but its config class refuses llama3 without a theta."""
    without = audit({**GEMMA_4, key: scaling})
    refused = {finding.engine for finding in without.findings if finding.problem is not None}
    assert refused == {"hf", "vllm", "llama.cpp"} | ({"sglang"} if scaling is LLAMA3 else set())
    given = (
        {key: {**scaling, "rope_theta": 1e6}}
        if key == "rope_parameters"
        else {key: scaling, "rope_theta": 1e6}
    )
    assert all(finding.problem is None for finding in audit({**GEMMA_4, **given}).of("vllm"))


@pytest.mark.parametrize("missing", LAYERS)
def test_gemma_4_needs_a_theta_for_every_layer_type(missing):
    ropes = {
        name: {**DEFAULT, **({} if name == missing else {"rope_theta": 1e6})} for name in LAYERS
    }
    config = {**GEMMA_4, "rope_parameters": ropes}
    model = AutoConfig.for_model(**copy.deepcopy(config))
    with pytest.raises(KeyError, match="rope_theta"):
        AutoModel.from_config(model)
    found = audit(config)
    for engine in ("hf", "vllm"):
        assert all("rope_theta" in (finding.problem or "") for finding in found.of(engine))


@pytest.mark.parametrize(("full", "theta"), [({"rope_theta": 1e6}, 1e6), ({}, 1e4)])
def test_llama_cpp_takes_the_theta_of_full_layers_for_all_layers_of_olmo_3(full, theta):
    ropes = {
        "full_attention": {**DEFAULT, **full},
        "sliding_attention": {**DEFAULT, "rope_theta": 2e5},
    }
    for finding in audit({**SIZES, "model_type": "olmo3", "rope_parameters": ropes}).of(
        "llama.cpp"
    ):
        assert finding.radians[1] == pytest.approx(theta ** (-2 / 16))


@pytest.mark.parametrize(
    ("key", "length", "theta"),
    [
        ("rope_scaling", {}, 1e4),
        ("rope_scaling", {TRAINED: 512}, 5e5),
        ("rope_parameters", {}, 5e5),
    ],
)
def test_llama_cpp_has_no_defaults_for_a_llama3_that_the_class_of_its_converter_refuses(
    key, length, theta
):
    scaling = {name: value for name, value in LLAMA3.items() if name != TRAINED} | length
    config = {**SIZES, "model_type": "ernie4_5", "layer_types": None, key: scaling}
    (finding,) = audit(config).of("llama.cpp")
    assert finding.radians[1] == pytest.approx(theta ** (-2 / 16))
