"""Progress on stderr: one line that changes on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time

from ropewalk.safe_text import shown

#: seconds between two lines where there is no terminal
LINES = 10.0


class Progress:
    """Shows on stderr how many steps are done: a line that changes on a terminal, lines in a pipe
    or file.

    total  the number of steps; 0: not known
    """

    def __init__(self, title: str, total: int, done: int, enabled: bool) -> None:
        """Start at `done` of `total` steps; nothing is ever shown if it is not enabled."""
        self.title, self.total, self.done, self.enabled = title, total, done, enabled
        self.began = self.printed = time.monotonic()
        # a file or a dumb terminal does not understand the codes that overwrite a line
        self.terminal = enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        if self.terminal:
            self._change("")

    def is_due(self, seconds: float) -> bool:
        """Return whether to show something: always on a terminal, elsewhere if progress is enabled
        and nothing was printed for `seconds` seconds.
        """
        return self.terminal or (self.enabled and time.monotonic() - self.printed >= seconds)

    def show(self, done: int, text: str, total: int | None = None, *, now: bool = False) -> None:
        """Show the number of finished steps and a text. In a pipe or file this prints a line only
        if the last one is LINES seconds old, or with `now`. `total` replaces the number of steps.
        """
        self.done, self.total = done, self.total if total is None else total
        if self.terminal:
            self._change(text)
        elif self.enabled and (now or self.is_due(LINES)):
            self.printed = time.monotonic()
            counts = f" ({self.done} of {self.total})" if self.total else ""
            print(f"{self.title}: {shown(text)}{counts}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line on a terminal; nothing is shown there afterwards."""
        if self.terminal:
            print(file=sys.stderr, flush=True)
            self.terminal = self.enabled = False

    def _change(self, text: str) -> None:
        """Write the line on the terminal anew."""
        seconds = int(time.monotonic() - self.began)
        counts = f"{self.done}/{self.total}" if self.total else str(self.done)
        line = f"{self.title} {counts} {seconds // 60}:{seconds % 60:02d} {shown(text)}"
        width = shutil.get_terminal_size().columns - 1
        # the code at the end clears what an earlier, longer line left
        print(f"\r{line[:width]}\x1b[K", end="", file=sys.stderr, flush=True)
