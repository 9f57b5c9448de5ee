"""From the words of a command line to the values of a function's parameters.

Options and arguments may come in any order, which argparse does not allow if an argument may be
left out; a wrong word is named before a missing one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, choice
from ropewalk_cli.declare import Parameter

HELP = ("--help", "-h")


class UsageError(Exception):
    """Words that the command does not understand; the message refers to its help."""


class HelpAsked(Exception):
    """The help of the command was asked for."""


def read(words: Sequence[str], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the value of every parameter by its name."""
    given, places = _by_name(words, parameters)
    arguments = [each for each in parameters if each.is_argument]
    given |= _by_place(places, arguments)
    missing = [each.shown for each in parameters if each.required and not given.get(each.name)]
    if missing:
        raise UsageError(f"{' and '.join(missing)} must be given")
    values = {}
    for each in parameters:
        found = given.get(each.name)
        if found is None:
            values[each.name] = each.default
        elif each.is_flag:
            values[each.name] = found[-1]
        else:
            converted = [_converted(each, word) for word in found]
            values[each.name] = converted if each.several else converted[-1]
    return values


def _by_name(
    words: Sequence[str], parameters: Sequence[Parameter]
) -> tuple[dict[str, list[Any]], list[str]]:
    """Return the values that options give, and the words that are left for arguments."""
    options = {name: each for each in parameters for name in each.names}
    given: dict[str, list[Any]] = {}
    places: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return given, [*places, *rest]
        if not is_option(word):
            places.append(word)
            continue
        name, equals, value = word.partition("=")
        if word in HELP:
            raise HelpAsked
        if name not in options:
            raise UsageError(f"no such option: {name}{nearest(name, [*options, *HELP])}")
        option = options[name]
        if option.is_flag:
            if equals:
                raise UsageError(f"{name} takes no value")
            given.setdefault(option.name, []).append(option.flags[name])
            continue
        following = value if equals else next(rest, None)
        # an option that is followed by the name of another one lacks its value
        if following is None or (not equals and following.partition("=")[0] in options):
            raise UsageError(f"{name} needs a value")
        given.setdefault(option.name, []).append(following)
    return given, places


def _by_place(words: list[str], arguments: list[Parameter]) -> dict[str, list[str]]:
    """Return the words of each argument; only the last may have several. Raise an error if there
    are too many words.
    """
    given = {}
    for each in arguments:
        taken = words if each.several else words[:1]
        words = words[len(taken) :]
        if taken:
            given[each.name] = taken
    if words:
        raise UsageError(f"one argument too many: {words[0]!r}")
    return given


def _converted(parameter: Parameter, word: str) -> Any:
    """Return a word converted to the type of the parameter; raise an error if it is not one of the
    choices, or not a number where one is required.
    """
    if parameter.choices:
        return choice(parameter.shown, word, parameter.choices)
    if parameter.kind in (int, float):
        try:
            return parameter.kind(word)
        except ValueError:
            rule = "must be an integer" if parameter.kind is int else "must be a number"
            raise RopeError(parameter.shown, rule, word) from None
    return Path(word) if parameter.kind is Path else word


def is_option(word: str) -> bool:
    """Return whether a word begins with a dash as options do; a negative number and a lone dash are
    no options.
    """
    return len(word) > 1 and word[0] == "-" and not re.fullmatch(r"-[\d.].*", word)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean ...?)" with the known names that look like `name`, or nothing."""
    found = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {' or '.join(found)}?)" if found else ""
