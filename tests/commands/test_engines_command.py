"""`ropewalk engines`: what is said of engines that are not installed, and a run of one that is."""

import json

import command_line
from ropewalk_lab.engines_run.installed import TITLES


def call(capsys, *args):
    return command_line.call(capsys, "engines", *args)


def test_an_engine_that_is_asked_for_and_not_installed_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr(
        "ropewalk_lab.engines_run.installed.why_not", lambda name: f"{name} is not installed"
    )
    code, out, err = call(capsys, "--only", "vllm")
    assert (code, out) == (2, "")
    assert "--only: must name an engine that can run here: vllm is not installed" in err
    code, _, err = call(capsys, "--only", "vllm", "--only", "sglang")
    assert code == 2
    assert err.startswith(
        "ropewalk: --only: must name an engine that can run here: vllm is not installed; "
        "sglang is not installed"
    )
    assert err.endswith("; got ['vllm', 'sglang']\n")
    # without --only the command runs what it finds, which may be nothing
    code, out, err = call(capsys)
    assert (code, err) == (0, "")
    assert "No engine was run." in out


def test_engines_runs_if_one_of_two_engines_asked_for_is_installed(capsys, monkeypatch):
    """The runs themselves are tested with the runners."""
    monkeypatch.setattr(
        "ropewalk_lab.engines_run.installed.why_not",
        lambda name: "not here" if name == "vllm" else None,
    )
    monkeypatch.setattr(
        "ropewalk_lab.engines_run.installed.run", lambda name, rows: (name, len(rows))
    )
    monkeypatch.setattr(
        "ropewalk_lab.engines_run.measured.verdict_rows",
        lambda ran, by_id, date: [{"engine": ran[0], "same": ran[1] == len(by_id) > 0}],
    )
    code, out, _ = call(capsys, "--only", "vllm", "--only", "hf", "--match", "llama-3.1", "--json")
    assert code == 0
    assert json.loads(out) == {
        "rows": [{"engine": "hf", "same": True}],
        "not_run": {"vllm": "not here"},
    }


def test_an_engine_that_is_named_twice_runs_once(capsys, monkeypatch):
    ran = []
    monkeypatch.setattr("ropewalk_lab.engines_run.installed.why_not", lambda name: None)
    monkeypatch.setattr(
        "ropewalk_lab.engines_run.installed.run", lambda name, rows: ran.append(name)
    )
    monkeypatch.setattr("ropewalk_lab.engines_run.measured.verdict_rows", lambda *_, **__: [])
    assert (
        call(
            capsys,
            "--only",
            "hf",
            "--only",
            "vllm",
            "--only",
            "hf",
            "--match",
            "llama-3.1",
            "--json",
        )[0]
        == 0
    )
    assert ran == ["hf", "vllm"]


def test_the_help_names_every_engine(capsys):
    out = " ".join(call(capsys, "--help")[1].split())
    assert f"[one of {', '.join(TITLES)}; may be repeated]" in out
