"""A model by its name on the hub: found in the cache of this machine, never downloaded."""

import json
import os
from pathlib import Path

import pytest

from command_line import call
from ropewalk_cli.commands import model_path

QWEN = {
    "model_type": "qwen3",
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000,
}


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """HF_HOME with two revisions of Qwen/Qwen3-8B, of which `main` is the older."""
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = tmp_path / "hub" / "models--Qwen--Qwen3-8B"
    for time, (commit, theta) in enumerate({"0a1": 1e6, "0b2": 5e6}.items()):
        folder = model / "snapshots" / commit
        folder.mkdir(parents=True)
        blob = model / "blobs" / commit
        blob.parent.mkdir(exist_ok=True)
        blob.write_text(json.dumps(QWEN | {"rope_theta": theta}))
        (folder / "config.json").symlink_to(blob)
        os.utime(folder, (time, time))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0a1")
    return model


def theta(capsys, command="inspect") -> float:
    code, out, err = call(capsys, command, "Qwen/Qwen3-8B", "--json")
    assert (code, err) == (0, "")
    return json.loads(out)["layers"]["full_attention"]["values"]["theta"]["value"]


def test_inspect_reads_the_main_revision_and_else_the_newest(capsys, cache):
    assert theta(capsys) == 1e6
    (cache / "refs" / "main").write_text("../../../elsewhere")
    assert theta(capsys) == 5e6
    (cache / "refs" / "main").unlink()
    assert theta(capsys) == 5e6


def test_hf_hub_cache_and_xdg_cache_home_move_the_cache(cache, monkeypatch):
    hub = cache.parent
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert model_path("Qwen/Qwen3-8B") == cache / "snapshots" / "0a1"
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(hub.parent / "user"))
    (hub.parent / "user").mkdir()
    (hub.parent / "user" / "huggingface").symlink_to(hub.parent)
    assert model_path("Qwen/Qwen3-8B").samefile(cache / "snapshots" / "0a1")


@pytest.mark.parametrize("command", [("inspect",), ("audit",), ("extend", "yarn", "--factor=2")])
def test_a_model_that_is_not_there_says_how_to_get_it(capsys, cache, command):
    code, out, err = call(capsys, command[0], "Qwen/Qwen9", *command[1:])
    assert (code, out) == (2, "")
    assert err.startswith("ropewalk: CONFIG: must be a file or a folder, or a model in the Hugging")
    assert "run: hf download Qwen/Qwen9; got 'Qwen/Qwen9'\n" in err


def test_every_command_that_takes_a_config_takes_a_name(capsys, cache, tmp_path):
    assert call(capsys, "audit", "Qwen/Qwen3-8B", "--json")[0] == 0
    out = tmp_path / "longer.json"
    code = call(capsys, "extend", "Qwen/Qwen3-8B", "yarn", "--factor", "2", "--out", str(out))[0]
    assert code == 0
    assert json.loads(out.read_text())["rope_scaling"]["factor"] == 2


@pytest.mark.parametrize("name", ["../hub/x", "a/../b", "missing", "a/b/c", "dir/config.json"])
def test_what_is_no_model_name_is_a_path(cache, name):
    assert model_path(name) == Path(name)
