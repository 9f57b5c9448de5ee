"""The command line: every command runs, output is plain when piped, and every refusal is one line with exit code 2."""

import json
import os
import re
import subprocess
import sys

import pytest
import typer

import ropewalk
from ropewalk import cli, selfcheck
from ropewalk.kernels import BACKENDS, Backend, available, eager


def call(capsys, *args):
    """(exit code, stdout, stderr) of one command in this process."""
    code = 0
    try:
        cli.main(args)
    except SystemExit as stop:
        code = stop.code or 0
    out = capsys.readouterr()
    return code, out.out, out.err


def one_line(text):
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text


@pytest.fixture
def quick(monkeypatch):
    """The demo with its timings cut to one round."""
    real = selfcheck.clock
    monkeypatch.setattr(selfcheck, "clock", lambda run, device="cpu", seconds=0.0: real(run, device, 0.0))


def test_version_is_the_package_version(capsys):
    assert call(capsys, "--version") == (0, f"ropewalk {ropewalk.__version__}\n", "")


def test_help_lists_every_command(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    assert [name for name in cli.COMMANDS if not re.search(rf"\b{name}\b", out)] == []


def test_no_command_shows_the_help(capsys):
    code, out, err = call(capsys)
    assert code == 2
    assert "Usage" in out + err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_explains_itself(capsys, name):
    code, out, _ = call(capsys, name, "--help")
    assert code == 0
    assert "Usage" in out


def test_unknown_command_is_refused(capsys):
    code, _, err = call(capsys, "rotatte")
    assert code == 2
    assert "rotatte" in err


def test_info_json_names_every_backend_with_its_reason(capsys):
    code, out, err = call(capsys, "info", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["backends"]["cpu"] == available("cpu")
    assert found["versions"]["ropewalk"] == ropewalk.__version__
    assert found["machine"]["threads"] >= 1
    # 131,072 positions x 64 pairs x (cos, sin) x 4 bytes
    assert found["cache"]["full_bytes_for_131072_tokens_of_128_dims"] == 131_072 * 64 * 2 * 4


def test_info_shows_why_a_backend_is_missing(capsys, monkeypatch):
    monkeypatch.setitem(BACKENDS, "quantum", Backend(lambda x, turn: "no qubits here", eager.run))
    code, out, _ = call(capsys, "info")
    assert code == 0
    assert "quantum" in out
    assert "no qubits here" in out


def test_demo_writes_a_report_and_pictures(capsys, tmp_path, quick):
    code, out, _ = call(capsys, "demo", "--tokens", "5", "--device", "cpu", "--out", str(tmp_path / "demo"))
    assert code == 0, out
    report = (tmp_path / "demo" / "report.md").read_text(encoding="utf-8")
    for word in (*BACKENDS, "hf_frequencies", "1,099,511,627,776", "keeps the norm", "Every error is within its bound."):
        assert word in out
        assert word in report
    for picture in re.findall(r"!\[\w+\]\((.+?)\)", report):
        assert (tmp_path / "demo" / picture).stat().st_size > 1000
    assert "report.md" in out


def test_demo_json_is_one_object(capsys, tmp_path, quick):
    code, out, _ = call(capsys, "demo", "--tokens", "3", "--json", "--out", str(tmp_path))
    found = json.loads(out)
    assert code == 0
    assert found["ok"] is True
    assert {row["name"] for row in found["speed"]} >= set(BACKENDS)


def test_demo_fails_when_a_backend_is_wrong(capsys, tmp_path, monkeypatch, quick):
    def run(xs, outs, turn):
        for x, out in zip(xs, outs, strict=True):
            out.copy_(x)

    monkeypatch.setitem(BACKENDS, "lazy", Backend(eager.why_not, run))
    code, out, _ = call(capsys, "demo", "--tokens", "3", "--device", "cpu", "--out", str(tmp_path))
    assert code == 1
    assert "BEYOND ITS BOUND" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Some errors are beyond their bound." in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("demo", "--tokens", "0"), r"tokens: must be an integer from 1 .* got 0"),
        (("demo", "--device", "tpu"), r"device: must be one of cpu.* got 'tpu'"),
    ],
)
def test_a_bad_value_is_one_line_with_the_rule(capsys, tmp_path, monkeypatch, args, says):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert re.match("ropewalk: " + says, one_line(err))


def test_a_folder_that_cannot_be_written_is_one_line(capsys, tmp_path, quick):
    (tmp_path / "taken").write_text("a file, not a folder")
    code, _, err = call(capsys, "demo", "--tokens", "2", "--out", str(tmp_path / "taken"))
    assert code == 2
    assert "taken" in one_line(err)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(capsys, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    code, _, err = call(capsys, "info")
    assert code == 2
    assert missing in one_line(err)
    assert "pip install 'ropewalk[cli]'" in err


def test_demo_without_matplotlib_says_what_to_install(capsys, tmp_path, monkeypatch, quick):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, _ = call(capsys, "demo", "--tokens", "2", "--out", str(tmp_path))
    assert code == 0
    assert "ropewalk[lab]" in out
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_an_entry_in_the_dict_is_a_command(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "hello", f"{__name__}:hello")
    assert call(capsys, "hello", "--name", "rope")[:2] == (0, "hello rope\n")


def test_an_entry_may_be_an_app_of_subcommands(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "group", f"{__name__}:group")
    assert call(capsys, "group", "twice", "3")[:2] == (0, "6\n")


def hello(name: str = "you") -> None:
    """Say hello."""
    print(f"hello {name}")


group = typer.Typer()


@group.callback()
def _group() -> None:
    """Two subcommands."""


@group.command()
def twice(number: int) -> None:
    """Print twice the number."""
    print(2 * number)


def test_piped_output_has_no_colour_and_asking_imports_nothing_heavy():
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = "import sys, ropewalk.cli as c; print({'typer', 'rich'} & set(sys.modules)); c.main(['info'])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[0] == "set()"
