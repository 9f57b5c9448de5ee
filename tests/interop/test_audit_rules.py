"""Rules of `audit` that only unusual configs reach: what was seen in runs of the engines, and transformers' own code."""

import copy
import warnings

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ropewalk.interop.engines.audit import audit
from ropewalk.interop.extend import extend

SIZES = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "num_hidden_layers": 1, "intermediate_size": 32,
    "vocab_size": 20, "head_dim": 16, "max_position_embeddings": 2048, "rope_theta": 5e4,
}  # fmt: skip
LINEAR = {"type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def one(config, engine, **served):
    (finding,) = (f for f in audit(config, **served).of(engine) if f.layer_type == "full_attention")
    return finding


@pytest.mark.parametrize(("rope", "slower"), [(LINEAR, 1.0), ({**LINEAR, "rope_type": "linear"}, 4.0)])
def test_gemma_3_reads_a_scaling_by_its_rope_type_alone(rope, slower):
    config = {**SIZES, "model_type": "gemma3_text", "rope_scaling": rope, "layer_types": ["full_attention"]}
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
    assert one(config, "hf").problem.startswith("no table")


@pytest.mark.parametrize(("engine", "scaling", "longest"), [
    ("vllm", None, 2048), ("vllm", {**LINEAR, "rope_type": "linear"}, 8192), ("vllm", YARN, 2048),
    ("sglang", None, 2048), ("sglang", {**LINEAR, "rope_type": "linear"}, 8192), ("sglang", YARN, 2048),
])  # fmt: skip
def test_servers_refuse_a_longer_limit_than_the_config_serves(engine, scaling, longest):
    config = {**SIZES, "model_type": "llama", "rope_scaling": scaling}
    assert one(config, engine, length=10, max_model_len=longest).problem is None
    assert "served length" in one(config, engine, length=10, max_model_len=longest + 1).problem
    assert one(config, "hf", length=10, max_model_len=longest + 1).problem is None


@pytest.mark.parametrize("model_type", ["olmo3", "minimax_m2"])
def test_the_converter_of_llama_cpp_has_its_own_default_of_theta(model_type):
    config = {key: value for key, value in SIZES.items() if key != "rope_theta"}
    config |= {"model_type": model_type, "rotary_dim": 16, "layer_types": ["full_attention"]}
    assert one(config, "llama.cpp").radians[1] == pytest.approx(1e4 ** (-1 / 8))
    assert one(config, "hf").radians[1] != pytest.approx(1e4 ** (-1 / 8))


GEMMA_3 = {**SIZES, "model_type": "gemma3_text", "layer_types": ["full_attention"]}


@pytest.mark.parametrize(("config", "multiplied", "refusing"), [
    ({**SIZES, "model_type": "llama"}, "vLLM and SGLang multiply", []),
    (GEMMA_3, "", ["VLLM_ALLOW_LONG_MAX_MODEL_LEN", "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"]),
    ({**GEMMA_3, "model_type": "olmo3"}, "vLLM multiplies", ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"]),
])  # fmt: skip
def test_extend_says_which_engines_multiply_the_served_length(config, multiplied, refusing):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same lines, about engines that differ
        first, *others = extend(dict(config), "linear", factor=4).notes
    assert first == "max_position_embeddings stays the trained length" + (f": {multiplied} it by factor" if multiplied else "")
    assert [note.split("set ")[1].split("=")[0] for note in others] == refusing
