"""Completion: what may come next, and a real shell that asks for it."""

import os
import shutil
import subprocess
import sys

import pytest

from command_line import call


@pytest.fixture
def completed(capsys):
    """The lines with which the last of some words may be completed."""

    def ask(*words, shell="bash"):
        code, out, err = call(capsys, "--complete", shell, *words)
        assert (code, err) == (0, "")
        return out.splitlines()

    return ask


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["in"], ["inspect", "info"]),
        (["lab", "e"], ["evaluate"]),
        (["inspect", "--se"], ["--served"]),
        (["lab", "run", "--see"], ["--seeds"]),
        (["explore", "--no"], ["--no-browser"]),
        (["demo", "--device", ""], ["auto", "cpu", "cuda"]),
        (["engines", "--only", "v"], ["vllm"]),
        (["extend", "config.json", "y"], ["yarn"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
        # names of files, which the shell knows
        (["inspect", "con"], [""]),
        (["inspect", "--plot", ""], [""]),
        (["nope", ""], [""]),
    ],
)
def test_completion_offers_the_words_that_may_come_next(completed, words, found):
    assert completed(*words) == found


def test_every_command_is_offered_first(completed):
    from ropewalk.cli import COMMANDS

    assert completed("") == completed() == list(COMMANDS)


def test_zsh_and_fish_get_the_help_too(completed):
    about = "Show versions, caches, backends and extras, and why one is missing."
    assert completed("info", shell="fish") == [f"info\t{about}"]
    assert completed("info", shell="zsh") == [f"info:{about}"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_has_valid_syntax(capsys, shell):
    code, out, err = call(capsys, "completion", shell)
    assert (code, err) == (0, "")
    assert f"--complete {shell}" in out
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=out, text=True, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("line", "found"),
    [(["in"], "inspect info"), (["inspect", "--se"], "--served"), (["lab", ""], "list")],
)
def test_bash_completes_words_with_the_script(tmp_path, line, found):
    program = tmp_path / "ropewalk"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ropewalk_cli "$@"\n')
    program.chmod(0o755)
    words = " ".join(f"'{word}'" for word in ["ropewalk", *line])
    script = (
        f'eval "$(ropewalk completion bash)"; COMP_WORDS=({words}); COMP_CWORD={len(line)}; '
        '_ropewalk; echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().startswith(found)
