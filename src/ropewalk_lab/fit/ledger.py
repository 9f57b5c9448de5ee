"""Measured rows in a JSON lines file that grows row by row, so that an interrupted measurement
resumes where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError

Row = dict[str, Any]


class Ledger:
    """Rows of one setting; a file may hold rows of several settings, which `setting` tells apart.

    path     the file; None keeps the rows in memory only
    setting  plain data that identifies model, text and seeds
    """

    def __init__(self, path: Path | None, setting: Mapping[str, Any]) -> None:
        self.path = path
        self.id = hashlib.sha256(json.dumps(setting, sort_keys=True).encode()).hexdigest()[:12]
        stored = [] if path is None or not path.exists() else _read(path)
        self.rows: list[Row] = [row for row in stored if row.get("run") == self.id]

    def find(self, **fields: Any) -> Row | None:
        """Return the row with these fields, or None if it has not been measured yet."""
        return next(
            (
                row
                for row in self.rows
                if all(row.get(name) == value for name, value in fields.items())
            ),
            None,
        )

    def add(self, **fields: Any) -> None:
        """Store a row, at once in the file."""
        row: Row = {"run": self.id, **fields}
        self.rows.append(row)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _read(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; a last line that was cut off while it was written is left out, or
    gets its end of line.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    for index, line in enumerate(lines):
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if index >= len(lines) - 1:  # the last line: remove it from the file
                path.write_text(
                    "\n".join(lines[:index]) + ("\n" if index else ""), encoding="utf-8"
                )
                return
            raise RopeError(
                "rows",
                f"line {index + 1} must be JSON; remove the file to measure again",
                str(path),
            ) from None
        if not isinstance(row, dict):
            raise RopeError(
                "rows",
                f"line {index + 1} must be an object; remove the file to measure again",
                str(path),
            )
        yield row
    if lines[-1]:
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
