"""Read a rope back from the vectors it rotated. Used by the runners, which run in an engine's own
environment: numpy only.

A runner rotates the D unit vectors of a head at a position that is 1 on one axis and 0 on the
others. The results are the columns of a D x D matrix. `rope_of_matrices` finds the pairs in it,
their angles and the common magnitude.

Words of this module:
  row     what a runner is asked for: name, config, length of the sequence, max_model_len (the
          length that the engine is started for; None: its own choice) and axes (position axes of a
          token: 1, or 3 for M-RoPE)
  rope    frequencies (radians per step), axis of each pair, magnitude, layout, and which dimensions
          rotate: `width` of them, from dimension `start`
  layout  which dimensions form a pair: "half" i and i + d/2, "interleaved" neighbours
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: radians: the angle of a pair counts as 0 below this
NOISE = 1e-12
#: how far a matrix may be from the rotation that was read from it
TOLERANCE = 2e-5
#: (layout of the input, layout of the output): where the two members of a pair are
LAYOUTS = (("half", "half"), ("interleaved", "interleaved"), ("interleaved", "half"))


def members(layout: str, width: int, start: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the first and of the second members of the pairs in the `width`
    dimensions from `start`.
    """
    pairs = np.arange(width // 2)
    first, second = (pairs, pairs + width // 2) if layout == "half" else (2 * pairs, 2 * pairs + 1)
    return first + start, second + start


def rope_of_matrices(matrices: Sequence[Any]) -> dict[str, Any] | None:
    """Return the rope that makes these matrices, one for a step on each axis; its "axis" is -1 for
    all pairs if one pair follows several axes.

    Column i of the matrix of an axis is the unit vector e_i, rotated by one step on that axis. None
    if nothing rotates; ValueError if a matrix is not a rotation of pairs.
    """
    if all(np.array_equal(matrix, np.eye(len(matrix))) for matrix in matrices):
        return None
    by_axis = [_read_matrix(np.asarray(matrix, dtype=np.float64)) for matrix in matrices]
    # the matrix with the largest angle gives the magnitude and the layout: one with angles of almost 0
    # fits every layout
    widest = max(by_axis, key=lambda rope: max(map(abs, rope["radians"]), default=0.0))
    by_axis = [
        _fit(
            np.asarray(matrix, dtype=np.float64),
            (widest["layout"], widest["layout_out"]),
            widest["width"],
            widest["start"],
        )
        or rope
        for matrix, rope in zip(matrices, by_axis, strict=True)
    ]
    pairs = len(widest["radians"])
    angles = np.zeros((len(by_axis), pairs))  # of each pair after one step on each axis
    for index, rope in enumerate(by_axis):
        angles[index, : len(rope["radians"])] = rope["radians"]
    axis = np.abs(angles).argmax(axis=0)  # the axis of a pair is the one that rotates it
    radians = angles[axis, np.arange(pairs)]
    if np.count_nonzero(np.abs(angles) > NOISE, axis=0).max() > 1:
        axis = np.full(pairs, -1)  # some pair follows more than one axis
    return {
        **widest,
        # engines compute in float32, which has 7 digits
        "radians": [float(f"{value:.7g}") for value in radians],
        "axis": axis.tolist(),
    }


def _read_matrix(matrix: np.ndarray) -> dict[str, Any]:
    """Return the rope that the matrix applies; of several, the one with the most rotated
    dimensions. ValueError if there is none.
    """
    size = matrix.shape[0]
    for width in range(size - size % 2, 0, -2):
        for start in dict.fromkeys((0, size - width)):
            # a part of the head rotates at its start or at its end; a result may be in another
            # layout than the input
            for layouts in LAYOUTS:
                if (rope := _fit(matrix, layouts, width, start)) is not None:
                    return rope
    raise ValueError("the engine's result is not a rotation of pairs")


def _fit(
    matrix: np.ndarray, layouts: tuple[str, str], width: int, start: int
) -> dict[str, Any] | None:
    """Return the rope if the matrix rotates the `width` dimensions from `start` in these layouts,
    that of the input and that of the output, else None.

    Angle and magnitude of each pair are read from what becomes of its first member; then the
    magnitudes must be equal, and the whole matrix is compared.
    """
    first, second = members(layouts[0], width, start)
    first_out, second_out = members(layouts[1], width, start)
    radians = np.arctan2(matrix[second_out, first], matrix[first_out, first])
    magnitudes = np.hypot(matrix[second_out, first], matrix[first_out, first])
    magnitude = float(np.median(magnitudes))
    rebuilt = np.eye(matrix.shape[0])
    inside = slice(start, start + width)
    rebuilt[inside, inside] = 0
    cos, sin = magnitudes * np.cos(radians), magnitudes * np.sin(radians)
    rebuilt[first_out, first], rebuilt[second_out, first] = cos, sin
    rebuilt[first_out, second], rebuilt[second_out, second] = -sin, cos
    distance = float(np.abs(rebuilt - matrix).max())
    if distance >= TOLERANCE or np.ptp(magnitudes) > TOLERANCE * max(1.0, magnitude):
        return None
    return {
        "radians": radians.tolist(),
        "magnitude": round(magnitude, 6),
        "layout": layouts[0],
        "layout_out": layouts[1],
        "width": width,
        "start": start,
    }


def serve(
    engine: str, version: Callable[[], str], measure: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Read rows from the JSON file argv[1] and write what `measure` finds to argv[2], with the name
    `engine` and what `version` returns.

    `measure` returns {"ropes": [each different rope], "layers": [for each layer the index of its
    rope, or None]}; an exception becomes {"error": its type and text, cut after 300 characters,
    "where": "file:line"}.
    """
    with open(sys.argv[1], encoding="utf-8") as file:
        rows = json.load(file)
    results = []
    for row in rows:
        try:
            result = measure(row)
        # any failure of an engine is a result: it cannot run this config
        except (Exception, SystemExit) as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{frame.filename.split('/')[-1]}:{frame.lineno}"
            result = {"error": f"{type(error).__name__}: {error}"[:300], "where": where}
        results.append(
            {
                "name": row["name"],
                "length": row.get("length"),
                "max_model_len": row.get("max_model_len"),
                **result,
            }
        )
        print(f"{engine}: {row['name']}: {result.get('error', 'read')}", file=sys.stderr)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump({"engine": engine, "version": version(), "results": results}, file)


def distinct(ropes: Sequence[dict[str, Any] | None], **more: Any) -> dict[str, Any]:
    """Return {"ropes": the distinct ropes, "layers": for each layer the index of its rope or None},
    and `more`.
    """
    seen: list[dict[str, Any]] = []
    layers: list[int | None] = []
    for rope in ropes:
        if rope is not None and rope not in seen:
            seen.append(rope)
        layers.append(None if rope is None else seen.index(rope))
    return {"layers": layers, "ropes": seen, **more}
