"""The `ropewalk` command line. It is a package of its own because importing anything from
`ropewalk` imports torch.

Help, completion and `ropewalk --version` import neither: `options` only declares the options of
every command. Exit codes: 0 success; 1 the check of `demo` failed; 2 refused, with the reason in
one line on stderr; 130 interrupted.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

UNDERSTAND, CHANGE, TRAIN, MEASURE = (
    "Understand",
    "Convert and extend",
    "Train and study",
    "Measure",
)


@dataclass(frozen=True)
class Command:
    """A command: its function and its entry in the list of commands."""

    #: "module:attribute" of a function with typer's annotations, or of a typer.Typer with
    #: subcommands
    target: str
    group: str = "More"
    help: str = ""
    example: str = ""


#: every command by name; the value may also be just the "module:attribute" of its function
COMMANDS: dict[str, Command | str] = {
    "inspect": Command(
        "ropewalk_cli.options:inspect",
        UNDERSTAND,
        "Explain a checkpoint's rope: length, precision, memory, advice.",
        "ropewalk inspect config.json --served 131072 --plot rope.png",
    ),
    "audit": Command(
        "ropewalk_cli.options:audit",
        UNDERSTAND,
        "Compare what five inference engines compute from one config.",
        "ropewalk audit config.json --length 131072",
    ),
    "engines": Command(
        "ropewalk_cli.options:engines",
        UNDERSTAND,
        "Run the installed engines and compare their ropes with each config.",
        "ropewalk engines --only mlx-lm --match llama",
    ),
    "figures": Command(
        "ropewalk_cli.options:figures",
        UNDERSTAND,
        "Write every figure and a contact sheet.",
        "ropewalk figures pictures --format svg --dark --only decay",
    ),
    "explore": Command(
        "ropewalk_cli.options:explore",
        UNDERSTAND,
        "Open an interactive page in the browser, served on this machine only.",
        "ropewalk explore --port 8600",
    ),
    "convert": Command(
        "ropewalk_cli.options:convert",
        CHANGE,
        "Change a checkpoint's pair layout, or detect which one it has.",
        "ropewalk convert model model-half --from interleaved --to half",
    ),
    "extend": Command(
        "ropewalk_cli.options:extend",
        CHANGE,
        "Write a config for a longer context.",
        "ropewalk extend config.json yarn --factor 4 --out longer.json",
    ),
    "fit": Command(
        "ropewalk_cli.real_options:fit",
        CHANGE,
        "Measure every method of extending a model's context, and recommend one.",
        "ropewalk fit smollm2 --to 32768 --text moby-dick",
    ),
    "lab": Command(
        "ropewalk_cli.real_options:lab",
        TRAIN,
        "Run studies over several seeds and write their report.",
        "ropewalk lab run encodings --preset cpu",
    ),
    "train": Command(
        "ropewalk_cli.training_options:train",
        TRAIN,
        "Train a model from a preset, or continue a training.",
        "ropewalk train cpu --folder runs/rope --set model.encoding=rope",
    ),
    "demo": Command(
        "ropewalk_cli.options:demo",
        TRAIN,
        "Check this machine and write a report.",
        "ropewalk demo --out demo",
    ),
    "bench": Command(
        "ropewalk_cli.options:bench",
        MEASURE,
        "Time the rotation beside a copy and other installed libraries.",
        'ropewalk bench --shape "cpu decode" --out results/mine.jsonl',
    ),
    "info": Command(
        "ropewalk_cli.options:info",
        MEASURE,
        "Show versions, caches, backends and extras, and why one is missing.",
        "ropewalk info --json",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; an error of the user is one line on stderr and exit code 2."""
    args = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a path may hold what the terminal cannot show
    if args == ["--version"]:
        print(f"ropewalk {_version()}")
        return
    _refuse_empty(args)
    try:
        import rich  # noqa: F401 - checked here, so that one message names the extra for both
        import typer
    except ImportError as missing:
        _refuse(f"the command line needs {missing.name}; run: pip install 'ropewalk[cli]'")
    # typer may bundle click under a private name; BadParameter's base is click's UsageError either
    # way
    usage_error: Any = typer.BadParameter.__mro__[1]
    try:
        code = command_tree(_chosen(args))(
            args=args or ["--help"], prog_name="ropewalk", standalone_mode=False
        )
    except _Refused as error:
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


def _refuse_empty(args: list[str]) -> None:
    """Refuse an empty argument: it comes from a shell variable without a value, and as a path it is
    the current folder.
    """
    for before, arg in zip(["ropewalk", *args], args, strict=False):
        if not arg or re.fullmatch("--[^=]+=", arg):
            option = arg.rstrip("=") or (
                before if before.startswith("-") else f"the argument after {before!r}"
            )
            _refuse(f"{option} must not be empty; check the shell variable it comes from")


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("ropewalk")
    except metadata.PackageNotFoundError:  # run from a source tree
        return importlib.import_module("ropewalk").__version__


def _chosen(args: list[str]) -> str | None:
    """The command that is called, or whose arguments a shell completes; None for the list of
    commands.
    """
    completing = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    words = (
        completing.split()[1:2]
        if os.environ.get("_ROPEWALK_COMPLETE")
        else args[1:2]
        if args[:1] == ["--"]
        else args[:1]
    )
    return words[0] if words and words[0] in COMMANDS else None


def command_tree(chosen: str | None) -> Any:
    """Return click's tree of commands; only the chosen one is imported, the others have their name
    and help.
    """
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
    tree = typer.main.get_command(app)
    for command in leaves(tree).values():
        command.callback = _with_refusals(command)
    return tree


def leaves(command: Any, path: str = "") -> dict[str, Any]:
    """Return the commands of a tree that have no subcommands, by the words that call them."""
    parts = getattr(command, "commands", None)
    if parts is None:
        return {path: command}
    return {
        words: leaf
        for name, part in parts.items()
        for words, leaf in leaves(part, f"{path} {name}".strip()).items()
    }


class _Refused(Exception):
    """The message of a RopeError in the words of the command line."""


def _with_refusals(command: Any) -> Callable[..., Any]:
    """Return the function of a command; it raises _Refused where the library raises a RopeError."""
    call = command.callback

    @functools.wraps(call)
    def run(**values: Any) -> Any:
        try:
            return call(**values)
        except ValueError as raised:
            # looked up, not imported: a command of the user's own may do without torch
            errors = sys.modules.get("ropewalk.errors")
            if errors is None or not isinstance(raised, errors.RopeError):
                raise
            error: Any = raised
            field = next(
                (_option(each) for each in command.params if _is_about(error, each, values)),
                error.field,
            )
            rule = re.sub(
                r"(\w+=\S* )?\(CLI: ([^)]*)\)",
                lambda found: found[2] if found[1] else f"({found[2]})",
                error.rule,
            )
            if isinstance(error, errors.MissingExtra):
                raise _Refused(f"{field}: {rule}") from None
            message = str(errors.RopeError(field, rule, error.value))
            # None stands for an argument, an option or a config key that is missing
            raise _Refused(
                f"{message.removesuffix('None')}nothing" if error.value is None else message
            ) from None

    return run


def _option(parameter: Any) -> str:
    return max(parameter.opts, key=len)


def _is_about(error: Any, parameter: Any, values: Mapping[str, Any]) -> bool:
    """Return whether an error is about the value of an option; a config may have a key of the same
    name.
    """
    value = values.get(parameter.name)
    names = {parameter.name, *(each.strip("-").replace("-", "_") for each in parameter.opts)}
    # an option that may be repeated is one of several to the library: --layer-type, layer_types
    names |= {f"{name}s" for name in names}
    given = [str(each) for each in (value, *(value if isinstance(value, list | tuple) else ()))]
    return error.field in names and str(error.value) in given


def _root() -> None:
    """Rotary position embedding, exact at any position.

    `ropewalk COMMAND --help` explains a command, `ropewalk --version` prints the version. Most
    commands take --json.
    """


def _placeholder() -> None:
    """The function of a command that is listed but not imported."""


def _refuse_usage(error: Any) -> NoReturn:
    """Report a wrong option or argument in one line; a group without a subcommand has printed its
    help already.
    """
    message = " ".join(error.format_message().split())
    if not message:
        raise SystemExit(error.exit_code)
    path = error.ctx.command_path if error.ctx else "ropewalk"
    _refuse(f"{message.rstrip('.')}; see: {path} --help")


def _refuse(message: str) -> NoReturn:
    """Print a message in one line, with escapes for characters that cannot be printed, and exit
    with code 2.
    """
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message)
    print(f"ropewalk: {line}", file=sys.stderr)
    raise SystemExit(2)
