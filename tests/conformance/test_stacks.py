"""Released stacks: the page agrees with the data, every difference has a reason, and the adapters of
stacks that are installed here give the recorded cells.
"""

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "docs")]

from stacks import data, harness  # noqa: E402

RESULTS = json.loads((ROOT / "results" / "stacks.json").read_text(encoding="utf-8"))
RAN = {row["stack"]: row for row in RESULTS if "cells" in row}
#: groups that run quickly
GROUPS = ["default", "linear", "partial", "layouts", "llama3"]


def test_every_stack_has_a_row_and_a_result():
    assert [row["stack"] for row in RESULTS] == [row["stack"] for row in data.stacks()]
    assert len(RAN) >= 18
    for row in RESULTS:
        assert row["version"] == data.row(row["stack"])["version"]
        assert f"{row['stack']}=={row['version']}" in data.row(row["stack"])["packages"]


def test_every_difference_has_a_reason():
    for row in RAN.values():
        for name, cell in row["cells"].items():
            assert cell["result"] in ("agrees", "differs", "refuses", "not expressible")
            if cell["result"] == "differs":
                assert cell["because"], f"{row['stack']} {name}"
            elif cell["result"] == "refuses":
                assert cell["words"], f"{row['stack']} {name}"


def test_every_reason_belongs_to_a_difference():
    for row in data.stacks():
        cells = RAN.get(row["stack"], {"cells": {}})["cells"].values()
        said = {cell.get("because") for cell in cells}
        for reason in row.get("because", ()):
            assert reason["words"] in said, f"{row['stack']}: {reason['words']}"


def test_the_page_of_stacks_is_made_from_the_data():
    import tables

    text = (ROOT / "docs" / "stacks.md").read_text(encoding="utf-8")
    assert tables.page(text) == text


@pytest.mark.parametrize("name", ["transformers", "rotary-embedding-torch"])
def test_adapter_gives_the_recorded_cells(name):
    row = RAN[name]
    pytest.importorskip(name.replace("-", "_"))
    if importlib.metadata.version(name) != row["version"]:
        pytest.skip("another release is installed")
    found = harness.measure(name, GROUPS)
    assert {cell.split("/")[0] for cell in found} == set(GROUPS)
    for cell, result in found.items():
        assert result["result"] == row["cells"][cell]["result"], cell
    assert "agrees" in [result["result"] for result in found.values()]


def test_the_current_directory_is_not_searched_for_packages(tmp_path, monkeypatch):
    """A stack runs in the folder that holds the folders of all stacks, and python would take such a
    folder for the package of the same name.
    """
    main = importlib.import_module("stacks.__main__")
    monkeypatch.setattr(main, "BUILD", tmp_path)
    monkeypatch.setattr(main, "install", lambda row, python: tmp_path / row["stack"])
    commands = []

    def call(what, command, env, cwd):
        commands.append(command[: command.index("-m")])
        (tmp_path / "litgpt.json").write_text("{}", encoding="utf-8")

    monkeypatch.setattr(main, "call", call)
    assert main.run(data.row("litgpt"), again=True) == {}
    (tmp_path / "litgpt").mkdir()
    show = [*commands[0], "-c", "import sys; print(*sys.path, sep='\\n')"]
    done = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert not {"", str(tmp_path)} & set(done.stdout.split("\n")[:-1])
