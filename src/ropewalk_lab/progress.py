"""A progress bar on a terminal."""

from __future__ import annotations

import sys
from typing import Any


class Progress:
    """A progress bar on stderr with a changing text; does nothing if stderr is not a terminal or
    rich is not installed.
    """

    def __init__(self, title: str, total: int, done: int, enabled: bool) -> None:
        """Start a bar at `done` of `total` steps, if it is enabled and stderr is a terminal."""
        self.title = title
        self._bar: Any = None
        if enabled and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import (
                    BarColumn,
                    MofNCompleteColumn,
                    TextColumn,
                    TimeElapsedColumn,
                    TimeRemainingColumn,
                )
                from rich.progress import Progress as Bar
            except ImportError:
                return
            text = TextColumn("{task.description}", markup=False)
            columns = (
                text,
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(title, total=total, completed=done)
            self._bar.start()

    @property
    def visible(self) -> bool:
        """Whether a bar is shown."""
        return self._bar is not None

    def show(self, done: int, text: str, total: int | None = None) -> None:
        """Show the number of finished steps and a text; `total` replaces the number of steps."""
        if self._bar is not None:
            self._bar.update(
                self._task, completed=done, total=total, description=f"{self.title}: {text}"
            )

    def close(self) -> None:
        """Stop the bar and restore the terminal."""
        if self._bar is not None:
            self._bar.stop()
