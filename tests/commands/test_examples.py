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
def test_one_of_config_and_example_is_needed(command, capsys, tmp_path):
    for arguments in ((), (tmp_path, "--example", "Llama-3.1-8B")):
        code, out, err = command_line.call(capsys, command, *arguments)
        assert (code, out) == (2, "")
        assert "--example" in err


def test_an_unknown_example_lists_the_known_ones(capsys):
    code, _, err = command_line.call(capsys, "inspect", "--example", "llama-9")
    assert code == 2
    assert all(name.lower() in err for name in EXAMPLES)
