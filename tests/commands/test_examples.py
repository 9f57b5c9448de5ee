"""`--example`: the configs of well-known models, without a file."""

import json

import pytest

import command_line
from ropewalk.config.examples import EXAMPLES

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_an_example_prints_what_its_config_file_prints(command, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    of_file = command_line.call(capsys, command, path)
    assert of_file[0] == 0
    assert of_file == command_line.call(capsys, command, "--example", "llama-3.1-8b")


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_one_of_config_and_example_is_needed(command, capsys):
    code, out, err = command_line.call(capsys, command)
    assert (code, out) == (2, "")
    assert err.startswith("ropewalk: CONFIG: must be a config.json, a model folder, a GGUF file")
    assert "--example" in err
    assert err.endswith("; got nothing\n")


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_config_and_example_exclude_each_other(command, capsys, tmp_path):
    code, out, err = command_line.call(capsys, command, tmp_path, "--example", "Llama-3.1-8B")
    assert (code, out) == (2, "")
    assert err.startswith("ropewalk: CONFIG: must not be given together with --example")
    assert str(tmp_path) in err
    assert "Llama-3.1-8B" in err


def test_the_error_of_a_missing_argument_ends_with_got_nothing(capsys, tmp_path):
    assert command_line.call(capsys, "convert", tmp_path, "--dry-run")[2].endswith(
        "; got nothing\n"
    )


def test_an_unknown_example_lists_the_known_ones(capsys):
    code, _, err = command_line.call(capsys, "inspect", "--example", "Llama-9")
    assert code == 2
    assert all(name in err for name in EXAMPLES)
    assert err.startswith("ropewalk: --example: must be one of ")
    assert err.endswith("; got 'Llama-9'\n")


#: model -> (head_dim, theta, served length), as its card says
CARDS = {
    "Llama-3.1-8B": (128, 500_000, 131_072),
    "SmolLM2-135M": (64, 100_000, 8192),
    "Qwen3-8B": (128, 1_000_000, 40_960),
    "Qwen2-VL-7B": (128, 1_000_000, 32_768),
    "Gemma-3-27B": (128, 1_000_000, 131_072),
    "DeepSeek-V3": (64, 10_000, 163_840),
    "gpt-oss-20b": (64, 150_000, 131_072),
    "Phi-3-vision-128k": (96, 10_000, 131_072),
    "MiniMind-3": (96, 1_000_000, 32_768),
    "RoFormer-base": (64, 10_000, 1536),
}


def test_examples_are_the_models_of_their_names():
    assert CARDS.keys() == EXAMPLES.keys()
    for name, (head_dim, theta, served) in CARDS.items():
        config = EXAMPLES[name]
        width = (
            config.get("qk_rope_head_dim")
            or config.get("head_dim")
            or config["hidden_size"] / config["num_attention_heads"]
        )
        assert (width, config.get("rope_theta", 10_000), config["max_position_embeddings"]) == (
            head_dim,
            theta,
            served,
        ), name


def test_the_factors_of_examples_fit_their_lengths():
    """YaRN and its like serve `factor` trained lengths, Llama 3.1 twice as many; Phi-3's factors
    never fall from pair to pair.
    """
    for name, times in (("Llama-3.1-8B", 2), ("DeepSeek-V3", 1), ("gpt-oss-20b", 1)):
        scaling = EXAMPLES[name]["rope_scaling"]
        assert (
            times * scaling["factor"] * scaling["original_max_position_embeddings"]
            == CARDS[name][2]
        )
    assert (
        EXAMPLES["Gemma-3-27B"]["rope_scaling"]["factor"],
        EXAMPLES["Gemma-3-27B"]["sliding_window"],
    ) == (8, 1024)
    phi = EXAMPLES["Phi-3-vision-128k"]
    assert phi["original_max_position_embeddings"] == 4096
    for factors in (phi["rope_scaling"]["short_factor"], phi["rope_scaling"]["long_factor"]):
        assert len(factors) == 48
        assert factors == sorted(factors)
        assert factors[0] >= 1
    assert (phi["rope_scaling"]["short_factor"][-1], phi["rope_scaling"]["long_factor"][-1]) == (
        3.05,
        64.81,
    )
    assert sum(EXAMPLES["Qwen2-VL-7B"]["rope_scaling"]["mrope_section"]) == 64
