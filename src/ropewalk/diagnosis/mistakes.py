"""The rows of mistakes.toml, and the functions that they name.

A row names a finder, which returns the facts of one mistake or None, and may name a repair, which
changes the config in place. Finders and repairs are shared by rows that differ in `keys` or in
`names`. Facts are a dict of values for the texts of the row and for its repair.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.diagnosis.case import Examination, Facts
from ropewalk.errors import choice

TABLE = Path(__file__).with_name("mistakes.toml")
CHINESE = TABLE.with_name("mistakes.zh.toml")
LANGUAGES = ("en", "zh")
#: from the heaviest to the lightest
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Mistake:
    """One row of mistakes.toml: what to look for, how to describe it, and how to repair it.

    id                    the name of the row, which findings carry
    severity              "error", "warning" or "note", as in Finding
    find                  the name of the function that finds the mistake; it returns the facts
    repair                the name of the function that repairs the config; None: no function
                          repairs it
    keys                  what the two functions look at: config keys, or rope types, layer types or
                          a release where the docstring of the finder says so
    names                 {name that the finder looks for: name that is meant}, of keys, values or
                          cases; "" where the finder needs no second name
    cause, effect, fix    texts with the facts of the finder in braces. `fix` may have two parts,
                          with "|" between them: the first says what was written, the second what
                          to do where nothing was repaired
    evidence              how the effect is known: "formula", or "recorded" or "rule" with `engine`
                          and `version`
    gguf                  whether the row is for GGUF files; other rows are for other configs, but
                          the one with the finder `unreadable` is for all
    """

    id: str
    severity: str
    find: str
    cause: str
    effect: str
    fix: str
    repair: str | None = None
    keys: tuple[str, ...] = ()
    names: dict[str, str] = field(default_factory=dict)
    evidence: str = "formula"
    engine: str = ""
    version: str = ""
    gguf: bool = False


Finder = Callable[[Examination, Mistake], Facts | None]
Repair = Callable[[Examination, Mistake, Facts], None]
FINDERS: dict[str, Finder] = {}
REPAIRS: dict[str, Repair] = {}


def finder(function: Finder) -> Finder:
    """Add a function to those that a row may name as `find`, under its own name."""
    FINDERS[function.__name__] = function
    return function


def repair(function: Repair) -> Repair:
    """Add a function to those that a row may name as `repair`, under its own name."""
    REPAIRS[function.__name__] = function
    return function


@cached("rows of mistakes", entries=1)
def mistakes() -> tuple[Mistake, ...]:
    """Return the rows in the order in which they are looked for: a repair helps those after it."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mistake"]
    return tuple(_mistake(row) for row in rows)


@cached("Chinese words of mistakes", entries=1)
def chinese() -> dict[str, dict[str, Any]]:
    """Return the Chinese cause, effect and fix of each row by its id."""
    return tomllib.loads(CHINESE.read_text(encoding="utf-8"))


def in_language(row: Mistake, language: str) -> Mistake:
    """Return a row with its words in a language, "en" or "zh"."""
    return row if language == "en" else replace(row, **chinese()[row.id])


def _mistake(row: dict[str, Any]) -> Mistake:
    """Return one row of the file, whose keys are the fields of `Mistake`; an unknown one raises an
    error.
    """
    found = Mistake(**{**row, "keys": tuple(row.get("keys", ()))})
    choice("severity", found.severity, SEVERITIES)
    return found
