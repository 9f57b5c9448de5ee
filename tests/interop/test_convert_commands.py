"""`ropewalk convert` and `ropewalk extend`: what they write, what they print, and one line for every refusal."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from checkpoint_samples import SMALL, build
from installed import V5
from transformers import AutoConfig

import command_line
from ropewalk.interop.checkpoint.convert import convert_checkpoint
from ropewalk.interop.checkpoint.shards import open_folder
from ropewalk.interop.config.hf import from_hf


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


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, folder, tmp_path):
    code, out, err = call("convert", folder, tmp_path / "b", *LAYOUTS, "--dry-run", "--json")
    assert (code, err) == (0, "")
    plan = json.loads(out)
    assert plan["written"] is None
    assert len(plan["converted"]) == 4
    assert "uses the half layout" in plan["warnings"][0]
    assert not (tmp_path / "b").exists()


def test_json_is_one_object_and_progress_is_elsewhere(call, folder, tmp_path):
    code, out, _ = call("convert", folder, tmp_path / "b", *LAYOUTS, "--json")
    assert code == 0
    assert json.loads(out)["written"] == str(tmp_path / "b")


def test_which_tells_the_layout_with_evidence(call, folder):
    code, out, _ = call("convert", folder, "--which")
    assert (code, out.splitlines()[0]) == (0, "half (likely)")
    found = json.loads(call("convert", folder, "--which", "--json")[1])
    assert found["layout"] == "half"
    assert len(found["evidence"]) >= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (LAYOUTS, "target: must be given"),
        (("{tmp}/b",), "source_layout: must be one of"),
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
    code, out, _ = call("extend", folder, "yarn", "--factor", "4", "--set", "beta_fast=16", "--out", tmp_path / "new.json")
    assert code == 0
    assert SCALED in out
    config = json.loads((tmp_path / "new.json").read_text())
    spec = from_hf(AutoConfig.for_model(**config))
    assert (spec.scaling.name, spec.scaling.factor, spec.scaling.beta_fast) == ("yarn", 4.0, 16.0)
    assert spec.scaling.original_length == SMALL["max_position_embeddings"]
    untouched = json.loads((folder / "config.json").read_text())
    assert {key for key in config if config[key] != untouched[key]} == {SCALED, "max_position_embeddings"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half", "new.json"]


def test_extend_prints_json(call, folder):
    code, out, err = call("extend", folder / "config.json", "dynamic", "--factor", "2", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["changes"][SCALED]["after"]["rope_type"] == "dynamic"
    assert "vLLM" in found["disagreements"][0]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("yarn", "--factor", "0.5"), "factor: must be >= 1"),
        (("xpos", "--factor", "2"), "kind: must be one of"),
        (("yarn", "--factor", "2", "--set", "beta_fast"), "--set: must be name=JSON"),
        (("yarn", "--factor", "2", "--out", "{tmp}/half/config.json"), "--out: must be a file that does not exist"),
    ],
)
def test_a_refusal_of_extend_is_one_line(call, folder, tmp_path, arguments, says):
    code, out, err = call("extend", folder, *(each.format(tmp=tmp_path) for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]
