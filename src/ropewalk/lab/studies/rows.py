"""Rows of a study: what was measured, of what, and one value a window or sample, so that everything is compared in pairs."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.lab.statistics import Score

Row = dict[str, Any]
#: stands for what is not a finite number: as bad as can be, and JSON can say it
BROKEN = 1e30


def row(metric: str, values: np.ndarray | Sequence[float] | float, **what: Any) -> Row:
    """One measurement: `values` one by one, their mean, and what they belong to."""
    kept = [_short(value) for value in np.atleast_1d(np.asarray(values, dtype=np.float64))]
    return {"metric": metric, **what, "mean": _short(np.mean(kept)), "values": kept}


def _short(value: float | np.floating) -> float:
    """Six digits: far below the smallest difference that is ever ranked."""
    return float(f"{value:.6g}") if abs(value) < BROKEN else BROKEN


def chosen(rows: Iterable[Row], metric: str, **what: Any) -> list[Row]:
    """The rows of a metric whose fields are as given, by seed."""
    found = [r for r in rows if r["metric"] == metric and all(r.get(name) == value for name, value in what.items())]
    return sorted(found, key=lambda r: r.get("seed", 0))


def score(rows: Iterable[Row], metric: str, **what: Any) -> Score | None:
    """The values [seeds, windows] of what was measured so; None where nothing was."""
    found = chosen(rows, metric, **what)
    return Score(np.array([r["values"] for r in found])) if found else None


def known(rows: Iterable[Row], metric: str, field: str, **what: Any) -> list[Any]:
    """The different values of a field, in the order they were measured."""
    return list(dict.fromkeys(r[field] for r in chosen(rows, metric, **what) if field in r))


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write JSON lines, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with draft.open("w", encoding="utf-8") as file:
        file.write("".join(json.dumps(each) + "\n" for each in rows))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a file."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise RopeError("rows", f"must be JSON lines ({error}); remove the file to measure again", str(path)) from None
    if not all(isinstance(each, dict) and "metric" in each for each in rows):
        raise RopeError("rows", "must be objects with a metric; remove the file to measure again", str(path))
    return rows


def digest(value: Any) -> str:
    """A short name for plain data: the same data, the same name."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:12]
