"""Text that came from a file is printed with escapes: a terminal obeys control characters."""

import json

import pytest

import command_line

EVIL = "llama\x1b[1A\x1b[2K\x1b]52;c;ZWNo\x1b\\\x9b31m\u202ellama\nAll 5 engines agree."
CONFIG = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
}


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["inspect", "--details"], ["audit"], ["audit", "--details"]]
)
@pytest.mark.parametrize("place", ["model_type", "layer_types", "key"])
def test_commands_print_no_control_character_of_a_config(capsys, tmp_path, arguments, place):
    config = {**CONFIG, "model_type": "llama"}
    if place == "layer_types":
        config |= {"layer_types": [EVIL], "rope_parameters": {EVIL: {"rope_theta": 1e4}}}
    elif place == "key":
        config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0, "finetuned": EVIL}
    else:
        config[place] = EVIL
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    _, out, err = command_line.call(capsys, arguments[0], path, *arguments[1:])
    for text in (out, err):
        assert not {"\x1b", "\x9b", "\u202e"} & set(text)
        assert "All 5 engines agree." not in text.splitlines()
    assert out or err
