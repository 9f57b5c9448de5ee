"""The log of a run: a JSON line for each step and each evaluation, and TensorBoard files on
request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk_lab.json_lines import encode_rows, write_atomically

LOG = "log.jsonl"


class Log:
    """Rows that have a `step`, stored in a file, or in memory if there is no folder."""

    def __init__(self, folder: Path | None, *, tensorboard: bool = False) -> None:
        self.path = None if folder is None else folder / LOG
        self._rows: list[dict[str, Any]] = []
        self._board = _tensorboard(folder) if tensorboard and folder is not None else None

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows to the log, and their numbers to TensorBoard if it is in use."""
        rows = list(rows)
        if self.path is None:
            self._rows += rows
        else:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(encode_rows(rows))
        if self._board is not None:
            for row in rows:
                for name, value in _numbers(row):
                    self._board.add_scalar(name, value, row["step"])

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows."""
        return list(self._rows) if self.path is None else read_log(self.path)

    def truncate(self, step: int) -> None:
        """Remove the rows of the steps after `step`, because these steps will be run again."""
        rows = [row for row in self.rows() if row["step"] <= step]
        if self.path is None:
            self._rows = rows
        else:
            write_atomically(self.path, encode_rows(rows))

    def close(self) -> None:
        """Close the TensorBoard files."""
        if self._board is not None:
            self._board.close()


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a log, without a last line that is incomplete because the run was killed;
    [] if there is no file.
    """
    if not Path(path).exists():
        return []
    # what follows the last newline: nothing, or an incomplete line
    *lines, _ = Path(path).read_text(encoding="utf-8").split("\n")
    try:
        return [json.loads(line) for line in lines if line]
    except ValueError as error:
        raise RopeError(
            "log", f"must have a JSON object on every line ({error}); use a new folder", str(path)
        ) from None


def _numbers(row: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    """Yield (name, value) of all numbers in a row but the step, with names of nested dicts joined
    by slashes.
    """
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            yield f"{prefix}{name}", value


def _tensorboard(folder: Path):
    """Return a TensorBoard writer for the folder; raise an error if the package is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RopeError(
            "tensorboard", "needs the tensorboard package: pip install tensorboard", True
        ) from None
    return SummaryWriter(str(folder / "tensorboard"))
