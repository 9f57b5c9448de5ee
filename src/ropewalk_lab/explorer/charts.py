"""Charts as Vega-Lite dicts, which the browser draws; small enough to be redrawn while a slider
moves.

A chart of several specs has one line per spec on the same axes; only maps stand side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ropewalk.caches import cached
from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec
from ropewalk_lab import analysis
from ropewalk_lab.explorer.words import Translate
from ropewalk_lab.plots.look import ON_LIGHT

MAP_POSITIONS = 48
CURVE_POINTS = 240
PRECISION_POINTS = 13
#: pixels; with 320, the longest title of a y axis was longer than the axis, and Vega cut off the
#: chart's title
HEIGHT = 340
# values below this are left out of logarithmic axes
_TINY = 1e-12

#: how a chart names each method of COS_SIN_METHODS
METHODS = {
    "exact": "ropewalk, exact",
    "hf_frequencies": "ropewalk, float32 frequencies",
    "hf": "float32 angle",
    "float16 table": "float32 angle, float16 table",
    "bfloat16 table": "float32 angle, bfloat16 table",
    "bfloat16 positions": "bfloat16 positions",
}

Series = Mapping[str, tuple[Any, Any]]
Specs = Sequence[RopeSpec]


def options(translate: Translate) -> dict[str, Any]:
    """Return settings for all charts: drawn as SVG, so that text stays text, and a menu in the
    page's language.
    """
    menu = {"SVG_ACTION": translate("Save as SVG"), "PNG_ACTION": translate("Save as PNG")}
    return {"embedOptions": {"renderer": "svg", "i18n": menu}}


def lines(
    series: Series,
    title: str,
    x: str,
    y: str,
    translate: Translate,
    *,
    log_x: bool = False,
    log_y: bool = False,
    dashed: Sequence[str] = (),
    faint: Sequence[str] = (),
    shaded: float | None = None,
) -> dict:
    """Return a Vega-Lite chart with one line (xs, ys) per label of `series`; `title`, `x` and `y`
    are texts.

    Lines labelled in `dashed` are grey reference lines, those in `faint` are pale; x from 0 to
    `shaded` has a grey background.
    """
    # one row per point, whose line is labelled "of"; a logarithmic axis has no place for 0
    rows = [
        {"x": float(x_value), "y": float(y_value), "of": label}
        for label, (xs, ys) in series.items()
        for x_value, y_value in zip(xs, ys, strict=True)
        if np.isfinite(y_value) and (y_value > _TINY or not log_y) and (x_value > 0 or not log_x)
    ]
    coloured = [label for label in series if label not in dashed]
    colours = [
        "#888888" if label in dashed else ON_LIGHT[coloured.index(label) % len(ON_LIGHT)]
        for label in series
    ]
    encoding = {
        "x": {
            "field": "x",
            "type": "quantitative",
            "title": x,
            "scale": _scale(log_x),
            "axis": _axis(rows, "x", log_x),
        },
        "y": {
            "field": "y",
            "type": "quantitative",
            "title": y,
            "scale": _scale(log_y),
            "axis": _axis(rows, "y", log_y),
        },
        "color": {
            "field": "of",
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(series), "range": colours},
            "legend": {"orient": "bottom", "columns": 2, "labelLimit": 230, "columnPadding": 14},
        },
        "strokeDash": {
            "condition": {"test": {"field": "of", "oneOf": list(dashed)}, "value": [5, 4]},
            "value": [1, 0],
        },
        "opacity": {
            "condition": {"test": {"field": "of", "oneOf": list(faint)}, "value": 0.35},
            "value": 1,
        },
    }
    mark = {
        "mark": {"type": "line", "clip": True, "tooltip": True, "strokeWidth": 2.5},
        "encoding": encoding,
    }
    # the legend is drawn inside this height: 20 pixels for each of its rows, which have two labels
    common = {
        "title": title,
        "height": HEIGHT + 20 * ((len(series) + 1) // 2),
        "usermeta": options(translate),
    }
    chart = {**common, "data": {"values": rows}}
    if shaded is None:
        return {**chart, **mark}
    background = {
        "mark": {"type": "rect", "color": "#888888", "opacity": 0.15},
        "data": {"values": [{"from": 0, "to": shaded}]},
        "encoding": {"x": {"field": "from", "type": "quantitative"}, "x2": {"field": "to"}},
    }
    return {**chart, "layer": [background, mark]}


def _scale(log: bool) -> dict[str, Any]:
    return {"type": "log", "nice": False} if log else {"zero": False, "nice": False}


def _axis(rows: list[dict], field: str, log: bool) -> dict[str, Any]:
    """Return the Vega-Lite settings of the axis for rows[...][field]: short numbers that do not
    overlap, and a light grid.
    """
    sizes = [abs(row[field]) for row in rows] or [0.0]
    axis = {"gridOpacity": 0.3, "labelOverlap": "greedy", "tickCount": 6}
    if max(sizes) >= 10_000 and (min(sizes) >= 1 or not log):
        # writes 20M; on a logarithmic axis with numbers below 1 it would also write prefixes such
        # as µ
        return {**axis, "format": "~s", "labelExpr": "datum.value === 0 ? '0' : datum.label"}
    if log and min(sizes) < 1e-3:
        return {**axis, "format": ".0e"}  # writes 1e-7
    return axis


def names(specs: Specs) -> list[str]:
    """Return the label of each spec: the name of its scaling, with a number if two have the same."""
    scalings = [spec.scaling.name for spec in specs]
    numbered = [f"{name} ({number})" for number, name in enumerate(scalings, start=1)]
    return numbered if len(set(scalings)) < len(scalings) else scalings


def _unscaled(specs: Specs, translate: Translate, label: str) -> dict[str, np.ndarray]:
    """Return {translated label: unscaled frequencies}: one entry if they are equal in all specs,
    else one per spec, numbered.
    """
    frequencies = [analysis.plain_radians(spec) for spec in specs]
    if all(np.array_equal(frequencies[0], other) for other in frequencies[1:]):
        return {translate(label): frequencies[0]}
    return {
        f"{translate(label)} ({number})": radians
        for number, radians in enumerate(frequencies, start=1)
    }


def spectrum(specs: Specs, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the wavelength of every pair, plain and scaled, and of the trained length."""
    series: dict[str, tuple[Any, Any]] = {
        label: (np.arange(len(radians)), analysis.wavelengths(radians))
        for label, radians in _unscaled(specs, translate, "plain").items()
    }
    for spec, name in zip(specs, names(specs), strict=True):
        if not isinstance(spec.scaling, Default):
            series[name] = (
                np.arange(spec.pairs),
                analysis.wavelengths(analysis.radians(spec, served)),
            )
    end = max(spec.pairs for spec in specs) - 1
    series[translate("trained length")] = [0, end], [trained, trained]
    title, x, y = (
        translate("Wavelength of every pair"),
        translate("pair, fastest first"),
        translate("tokens per turn"),
    )
    return lines(series, title, x, y, translate, log_y=True, dashed=[translate("trained length")])


def coverage(specs: Specs, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the turns of every pair within the trained and the served length, without
    and with scaling.
    """
    series: dict[str, tuple[Any, Any]] = {}
    for label, length in (("in training", trained), ("served unscaled", served)):
        for name, radians in _unscaled(specs, translate, label).items():
            series[name] = np.arange(len(radians)), analysis.turns(radians, length)
    for spec, name in zip(specs, names(specs), strict=True):
        if not isinstance(spec.scaling, Default):
            turns = analysis.turns(analysis.radians(spec, served), served)
            series[translate("served with {name}", name=name)] = np.arange(spec.pairs), turns
    series[translate("one turn")] = [0, max(spec.pairs for spec in specs) - 1], [1, 1]
    title, x = translate("Turns of every pair"), translate("pair, fastest first")
    return lines(
        series, title, x, translate("turns"), translate, log_y=True, dashed=[translate("one turn")]
    )


def decay(specs: Specs, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of RoFormer's decay curve up to the served length."""
    distances = _log_spaced(served)
    curves = [analysis.decay(analysis.radians(spec, served), distances) for spec in specs]
    series = {name: (distances, curve) for name, curve in zip(names(specs), curves, strict=True)}
    title, x = translate("Decay of scores with distance"), translate("distance")
    return lines(series, title, x, translate("mean of |S_j|"), translate, log_x=True)


def similarity(specs: Specs, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of similarity against distance; where it is negative, a similar key scores
    lower than a random one.
    """
    distances = _log_spaced(served)
    curves = [analysis.similarity(analysis.radians(spec, served), distances) for spec in specs]
    series: dict[str, tuple[Any, Any]] = {
        name: (distances, curve) for name, curve in zip(names(specs), curves, strict=True)
    }
    series[translate("zero")] = distances[[0, -1]], [0, 0]
    title, x = translate("Similarity against distance"), translate("distance")
    return lines(
        series, title, x, translate("similarity"), translate, log_x=True, dashed=[translate("zero")]
    )


def _log_spaced(longest: int) -> np.ndarray:
    return np.unique(np.geomspace(1, longest, CURVE_POINTS).round())


def similarity_map(spec: RopeSpec, served: int, translate: Translate) -> dict:
    """Return a map of the similarity between the encodings of any two of the first positions."""
    matrix = analysis.similarity_matrix(analysis.radians(spec, served), range(MAP_POSITIONS))
    rows = [
        {"k": k, "q": q, "s": round(float(s), 4)}
        for q, row in enumerate(matrix)
        for k, s in enumerate(row)
    ]
    axis = {
        "type": "ordinal",
        "axis": {"values": list(range(0, MAP_POSITIONS, 8)), "labelAngle": 0},
    }
    title = f"{translate('Similarity of every two positions')}: {spec.scaling.name}"
    colour = {"title": translate("similarity"), "scale": {"scheme": "cividis"}}
    return position_map(rows, title, 460, axis, colour, translate, sort="descending")


def position_map(
    rows: list[dict],
    title: str,
    height: int,
    axis: dict,
    colour: dict,
    translate: Translate,
    **y_axis: str,
) -> dict:
    """Return a Vega-Lite map of rows {"k": key position, "q": query position, "s": value, which is
    the colour of the cell}.
    """
    encoding = {
        "x": {"field": "k", "title": translate("key position"), **axis},
        "y": {"field": "q", "title": translate("query position"), **axis, **y_axis},
        "color": {"field": "s", "type": "quantitative", **colour},
    }
    common = {
        "title": title,
        "height": height,
        "usermeta": options(translate),
        "data": {"values": rows},
    }
    return {**common, "mark": {"type": "rect", "tooltip": True}, "encoding": encoding}


def similarity_maps(specs: Specs, served: int, translate: Translate) -> list[dict]:
    """Return one map per spec; equal colours mean equal values in all of them."""
    maps = [similarity_map(spec, served, translate) for spec in specs]
    values = [row["s"] for chart in maps for row in chart["data"]["values"]]
    for chart in maps:
        chart["encoding"]["color"]["scale"]["domain"] = [min(values), max(values)]
    return maps


def precision(specs: Specs, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of the error of cos and sin against position: of all methods, or of two for
    each of several specs.
    """
    rounding = translate("rounding to bfloat16")
    series: dict[str, tuple[Any, Any]] = {}
    positions = np.array([1])
    for spec, name in zip(specs, names(specs), strict=True):
        positions, curves = error_curves(spec, served)
        methods = list(curves) if len(specs) == 1 else dict.fromkeys((spec.precision, "hf"))
        for method in methods:
            label = translate(METHODS[method])
            series[label if len(specs) == 1 else f"{name}: {label}"] = positions, curves[method]
    series[rounding] = positions[[0, -1]], [analysis.BFLOAT16_ROUNDING] * 2
    title, y = (
        translate("Error of the angle against position"),
        translate("largest error of cos and sin"),
    )
    return lines(
        series,
        title,
        translate("position"),
        y,
        translate,
        log_x=True,
        log_y=True,
        dashed=[rounding],
    )


@cached("error curves of the explorer", entries=64)
def error_curves(spec: RopeSpec, served: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return positions up to 2^40 and the error of each method at them; cached, because this is the
    slowest chart.
    """
    positions = np.unique(np.geomspace(1_000, 2**40, PRECISION_POINTS).round().astype(np.int64))
    return positions, analysis.error_curves(spec, positions, length=served, width=2)


#: the line charts of each view, in order; all take (specs, trained, served, translate), though some
#: use less
CHARTS: dict[str, tuple[Callable[[Specs, int, int, Translate], dict], ...]] = {
    "ladder": (spectrum, coverage),
    "distance": (decay, similarity),
    "precision": (precision,),
}


def charts_of(
    view: str, specs: Specs, trained: int, served: int, translate: Translate
) -> list[dict]:
    """Return the charts of a view, each with all specs; the map has one chart per spec."""
    if view == "map":
        return similarity_maps(specs, served, translate)
    return [chart(specs, trained, served, translate) for chart in CHARTS.get(view, ())]


def warm_up() -> None:
    """Import pandas and pyarrow now; otherwise streamlit would import them for the first chart."""
    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
