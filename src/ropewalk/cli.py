"""The command line: a dict of names to functions. A command is imported when it is asked for, and not before.

Exit codes: 0 done; 1 done, and the answer is no (`demo` found an error beyond its bound); 2 refused, one line on stderr
says why; 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

UNDERSTAND, CHANGE, TRAIN, MEASURE = "Understand", "Convert and extend", "Train and study", "Measure"


@dataclass(frozen=True)
class Command:
    """Where a command is, and what the list of commands says of it; the list is shown without importing any of them."""

    #: "module:attribute", a function with typer's annotations or a typer.Typer of subcommands
    target: str
    group: str = "More"
    help: str = ""
    example: str = ""


#: every command by name; a plain "module:attribute" will do for one of your own
COMMANDS: dict[str, Command | str] = {
    "inspect": Command(
        "ropewalk.commands.inspect:inspect", UNDERSTAND, "Explain a checkpoint's rope: reach, precision, memory, advice.",
        "ropewalk inspect config.json --served 131072 --plot rope.png",
    ),
    "audit": Command(
        "ropewalk.commands.audit:audit", UNDERSTAND, "Show what other engines compute from the same config.",
        "ropewalk audit config.json --length 131072",
    ),
    "figures": Command(
        "ropewalk.commands.figures:figures", UNDERSTAND, "Write every figure and a contact sheet.",
        "ropewalk figures pictures --format svg --dark --only decay",
    ),
    "explore": Command(
        "ropewalk.commands.explore:explore", UNDERSTAND, "Turn the knobs in your browser, on this machine only.",
        "ropewalk explore --report lab/report.html",
    ),
    "convert": Command(
        "ropewalk.commands.convert:convert", CHANGE, "Change a checkpoint's pair layout, or tell which one it has.",
        "ropewalk convert model model-half --from interleaved --to half",
    ),
    "extend": Command(
        "ropewalk.commands.extend:extend", CHANGE, "Write a config for a longer context.",
        "ropewalk extend config.json yarn --factor 4 --out longer.json",
    ),
    "lab": Command(
        "ropewalk.commands.lab:app", TRAIN, "Run studies over seeds and write their report.",
        "ropewalk lab run encodings --preset cpu",
    ),
    "train": Command(
        "ropewalk.commands.train:train_command", TRAIN, "Train a model from a preset, or go on with one.",
        "ropewalk train cpu --folder runs/rope --set model.encoding=rope",
    ),
    "demo": Command(
        "ropewalk.commands.demo:demo", TRAIN, "Check this machine and write a report.",
        "ropewalk demo --out demo",
    ),
    "bench": Command(
        "ropewalk.bench.command:bench", MEASURE, "Time the rotation against the peers found here.",
        'ropewalk bench --shape "cpu decode" --out results/mine.jsonl',
    ),
    "info": Command(
        "ropewalk.commands.info:info", MEASURE, "Show versions, backends and extras, and why one is missing.",
        "ropewalk info --json",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; every refusal is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        from ropewalk import __version__

        print(f"ropewalk {__version__}")
        return
    try:
        import rich  # noqa: F401 - asked for here, so that one message names the extra for both
        import typer
    except ImportError as missing:
        _refuse(f"the command line needs {missing.name}; run: pip install 'ropewalk[cli]'")
    from ropewalk.errors import RopeError

    # typer may carry a click of its own, which has no public name; its errors are the bases of the one that has
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        code = _app(_asked(args))(args=args or ["--help"], prog_name="ropewalk", standalone_mode=False)
    except RopeError as error:
        _refuse(str(error))
    except usage_error as error:
        _refuse_usage(error)
    except OSError as error:
        _refuse(f"{error.filename or 'output'}: {error.strerror or error}")
    except typer.Abort:
        code = 130
    code = code if isinstance(code, int) else 0
    if code or not args:
        raise SystemExit(code or 2)


def _asked(args: list[str]) -> str | None:
    """The command that is called, or whose words a shell wants completed."""
    completing = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = completing.split()[1:2] if os.environ.get("_ROPEWALK_COMPLETE") else args[:1]
    return words[0] if words and words[0] in COMMANDS else None


def _app(asked: str | None) -> Any:
    """A typer app with the command that was asked for; the others are there by name, help and example only."""
    import typer

    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, entry in COMMANDS.items():
        known = entry if isinstance(entry, Command) else Command(entry)
        panel: dict[str, Any] = {"rich_help_panel": known.group}
        if name != asked:
            app.command(name, help=_line(known), **panel)(_unasked)
            continue
        module, attribute = known.target.split(":")
        command = getattr(importlib.import_module(module), attribute)
        epilog = f"Example: {known.example}" if known.example else None
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, epilog=epilog, **panel)
        else:
            app.command(name, epilog=epilog, **panel)(command)
    return app


def _line(known: Command) -> str:
    """What the list says of a command."""
    return " Try: ".join(filter(None, (known.help, known.example))) or known.target


def _root() -> None:
    """Rotary position embedding, exact at any position.

    `ropewalk COMMAND --help` explains a command, `ropewalk --version` prints the version. Most commands take --json.
    """


def _unasked() -> None:
    """Stands in the list for a command that is not imported."""


def _refuse_usage(error: Any) -> NoReturn:
    """A wrong option or argument in one line; a group called without a subcommand has shown its help already."""
    message = " ".join(error.format_message().split())
    if not message:
        raise SystemExit(error.exit_code)
    path = error.ctx.command_path if error.ctx else "ropewalk"
    _refuse(f"{message.rstrip('.')}; see: {path} --help")


def _refuse(message: str) -> NoReturn:
    print(f"ropewalk: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    main()
