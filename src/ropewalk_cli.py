"""The `ropewalk` command line. It is a module of its own because importing anything from `ropewalk` imports torch.

`ropewalk --help` and `ropewalk --version` import neither; a command's module is imported when the command runs.
Exit codes: 0 success; 1 the check of `demo` failed; 2 refused, with the reason in one line on stderr; 130 interrupted.
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
    """A command: its function and its entry in the list of commands."""

    #: "module:attribute" of a function with typer's annotations, or of a typer.Typer with subcommands
    target: str
    group: str = "More"
    help: str = ""
    example: str = ""


#: every command by name; the value may also be just the "module:attribute" of its function
COMMANDS: dict[str, Command | str] = {
    "inspect": Command(
        "ropewalk.commands.inspect:inspect", UNDERSTAND, "Explain a checkpoint's rope: length, precision, memory, advice.",
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
        "ropewalk.commands.explore:explore", UNDERSTAND, "Open an interactive page in the browser, served on this machine only.",
        "ropewalk explore --report lab/report.html",
    ),
    "convert": Command(
        "ropewalk.commands.convert:convert", CHANGE, "Change a checkpoint's pair layout, or detect which one it has.",
        "ropewalk convert model model-half --from interleaved --to half",
    ),
    "extend": Command(
        "ropewalk.commands.extend:extend", CHANGE, "Write a config for a longer context.",
        "ropewalk extend config.json yarn --factor 4 --out longer.json",
    ),
    "lab": Command(
        "ropewalk.commands.lab:app", TRAIN, "Run studies over several seeds and write their report.",
        "ropewalk lab run encodings --preset cpu",
    ),
    "train": Command(
        "ropewalk.commands.train:train_command", TRAIN, "Train a model from a preset, or continue a training.",
        "ropewalk train cpu --folder runs/rope --set model.encoding=rope",
    ),
    "demo": Command(
        "ropewalk.commands.demo:demo", TRAIN, "Check this machine and write a report.",
        "ropewalk demo --out demo",
    ),
    "bench": Command(
        "ropewalk.bench.command:bench", MEASURE, "Time the rotation beside a copy and other installed libraries.",
        'ropewalk bench --shape "cpu decode" --out results/mine.jsonl',
    ),
    "info": Command(
        "ropewalk.commands.info:info", MEASURE, "Show versions, caches, backends and extras, and why one is missing.",
        "ropewalk info --json",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; an error of the user is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    if args == ["--version"]:
        print(f"ropewalk {_version()}")
        return
    try:
        import rich  # noqa: F401 - checked here, so that one message names the extra for both
        import typer
    except ImportError as missing:
        _refuse(f"the command line needs {missing.name}; run: pip install 'ropewalk[cli]'")
    name = _chosen(args)
    refusals = (importlib.import_module("ropewalk.errors").RopeError,) if name else ()
    # typer may bundle click under a private name; BadParameter's base is click's UsageError either way
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        code = _app(name)(args=args or ["--help"], prog_name="ropewalk", standalone_mode=False)
    except refusals as error:
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


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("ropewalk")
    except metadata.PackageNotFoundError:  # run from a source tree
        return importlib.import_module("ropewalk").__version__


def _chosen(args: list[str]) -> str | None:
    """The command that is called, or whose arguments a shell completes; None for the list of commands."""
    completing = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = completing.split()[1:2] if os.environ.get("_ROPEWALK_COMPLETE") else args[:1]
    return words[0] if words and words[0] in COMMANDS else None


def _app(chosen: str | None) -> Any:
    """A typer app in which only the chosen command is imported; the others have their name and help."""
    import typer

    app = typer.Typer(pretty_exceptions_enable=False)
    app.callback()(_root)
    for name, entry in COMMANDS.items():
        command = entry if isinstance(entry, Command) else Command(entry)
        panel: dict[str, Any] = {"rich_help_panel": command.group}
        if name != chosen:
            line = " Try: ".join(filter(None, (command.help, command.example))) or command.target
            app.command(name, help=line, **panel)(_placeholder)
            continue
        module, attribute = command.target.split(":")
        function = getattr(importlib.import_module(module), attribute)
        epilog = f"Example: {command.example}" if command.example else None
        if isinstance(function, typer.Typer):
            app.add_typer(function, name=name, epilog=epilog, **panel)
        else:
            app.command(name, epilog=epilog, **panel)(function)
    return app


def _root() -> None:
    """Rotary position embedding, exact at any position.

    `ropewalk COMMAND --help` explains a command, `ropewalk --version` prints the version. Most commands take --json.
    """


def _placeholder() -> None:
    """The function of a command that is listed but not imported."""


def _refuse_usage(error: Any) -> NoReturn:
    """Report a wrong option or argument in one line; a group without a subcommand has printed its help already."""
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
