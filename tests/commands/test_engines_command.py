"""`ropewalk engines`: what is said of engines that are not installed, and a run of one that is."""

import json

import command_line
from ropewalk.commands import engines


def call(capsys, *args):
    return command_line.call(capsys, "engines", *args)


def test_an_engine_that_is_asked_for_and_not_installed_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(engines, "why_not", lambda name: f"{name} is not installed")
    code, out, err = call(capsys, "--only", "vllm")
    assert (code, out) == (2, "")
    assert "--only: must name an engine that can run here: vllm is not installed" in err
    # without --only the command runs what it finds, which may be nothing
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert "No engine was run." in out


def test_one_of_two_engines_that_were_asked_for_is_enough(capsys, monkeypatch):
    monkeypatch.setattr(engines, "why_not", lambda name: "not here" if name == "vllm" else None)
    code, out, _ = call(capsys, "--only", "vllm", "--only", "hf", "--match", "llama-3.1", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["not_run"] == {"vllm": "not here"}
    assert {(row["engine"], row["verdict"]) for row in found["rows"]} == {("transformers", "same")}
