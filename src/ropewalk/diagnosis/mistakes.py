"""The rows of mistakes.toml, and the functions that they name.

A row names a finder, which returns the facts of one mistake or None, and may name a repair, which
changes the config in place. Finders and repairs are shared by rows that differ in `keys`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.diagnosis.case import Examination, Facts
from ropewalk.errors import choice

TABLE = Path(__file__).with_name("mistakes.toml")
#: from the heaviest to the lightest
SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Mistake:
    """One row: what to look for, its words, and how to repair it.

    find, repair          names of functions; no repair: the config does not say what was meant
    keys                  config keys that the two functions look at
    names                 {wrong name: right name}
    cause, effect, fix    texts with the facts of the finder in braces
    evidence              how the effect is known: "formula", or "recorded" or "rule" with `engine`
                          and `version`
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
    """Add a function to those that a row may name as `find`."""
    FINDERS[function.__name__] = function
    return function


def repair(function: Repair) -> Repair:
    """Add a function to those that a row may name as `repair`."""
    REPAIRS[function.__name__] = function
    return function


@cached("rows of mistakes", entries=1)
def mistakes() -> tuple[Mistake, ...]:
    """Return the rows in the order in which they are looked for: a repair helps those after it."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mistake"]
    return tuple(_mistake(row) for row in rows)


def _mistake(row: dict[str, Any]) -> Mistake:
    """Return one row, checked."""
    found = Mistake(**{**row, "keys": tuple(row.get("keys", ()))})
    choice("severity", found.severity, SEVERITIES)
    return found
