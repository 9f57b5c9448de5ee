"""Ctrl-C and SIGTERM stop a run after the current step."""

from __future__ import annotations

import signal
import threading


class StopSignals:
    """Context manager: the first SIGINT (Ctrl-C) or SIGTERM sets `received`; a SIGINT after it
    raises KeyboardInterrupt. In another thread than the main one it does nothing.
    """

    def __init__(self) -> None:
        self.received = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        """Install the handlers."""
        # Python allows signal handlers in the main thread only
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_) -> None:
        """Restore the handlers that were there before."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _frame) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = True
