"""Measured rows in a JSON lines file that grows row by row, so that an interrupted measurement
resumes where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from ropewalk.errors import RopeError

Row = dict[str, Any]


def digest(data: Any, digits: int = 12) -> str:
    """Return a short name of plain data: the first hex digits of the SHA-256 of its JSON."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:digits]


class Ledger:
    """Measured rows of one setting; a file may hold those of several, each with the digest of its
    setting as "run".

    A row is identified by what was measured: the setting and the fields given to `find`. If a file
    holds a row twice, because two programs wrote at once, `rows` has it once.

    path     the file; None keeps the rows in memory only
    setting  plain data that identifies model, text and seeds; only rows measured with the same one
             are read from the file
    """

    def __init__(self, path: Path | None, setting: Mapping[str, Any]) -> None:
        """Read the rows of a setting, plain data, from the file at `path`, if there is one."""
        self.path = path
        self.id = digest(setting)
        self._by_id: dict[str, Row] = {}
        for row in () if path is None or not path.exists() else _stored_rows(path):
            if row.get("run") == self.id and "id" in row:
                self._by_id.setdefault(row["id"], row)  # the first of two equal ids counts

    @property
    def rows(self) -> list[Row]:
        """The rows, in the order in which they were measured."""
        return list(self._by_id.values())

    def find(self, **measured: Any) -> Row | None:
        """Return the row of what was measured, or None if it has not been measured yet."""
        return self._by_id.get(self._row_id(measured))

    def add(self, measured: Mapping[str, Any], **values: Any) -> None:
        """Add a row, and append it to the file, if there is one, at once: `measured` says what was
        measured, in the fields that `find` takes, and `values` are the results.
        """
        row: Row = {"run": self.id, "id": self._row_id(measured), **measured, **values}
        self._by_id[row["id"]] = row
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _row_id(self, measured: Mapping[str, Any]) -> str:
        """Return the name of a row: a digest of the setting and of what was measured."""
        return digest([self.id, measured])


@contextmanager
def only_writer(path: Path | None) -> Iterator[None]:
    """Context manager: this is the only program that measures into the file at `path`; another one
    is refused. With None as the path it does nothing.

    The operating system releases the lock when a program ends, however it ends. Where files
    cannot be locked, as on some network drives, nothing is refused.
    """
    if path is None:
        yield
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):  # the latter on Windows
            rule = (
                "must be a folder in which no other fit runs; wait until it has ended, or give "
                "another folder"
            )
            raise RopeError("out", rule, str(path.parent)) from None
        except OSError:  # files cannot be locked here
            pass
        yield


def _lock(file: IO[str]) -> None:
    """Lock a file until it is closed; raise an OSError if another program has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows locks bytes: one far beyond the end, so that all can be read
        import msvcrt

        file.seek(0x7FFFFFFF)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _stored_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file; raise an error if a line is not a JSON object.

    A last line that was cut off while it was written is removed from the file; if only its newline
    is missing, that is added.
    """
    lines = path.read_text(encoding="utf-8").split("\n")
    for index, line in enumerate(lines):
        if not line:
            continue
        try:
            row = json.loads(line)
        except ValueError:
            if index >= len(lines) - 1:  # the last line, without a newline: remove it from the file
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
                f"line {index + 1} must be a JSON object; remove the file to measure again",
                str(path),
            )
        yield row
    if lines[-1]:  # a complete last line without its newline
        with path.open("a", encoding="utf-8") as file:
            file.write("\n")
