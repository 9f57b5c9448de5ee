"""One command of `ropewalk`, run in this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

from ropewalk import cli
from ropewalk_cli.declare import as_command


def call(capsys, *args) -> tuple[int, str, str]:
    """Run a command; return (exit code, stdout, stderr)."""
    capsys.readouterr()  # drops what was printed before this command
    code = 0
    try:
        cli.main([str(each) for each in args])
    except SystemExit as stop:
        code = stop.code or 0
    return (code, *capsys.readouterr())


def all_functions(commands: Mapping | None = None, path: str = "") -> dict[str, Callable]:
    """The function of every command and subcommand, by the words that call it."""
    found = {}
    for name, entry in (cli.COMMANDS if commands is None else commands).items():
        words, target = f"{path} {name}".strip(), as_command(entry).load()
        found |= {words: target} if callable(target) else all_functions(target, words)
    return found


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

missing = sys.argv[1].split(",")
sys.meta_path.insert(0, Refuse())
import ropewalk_cli
ropewalk_cli.main(sys.argv[2:])
"""


def run_without(packages: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process in which some packages cannot be imported."""
    command = [sys.executable, "-c", WITHOUT, ",".join(packages), *words]
    return subprocess.run(command, capture_output=True, text=True)
