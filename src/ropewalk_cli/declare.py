"""What a command takes: declared once, in the signature of the function that does the work.

    def fortune(
        name: Annotated[str, Argument("Whose fortune.")],
        lines: Annotated[int, Option("How many.")] = 1,
    ) -> None: ...

A parameter without a default must be given. One without `Annotated` is an option if it has a
default, and an argument if it has none. Types are str, int, float, Path, bool (a flag), a Literal
of texts (a choice), a list of one of them (may be repeated), each also `| None`.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Option:
    """What help says of a parameter, and its name on the command line: by default made from its
    name in the signature, --max-model-len from max_model_len.
    """

    help: str = ""
    name: str = ""


class Argument(Option):
    """A parameter that is given by its place, not by its name."""


@dataclass(frozen=True)
class Command:
    """A command: its function and its entry in the list of commands.

    target  "module:attribute" of a function, or of a dict of further commands
    """

    target: str
    group: str = "More"
    help: str = ""
    example: str = ""

    def load(self) -> Callable[..., None] | Mapping[str, Command | str]:
        """Import the target and return it."""
        import importlib

        module, attribute = self.target.split(":")
        return getattr(importlib.import_module(module), attribute)


def as_command(entry: Command | str) -> Command:
    """Return an entry of a dict of commands as a Command; it may be just the target."""
    return entry if isinstance(entry, Command) else Command(entry)


@dataclass(frozen=True)
class Parameter:
    """One option or argument of a command.

    name      the function's name for it
    shown     its name on the command line: "--max-model-len", or "CONFIG" for an argument
    kind      str, int, float, Path or bool
    choices   the texts it may be; empty: any
    several   whether it may be repeated and is a list
    required  whether it must be given; otherwise `default` stands for it
    """

    name: str
    shown: str
    kind: type
    help: str
    choices: tuple[str, ...] = ()
    several: bool = False
    required: bool = False
    default: Any = None

    @property
    def is_argument(self) -> bool:
        """Whether it is given by its place on the command line, not after its name."""
        return not self.shown.startswith("-")

    @property
    def is_flag(self) -> bool:
        """Whether it takes no value."""
        return self.kind is bool

    @property
    def flags(self) -> dict[str, bool]:
        """The names of a flag with their values; one that is on by default is turned off by
        --no-NAME.
        """
        if not self.is_flag:
            return {}
        off = {f"--no-{self.shown[2:]}": False} if self.default else {}  # [2:]: without its dashes
        return {self.shown: True} | off

    @property
    def names(self) -> list[str]:
        """Every name of an option on the command line; [] for an argument."""
        return list(self.flags) or ([] if self.is_argument else [self.shown])


@functools.cache
def parameters(function: Callable[..., None]) -> tuple[Parameter, ...]:
    """Return what a function takes, from its signature."""
    hints = typing.get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    return tuple(
        _parameter(name, hints.get(name, str), each.default)
        for name, each in signature.parameters.items()
    )


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    """Return one parameter; `default` is inspect.Parameter.empty if the signature has none."""
    hint, about = _parts(hint)
    required = default is inspect.Parameter.empty
    if about is None:
        about = Argument() if required else Option()
    kind, choices, several = _kind(hint)
    if isinstance(about, Argument):
        shown = about.name or name.upper()
    else:
        shown = about.name or f"--{name.replace('_', '-')}"
    return Parameter(
        name, shown, kind, about.help, choices, several, required, None if required else default
    )


def _parts(hint: Any) -> tuple[Any, Option | None]:
    """Return the type in an annotation, and its Option or Argument."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint, None
    base, *notes = typing.get_args(hint)
    return base, next((note for note in notes if isinstance(note, Option)), None)


def _kind(hint: Any) -> tuple[type, tuple[str, ...], bool]:
    """Return (type of one value, its choices, whether there may be several)."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        (hint,) = (part for part in inside if part is not types.NoneType)
        return _kind(hint)
    if origin is list:
        kind, choices, _ = _kind(inside[0])
        return kind, choices, True
    if origin is typing.Literal:
        return str, inside, False
    if hint not in (str, int, float, bool, Path):
        raise TypeError(f"a command takes str, int, float, bool, Path and Literal; got {hint}")
    return hint, (), False
