"""The picture and the page of a fit: losses and pass keys by method, the recommendation, and what engines make of the config."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ropewalk.interop.engines import audit
from ropewalk.interop.fit import Fit
from ropewalk.interop.fit.session import CONFIG
from ropewalk.interop.fit.summary import note, short_length
from ropewalk.lab import report_html as html
from ropewalk.lab.json_lines import write_atomically
from ropewalk.lab.studies.findings import Table
from ropewalk.plots import LIGHT, blank, finish, label_axes, legend, save

PAGE = "report.html"


def draw_fit(fit: Fit) -> Any:
    """Return a figure: the loss by band with error bars, and pass keys found by length, one line per method."""
    rows, facts = fit.rows, fit.facts
    asked = sorted({row["length"] for row in rows if row["metric"] == "passkey"})
    figure, axes = blank(LIGHT, 11 if asked else 7, 4.4, across=2 if asked else 1)
    names = [name for name in facts["methods"] if any(row["method"] == name and row["metric"] == "text" for row in rows)]
    ends = [f"{short_length(low)}-{short_length(high)}" for low, high in facts["bands"]]
    for place, name in enumerate(names):
        style = {"color": LIGHT.colour(place), "linestyle": ("-", "--", ":", "-.")[place // 6 % 4], "label": name}
        style |= {"linewidth": 2.4 if name == fit.recommendation.method else 1.2, "marker": "o", "markersize": 3}
        own = [row for row in rows if row["method"] == name]
        losses = np.array([row["bands"] for row in own if row["metric"] == "text" and row["length"] == facts["to"]])
        error = losses.std(0, ddof=1) / len(losses) ** 0.5 if len(losses) > 1 else np.zeros(losses.shape[1])
        axes[0].errorbar(range(len(ends)), losses.mean(0), yerr=error, capsize=2, **style)
        if asked:
            found = [np.mean([r["found"] for r in own if r["metric"] == "passkey" and r["length"] == n]) for n in asked]
            axes[1].plot(asked, [100 * each for each in found], **style)
    axes[0].set_xticks(range(len(ends)), ends)
    label_axes(axes[0], LIGHT, title="Loss by band of positions", x="tokens", y="nats per token")
    if asked:
        label_axes(axes[1], LIGHT, title="Pass keys found", x="tokens", y="%")
    legend(axes[-1], LIGHT, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return finish(figure, LIGHT)


def write_page(fit: Fit, folder: str | Path) -> Path:
    """Write fit.png and report.html into a folder and return the path of the page."""
    folder = Path(folder)
    columns, cells = fit.table()
    body = [f"<h1>{html.escape(fit.facts['model'])} at {fit.facts['to']:,} tokens</h1>"]
    body += [f"<p>{html.escape(line)}</p>" for line in fit.sentences()]
    body += _pictures(fit, folder)
    body.append(html.table_html(Table("Every method", tuple(columns), [tuple(each) for each in cells], note(fit.facts))))
    body += _depths(fit)
    if fit.config is not None:
        lines = str(audit(fit.config)).splitlines()
        body.append(html.table_html(Table(f"What engines compute from {CONFIG}", ("",), [(line,) for line in lines]), "words"))
        body.append(html.details_html(CONFIG, json.loads(json.dumps(fit.config, default=str))))
    body.append(html.details_html("Settings", json.loads(json.dumps(fit.facts, default=str))))
    write_atomically(folder / PAGE, html.document("ropewalk fit", body))
    return folder / PAGE


def _pictures(fit: Fit, folder: Path) -> list[str]:
    """Write fit.png and return its SVG as HTML; nothing if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401 - only to see whether it is installed
    except ImportError:
        return []
    figure = draw_fit(fit)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / "fit.png")
    with TemporaryDirectory() as drawn:
        return [html.picture_html(save(figure, Path(drawn) / "fit.svg"), "loss and pass keys by method")]


def _depths(fit: Fit) -> list[str]:
    """Return a table of the pass keys of each method by length and depth."""
    keys = [row for row in fit.rows if row["metric"] == "passkey"]
    places = sorted({row["depth"] for row in keys})
    found = {(row["method"], row["length"], row["depth"]): row["found"] for row in keys}
    pairs = dict.fromkeys((row["method"], row["length"]) for row in keys)
    words = {1: "yes", 0: "no", None: "-"}
    cells = [(f"{name}, {length:,}", *(words[found.get((name, length, d))] for d in places)) for name, length in pairs]
    columns = ("method, tokens", *(f"{depth:.0%}" for depth in places))
    return [html.table_html(Table("Pass keys by depth", columns, cells, "0% is the start of the text."))] if keys else []
