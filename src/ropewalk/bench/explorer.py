"""How long the explorer takes to answer a slider: streamlit's own test harness runs the page, without a browser."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ropewalk.explorer import controls

THETAS = (2e4, 5e4, 1e5, 2e5, 5e5, 1e6)


def _script() -> None:
    """What the harness compiles before every move; the server compiles its page once, so the page itself is imported."""
    from ropewalk.explorer.page import page

    page()


def measure() -> Iterator[dict[str, Any]]:
    """One row a view: milliseconds from a moved slider to the page drawn again, the median of several moves."""
    for view in controls.VIEWS:
        if view == "report":
            continue  # somebody else's page
        with _main_kept():
            wall, processor = _moves(view)
        row = {"shape": "explorer", "contender": "ropewalk", "pass": f"slider, {view}"}
        yield {**row, "ms": round(statistics.median(wall), 1), "cpu_ms": round(statistics.median(processor), 1)}


def _moves(view: str) -> tuple[list[float], list[float]]:
    """Milliseconds by the clock and of the processor, for every move of one slider."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_function(_script, default_timeout=60)
    app.query_params["view"] = view
    app.query_params["a.scaling"] = "yarn"
    app.run()
    wall, processor = [], []
    for theta in THETAS:
        app.select_slider(key="a.theta").set_value(theta)
        began, spent = time.perf_counter(), time.process_time()
        app.run()
        wall.append(1e3 * (time.perf_counter() - began))
        processor.append(1e3 * (time.process_time() - spent))
    return wall, processor


@contextmanager
def _main_kept() -> Iterator[None]:
    """The harness puts its script in the place of the main module and leaves it there; processes spawned later would run it."""
    main = sys.modules["__main__"]
    try:
        yield
    finally:
        sys.modules["__main__"] = main
