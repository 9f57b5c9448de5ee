"""What a run says: a JSON line for every step, always; TensorBoard and a progress bar where they are wanted."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError

LOG = "log.jsonl"


class Log:
    """Rows in a file, or in memory where there is no folder. A row has a `step`; rows of steps taken back are dropped."""

    def __init__(self, folder: Path | None, *, tensorboard: bool = False) -> None:
        self.path = None if folder is None else folder / LOG
        self._kept: list[dict[str, Any]] = []
        self._board = _board(folder) if tensorboard and folder is not None else None

    def write(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows; they are on their way to the disk when this returns."""
        rows = list(rows)
        if self.path is None:
            self._kept += rows
        else:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
        if self._board is not None:
            for row in rows:
                for name, value in _numbers(row):
                    self._board.add_scalar(name, value, row["step"])

    def rows(self) -> list[dict[str, Any]]:
        """Everything said so far."""
        return list(self._kept) if self.path is None else read_log(self.path)

    def take_back(self, step: int) -> None:
        """Forget the steps after `step`: they are about to be done again."""
        kept = [row for row in self.rows() if row["step"] <= step]
        if self.path is None:
            self._kept = kept
            return
        draft = self.path.with_suffix(".part")
        with draft.open("w", encoding="utf-8") as file:
            file.write("".join(json.dumps(row) + "\n" for row in kept))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def close(self) -> None:
        """Let go of what is open."""
        if self._board is not None:
            self._board.close()


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """The rows of a log; a last line that a kill cut short is left out."""
    if not Path(path).exists():
        return []
    *lines, _ = Path(path).read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def _numbers(row: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "step":
            yield f"{prefix}{name}", value


def _board(folder: Path):
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RopeError("tensorboard", "needs the tensorboard package: pip install tensorboard", True) from None
    return SummaryWriter(str(folder / "tensorboard"))


class Progress:
    """A bar with loss, speed and time left on a terminal; nothing elsewhere, and nothing without rich."""

    def __init__(self, steps: int, done: int, wanted: bool) -> None:
        self._bar = None
        if wanted and sys.stderr.isatty():
            self._open(steps, done)

    def _open(self, steps: int, done: int) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar
        except ImportError:
            return
        said = TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s")
        columns = (BarColumn(), MofNCompleteColumn(), said, TimeRemainingColumn())
        self._bar = Bar(*columns, console=Console(stderr=True))
        self._task = self._bar.add_task("train", total=steps, completed=done, loss="-", speed="-")
        self._bar.start()

    def show(self, step: int, loss: float, speed: float) -> None:
        """The newest numbers."""
        if self._bar is not None:
            self._bar.update(self._task, completed=step, loss=f"{loss:.4f}", speed=f"{speed:,.0f}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()
