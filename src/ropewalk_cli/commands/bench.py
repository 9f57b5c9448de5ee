"""`ropewalk bench`: time the rotation and a copy, and print a table or JSON lines; optionally draw
a chart.
"""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ropewalk_cli.commands import console, device_of, output_path, picture_path, table
from ropewalk_lab.bench import chart, cpu, gpu, rows
from ropewalk_lab.bench.cases import GROUPS, SHAPES, shape_names
from ropewalk_lab.bench.contenders import CONTENDERS, contender_names
from ropewalk_lab.machine import machine

COLUMNS = (
    "shape",
    "order",
    "dtype",
    "contender",
    "pass",
    "us",
    "copy us",
    "of a copy",
    "peak MB",
    "rms error",
)
LEGEND = (
    "us: microseconds of one call. of a copy: the speed in per cent of a copy's (GPU), or the time as a multiple of a "  # noqa: E501
    "copy's (CPU). peak MB: the most that a call allocates, with its results, in 10^6 bytes. rms error: relative to float64."  # noqa: E501
)


def bench(
    device: str,
    shape: list[str] | None,
    contender: list[str] | None,
    names: bool,
    out: Path | None,
    plot: Path | None,
    json: bool,
) -> None:
    """Time the rotation, a copy, and other installed libraries; a library whose results are wrong
    is not timed.

    With `names` only print the names that --shape and --contender take.
    """
    device = device_of(device)
    default_shapes = (
        cpu.CPU_SHAPES
        if device == "cpu"
        else [name for name in SHAPES if name not in cpu.CPU_SHAPES]
    )
    shapes, contenders = (
        shape_names(shape or default_shapes),
        contender_names(contender or CONTENDERS),
    )
    if out is not None:
        output_path(out)
    if plot is not None:
        picture_path(plot)
    if names:
        _print_names(json)
        return
    measure = cpu.measure if device == "cpu" else gpu.measure
    results = _collect(measure(shapes, contenders), device, json)
    screen = Console(stderr=True, markup=False, highlight=False)
    if not json:
        _show(results)
    if out is not None:
        rows.write(out, results)
        screen.print(f"rows: {out}", soft_wrap=True)
    if plot is not None:
        draw = chart.cpu_chart if device == "cpu" else chart.gpu_chart
        draw(results, plot)
        screen.print(f"chart: {plot}", soft_wrap=True)


def _print_names(json: bool) -> None:
    """Print the names that --shape and --contender take."""
    if json:
        print(
            json_format.dumps({"shapes": [*SHAPES], "groups": GROUPS, "contenders": [*CONTENDERS]})
        )
        return
    sizes = {}
    for name, (batch, tokens, q_heads, k_heads, head_dim, dtype) in SHAPES.items():
        sizes[name] = (
            f"{batch}x{tokens}, {q_heads}/{k_heads} heads x {head_dim}, {str(dtype).split('.')[1]}"
        )
    sizes |= {name: ", ".join(shapes) for name, shapes in GROUPS.items()}
    columns = ("--shape", "batch x tokens, query/key heads x head_dim, dtype")
    console().print(
        table("", columns, sizes.items()),
        table("", ("--contender",), ([name] for name in CONTENDERS)),
    )


def _collect(measured: Iterable[rows.Row], device: str, json: bool) -> list[rows.Row]:
    """Return the rows, measured one by one, with the machine's name and versions; with `json` print
    each as it comes.
    """
    results: list[rows.Row] = []
    facts, screen = machine(device), Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(
        *columns, console=screen, transient=True, disable=not screen.is_terminal
    ) as progress:
        task = progress.add_task("measuring", total=None)
        for row in measured:
            results.append({**row, **facts})
            progress.update(task, description=f"{row['shape']} {row['contender']}")
            if json:
                print(json_format.dumps(results[-1]), flush=True)
    return results


def _show(results: list[rows.Row]) -> None:
    """Print a table of the rows that were timed, then why the others were not."""
    out = console()
    timed = [row for row in results if "skipped" not in row]
    if timed:
        out.print(_table(timed))
    # a contender is skipped for the same reason with many shapes; each reason is printed once
    for reason in dict.fromkeys(
        f"not timed: {row['contender']}: {row['skipped']}" for row in results if "skipped" in row
    ):
        out.print(reason, soft_wrap=True)


def _table(timed: list[dict[str, Any]]) -> RenderableType:
    """Return a table of timed rows; rows of a GPU have `percent_of_copy`, those of a CPU
    `times_copy`.
    """
    lines = []
    for row in timed:
        ratio = ""
        if "percent_of_copy" in row:
            ratio = f"{row['percent_of_copy']} %"
        elif "times_copy" in row:
            ratio = f"{row['times_copy']} x"
        peak = f"{row['peak_bytes'] / 1e6:.2f}" if "peak_bytes" in row else ""
        numbers = (str(row["us"]), str(row.get("copy_us", "")), ratio, peak, str(row["rms_error"]))
        lines.append(
            (row["shape"], row["order"], row["dtype"], row["contender"], row["pass"], *numbers)
        )
    return table("", COLUMNS, lines, LEGEND)
