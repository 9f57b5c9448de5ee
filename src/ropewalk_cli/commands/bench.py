"""`ropewalk bench`: time the rotation and a copy, and print a table or JSON lines; optionally draw
a chart.

Words of this module: a contender is an implementation that is timed, this package or another
library. A row is one measurement: a contender with one shape, order of axes, dtype and pass, or with
"skipped", the reason why it was not timed. `us` are microseconds.
"""

from __future__ import annotations

import json as json_format
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from ropewalk_cli.commands import Device, device_of, output_path, picture_path
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.bench.rows import Row

#: the contender that is this package as it is called by default
OURS = "ropewalk"
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
    "us: microseconds of one call. of a copy: the speed in per cent of a copy's (GPU), or the "
    "time as a multiple of a copy's (CPU). peak MB: the most that a call allocates, with its "
    "results, in 10^6 bytes. rms error: relative to float64."
)


def bench(
    device: Device = "auto",
    shape: Annotated[
        list[str] | None, Option("Name of a shape or of a group of shapes; see --list.")
    ] = None,
    contender: Annotated[
        list[str] | None, Option("Time only this implementation (contender); see --list.")
    ] = None,
    names: Annotated[
        bool, Option("Only print the names of all shapes and contenders.", "--list")
    ] = False,
    out: Annotated[Path | None, Option("Write the rows to this file, as JSON lines.")] = None,
    plot: Annotated[
        Path | None, Option("Write a chart of the rows to this .png, .svg or .pdf file.")
    ] = None,
    json: Annotated[bool, Option("Print JSON lines instead of a table.")] = False,
) -> None:
    """Time the rotation, a copy, and other installed libraries, and measure the memory that each
    call needs.

    A library whose results are wrong is not timed.
    """
    from ropewalk_lab.bench import chart, cpu, gpu, rows
    from ropewalk_lab.bench.cases import SHAPES, shape_names
    from ropewalk_lab.bench.contenders import CONTENDERS, contender_names

    on = device_of(device)
    default_shapes = (
        cpu.CPU_SHAPES if on == "cpu" else [name for name in SHAPES if name not in cpu.CPU_SHAPES]
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
    measure = cpu.measure if on == "cpu" else gpu.measure
    results = _collect(measure(shapes, contenders), on, json)
    if not json:
        _show(results)
    if out is not None:
        rows.write(out, results)
        say(f"rows: {out}", file=sys.stderr)
    if plot is not None:
        draw = chart.cpu_chart if on == "cpu" else chart.gpu_chart
        draw(results, plot)
        say(f"chart: {plot}", file=sys.stderr)


def _print_names(json: bool) -> None:
    """Print the names that --shape and --contender take."""
    from ropewalk_lab.bench.cases import GROUPS, SHAPES
    from ropewalk_lab.bench.contenders import CONTENDERS

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
    table("", columns, sizes.items())
    table("", ("--contender",), ([name] for name in CONTENDERS))


def _collect(measured: Iterable[Row], device: str, json: bool) -> list[Row]:
    """Return the rows, measured one by one, with the machine's name and versions; with `json` print
    each as it comes.
    """
    from ropewalk_lab.machine import machine
    from ropewalk_lab.progress import Progress

    results: list[Row] = []
    # total=0: how many rows there will be is not known
    facts, progress = machine(device), Progress("bench", total=0, done=0, enabled=True)
    try:
        for row in measured:
            results.append({**row, **facts})
            progress.show(len(results), f"{row['shape']} {row['contender']}")
            if json:
                print(json_format.dumps(results[-1]), flush=True)
    finally:
        progress.close()
    return results


def _show(results: list[Row]) -> None:
    """Print a table of the rows that were timed, then why the others were not."""
    timed = [row for row in results if "skipped" not in row]
    if timed:
        _show_times(timed)
    # a contender is skipped for the same reason with many shapes; each reason is printed once
    for reason in dict.fromkeys(
        f"not timed: {row['contender']}: {row['skipped']}" for row in results if "skipped" in row
    ):
        say(reason)
    if line := verdict(timed):
        say("", line)


def verdict(timed: list[Row]) -> str:
    """Return one sentence: in how many cases no other library is faster than ropewalk's default
    call, the median of its time relative to a copy, and which library is ahead most often in the
    other cases. Return "" if no case has a time of ropewalk and of another contender.
    """
    cases: dict[tuple, dict[str, float]] = {}
    for row in timed:
        case = tuple(row[name] for name in ("shape", "order", "dtype", "pass"))
        cases.setdefault(case, {})[row["contender"]] = row["us"]
    compared = {case: times for case, times in cases.items() if OURS in times and len(times) > 1}
    if not compared:
        return ""
    # {library: in how many cases it is the fastest, and faster than ropewalk}
    ahead: Counter[str] = Counter()
    for times in compared.values():
        # the names of all contenders of ropewalk begin with OURS
        others = {name: us for name, us in times.items() if not name.startswith(OURS)}
        if others and min(others.values()) < times[OURS]:
            ahead[min(others, key=others.__getitem__)] += 1
    own = [row for row in timed if row["contender"] == OURS]
    copies = sorted(row["us"] / row["copy_us"] for row in own if row.get("copy_us"))
    beside = f", in the median {median(copies):.2f} times as long as a copy" if copies else ""
    first = len(compared) - ahead.total()
    line = f"Verdict: {OURS} is the fastest in {first} of {len(compared)} cases{beside}"
    if ahead:
        name, count = ahead.most_common(1)[0]
        line += f"; elsewhere {name} is ahead most often ({count})"
    return f"{line}."


def _show_times(timed: list[dict[str, Any]]) -> None:
    """Print a table of timed rows; rows of a GPU have `percent_of_copy`, those of a CPU
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
    table("", COLUMNS, lines, LEGEND)
