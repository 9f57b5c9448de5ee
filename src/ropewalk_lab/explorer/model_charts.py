"""Charts of a model's readings: one head's attention, and the loss by position, without and with a
method.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ropewalk_lab.explorer.charts import lines, position_map
from ropewalk_lab.explorer.reading import Reading
from ropewalk_lab.explorer.words import Translate

#: points of a line of losses, each the mean over the same number of tokens
POINTS = 32
MAP_HEIGHT = 340


def attention(
    reading: Reading, layer: int, head: int, largest: float, title: str, translate: Translate
) -> dict:
    """Return a map of one head: the share of attention that a block of queries gives to a block of
    keys.

    largest  the value that gets the last colour; colours follow the square root of a value, so that
             small ones can be seen
    """
    values = reading.maps[layer, head]
    starts = block_starts(reading.positions, len(values))
    # only blocks of keys up to the queries: later keys are hidden
    rows = [
        {"k": int(starts[k]), "q": int(starts[q]), "s": round(float(values[q, k]), 4)}
        for q in range(len(values))
        for k in range(q + 1)
    ]
    ticks = [int(start) for start in starts[:: max(len(values) // 6, 1)]]
    axis = {
        "type": "ordinal",
        "axis": {"values": ticks, "labelAngle": 0, "labelOverlap": "greedy", "format": "~s"},
    }
    colour = {
        "title": translate("attention"),
        "scale": {"scheme": "cividis", "type": "sqrt", "domain": [0, largest]},
        # the square roots of these are 0, 1/4, 1/2 and 1 of the largest
        "legend": {"values": [0, largest / 16, largest / 4, largest], "format": ".2~g"},
    }
    return position_map(rows, title, MAP_HEIGHT, axis, colour, translate)


def block_starts(positions: np.ndarray, cells: int) -> np.ndarray:
    """Return the first position of each block, if tokens at `positions` [S] are pooled into `cells`
    blocks of equal size.
    """
    blocks = np.arange(len(positions)) * cells // len(positions)
    return positions[np.unique(blocks, return_index=True)[1]]


def losses(readings: Mapping[str, Reading], translate: Translate) -> dict:
    """Return a chart of the loss by token, one line per reading; each point is the mean of
    neighbouring tokens.
    """
    series = {name: binned(reading.losses, POINTS) for name, reading in readings.items()}
    title, x = translate("Loss by token of the text"), translate("token of the text")
    return lines(series, title, x, translate("nats per token"), translate)


def binned(values: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the middle token and the mean value of each of at most `points` equal parts; the first
    value is that of token 1.
    """
    parts = np.array_split(np.arange(len(values)), min(points, len(values)))
    return np.array([part.mean() + 1 for part in parts]), np.array(
        [values[part].mean() for part in parts]
    )
