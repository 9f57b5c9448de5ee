"""`--example`: the configs of well-known models, without a file."""

import json

import pytest

import command_line
from ropewalk.examples import EXAMPLES

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192},
}  # fmt: skip


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_an_example_gives_what_its_config_gives(command, capsys, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    of_file = command_line.call(capsys, command, path)
    assert of_file[0] == 0
    assert of_file == command_line.call(capsys, command, "--example", "llama-3.1-8b")


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_one_of_config_and_example_is_needed(command, capsys):
    code, out, err = command_line.call(capsys, command)
    assert (code, out) == (2, "")
    assert err.startswith("ropewalk: CONFIG: must be the path of a config.json")
    assert "--example" in err
    assert err.endswith("; got nothing\n")


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_config_and_example_exclude_each_other(command, capsys, tmp_path):
    code, out, err = command_line.call(capsys, command, tmp_path, "--example", "Llama-3.1-8B")
    assert (code, out) == (2, "")
    assert err.startswith("ropewalk: CONFIG: must not be given together with --example")
    assert str(tmp_path) in err
    assert "Llama-3.1-8B" in err


def test_an_argument_that_is_missing_is_called_nothing(capsys, tmp_path):
    assert command_line.call(capsys, "convert", tmp_path, "--dry-run")[2].endswith("; got nothing\n")


def test_an_unknown_example_lists_the_known_ones(capsys):
    code, _, err = command_line.call(capsys, "inspect", "--example", "llama-9")
    assert code == 2
    assert all(name.lower() in err for name in EXAMPLES)
