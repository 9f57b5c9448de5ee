"""What audit says of a config whose class an engine takes from elsewhere or does not have; and the
lists of classes that were read out of the engines.
"""

from __future__ import annotations

import json

import pytest

from ropewalk.engines.audit import ENGINES, audit
from ropewalk.engines.registries import FOLDER, GENERATION, registry_of

SIZES = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
}
WITH_REGISTRY = ("vllm", "sglang")


def found(engine, **keys):
    (finding,) = audit({**SIZES, "rope_theta": 1e4, **keys}, records={}).of(engine)
    return finding


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_a_class_that_neither_the_engine_nor_transformers_has_is_refused(engine):
    right = found(engine, model_type="llama", architectures=["LlamaForCausalLM"])
    assert right.problem is None
    unknown = found(engine, model_type="llama", architectures=["LamaForCausalLM"])
    assert unknown.problem.startswith("refused: neither")
    assert "LamaForCausalLM" in unknown.problem
    # an engine takes the first class that it has
    both = found(engine, model_type="llama", architectures=["LamaForCausalLM", "LlamaForCausalLM"])
    assert both.radians == right.radians
    as_text = found(engine, model_type="llama", architectures="LamaForCausalLM")
    assert as_text.problem == unknown.problem


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_code_of_the_checkpoint_may_have_a_class_that_the_engine_lacks(engine):
    own = found(
        engine,
        model_type="llama",
        architectures=["LamaForCausalLM"],
        auto_map={"AutoModelForCausalLM": "modeling_lama.LamaForCausalLM"},
    )
    assert own.problem.startswith("not known: neither")


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_the_rope_of_a_family_in_the_class_of_another_one_is_not_known(engine):
    other = found(engine, model_type="llama", architectures=["GPTJForCausalLM"])
    assert other.problem == "not known: the rope of llama in the class GPTJForCausalLM"
    borrowed = found(engine, model_type="llama", architectures=["HeliumForCausalLM"])
    assert (
        borrowed.problem == "not known: the rope of llama in transformers' class HeliumForCausalLM"
    )
    # DeepSeek's class has Kimi K2, which has none of its own
    assert (
        found(
            engine,
            model_type="kimi_k2",
            architectures=["DeepseekV3ForCausalLM"],
            moe_layer_freq=1,
            qk_rope_head_dim=16,
            qk_nope_head_dim=16,
            kv_lora_rank=8,
        ).problem
        is None
    )


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_a_class_of_transformers_computes_what_transformers_does(engine):
    keys = {"model_type": "cwm", "architectures": ["CwmForCausalLM"], "layer_types": None}
    scaling = {"rope_type": "linear", "factor": 4.0}
    rope = found(engine, **keys, rope_scaling=scaling)
    assert rope.problem is None
    assert rope.radians == found("hf", **keys, rope_scaling=scaling).radians
    assert any(rule.about == "model code" for rule in rope.rules)


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_a_class_of_transformers_that_an_engine_cannot_run_is_refused(engine):
    keys = {"model_type": "codegen", "architectures": ["CodeGenForCausalLM"], "rotary_dim": 8}
    assert found(engine, **keys).problem.startswith("refused")


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_classes_for_other_tasks_have_the_code_of_the_class_that_writes_text(engine):
    for name in ("Qwen3ForSequenceClassification", "Qwen3Model"):
        assert found(engine, model_type="qwen3", architectures=[name]).problem is None


@pytest.mark.parametrize("engine", WITH_REGISTRY)
def test_each_class_is_named_once(engine):
    version = ENGINES[engine].version
    data = json.loads((FOLDER / f"{engine}-{version}.json").read_text(encoding="utf-8"))
    assert (data["engine"], data["version"]) == (engine, version)
    names = [
        name
        for part in ("own", "transformers", "refused")
        for each in data[part].values()
        for name in each
    ]
    assert len(names) == len({*names}) > 400
    read = registry_of(engine, version)
    assert all(name.endswith(GENERATION) for name in (*read.transformers, *read.refused))
    assert registry_of(engine, "0.0") is None
