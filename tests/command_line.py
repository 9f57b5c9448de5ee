"""One command of `ropewalk`, run in this process."""

from __future__ import annotations

from ropewalk import cli


def call(capsys, *args) -> tuple[int, str, str]:
    """Run a command; return (exit code, stdout, stderr)."""
    capsys.readouterr()  # what was said before is not this command's
    code = 0
    try:
        cli.main([str(each) for each in args])
    except SystemExit as stop:
        code = stop.code or 0
    return (code, *capsys.readouterr())
