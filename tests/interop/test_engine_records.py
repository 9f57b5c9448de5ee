"""How runs of engines become records: ropes that are compared, the files that are written, and the
rows that are run.
"""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import asdict

import pytest

import engines.record as record
from engines.matrix import FAMILIES, VISION
from engines.matrix_rows import EXAMPLE, rows
from ropewalk.engines import ENGINES
from ropewalk.frequencies import Yarn
from ropewalk.spec import RopeSpec
from ropewalk_lab.engines_run.measured import NO_ROPE, LayerRope, layer_of_type, verdict

ROWS = {row.id: row for row in rows()}


def rope(theta: float, magnitude: float = 1.0) -> dict:
    """A rope of 64 dimensions as a runner reads it back."""
    radians = [theta ** (-pair / 32) for pair in range(32)]
    return {
        "radians": radians,
        "magnitude": magnitude,
        "axis": [0] * 32,
        "layout": "half",
        "width": 64,
    }


def layer_rope(radians=(1.0, 0.5), magnitude=1.0, axis=(0, 0)) -> LayerRope:
    return LayerRope.of(radians, magnitude, axis, "half")


def test_pairs_at_the_end_with_frequency_0_are_left_out():
    assert layer_rope((1.0, 0.0, 0.5, 1e-30, 0.0), axis=(0, 0, 1, 2, 2)) == LayerRope(
        (1.0, 0.0, 0.5), 1.0, (0, 0, 1), "half"
    )
    assert layer_rope((0.0, 0.0)).radians == ()


def test_the_table_of_a_spec_has_plain_numbers():
    spec = RopeSpec(
        head_dim=4, theta=100.0, scaling=Yarn(original_length=64, factor=4.0, attention_factor=1.5)
    )
    found = LayerRope.of_spec(spec, 10)
    assert json.loads(json.dumps(asdict(found)))["magnitude"] == 1.5
    assert [type(each) for each in found.radians] == [float, float]


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        (layer_rope(), "same"),
        (layer_rope((1.0, 0.5 * (1 + 1e-5))), "same"),
        (layer_rope((1.0, 0.5 * (1 + 3e-5))), "pairs"),
        (layer_rope((1.0,), axis=(0,)), "pairs"),
        (layer_rope(axis=(0, 1)), "pairs"),
        (layer_rope(magnitude=1 + 1e-5), "same"),
        (layer_rope(magnitude=1 + 3e-5), "magnitude"),
        (layer_rope((1.0,), 2.0, (0,)), "pairs and magnitude"),
        (None, "rotated"),
    ],
)
def test_float32_rounding_is_no_difference_and_more_is_one(theirs, expected):
    assert verdict(layer_rope(), theirs) == expected
    assert verdict(None, None) == "same"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"layer_types": ["sliding", "full"]}, {"full": 1, "sliding": 0}),
        ({"layer_types": ["sliding"]}, {"sliding": 0}),
        ({}, {"full": 0, "sliding": 0, NO_ROPE: 3}),
        ({"no_rope_layers": [1, 0, 1, 0]}, {"full": 0, NO_ROPE: 1}),
    ],
)
def test_layer_of_type_is_the_first_layer_of_each_type(keys, expected):
    assert layer_of_type({"model_type": "llama", **keys}, list(expected)) == expected


def test_a_layer_type_without_a_layer_has_no_first_layer():
    config = {"model_type": "llama", "layer_types": ["sliding"]}
    assert layer_of_type(config, ["full", "sliding"]) == {"sliding": 0}


#: as much of an error as is kept
ERROR = f"no such head: {'x' * 146}"


def outputs() -> list[dict]:
    """What a run of every engine might write: a rope that two read otherwise, a layer without rope,
    an error, an unknown row.
    """
    found = []
    for engine in ENGINES:
        llama = rope(2e4 if engine == "mlx-lm" else 1e4, 1.5 if engine == "vllm" else 1.0)
        results = [
            {"name": "llama-2, v4", "length": 4096, "layers": [0, 0], "ropes": [llama]},
            {
                "name": "smollm3, v4",
                "length": 65536,
                "layers": [0, 0, 0, None],
                "ropes": [rope(5e6)],
            },
            {"name": "gemma-3, v4", "length": 32768, "error": f"{ERROR}...\nat line 5"},
            {"name": "no such row", "length": 1, "layers": [], "ropes": []},
        ]
        name = "transformers" if engine == "hf" else engine
        found.append(
            {
                "engine": name,
                "version": "9.1",
                "results": [{**each, "max_model_len": None} for each in results],
            }
        )
    return found


@pytest.fixture
def call(monkeypatch, tmp_path):
    """Run the command."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["record", *map(str, options)])
        record.main()

    return run


def test_runs_are_written_as_verdicts_tables_and_data_files(call, tmp_path):
    paths = [tmp_path / f"{number}.json" for number in range(len(ENGINES))]
    for path, output in zip(paths, outputs(), strict=True):
        path.write_text(json.dumps(output))
    call("write", "--results", tmp_path, "--date", "2026-12", "--package", tmp_path, *paths)
    lines = [json.loads(line) for line in (tmp_path / "engines.jsonl").read_text().splitlines()]
    of_vllm = [line for line in lines if line["engine"] == "vLLM"]
    assert [(each["config"], each["layer_type"], each["verdict"]) for each in of_vllm] == [
        ("llama-2, v4", "full_attention", "magnitude"),
        ("smollm3, v4", "full_attention", "same"),
        ("smollm3, v4", NO_ROPE, "same"),
        ("gemma-3, v4", "full_attention", "error"),
        ("gemma-3, v4", "sliding_attention", "error"),
    ]
    assert of_vllm[0] == {
        "engine": "vLLM",
        "version": "9.1",
        "date": "2026-12",
        "config": "llama-2, v4",
        "length": 4096,
        "max_model_len": None,
        "layer_type": "full_attention",
        "verdict": "magnitude",
        "first_pair": None,
        "magnitude": 1.5,
        "spec_magnitude": 1.0,
        "layout": "half",
    }
    assert of_vllm[3]["error"] == ERROR
    assert [line["verdict"] for line in lines if line["engine"] == "transformers"] == [
        "same"
    ] * 3 + ["error"] * 2
    slower = next(line for line in lines if line["engine"] == "mlx-lm")
    assert (slower["verdict"], slower["first_pair"], slower["magnitude"]) == ("pairs", 1, 1.0)
    tables = json.loads((tmp_path / "engine_tables.json").read_text())
    error = dict.fromkeys(("full_attention", "sliding_attention"), ERROR)
    assert [values[:2] for values in tables["ropes"]] == [
        [rope(1e4)["radians"], 1.0],
        [rope(5e6)["radians"], 1.0],
        [rope(1e4)["radians"], 1.5],
        [rope(2e4)["radians"], 1.0],
    ]
    assert list(tables["engines"]) == list(ENGINES)
    call("rows", tmp_path / "rows.json")
    given = json.dumps(json.loads((tmp_path / "rows.json").read_text()), sort_keys=True)
    assert tables["rows_digest"] == hashlib.sha256(given.encode()).hexdigest()
    for engine, first in (("hf", 0), ("vllm", 2), ("sglang", 0)):
        assert tables["engines"][engine] == {
            "version": "9.1",
            "date": "2026-12",
            "rows": {
                "llama-2, v4 at 4096": {"full_attention": first},
                "smollm3, v4 at 65536": {"full_attention": 1, NO_ROPE: None},
                "gemma-3, v4 at 32768": error,
            },
        }, engine
    for engine in ENGINES:
        data = json.loads((tmp_path / f"{engine}-9.1.json").read_text())
        families = {"gemma3_text": ["default"], "llama": ["default"], "smollm3": ["default"]}
        assert data["families"] == families
        assert (data["engine"], data["version"], data["date"]) == (engine, "9.1", "2026-12")
        llama, smollm, gemma = data["cells"].values()
        # what the config describes is not written again
        is_described = engine not in ("vllm", "mlx-lm")
        assert llama == {"full_attention": "as described" if is_described else 0}
        assert (smollm, gemma) == ({"full_attention": "as described"}, error)
        assert len(data["ropes"]) == (0 if is_described else 1)


def test_engines_that_are_not_run_again_keep_what_is_recorded(call, tmp_path):
    paths = [tmp_path / f"{number}.json" for number in range(len(ENGINES))]
    for path, output in zip(paths, outputs(), strict=True):
        path.write_text(json.dumps(output))
    options = ["--results", tmp_path, "--package", tmp_path]
    call("write", *options, "--date", "2026-12", *paths)
    before = json.loads((tmp_path / "engine_tables.json").read_text())
    new = outputs()[1]
    new["version"] = "9.2"
    new["results"][0]["ropes"] = [rope(3e4)]
    paths[1].write_text(json.dumps(new))
    call("write", *options, "--date", "2027-01", paths[1])
    after = json.loads((tmp_path / "engine_tables.json").read_text())
    assert list(after["engines"]) == list(ENGINES)
    assert after["engines"]["vllm"]["version"] == "9.2"

    def llama(record, engine):
        return record["ropes"][
            record["engines"][engine]["rows"]["llama-2, v4 at 4096"]["full_attention"]
        ]

    assert llama(after, "vllm")[0] == rope(3e4)["radians"]
    for engine in ("hf", "sglang", "mlx-lm", "llama.cpp"):
        assert llama(after, engine) == llama(before, engine)
    lines = [json.loads(line) for line in (tmp_path / "engines.jsonl").read_text().splitlines()]
    assert {line["date"] for line in lines if line["engine"] == "vLLM"} == {"2027-01"}
    assert {line["date"] for line in lines if line["engine"] != "vLLM"} == {"2026-12"}


def test_the_rows_for_runners_are_those_of_the_matrix(call, tmp_path):
    call("rows", tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text()) == [
        asdict(row) for row in ROWS.values()
    ]


@pytest.mark.parametrize(
    ("options", "missing"),
    [([], "command"), (["write", "--results", ".", "--date", "2026-12"], "outputs")],
)
def test_the_command_says_what_is_missing(call, capsys, options, missing):
    with pytest.raises(SystemExit) as stopped:
        call(*options)
    assert stopped.value.code == 2
    assert f"the following arguments are required: {missing}" in capsys.readouterr().err


def test_the_help_has_the_commands_on_lines_of_their_own(call, capsys):
    with pytest.raises(SystemExit):
        call("--help")
    assert "\npython -m engines.record rows rows.json\n" in capsys.readouterr().out


#: sizes of a model, which kernels of engines take if they are powers of two
SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "global_head_dim",
    "sliding_window",
    "num_experts",
    "num_local_experts",
    "moe_intermediate_size",
    "n_routed_experts",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "q_lora_rank",
    "embed_dim",
    "num_heads",
    "out_hidden_size",
    "query_pre_attn_scalar",
    "shared_expert_intermediate_size",
    "vocab_size_per_layer_input",
    "num_position_embeddings",
)


def test_no_engine_refuses_a_small_model_for_its_sizes():
    # checkpoints keep the size of their heads
    small = [row.config for row in ROWS.values() if not row.name.startswith(EXAMPLE)]
    configs = small + [tower for _, tower in VISION.values()]
    for config in (config.get("text_config", config) for config in configs):
        sizes = {key: config[key] for key in SIZES if config.get(key) is not None}
        assert {key: size for key, size in sizes.items() if size & (size - 1)} == {}
        layers = config.get("num_hidden_layers")
        assert all(
            len(config[key]) == layers for key in ("layer_types", "no_rope_layers") if key in config
        ), config
        if {"num_experts", "num_local_experts"} <= config.keys():
            assert config["num_experts"] == config["num_local_experts"]  # two names of one number


def test_layers_without_rope_are_those_that_the_interval_names():
    facts = FAMILIES["smollm3"][1]
    interval = facts["no_rope_layer_interval"]
    assert facts["no_rope_layers"] == [
        int((layer + 1) % interval != 0) for layer in range(facts["num_hidden_layers"])
    ]


def test_every_config_is_run_at_the_length_that_it_serves():
    lengths: dict[str, set[int]] = {}
    for row in ROWS.values():
        lengths.setdefault(row.name, set()).add(row.length)
    for row in ROWS.values():
        config = row.config.get("text_config", row.config)
        served = config.get("n_positions") or config["max_position_embeddings"]
        assert served in lengths[row.name], row.id


def test_the_rope_of_hunyuan_is_that_of_its_checkpoints():
    expected = {
        "alpha": 1000.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 1.0,
        "mscale": 1.0,
        "type": "dynamic",
    }
    assert ROWS["hunyuan, v4 at 32768"].config["rope_scaling"] == expected
