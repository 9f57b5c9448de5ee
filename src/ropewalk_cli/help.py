"""The help of the command line, of a group of commands and of one command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ropewalk_cli.declare import Command, Parameter, as_command, parameters
from ropewalk_cli.output import columns_of, line_width, styled, wrapped

#: the word for a value in help
METAVARS = {str: "TEXT", int: "INTEGER", float: "NUMBER"}


def of_group(
    path: str, commands: Mapping[str, Command | str], about: str = "", example: str = ""
) -> str:
    """Return the help of a group: its commands by task, each with what it does and an example.

    path     the words that name the group, such as "ropewalk lab"
    about    what the group is for; `example`: of the group itself
    """
    parts = [f"Usage: {path} COMMAND [OPTIONS]"]
    if about:
        parts.append("\n".join(wrapped(about, line_width())))
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, entry in commands.items():
        command = as_command(entry)
        lines = groups.setdefault(command.group, [])
        lines.append((name, command.help or command.target))
        if command.example:
            lines.append(("", command.example))
    names = [name for lines in groups.values() for name, _ in lines]
    width = max(map(len, names), default=0)
    for group, lines in groups.items():
        rows = [(name.ljust(width), text) for name, text in lines]
        parts.append("\n".join([styled(group, "bold"), *columns_of(rows, line_width())]))
    parts.append(f"`{path} COMMAND --help` explains a command.")
    if example:
        parts.append(f"Example: {example}")
    return "\n\n".join(parts)


def of_command(path: str, function: Callable[..., None], example: str = "") -> str:
    """Return what a command does, its arguments and options with their defaults, and an example.
    `path` are the words that name it, such as "ropewalk inspect".
    """
    taken = parameters(function)
    arguments = [each for each in taken if each.is_argument]
    options = [each for each in taken if not each.is_argument]
    parts = [" ".join([f"Usage: {path} [OPTIONS]", *map(_place, arguments)])]
    for paragraph in (inspect.getdoc(function) or "").split("\n\n"):
        parts.append("\n".join(wrapped(" ".join(paragraph.split()), line_width())))
    if arguments:
        parts.append(_section("Arguments", [(each.shown, _about(each)) for each in arguments]))
    rows = [(_name(each), _about(each)) for each in options]
    parts.append(_section("Options", [*rows, ("--help", "Show this help.")]))
    if example:
        parts.append(f"Example: {example}")
    return "\n\n".join(parts)


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    """Return a section of a help page: its title, and two columns."""
    return "\n".join([styled(title, "bold"), *columns_of(rows, line_width())])


def _place(argument: Parameter) -> str:
    """Return an argument as the usage line shows it: CONFIG, NAME..., [TARGET]."""
    name = argument.shown + ("..." if argument.several else "")
    return name if argument.required else f"[{name}]"


def _name(option: Parameter) -> str:
    """Return the names of an option, and the word for its value."""
    if option.is_flag:
        return ", ".join(option.names)
    return f"{option.shown} {METAVARS.get(option.kind, 'PATH')}"


def _about(parameter: Parameter) -> str:
    """Return the help of a parameter, then in brackets its choices, whether an option may be
    repeated or must be given, and its default.
    """
    notes = []
    if parameter.choices:
        notes.append(f"one of {', '.join(parameter.choices)}")
    if parameter.several and not parameter.is_argument:
        notes.append("may be repeated")
    if parameter.required and not parameter.is_argument:
        notes.append("must be given")
    default = _default(parameter)
    if default:
        notes.append(f"default: {default}")
    return " ".join(filter(None, (parameter.help, f"[{'; '.join(notes)}]" if notes else "")))


def _default(parameter: Parameter) -> str:
    """Return the default as it would be written; "" for None, an empty text, or a flag that is off."""
    value: Any = parameter.default
    if parameter.is_flag:
        return parameter.shown if value else ""
    return "" if value in (None, "") else str(value)
