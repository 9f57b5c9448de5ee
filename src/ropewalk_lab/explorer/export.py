"""Pictures to download: what the page shows as PNG or SVG, and the moving dials as GIF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from ropewalk.spec import RopeSpec
from ropewalk_lab import plots
from ropewalk_lab.explorer.charts import charts_of
from ropewalk_lab.explorer.words import translator
from ropewalk_lab.plots.look import MAP, Look, blank, finish, write
from ropewalk_lab.plots.motion import reading

FORMATS = ("png", "svg", "gif")
#: the figure that stands for a drawing of the page
_FIGURES = {"story": "coverage", "clocks": "clocks", "plane": "rotation"}


def picture(values: dict[str, Any], specs: Sequence[RopeSpec], file_format: str) -> bytes:
    """Return the bytes of a picture of the page: the charts of its view, or the moving dials if the
    format is gif.

    The dials, and a view without charts, show the last of the page's one or two specs.
    """
    look = Look(language=values["language"])
    view = plots.View(specs[-1], values["trained"], values["served"], look)
    if file_format == "gif":
        return reading(view)  # an animation: two rows of dials, without and with the scaling
    # without a Chinese font the figure is in English
    charts = charts_of(
        values["view"],
        specs,
        view.trained,
        view.served,
        translator(values["language"] if look.font else "en"),
    )
    figure = figure_of(charts, look) if charts else plots.draw(_FIGURES[values["view"]], view)
    file = BytesIO()
    write(figure, file, file_format)
    return file.getvalue()


def figure_of(charts: Sequence[dict[str, Any]], look: Look) -> Any:
    """Return the charts of a view as one matplotlib figure, side by side."""
    figure, panels = blank(look, 7.0 * len(charts), 4.6, across=len(charts))
    for ax, chart in zip(panels, charts, strict=True):
        encoding = chart["encoding"]
        if (
            "s" in chart["data"]["values"][0]
        ):  # the points of a map are (q, k, s), those of a line (x, y)
            _map(figure, ax, chart, look)
        else:
            _lines(ax, chart, look)
        ax.set_title(chart["title"], loc="left", color=look.ink, weight="bold", fontsize=13, pad=12)
        ax.set_xlabel(encoding["x"]["title"], color=look.ink)
        ax.set_ylabel(encoding["y"]["title"], color=look.ink)
    return finish(figure, look)


def _lines(ax: Any, chart: dict[str, Any], look: Look) -> None:
    """Draw a line chart of the explorer page, given as a Vega-Lite spec, on matplotlib axes."""
    encoding, rows = chart["encoding"], chart["data"]["values"]
    colours = encoding["color"]["scale"]
    for label, colour in zip(colours["domain"], colours["range"], strict=True):
        points = [row for row in rows if row["of"] == label]
        xs, ys = [point["x"] for point in points], [point["y"] for point in points]
        dashed = label in encoding["strokeDash"]["condition"]["test"]["oneOf"]
        ax.plot(xs, ys, color=colour, linestyle="--" if dashed else "-", label=label)
    for channel, set_scale in (("x", ax.set_xscale), ("y", ax.set_yscale)):
        set_scale(encoding[channel]["scale"].get("type", "linear"))
    plots.legend(ax, look, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)


def _map(figure: Any, ax: Any, chart: dict[str, Any], look: Look) -> None:
    """Draw the explorer page's map of the similarity of every two positions, given as a Vega-Lite
    spec, on matplotlib axes.
    """
    cells = [row["s"] for row in chart["data"]["values"]]  # the similarities, row by row
    side = math.isqrt(len(cells))
    values = [cells[start : start + side] for start in range(0, len(cells), side)]
    low, high = chart["encoding"]["color"]["scale"]["domain"]
    image = ax.imshow(values, origin="lower", cmap=MAP, vmin=low, vmax=high)
    ax.grid(False)
    bar = figure.colorbar(image, ax=ax)
    bar.set_label(chart["encoding"]["color"]["title"], color=look.ink)
