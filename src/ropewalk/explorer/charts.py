"""Charts as Vega-Lite dicts, which the browser draws; small enough to be redrawn while a slider moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk import analysis
from ropewalk.caches import cached
from ropewalk.explorer.words import Translate
from ropewalk.frequencies import Default
from ropewalk.plots.look import ON_LIGHT
from ropewalk.spec import RopeSpec

MAP_POSITIONS = 48
CURVE_POINTS = 240
PRECISION_POINTS = 13
HEIGHT = 360
# a light grid, because logarithmic axes have many lines
GRID = {"gridOpacity": 0.3}
# values below this are left out of logarithmic axes
_TINY = 1e-12

Series = Mapping[str, tuple[Any, Any]]


def lines(series: Series, title: str, x: str, y: str, *, log_x: bool = False, log_y: bool = False, dashed: str = "") -> dict:
    """Return a chart with one line (xs, ys) per label; the line labelled `dashed` is a grey reference line."""
    rows = [
        {"x": float(a), "y": float(b), "of": label}
        for label, (xs, ys) in series.items()
        for a, b in zip(xs, ys, strict=True)
        if np.isfinite(b) and (b > _TINY or not log_y) and (a > 0 or not log_x)
    ]
    colours = [ON_LIGHT[i % len(ON_LIGHT)] if label != dashed else "#888888" for i, label in enumerate(series)]
    scale = lambda log: {"type": "log"} if log else {"zero": False, "nice": False}  # noqa: E731 - one line, used twice
    return {
        "title": title,
        # the legend is drawn inside this height
        "height": HEIGHT + 30 * (len(series) // 2),
        "data": {"values": rows},
        "mark": {"type": "line", "clip": True, "tooltip": True},
        "encoding": {
            "x": {"field": "x", "type": "quantitative", "title": x, "scale": scale(log_x), "axis": GRID},
            "y": {"field": "y", "type": "quantitative", "title": y, "scale": scale(log_y), "axis": GRID},
            "color": {
                "field": "of", "type": "nominal", "title": None, "scale": {"domain": list(series), "range": colours},
                "legend": {"orient": "bottom", "columns": 2, "labelLimit": 320},
            },
            "strokeDash": {"condition": {"test": {"field": "of", "equal": dashed}, "value": [5, 4]}, "value": [1, 0]},
        },
    }  # fmt: skip


def spectrum(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the wavelength of every pair, plain and scaled, and of the trained length."""
    pairs = np.arange(spec.pairs)
    series: dict[str, tuple[Any, Any]] = {translate("plain"): (pairs, analysis.wavelengths(analysis.plain_radians(spec)))}
    if not isinstance(spec.scaling, Default):
        series[spec.scaling.name] = pairs, analysis.wavelengths(analysis.radians(spec, served))
    series[translate("trained length")] = pairs[[0, -1]], [trained, trained]
    title, x = translate("Wavelength of every pair"), translate("pair, fastest first")
    return lines(series, title, x, translate("tokens per turn"), log_y=True, dashed=translate("trained length"))


def coverage(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the turns of every pair within the trained and the served length, without and with scaling."""
    turns, pairs = analysis.coverage(spec, trained, served), np.arange(spec.pairs)
    series = {
        translate("in training"): (pairs, turns.trained),
        translate("served unscaled"): (pairs, turns.unscaled),
        translate("served, scaled"): (pairs, turns.scaled),
        translate("one turn"): (pairs[[0, -1]], [1, 1]),
    }
    title, x = translate("Turns of every pair"), translate("pair, fastest first")
    return lines(series, title, x, translate("turns"), log_y=True, dashed=translate("one turn"))


def decay(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of RoFormer's decay curve up to the served length."""
    distances, steps = _log_spaced(served), analysis.radians(spec, served)
    series = {spec.scaling.name: (distances, analysis.decay(steps, distances))}
    title, x = translate("Decay of scores with distance"), translate("distance")
    return lines(series, title, x, translate("mean of |S_j|"), log_x=True)


def similarity(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of similarity against distance; where it is negative, a similar key scores lower than a random one."""
    distances, steps = _log_spaced(served), analysis.radians(spec, served)
    series = {
        spec.scaling.name: (distances, analysis.similarity(steps, distances)),
        translate("zero"): (distances[[0, -1]], [0, 0]),
    }
    title = translate("Similarity against distance")
    return lines(series, title, translate("distance"), translate("similarity"), log_x=True, dashed=translate("zero"))


def _log_spaced(longest: int) -> np.ndarray:
    return np.unique(np.geomspace(1, longest, CURVE_POINTS).round())


def similarity_map(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a map of the similarity between the encodings of any two of the first positions."""
    matrix = analysis.similarity_matrix(analysis.radians(spec, served), range(MAP_POSITIONS))
    rows = [{"k": k, "q": q, "s": round(float(s), 4)} for q, row in enumerate(matrix) for k, s in enumerate(row)]
    axis = {"type": "ordinal", "axis": {"values": list(range(0, MAP_POSITIONS, 8)), "labelAngle": 0}}
    return {
        "title": translate("Similarity of every two positions"),
        "width": 520,
        "height": 460,
        "data": {"values": rows},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "k", "title": translate("key position"), **axis},
            "y": {"field": "q", "title": translate("query position"), "sort": "descending", **axis},
            "color": {"field": "s", "type": "quantitative", "title": translate("similarity"), "scale": {"scheme": "cividis"}},
        },
    }


def precision(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the error of cos and sin against position, for our precisions and for other engines' methods."""
    positions, curves = error_curves(spec, served)
    rounding = translate("rounding to bfloat16")
    series: dict[str, tuple[Any, Any]] = {name: (positions, errors) for name, errors in curves.items()}
    series[rounding] = positions[[0, -1]], [analysis.BFLOAT16_ROUNDING] * 2
    title, y = translate("Error of the angle against position"), translate("largest error of cos and sin")
    return lines(series, title, translate("position"), y, log_x=True, log_y=True, dashed=rounding)


@cached("error curves of the explorer", entries=64)
def error_curves(spec: RopeSpec, served: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return positions up to 2^40 and the error of each method at them; cached, because this is the slowest chart."""
    positions = np.unique(np.geomspace(1_000, 2**40, PRECISION_POINTS).round().astype(np.int64))
    return positions, analysis.error_curves(spec, positions, length=served, width=2)


#: the charts of each view, in order
CHARTS: dict[str, tuple[Callable[[RopeSpec, int, int, Translate], dict], ...]] = {
    "ladder": (spectrum, coverage),
    "distance": (decay, similarity),
    "map": (similarity_map,),
    "precision": (precision,),
}


def side_by_side(view: str, specs: Sequence[RopeSpec], trained: int, served: int, translate: Translate) -> list[list[dict]]:
    """Return the charts of a view for each spec; the same chart of several specs has the same axes."""
    charts = [[chart(spec, trained, served, translate) for spec in specs] for chart in CHARTS.get(view, ())]
    for row in charts:
        for channel, field in (("y", "y"), ("color", "s")):
            values = [point[field] for chart in row for point in chart["data"]["values"] if field in point]
            for chart in row if values else ():
                chart["encoding"][channel]["scale"]["domain"] = [min(values), max(values)]
    return [[row[place] for row in charts] for place in range(len(specs))]


def warm_up() -> None:
    """Import pandas and pyarrow now; otherwise streamlit would import them for the first chart."""
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
