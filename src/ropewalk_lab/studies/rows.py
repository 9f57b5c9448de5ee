"""Rows of a study: a metric, fields that identify the measurement, and one value per window or
sample, so that two models can be compared window by window.

The score of rows is their values [seeds, windows], with a mean and a standard error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk_lab.json_lines import encode_rows, write_atomically
from ropewalk_lab.scores import Score

Row = dict[str, Any]
#: replaces values that are not finite, which JSON cannot represent
NOT_FINITE = 1e30


def row(metric: str, values: np.ndarray | Sequence[float] | float, **fields: Any) -> Row:
    """Return one measurement: the values, their mean, and fields that say what was measured."""
    rounded = [_rounded(value) for value in np.atleast_1d(np.asarray(values, dtype=np.float64))]
    return {"metric": metric, **fields, "mean": _rounded(np.mean(rounded)), "values": rounded}


def _rounded(value: float | np.floating) -> float:
    """Return a value rounded to six significant digits, far below the smallest difference that
    matters. Integers, such as counts, stay exact; NaN and infinities become NOT_FINITE.
    """
    if not abs(value) < NOT_FINITE:  # a comparison with NaN is False
        return NOT_FINITE
    return float(value) if float(value).is_integer() else float(f"{value:.6g}")


def select(rows: Iterable[Row], metric: str, **fields: Any) -> list[Row]:
    """Return the rows of a metric with the given fields, sorted by seed."""
    of_metric = (each for each in rows if each["metric"] == metric)
    matches = [
        each for each in of_metric if all(each.get(name) == value for name, value in fields.items())
    ]
    return sorted(matches, key=lambda each: each.get("seed", 0))


def score(rows: Iterable[Row], metric: str, **fields: Any) -> Score | None:
    """Return the values [seeds, windows] of the rows with the given fields, one row for each seed;
    None if there are no such rows.
    """
    matches = select(rows, metric, **fields)
    return Score(np.array([each["values"] for each in matches])) if matches else None


def joined_score(rows: Iterable[Row], metric: str, **fields: Any) -> Score | None:
    """Return the values [seeds, values] of the rows with the given fields, several for each seed,
    whose values are joined; None if there are no such rows.
    """
    by_seed: dict[int, list[float]] = {}
    for each in select(rows, metric, **fields):
        by_seed.setdefault(each["seed"], []).extend(each["values"])
    return Score(np.array(list(by_seed.values()))) if by_seed else None


def scores_by(
    rows: Iterable[Row], metric: str, field: str, values: Iterable[Any], **fields: Any
) -> dict[Any, Score]:
    """Return {value: the score of the rows in which the field named `field` has this value}, for
    each of `values`. Only rows of the metric that also have `fields` count; a value without rows
    is left out.
    """
    rows = list(rows)
    return {
        value: each
        for value in values
        if (each := score(rows, metric, **{field: value}, **fields)) is not None
    }


def distinct(rows: Iterable[Row], metric: str, field: str, **fields: Any) -> list[Any]:
    """Return the different values of a field in the rows that `select` gives, in their order."""
    return list(
        dict.fromkeys(each[field] for each in select(rows, metric, **fields) if field in each)
    )


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as JSON lines."""
    write_atomically(path, encode_rows(rows))


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file; raise an error if a line is not a row."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]
    except ValueError as error:
        raise RopeError(
            "rows", f"must be JSON lines ({error}); remove the file to measure again", str(path)
        ) from None
    if not all(isinstance(each, dict) and "metric" in each for each in rows):
        raise RopeError(
            "rows", "must be objects with a metric; remove the file to measure again", str(path)
        )
    return rows


def digest(value: Any) -> str:
    """Return a hash of data, 12 hexadecimal digits; other than plain data is hashed by its repr."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=repr).encode()).hexdigest()[:12]
