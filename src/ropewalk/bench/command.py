"""`ropewalk bench`: time the rotation and a copy, and print a table or JSON lines; optionally draw a chart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from ropewalk.bench import chart, cpu, gpu, rows
from ropewalk.machine import machine


def bench(
    device: Annotated[str, typer.Option(help="cpu or cuda; cuda by default if there is a GPU.")] = "",
    shape: Annotated[list[str] | None, typer.Option(help="Name of a shape to time; may be repeated; all by default.")] = None,
    contender: Annotated[list[str] | None, typer.Option(help="Name of a contender; may be repeated; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the rows to this file, as JSON lines.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of the rows to this PNG file.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Print JSON lines instead of a table.")] = False,
) -> None:
    """Time the rotation, a copy, and other installed libraries; a library whose results are wrong is not timed."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    machine_info = machine(device)
    contenders = tuple(contender) if contender else tuple(cpu.CONTENDERS)
    results: Iterator[rows.Row]
    if device == "cuda":
        results = gpu.measure(tuple(shape) if shape else tuple(n for n in gpu.SHAPES if n not in cpu.CPU_SHAPES), contenders)
    else:
        results = cpu.measure(tuple(shape) if shape else tuple(cpu.CPU_SHAPES), contenders)
    finished: list[rows.Row] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=None)
        for row in results:
            finished.append({**row, **machine_info})
            progress.update(task, description=f"{row['shape']} {row['contender']}")
            if json_lines:
                print(json.dumps(finished[-1]))
    if not json_lines:
        Console().print(_table(finished))
    if out is not None:
        rows.write(out, finished)
        console.print(f"rows: {out}")
    if plot is not None:
        (chart.gpu_chart if device == "cuda" else chart.cpu_chart)(finished, plot)
        console.print(f"chart: {plot}")


def _table(finished: list[dict[str, Any]]) -> Table:
    table = Table("shape", "order", "dtype", "contender", "pass", "us", "copy us", "compared with copy", "rms error")
    for row in finished:
        if "skipped" in row:
            table.add_row(row["shape"], row["order"], row["dtype"], row["contender"], f"[dim]{row['skipped']}[/dim]")
            continue
        ratio = f"{row['percent_of_copy']} %" if "percent_of_copy" in row else f"{row.get('times_copy', '')} x"
        cells = (row["contender"], row["pass"], str(row["us"]), str(row.get("copy_us", "")), ratio, str(row["rms_error"]))
        table.add_row(row["shape"], row["order"], row["dtype"], *cells)
    return table
