"""Numbers as charts that the browser draws: Vega-Lite as plain dicts, small enough to follow a slider."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ropewalk import analysis
from ropewalk.explorer.words import Say
from ropewalk.frequencies import Default
from ropewalk.plots.look import ON_LIGHT
from ropewalk.spec import RopeSpec

MAP_POSITIONS = 48
CURVE_POINTS = 240
PRECISION_POINTS = 13
HEIGHT = 360
# logarithmic axes have many lines
GRID = {"gridOpacity": 0.3}
# a logarithmic axis has no place for zero
_TINY = 1e-12

Series = Mapping[str, tuple[Any, Any]]


def lines(series: Series, title: str, x: str, y: str, *, log_x: bool = False, log_y: bool = False, dashed: str = "") -> dict:
    """Lines (xs, ys) by label on shared axes; the one labelled `dashed` is a mark to read the others by."""
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
        # the legend takes its rows from the chart
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


def spectrum(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """Tokens per turn of every pair, plain and scaled, beside the trained length."""
    pairs = np.arange(spec.pairs)
    series: dict[str, tuple[Any, Any]] = {say("plain"): (pairs, analysis.wavelengths(analysis.plain_radians(spec)))}
    if not isinstance(spec.scaling, Default):
        series[spec.scaling.name] = pairs, analysis.wavelengths(analysis.radians(spec, served))
    series[say("trained length")] = pairs[[0, -1]], [trained, trained]
    title, x = say("Wavelength of every pair"), say("pair, fastest first")
    return lines(series, title, x, say("tokens per turn"), log_y=True, dashed=say("trained length"))


def coverage(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """Turns of every pair in training and in service, before and after the scaling."""
    found, pairs = analysis.coverage(spec, trained, served), np.arange(spec.pairs)
    series = {
        say("in training"): (pairs, found.trained),
        say("served unscaled"): (pairs, found.unscaled),
        say("served, scaled"): (pairs, found.scaled),
        say("one turn"): (pairs[[0, -1]], [1, 1]),
    }
    title, x = say("How often each pair goes round"), say("pair, fastest first")
    return lines(series, title, x, say("turns"), log_y=True, dashed=say("one turn"))


def decay(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """RoFormer's decay curve up to the served length."""
    distances, steps = _spread(served), analysis.radians(spec, served)
    series = {spec.scaling.name: (distances, analysis.decay(steps, distances))}
    return lines(series, say("Decay of scores with distance"), say("distance"), say("mean of |S_j|"), log_x=True)


def similarity(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """Similarity of two encodings against their distance, and the line below which a near key loses to a random one."""
    distances, steps = _spread(served), analysis.radians(spec, served)
    series = {
        spec.scaling.name: (distances, analysis.similarity(steps, distances)),
        say("zero"): (distances[[0, -1]], [0, 0]),
    }
    title = say("Similarity against distance")
    return lines(series, title, say("distance"), say("similarity"), log_x=True, dashed=say("zero"))


def _spread(most: int) -> np.ndarray:
    return np.unique(np.geomspace(1, most, CURVE_POINTS).round())


def similarity_map(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """Similarity of the encodings of every two of the first positions."""
    found = analysis.similarity_matrix(analysis.radians(spec, served), range(MAP_POSITIONS))
    rows = [{"k": k, "q": q, "s": round(float(s), 4)} for q, row in enumerate(found) for k, s in enumerate(row)]
    axis = {"type": "ordinal", "axis": {"values": list(range(0, MAP_POSITIONS, 8)), "labelAngle": 0}}
    return {
        "title": say("Positions compared with positions"),
        "width": 520,
        "height": 460,
        "data": {"values": rows},
        "mark": {"type": "rect", "tooltip": True},
        "encoding": {
            "x": {"field": "k", "title": say("key position"), **axis},
            "y": {"field": "q", "title": say("query position"), "sort": "descending", **axis},
            "color": {"field": "s", "type": "quantitative", "title": say("similarity"), "scale": {"scheme": "cividis"}},
        },
    }


def precision(spec: RopeSpec, trained: int, served: int, say: Say) -> dict:
    """Largest error of cos and sin against position, for our policies and what other engines do."""
    positions, curves = error_curves(spec, served)
    rounding = say("rounding to bfloat16")
    series: dict[str, tuple[Any, Any]] = {name: (positions, errors) for name, errors in curves.items()}
    series[rounding] = positions[[0, -1]], [analysis.BFLOAT16_ROUNDING] * 2
    title, y = say("How far the angle can be trusted"), say("largest error of cos and sin")
    return lines(series, title, say("position"), y, log_x=True, log_y=True, dashed=rounding)


@lru_cache(maxsize=64)
def error_curves(spec: RopeSpec, served: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Positions up to 2^40, and each way's error there; the one chart that takes long enough to be kept."""
    positions = np.unique(np.geomspace(1_000, 2**40, PRECISION_POINTS).round().astype(np.int64))
    return positions, analysis.error_curves(spec, positions, length=served, width=2)


#: which charts a view holds, in order
CHARTS: dict[str, tuple[Callable[[RopeSpec, int, int, Say], dict], ...]] = {
    "ladder": (spectrum, coverage),
    "distance": (decay, similarity),
    "map": (similarity_map,),
    "precision": (precision,),
}


def side_by_side(view: str, specs: Sequence[RopeSpec], trained: int, served: int, say: Say) -> list[list[dict]]:
    """The charts of a view for each spec; what stands side by side has the same axes."""
    drawn = [[chart(spec, trained, served, say) for spec in specs] for chart in CHARTS.get(view, ())]
    for row in drawn:
        for channel, field in (("y", "y"), ("color", "s")):
            found = [point[field] for chart in row for point in chart["data"]["values"] if field in point]
            for chart in row if found else ():
                chart["encoding"][channel]["scale"]["domain"] = [min(found), max(found)]
    return [[row[place] for row in drawn] for place in range(len(specs))]


def warm_up() -> None:
    """Load what the first chart would otherwise wait for: streamlit imports its table libraries when they are first needed."""
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
