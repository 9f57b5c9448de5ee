"""The `ropewalk` command line, with the standard library alone.

A command imports what it needs when it runs: `inspect` (but for --plot), `doctor`, `audit`, help
and completion need neither torch nor numpy. Exit codes: 0 success; 1 a check of `demo` or
`conformance` failed; 2 refused, with the reason in one line on stderr; 3 and 4 warnings and errors
of `doctor`; 130 interrupted.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ropewalk.errors import MissingExtra, RopeError
from ropewalk.safe_text import shown
from ropewalk_cli.declare import Argument, Command, Option, Parameter, as_command, parameters
from ropewalk_cli.words import HELP, HelpAsked, UsageError, is_option, nearest, read

__all__ = ["COMMANDS", "Argument", "Command", "Option", "main"]

UNDERSTAND, CHANGE, TRAIN, MEASURE, MORE = (
    "Understand",
    "Convert and extend",
    "Train and study",
    "Measure",
    "More",
)
ABOUT = (
    "Rotary position embedding, exact at any position. Most commands take --json; "
    "`ropewalk --version` prints the version."
)
#: package that a command may lack: the extra that installs it
EXTRAS = {
    "torch": "torch",
    "numpy": "torch",
    "jaxtyping": "torch",
    "transformers": "hf",
    "safetensors": "hf",
    "tokenizers": "gguf",
    "matplotlib": "lab",
}

#: every command by name; the value may also be just the "module:attribute" of its function
COMMANDS: dict[str, Command | str] = {
    "inspect": Command(
        "ropewalk_cli.commands.inspect:inspect",
        UNDERSTAND,
        "Explain a checkpoint's rope: length, precision, memory, advice.",
        "ropewalk inspect config.json --served 131072 --plot rope.png",
    ),
    "doctor": Command(
        "ropewalk_cli.commands.doctor:doctor",
        UNDERSTAND,
        "Find what is wrong with a config, and print the corrected one.",
        "ropewalk doctor config.json --engine vllm --length 131072",
    ),
    "audit": Command(
        "ropewalk_cli.commands.audit:audit",
        UNDERSTAND,
        "Compare what five inference engines compute from one config.",
        "ropewalk audit config.json --length 131072",
    ),
    "conformance": Command(
        "ropewalk_cli.commands.conformance:conformance",
        UNDERSTAND,
        "Test a project's own rope with exact vectors, and name its mistakes.",
        "ropewalk conformance --module my_engine.rope --group yarn",
    ),
    "engines": Command(
        "ropewalk_cli.commands.engines:engines",
        UNDERSTAND,
        "Run the installed engines and compare their ropes with each config.",
        "ropewalk engines --only mlx-lm --match llama",
    ),
    "figures": Command(
        "ropewalk_cli.commands.figures:figures",
        UNDERSTAND,
        "Write every figure and a contact sheet.",
        "ropewalk figures pictures --format svg --dark --only decay",
    ),
    "explore": Command(
        "ropewalk_cli.commands.explore:explore",
        UNDERSTAND,
        "Open an interactive page in the browser, served on this machine only.",
        "ropewalk explore --port 8600",
    ),
    "convert": Command(
        "ropewalk_cli.commands.convert:convert",
        CHANGE,
        "Change a checkpoint's pair layout, or detect which one it has.",
        "ropewalk convert model model-half --from interleaved --to half",
    ),
    "extend": Command(
        "ropewalk_cli.commands.extend:extend",
        CHANGE,
        "Write a config for a longer context.",
        "ropewalk extend config.json yarn --factor 4 --out longer.json",
    ),
    "fit": Command(
        "ropewalk_cli.commands.fit:fit",
        CHANGE,
        "Measure the methods of extending a model's context, and recommend one.",
        "ropewalk fit smollm2 --to 32768 --text moby-dick",
    ),
    "lab": Command(
        "ropewalk_cli.commands.lab:LAB",
        TRAIN,
        "Run studies over several seeds and write their report.",
        "ropewalk lab run encodings --preset cpu",
    ),
    "train": Command(
        "ropewalk_cli.commands.train:train",
        TRAIN,
        "Train a model from a preset, or continue a training.",
        "ropewalk train cpu --folder runs/rope --set model.encoding=rope",
    ),
    "demo": Command(
        "ropewalk_cli.commands.demo:demo",
        TRAIN,
        "Check this machine and write a report.",
        "ropewalk demo --out demo",
    ),
    "bench": Command(
        "ropewalk_cli.commands.bench:bench",
        MEASURE,
        "Time the rotation beside a copy and other installed libraries.",
        'ropewalk bench --shape "cpu decode" --out results/mine.jsonl',
    ),
    "info": Command(
        "ropewalk_cli.commands.info:info",
        MEASURE,
        "Show versions, caches, backends and extras, and why one is missing.",
        "ropewalk info --json",
    ),
    "completion": Command(
        "ropewalk_cli.completion:completion",
        MORE,
        "Print what bash, zsh or fish runs to complete the words of this command line.",
        "ropewalk completion bash",
    ),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command; an error of the user is one line on stderr and exit code 2."""
    words = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # a path may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(words)
        sys.stdout.flush()
    except (_Refused, UsageError) as error:
        _refuse(str(error))
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has read enough
        # stdout becomes the null device: Python writes what is left to it when it exits, which would
        # fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        _refuse(f"{error.filename or 'output'}: {error.strerror or error}")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _run(words: list[str]) -> None:
    """Run the command that the words name."""
    if words[:1] == ["--complete"]:  # asked by a shell: its name and the words so far follow
        from ropewalk_cli.completion import answer

        print(*answer(words[1] if words[1:] else "", words[2:], COMMANDS), sep="\n")
        return
    if words == ["--version"]:
        from ropewalk import __version__

        print(f"ropewalk {__version__}")
        return
    _refuse_empty(words)
    # a "--" before the name of the command has no effect
    _run_group("ropewalk", words[1:] if words[:1] == ["--"] else words, COMMANDS, ABOUT, "")


def _run_group(
    path: str, words: list[str], commands: Mapping[str, Command | str], about: str, example: str
) -> None:
    """Run the command of a group that the first word names; print the group's help if there is no
    word, with exit code 2, or if the first word is --help.

    path            what comes before these words, such as "ropewalk lab"
    commands        the commands of the group; a text is just the "module:attribute" of a function
    about, example  for the help of the group
    """
    if not words or words[0] in HELP:
        from ropewalk_cli.help import of_group

        print(of_group(path, commands, about, example))
        if not words:
            raise SystemExit(2)
        return
    name, *rest = words
    if name not in commands:
        kind = "option" if is_option(name) else "command"
        raise UsageError(f"no such {kind}: {name!r}{nearest(name, commands)}; see: {path} --help")
    command, path = as_command(commands[name]), f"{path} {name}"
    with _MissingPackage(name):
        target = command.load()
    if callable(target):
        _run_command(path, target, rest, command.example)
    else:
        _run_group(path, rest, target, command.help, command.example)


def _run_command(path: str, function: Callable[..., None], words: list[str], example: str) -> None:
    """Read the words that follow a command, and call its function; `path` is the command with what
    comes before it, such as "ropewalk inspect", and `example` belongs to its help.
    """
    taken, values = parameters(function), {}
    try:
        with _MissingPackage(path.split(" ", 1)[1]):  # the path without "ropewalk"
            values = read(words, taken)
            function(**values)
    except HelpAsked:
        from ropewalk_cli.help import of_command

        print(of_command(path, function, example))
    except UsageError as error:
        raise UsageError(f"{error}; see: {path} --help") from None
    except RopeError as error:
        raise _Refused(_in_words_of_options(error, taken, values)) from None


class _Refused(Exception):
    """The command cannot run; the text is the one line that it prints. The reason is a missing
    package, an empty argument, or a RopeError, whose message then names options, not arguments.
    """


class _MissingPackage:
    """Context manager: if a package of EXTRAS is not installed, raise an error that names its extra."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, _: Any) -> None:
        package = error.name if isinstance(error, ModuleNotFoundError) else None
        if package in EXTRAS:
            raise _Refused(str(MissingExtra(self.command, package, EXTRAS[package]))) from None


def _in_words_of_options(
    error: RopeError, taken: Sequence[Parameter], values: Mapping[str, Any]
) -> str:
    """Return the message of an error with the name of the option that it is about, such as
    --layer-type for layer_types. `taken` is what the command takes, `values` what it was given.
    """
    about = (each.shown for each in taken if _is_about(error, each, values))
    field = next(about, error.field)  # an error about no option keeps its own name
    # a rule may name an argument and its option, "pass overwrite=True (CLI: --overwrite)": the option
    # replaces both; without an argument, "(CLI: --trained)" becomes "(--trained)"
    rule = re.sub(
        r"(\w+=\S* )?\(CLI: ([^)]*)\)",
        lambda found: found[2] if found[1] else f"({found[2]})",
        error.rule,
    )
    if isinstance(error, MissingExtra):  # its message has no value
        return f"{field}: {rule}"
    message = str(RopeError(field, rule, error.value))
    # None stands for an argument, an option or a config key that is missing
    return f"{message.removesuffix('None')}nothing" if error.value is None else message


def _is_about(error: RopeError, parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Return whether an error is about an option. The value must agree too, because a config may
    have a key with the name of the option.
    """
    value = values.get(parameter.name)
    names = {parameter.name, parameter.shown.strip("-").replace("-", "_")}
    # an option that may be repeated is one of several to the library: --layer-type, layer_types
    names |= {f"{name}s" for name in names}
    given = [str(each) for each in (value, *(value if isinstance(value, list) else ()))]
    return error.field in names and str(error.value) in given


def _refuse_empty(words: list[str]) -> None:
    """Refuse an empty argument: it mostly comes from a shell variable without a value, and as a path
    it would be the current folder.
    """
    for before, word in zip(["ropewalk", *words], words, strict=False):
        # an empty word, or an option with nothing after its "="
        if not word or re.fullmatch("--[^=]+=", word):
            option = word.rstrip("=") or (
                before if before.startswith("-") else f"the argument after {before!r}"
            )
            raise _Refused(f"{option} must not be empty; check the shell variable it comes from")


def _refuse(message: str) -> NoReturn:
    """Print a message in one line, and exit with code 2."""
    print(f"ropewalk: {shown(message)}", file=sys.stderr)
    raise SystemExit(2)
