"""Time the rotation of two source trees in turn, to see whether a change made it slower.

    python benchmarks/two_trees.py --before ../old/src --after src --runs 12 --out rows.jsonl

Each run is a process of its own and runs `ropewalk bench` on the CPU, and the trees take turns in
being first. Both must have their native kernel (`python setup.py build_ext --inplace`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ropewalk_lab.bench.rows import write
from ropewalk_lab.bench.tables import two_trees_table

SHAPES = ("cpu decode", "cpu mid", "cpu prefill")


def measure(source: Path, shapes: list[str]) -> list[dict[str, Any]]:
    """Return the rows of one run of `ropewalk bench` from a source tree."""
    command = [
        sys.executable,
        "-m",
        "ropewalk",
        "bench",
        "--device",
        "cpu",
        "--contender",
        "ropewalk",
        "--json",
    ]
    command += [part for shape in shapes for part in ("--shape", shape)]
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{source}: ropewalk bench failed\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    """Measure both trees as often as asked, print the table, and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--before", type=Path, required=True, help="the src folder of the earlier tree"
    )
    parser.add_argument(
        "--after", type=Path, required=True, help="the src folder of the later tree"
    )
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--shape", action="append", choices=SHAPES, help="by default all of them")
    parser.add_argument("--out", type=Path, help="write the rows to this file, as JSON lines")
    options = parser.parse_args()
    if options.runs < 2:
        parser.error("--runs: must be at least 2, because quartiles are shown")
    trees, rows = [("before", options.before), ("after", options.after)], []
    for run in range(1, options.runs + 1):
        for name, source in trees if run % 2 else reversed(trees):
            # the tree that is first changes from run to run
            rows += [
                {"tree": name, "run": run, **row}
                for row in measure(source, options.shape or [*SHAPES])
            ]
        if options.out is not None:
            write(options.out, rows)
        print(f"run {run} of {options.runs}", file=sys.stderr, flush=True)
    print(two_trees_table(rows))


if __name__ == "__main__":
    main()
