"""`ropewalk inspect`: values with their sources, reach, precision, memory and advice, as tables and
as JSON.
"""

import json
import math
import re

import pytest

import command_line
from ropewalk.config.examples import EXAMPLES
from ropewalk_cli.commands import inspect as inspect_command
from ropewalk_lab import analysis

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
GEMMA = {
    "model_type": "gemma3_text",
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "sliding_window": 512,
}


def call(capsys, *args):
    return command_line.call(capsys, "inspect", *args)


@pytest.fixture
def write(tmp_path):
    def at(config, name="config.json"):
        (tmp_path / name).write_text(config if isinstance(config, str) else json.dumps(config))
        return tmp_path / name

    return at


def report(capsys, *args):
    code, out, err = call(capsys, *args, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_has_every_value_with_its_source(capsys, write):
    values = report(capsys, write(LLAMA))["layers"]["full_attention"]["values"]
    assert values["theta"] == {"value": 500_000.0, "source": "config.rope_theta"}
    assert values["factor"] == {"value": 8.0, "source": "rope_scaling.factor"}
    assert values["head_dim"] == {"value": 128, "source": "hidden_size / num_attention_heads"}


def test_lengths_bands_and_wavelengths_of_llama_3_are_those_of_its_formula(capsys, write):
    layer = report(capsys, write(LLAMA))["layers"]["full_attention"]
    summary = layer["summary"]
    assert (summary["trained"], summary["served"]) == (8192, 131_072)
    waves = [2 * math.pi * 500_000 ** (i / 64) for i in range(64)]
    assert summary["critical_dimension"] == 2 * sum(w <= 8192 for w in waves)
    assert summary["pairs_below_one_turn_in_training"] == sum(w > 8192 for w in waves)
    assert summary["bands"] == {
        "kept": sum(w < 2048 for w in waves),
        "blended": sum(2048 <= w <= 8192 for w in waves),
        "interpolated": sum(w > 8192 for w in waves),
    }
    assert summary["longest_wavelength"] == pytest.approx(8 * waves[-1])
    assert [pair["wavelength"] for pair in layer["pairs"]] == pytest.approx(waves)
    assert layer["pairs"][0]["turns_in_training"] == pytest.approx(8192 / (2 * math.pi))
    assert layer["pairs"][-1]["turns_served"] == pytest.approx(131_072 / (8 * waves[-1]))
    # slowed by 8 but served at 16 times the trained length
    assert layer["pairs"][-1]["new_angles"] is True
    assert layer["pairs"][0]["new_angles"] is False


def test_json_has_the_errors_the_memory_and_the_advice_of_llama_3(capsys, write):
    layer = report(capsys, write(LLAMA))["layers"]["full_attention"]
    assert list(layer["precision"]) == list(analysis.COS_SIN_METHODS)
    assert layer["precision"]["hf_frequencies"]["error"] < 4e-8
    assert layer["precision"]["hf"]["error"] > 2**-9
    assert layer["memory_bytes"]["full"] == 131_072 * 64 * 2 * 4 + 64 * 8
    assert list(layer["memory_bytes"]) == ["auto", "full", "two-level", "none"]
    assert {"stretched_too_little", "float32_angles"} <= {each["name"] for each in layer["advice"]}


def test_given_trained_and_served_lengths_replace_those_of_the_config(capsys, write):
    summary = report(capsys, write(LLAMA), "--trained", 131_072, "--served", 1000)["layers"][
        "full_attention"
    ]["summary"]
    assert (summary["trained"], summary["served"], summary["trained_from"]) == (
        131_072,
        1000,
        "given",
    )
    assert summary["pairs_with_new_angles"] == 0


def test_every_layer_type_is_shown(capsys, write):
    path = write(GEMMA)
    layers = report(capsys, path)["layers"]
    assert layers["full_attention"]["values"]["theta"]["value"] == 1e6
    assert layers["sliding_attention"]["values"]["theta"]["value"] == 1e4
    assert layers["sliding_attention"]["summary"]["window"] == 512
    code, out, _ = call(capsys, path, "--details")
    assert code == 0
    for word in ("full_attention", "sliding_attention", "rope_local_base_freq", "linear", "Advice"):
        assert word in out


def test_a_verdict_comes_first_then_one_table(capsys, write):
    out = call(capsys, write(LLAMA))[1].splitlines()
    assert out[0].startswith(
        "llama, full_attention: with llama3, 29 of 64 pairs reach angles that did not occur in "
        "training. "
    )
    assert out[0].endswith("otherwise serve fewer tokens.")
    assert sum(set(line) == {"-", " "} for line in out) == 1
    assert out[-1].startswith("--details shows")
    lines = out[out.index("") - 12 : out.index("")]
    cells = dict(re.split(" {2,}", line) for line in lines if re.search(r"\S {2,}\S", line))
    assert cells["scaling"] == "llama3, factor 8"
    assert cells["trained length (tokens)"] == "8,192"
    assert cells["served length (tokens)"] == "131,072"
    # 131,072 positions x 64 pairs x (cos, sin) x 4 bytes, and the 8-byte steps of the phases
    assert (
        cells["memory of cos and sin, one full table (bytes)"]
        == f"{131_072 * 64 * 2 * 4 + 64 * 8:,}"
    )
    assert "attention window (tokens)" not in cells


def test_every_layer_type_has_a_verdict_and_a_column(capsys, write):
    out = call(capsys, write(GEMMA))[1].splitlines()
    assert [line.split(":")[0] for line in out[:2]] == [
        "gemma3_text, full_attention",
        "gemma3_text, sliding_attention",
    ]
    assert re.search(r"attention window \(tokens\) +- +512", "\n".join(out))


def test_details_print_the_sources_bands_and_memory(capsys, write):
    code, out, err = call(capsys, write(LLAMA), "--details")
    assert (code, err) == (0, "")
    assert "\x1b" not in out
    for word in ("rope_scaling.factor", "critical dimension", "interpolated", "67,109,376"):
        assert word in out
    for way in analysis.COS_SIN_METHODS:
        assert way in out


def test_the_guide_is_printed_only_on_request(capsys, write):
    path = write(LLAMA)
    for options, asked in ((["--details"], False), (["--guide"], True)):
        _, out, _ = call(capsys, path, *options)
        assert ("Which scaling for which use" in out) == asked


def test_layers_without_a_rope_and_pairs_that_do_not_rotate_are_shown(capsys, write):
    config = {
        "model_type": "smollm3",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "max_position_embeddings": 4096,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
    }
    path = write(config)
    assert False in [layer["rotates"] for layer in report(capsys, path)["layers"].values()]
    assert "no rope" in call(capsys, path)[1]
    rope = {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    half = write({"rope_parameters": rope, "head_dim": 8, "max_position_embeddings": 64})
    pairs = report(capsys, half)["layers"]["full_attention"]["pairs"]
    assert [pair["band"] for pair in pairs] == ["kept", "kept", "still", "still"]
    assert pairs[-1]["scaled_wavelength"] is None
    assert "still" in call(capsys, half, "--details")[1]


def test_a_folder_is_read_and_a_plot_written(capsys, write, tmp_path, monkeypatch):
    monkeypatch.setattr(inspect_command, "PLOTTED", ("angles",))
    write(GEMMA)
    code, out, _ = call(capsys, tmp_path, "--plot", tmp_path / "rope.png")
    assert code == 0
    assert "rope.png" in out.splitlines()[-1]
    assert (tmp_path / "rope.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_has_a_verdict_and_numbers(capsys, name):
    """Some have no full table of cos and sin: several axes, or frequencies that depend on the
    length.
    """
    code, out, error = call(capsys, "--example", name)
    assert (code, error) == (0, "")
    assert "trained length (tokens)" in out


def test_a_plot_of_a_config_without_rotation_is_refused(capsys, write, tmp_path):
    path = write(
        {
            "model_type": "smollm3",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "rope_theta": 1e4,
            "max_position_embeddings": 64,
            "no_rope_layers": [0, 0],
        }
    )
    assert call(capsys, path)[0] == 0
    code, _, error = call(capsys, path, "--plot", tmp_path / "rope.png")
    assert code != 0
    assert "--plot: must be left out: no layer of this config rotates" in error
    assert not (tmp_path / "rope.png").exists()


def test_warnings_of_the_config_are_shown(capsys, write):
    path = write(LLAMA | {"rope_scaling": LLAMA["rope_scaling"] | {"finetuned": True}})
    assert any("finetuned" in text for text in report(capsys, path)["warnings"])
    assert "warning: " in call(capsys, path)[1]


@pytest.mark.parametrize(
    ("config", "args", "says"),
    [
        ("{", (), "config: must be JSON"),
        ({"model_type": "bert"}, (), "rope_parameters or rope_theta: must be given"),
        (GEMMA | {"head_dim": 7}, (), "head_dim: must"),
        ({"rope_theta": 1e4, "head_dim": 8}, (), "max_position_embeddings: must be in the config"),
        (GEMMA, ("--served", 0), "--served: must be an integer from 1"),
        (GEMMA, ("--trained", -4), "--trained: must be an integer from 1"),
        (GEMMA, ("--plot", "rope.bmp"), "--plot: must end with .png, .svg, .pdf"),
    ],
)
def test_a_refusal_is_one_line_and_exit_code_2(
    capsys, write, monkeypatch, tmp_path, config, args, says
):
    path = write(config)
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, path, *args)
    assert (code, out) == (2, "")
    assert err.startswith(f"ropewalk: {says}")
    assert err.count("\n") == 1


def test_json_has_a_temperature_as_plain_data(capsys, write):
    rope = {
        "rope_type": "default",
        "rope_theta": 1e6,
        "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 16_384,
    }
    config = {
        "model_type": "ministral3",
        "head_dim": 16,
        "max_position_embeddings": 32_768,
        "rope_parameters": rope,
    }
    value = report(capsys, write(config))["layers"]["full_attention"]["values"]["temperature"][
        "value"
    ]
    assert value == {"class": "FloorLog", "scale": 0.1, "length": 16_384, "shift": 0}
