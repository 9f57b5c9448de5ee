"""`ropewalk convert` and `ropewalk extend`: what they write, what they print, and one line for
every refusal.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from checkpoint_samples import SMALL, build
from installed import V5
from transformers import AutoConfig

import command_line
from ropewalk.config.hf import from_hf
from ropewalk.interop.checkpoint.convert import convert_checkpoint
from ropewalk.interop.checkpoint.shards import open_folder


@pytest.fixture
def call(capsys):
    return partial(command_line.call, capsys)


@pytest.fixture
def folder(tmp_path):
    build("llama").save_pretrained(tmp_path / "half")
    return tmp_path / "half"


LAYOUTS = ("--from", "half", "--to", "interleaved")


def test_convert_writes_what_the_library_writes(call, folder, tmp_path):
    code, out, _ = call("convert", folder, tmp_path / "b", *LAYOUTS)
    assert code == 0
    assert "2 k, 2 q tensors change, 17 stay" in out
    convert_checkpoint(folder, tmp_path / "c", "half", "interleaved")
    wanted, found = open_folder(tmp_path / "c"), open_folder(tmp_path / "b")
    assert found.names == wanted.names
    assert all(torch.equal(found.read(name), wanted.read(name)) for name in found.names)


def test_a_long_path_stays_on_one_line(call, folder, tmp_path):
    target = tmp_path / "long" / ("folder " * 30).strip()
    code, out, _ = call("convert", folder, target, *LAYOUTS)
    assert code == 0
    assert out.splitlines()[-1] == f"written to {target}"


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, folder, tmp_path):
    code, out, err = call("convert", folder, tmp_path / "b", *LAYOUTS, "--dry-run", "--json")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert plan["written"] is None
    assert len(plan["converted"]) == 4
    assert "uses the half layout" in plan["warnings"][0]
    assert not (tmp_path / "b").exists()


def test_with_json_stdout_is_one_object(call, folder, tmp_path):
    code, out, _ = call("convert", folder, tmp_path / "b", *LAYOUTS, "--json")
    assert code == 0
    assert json.loads(out)["written"] == str(tmp_path / "b")


def test_convert_which_prints_the_layout_with_its_evidence(call, folder):
    code, out, _ = call("convert", folder, "--which")
    assert (code, out.splitlines()[0]) == (0, "half (likely)")
    found = json.loads(call("convert", folder, "--which", "--json")[1])
    assert found["layout"] == "half"
    assert len(found["evidence"]) >= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (LAYOUTS, "TARGET: must be given"),
        (("{tmp}/b",), "--from: must be one of half, interleaved; got nothing"),
        (
            ("{tmp}/b", "--from", "half", "--to", "x"),
            "--to: must be one of half, interleaved; got 'x'",
        ),
        (("{tmp}/b", "--from", "half", "--to", "half"), "--to: must differ from --from"),
        (("{tmp}/half", *LAYOUTS), "target_folder: must not be the source folder"),
    ],
)
def test_a_refusal_of_convert_is_one_line(call, folder, tmp_path, arguments, says):
    code, out, err = call("convert", folder, *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


#: where this release of transformers keeps a scaling
SCALED = "rope_parameters" if V5 else "rope_scaling"


def test_extend_writes_a_config_that_transformers_reads(call, folder, tmp_path):
    code, out, _ = call(
        "extend",
        folder,
        "yarn",
        "--factor",
        "4",
        "--set",
        "beta_fast=16",
        "--out",
        tmp_path / "new.json",
    )
    assert code == 0
    assert SCALED in out
    config = json.loads((tmp_path / "new.json").read_text())
    spec = from_hf(AutoConfig.for_model(**config))
    assert (spec.scaling.name, spec.scaling.factor, spec.scaling.beta_fast) == ("yarn", 4.0, 16.0)
    assert spec.scaling.original_length == SMALL["max_position_embeddings"]
    untouched = json.loads((folder / "config.json").read_text())
    assert {key for key in config if config[key] != untouched[key]} == {
        SCALED,
        "max_position_embeddings",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "new.json"]


def test_extend_prints_json(call, folder):
    code, out, err = call("extend", folder / "config.json", "dynamic", "--factor", "2", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["changes"][SCALED]["after"]["rope_type"] == "dynamic"
    assert "SGLang" in found["disagreements"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("yarn", "--factor", "0.5"), "ropewalk: --factor: must be >= 1"),
        (
            ("dynamic_yarn", "--factor", "2"),
            "KIND: must be one of linear, ntk, dynamic, yarn, longrope, llama3; got",
        ),
        (
            ("longrope", "--factor", "2"),
            "--set: must give longrope its factors, one per pair: --set long_factor=",
        ),
        (("yarn", "--factor", "2", "--set", "factor=2"), "; use --factor; got 'factor=2'"),
        (("yarn", "--factor", "2", "--set", "original_length=2"), "; use --original-length; got"),
        (("yarn", "--factor", "2", "--set", "overwrite=true"), "; use --overwrite; got"),
        (("yarn", "--factor", "2", "--set", "layer_types=2"), "; use --layer-type; got"),
        (
            ("yarn", "--factor", "2", "--set", "kind=3"),
            "--set: must be name=JSON with a name that yarn has (attention_factor,",
        ),
        (
            ("yarn", "--factor", "2", "--set", "model=3"),
            "--set: must be name=JSON with a name that yarn has (attention_factor,",
        ),
        (
            ("yarn", "--factor", "2", "--set", "beta_fast=NaN"),
            "--set: must be name=JSON with finite numbers",
        ),
        (
            ("yarn", "--factor", "2", "--set", 'beta_fast=1,"x":2'),
            "--set: must be name=JSON with finite numbers",
        ),
        (
            ("yarn", "--factor", "2", "--layer-type", "nope"),
            "--layer-type: must be one of full_attention; got 'nope'",
        ),
        (("xpos", "--factor", "2"), "KIND: must be one of"),
        (("yarn", "--factor", "2", "--set", "beta_fast"), "--set: must be name=JSON"),
        (
            ("yarn", "--factor", "2", "--out", "{tmp}/half/config.json"),
            "--out: must be a file that does not exist",
        ),
    ],
)
def test_a_refusal_of_extend_is_one_line(call, folder, tmp_path, arguments, says):
    code, out, err = call("extend", folder, *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]


def test_an_existing_scaling_is_replaced_only_if_asked(call, tmp_path):
    config = {
        "model_type": "llama",
        "head_dim": 12,
        "max_position_embeddings": 64,
        "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, err = call("extend", tmp_path, "yarn", "--factor", "4")
    assert code == 2
    assert "; pass --overwrite to replace it; got" in err.replace("has; pass", "; pass")
    assert call("extend", tmp_path, "yarn", "--factor", "4", "--overwrite")[0] == 0


def test_a_config_that_its_family_would_not_load_is_refused(call, tmp_path):
    text = {
        "hidden_size": 256,
        "num_attention_heads": 2,
        "max_position_embeddings": 128,
        "rope_theta": 5e5,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "ernie4_5_vl_moe", "text_config": text})
    )
    code, out, err = call(
        "extend", tmp_path, "yarn", "--factor", "4", "--out", tmp_path / "new.json"
    )
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "KIND: must be ntk for ernie4_5_vl_moe_text" in err
    assert not (tmp_path / "new.json").exists()
    assert call("extend", tmp_path, "ntk", "--factor", "4")[0] == 0
