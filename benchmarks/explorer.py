"""Time the explorer from a slider move to the redrawn page, in streamlit's test harness, without a
browser.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ropewalk_lab.bench.rows import run_script
from ropewalk_lab.explorer import controls

THETAS = (2e4, 5e4, 1e5, 2e5, 5e5, 1e6)


def _script() -> None:
    """Script for the harness; it imports the page, because the harness recompiles its own script at
    every move.
    """
    from ropewalk_lab.explorer.page import page

    page()


def measure() -> Iterator[dict[str, Any]]:
    """Yield one row per step of the story and per view of free play: the median milliseconds of
    several slider moves.
    """
    # name -> the parameters of its link and its slider; a model and the story have no theta to
    # move, and are redrawn
    pages: dict[str, tuple[dict[str, str], str | None]] = {}
    for view in controls.VIEWS:
        if view not in ("story", "report"):  # the lab makes the report
            pages[view] = {"view": view}, None if view == "model" else "a.theta"
    pages |= {f"story: {step}": ({"step": step}, None) for step in controls.STEPS}
    for name, (link, slider) in pages.items():
        with _main_restored():
            wall, processor = _moves(link, slider, THETAS)
        row = {"shape": "explorer", "contender": "ropewalk", "pass": f"slider, {name}"}
        yield {
            **row,
            "ms": round(statistics.median(wall), 1),
            "cpu_ms": round(statistics.median(processor), 1),
        }


def _moves(
    link: dict[str, str], slider: str | None, values: Sequence[float]
) -> tuple[list[float], list[float]]:
    """Return the wall times and the CPU times of moving a slider to each value, in milliseconds;
    None: of redrawing the page.
    """
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_function(_script, default_timeout=60)
    for name, text in (link | {"a.scaling": "yarn"}).items():
        app.query_params[name] = text
    app.run()
    wall, processor = [], []
    for value in values:
        if slider is not None:
            app.select_slider(key=slider).set_value(value)
        start, start_cpu = time.perf_counter(), time.process_time()
        app.run()
        wall.append(1e3 * (time.perf_counter() - start))
        processor.append(1e3 * (time.process_time() - start_cpu))
    return wall, processor


@contextmanager
def _main_restored() -> Iterator[None]:
    """Restore `__main__`, which the harness replaces by its script; otherwise processes spawned
    later would run that script.
    """
    main = sys.modules["__main__"]
    try:
        yield
    finally:
        sys.modules["__main__"] = main


if __name__ == "__main__":
    run_script(__doc__, {"cpu": measure})
