"""Compare further releases of engines with the recorded release of the same engine: in how many
cells do they compute another rope?

python -m engines.releases --results results --date 2026-11 results-of-runners.json
...
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.matrix_rows import rows
from engines.record import (
    RELEASES,
    TABLES,
    recorded_rope,
    write_shipped,
)
from ropewalk_lab.engines_run.installed import TITLES
from ropewalk_lab.engines_run.measured import KEYS, LayerRope, cells, verdict


def compare(record: Mapping[str, Any], output: Mapping[str, Any], date: str) -> dict[str, Any]:
    """Return how many cells of a runner's output differ from the recorded release of that engine,
    and the first of them.

    A cell is a layer type of one config: `record` has the rope of each by the config's id, and
    `output` the runner's.
    """
    runner_name: str = output["engine"]
    engine = KEYS.get(runner_name, runner_name)
    recorded = record["engines"][engine]
    new = list(cells(output, {row.id: row for row in rows()}))
    different = [
        f"{row.id}, {layer_type}"
        for row, layer_type, rope in new
        if not _is_same(record, recorded["rows"][row.id][layer_type], rope)
    ]
    return {
        "engine": TITLES[engine],
        "version": output["version"],
        "date": date,
        "compared_with": recorded["version"],
        "cells": len(new),
        "differ": len(different),
        "first": different[0] if different else None,
    }


def _is_same(
    record: Mapping[str, Any], recorded: int | str | None, rope: Mapping[str, Any] | str | None
) -> bool:
    """Return whether two releases do the same; each has a rope (`recorded` by its index in
    `record`), None if the layer does not rotate, or the text of an error. Two errors are the same,
    whatever their texts.
    """
    if isinstance(recorded, str) or isinstance(rope, str):
        return isinstance(recorded, str) and isinstance(rope, str)
    old = None if recorded is None else recorded_rope(record, recorded)
    new = None if rope is None else LayerRope.read(rope)
    return verdict(old, new) == "same"


def main() -> None:
    """Write a line for each release to the results, and to the package each engine's oldest release
    that computes as recorded.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--date", required=True)
    parser.add_argument("outputs", type=Path, nargs="+")
    options = parser.parse_args()
    record = json.loads((options.results / TABLES).read_text(encoding="utf-8"))
    lines = [
        compare(record, json.loads(path.read_text(encoding="utf-8")), options.date)
        for path in options.outputs
    ]
    (options.results / RELEASES).write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    write_shipped(record, lines)


if __name__ == "__main__":
    main()
