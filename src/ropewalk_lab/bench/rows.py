"""Result rows: JSON lines with the measurements, the machine and the package versions."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from ropewalk_lab.json_lines import encode_rows, write_atomically
from ropewalk_lab.machine import machine

Row = dict[str, Any]


def write(path: Path, rows: list[Row]) -> None:
    """Write rows as JSON lines; the file is replaced only when all are written."""
    write_atomically(path, encode_rows(rows), field="out")


def read(path: Path) -> list[Row]:
    """Return the rows of a results file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def run_script(about: str | None, measures: dict[str, Callable[[], Iterable[Row]]]) -> None:
    """Run a script of `benchmarks/`: call measures[device], a function that yields rows, print them
    and write them to --out.

    about     the description in the script's --help
    measures  "cuda" or "cpu" -> the function; the device is that of --device, by default a GPU if
              the script measures on one and there is one, or if it measures on nothing else
    """
    parser = argparse.ArgumentParser(description=about)
    gpu_by_default = "cuda" in measures and (torch.cuda.is_available() or "cpu" not in measures)
    parser.add_argument(
        "--device", choices=list(measures), default="cuda" if gpu_by_default else "cpu"
    )
    parser.add_argument("--out", type=Path, help="write the rows to this file, as JSON lines")
    options = parser.parse_args()
    rows = []
    for row in measures[options.device]():
        rows.append({**row, **machine(options.device)})
        print(json.dumps(rows[-1]), flush=True)
    if options.out is not None:
        write(options.out, rows)
