"""Time the explorer from a slider move to the redrawn page, in streamlit's test harness, without a browser."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ropewalk.bench.rows import run_script
from ropewalk.explorer import controls

THETAS = (2e4, 5e4, 1e5, 2e5, 5e5, 1e6)


def _script() -> None:
    """Script for the harness; it imports the page, because the harness recompiles its own script at every move."""
    from ropewalk.explorer.page import page

    page()


def measure() -> Iterator[dict[str, Any]]:
    """Yield one row per step of the story and per view of free play: the median milliseconds of several slider moves."""
    # the lab makes the report; a model has no theta to move, and reads its text once
    views = [
        ({"view": view}, None if view == "model" else "a.theta", THETAS, view)
        for view in controls.VIEWS
        if view not in ("story", "report")
    ]
    steps = [({"step": step}, None, THETAS, f"story: {step}") for step in controls.STEPS]
    for link, slider, stops, name in (*views, *steps):
        with _main_restored():
            wall, processor = _moves(link, slider, stops)
        row = {"shape": "explorer", "contender": "ropewalk", "pass": f"slider, {name}"}
        yield {**row, "ms": round(statistics.median(wall), 1), "cpu_ms": round(statistics.median(processor), 1)}


def _moves(link: dict[str, str], slider: str | None, stops: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the wall time and the CPU time of every move of one slider, or of every redrawing, in milliseconds."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_function(_script, default_timeout=60)
    for name, text in (link | {"a.scaling": "yarn"}).items():
        app.query_params[name] = text
    app.run()
    wall, processor = [], []
    for stop in stops:
        if slider is not None:
            app.select_slider(key=slider).set_value(stop)
        start, start_cpu = time.perf_counter(), time.process_time()
        app.run()
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - start_cpu))
    return wall, processor


@contextmanager
def _main_restored() -> Iterator[None]:
    """Restore `__main__`, which the harness replaces by its script; otherwise processes spawned later would run that script."""
    main = sys.modules["__main__"]
    try:
        yield
    finally:
        sys.modules["__main__"] = main


if __name__ == "__main__":
    run_script(__doc__, {"cpu": measure})
