"""The command line: a dict of names to functions. A command is imported when it is asked for, and not before."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

#: name -> "module:attribute", a function with typer's annotations or a typer.Typer of subcommands
COMMANDS: dict[str, str] = {
    "info": "ropewalk.commands.info:info",
    "demo": "ropewalk.commands.demo:demo",
    "bench": "ropewalk.bench.command:bench",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; every refusal is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        from ropewalk import __version__

        print(f"ropewalk {__version__}")
        return
    try:
        import rich  # noqa: F401 - asked for here, so that one message names the extra for both
        import typer  # noqa: F401
    except ImportError as missing:
        _refuse(f"the command line needs {missing.name}; run: pip install 'ropewalk[cli]'")
    from ropewalk.errors import RopeError

    try:
        _app(args[:1])(args=args, prog_name="ropewalk")
    except RopeError as error:
        _refuse(str(error))
    except OSError as error:
        _refuse(f"{error.filename or 'output'}: {error.strerror or error}")


def _app(asked: list[str]):
    """A typer app with the command that was asked for, or with all of them where a list is wanted."""
    import typer

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=True)
    app.callback()(_root)
    names = asked if asked and asked[0] in COMMANDS else list(COMMANDS)
    for name in names:
        module, attribute = COMMANDS[name].split(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def _root() -> None:
    """Rotary position embedding, exact at any position. `ropewalk --version` prints the version."""


def _refuse(message: str) -> NoReturn:
    print(f"ropewalk: {message}", file=sys.stderr)
    raise SystemExit(2)
