"""Charts that only the story shows: the wave of one pair, slow pairs beyond training, all remedies,
memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ropewalk.frequencies import Default
from ropewalk.spec import RopeSpec
from ropewalk_lab import analysis
from ropewalk_lab.explorer.charts import HEIGHT, lines, options
from ropewalk_lab.explorer.words import Translate
from ropewalk_lab.plots.ladder import pairs_with_turns
from ropewalk_lab.plots.look import ON_LIGHT
from ropewalk_lab.plots.numerals import short

POINTS = 240
#: a wave is drawn over this many turns around the position, since more could not be told apart
TURNS_SHOWN = 4


def wave(spec: RopeSpec, pair: int, position: int, served: int, translate: Translate) -> dict:
    """Return a chart of cos and sin of one pair over the positions around `position`, which a
    dashed line marks.
    """
    step = float(analysis.radians(spec, served)[pair])
    # the part of the positions 0 to `served` that is drawn: TURNS_SHOWN turns, with `position` in
    # the middle if possible
    length = min(served, 2 * math.pi * TURNS_SHOWN / abs(step)) if step else served
    start = min(max(position - length / 2, 0), max(served - length, 0))
    positions = np.linspace(start, start + length, POINTS)
    here = translate("position {position}", position=f"{position:,}")
    series = {
        "cos": (positions, np.cos(positions * step)),
        "sin": (positions, np.sin(positions * step)),
        here: ([position, position], [-1, 1]),
    }
    title = translate("cos and sin of pair {pair}", pair=pair)
    return lines(series, title, translate("position"), translate("value"), translate, dashed=[here])


def beyond(spec: RopeSpec, trained: int, served: int, translate: Translate) -> dict:
    """Return a chart of cos of some slow pairs up to the served length; the trained length is
    shaded.
    """
    steps, plain = analysis.radians(spec, served), analysis.plain_radians(spec)
    pairs = pairs_with_turns(analysis.turns(plain, trained), (2.0, 0.5, 0.25, 0.1))
    positions = np.linspace(0, served, POINTS)
    series = {
        translate("pair {pair}", pair=pair): (positions, np.cos(positions * steps[pair]))
        for pair in pairs
    }
    title = translate("Shaded: trained. Beyond it, slow pairs take new values")
    return lines(
        series,
        title,
        translate("position"),
        translate("cos of the angle"),
        translate,
        shaded=min(trained, served),
    )


def remedies(specs: Mapping[str, RopeSpec], chosen: str, served: int, translate: Translate) -> dict:
    """Return a chart of how far each scaling slows every pair; all but the chosen one are pale."""
    series: dict[str, tuple[Any, Any]] = {
        name: (np.arange(spec.pairs), analysis.stretch(spec, served))
        for name, spec in specs.items()
        if not isinstance(spec.scaling, Default)
    }
    faint = [name for name in series if name != chosen] if chosen in series else []
    title, y = translate("Which pairs a scaling slows"), translate("frequency / plain frequency")
    return lines(series, title, translate("pair, fastest first"), y, translate, faint=faint)


def memory(sizes: Mapping[str, int], translate: Translate) -> dict:
    """Return a bar chart of the bytes that cos and sin take, by the value of `Rope(tables=...)`."""
    rows = [{"form": form, "bytes": size, "label": short(size)} for form, size in sizes.items()]
    y = {
        "field": "form",
        "type": "nominal",
        "sort": None,
        "title": "tables=",
        "axis": {"labelLimit": 200},
    }
    x = {
        "field": "bytes",
        "type": "quantitative",
        "title": translate("bytes"),
        "axis": {"format": "~s", "tickCount": 4},
    }
    # room for the label of the longest bar
    scale = {"domain": [0, 1.25 * max(sizes.values())], "nice": False}
    bar = {
        "mark": {"type": "bar", "tooltip": True, "color": ON_LIGHT[0]},
        "encoding": {"x": {**x, "scale": scale}, "y": y},
    }
    text = {
        "mark": {"type": "text", "align": "left", "dx": 5},
        "encoding": {**bar["encoding"], "text": {"field": "label"}},
    }
    common = {
        "title": translate("Memory of cos and sin"),
        "height": HEIGHT,
        "usermeta": options(translate),
    }
    return {**common, "data": {"values": rows}, "layer": [bar, text]}
