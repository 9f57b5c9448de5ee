"""What an engine refuses although the rope is right: the doctor writes what it needs."""

import pytest

import ropewalk as rw
from ropewalk.caches import clear_caches
from ropewalk.engines import ENGINES, rules

QWEN3 = {
    "model_type": "qwen3",
    "head_dim": 128,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 40_960,
    "rope_theta": 1e6,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}


def test_a_served_length_that_the_scaling_covers_is_written():
    """vLLM starts for no more than the config's served length; YaRN was made for 131,072 tokens."""
    config = {**QWEN3, "rope_scaling": YARN}
    found = rw.doctor(config, engine="vllm", length=131_072)
    assert found.corrected["max_position_embeddings"] == 131_072
    assert (
        rw.from_hf(found.corrected).frequencies().radians
        == rw.from_hf(config).frequencies().radians
    )
    again = rw.doctor(found.corrected, engine="vllm", length=131_072)
    assert [each for each in again.findings if each.severity == "error"] == []


def test_a_length_that_no_scaling_covers_gets_one_that_does():
    found = rw.doctor(QWEN3, engine="vllm", length=131_072)
    assert found.corrected is not None
    scaling = rw.from_hf(found.corrected).scaling
    assert scaling.factor * scaling.original_length >= 131_072


def test_only_the_rules_of_the_engine_in_question_are_read(monkeypatch):
    read, release = [], rules._release
    monkeypatch.setattr(
        rules, "_release", lambda *given: read.append(given[0].stem) or release(*given)
    )
    clear_caches()
    rw.doctor({"model_type": "llama", "head_dim": 64, "rope_theta": 1e4}, engine="vllm")
    assert {name.rpartition("-")[0] for name in read} == {"transformers", "vllm"}
    assert list(ENGINES) == ["hf", "vllm", "sglang", "mlx-lm", "llama.cpp"]
    with pytest.raises(KeyError):
        ENGINES["another"]
