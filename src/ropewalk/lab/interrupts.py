"""Ctrl-C and a polite kill end a run after the step they came in."""

from __future__ import annotations

import signal
import threading


class Interrupts:
    """While open, the first SIGINT or SIGTERM sets `asked`; a second SIGINT is as rude as ever."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        # only the main thread may; elsewhere whoever owns it decides
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *_) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, _frame) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
