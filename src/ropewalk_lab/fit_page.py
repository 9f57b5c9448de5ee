"""The picture and the page of a fit: losses and pass keys by method, the recommendation, and what
engines make of the config.

Words of this module:
  row    one measurement of a fit, of one `method`. With the `metric` "text" it is of one window of
         text: its `length`, and in a window of the full length its mean loss in each band
         (`bands`). With "passkey" it says whether a pass key was `found` (1 or 0) in a text of
         `length` tokens at a `depth`, from 0 (start) to 1 (end)
  facts  what was measured and how: model, methods, bands, and `to`, the length that the model is
         extended to
  band   a range of positions (low, high)
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ropewalk.engines import audit
from ropewalk_lab import report_html as html
from ropewalk_lab.fit import Fit
from ropewalk_lab.fit.session import CONFIG
from ropewalk_lab.fit.summary import note, short_length
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.plots import LIGHT, blank, finish, label_axes, legend, save
from ropewalk_lab.studies.findings import Table

PAGE = "report.html"


def draw_fit(fit: Fit) -> Any:
    """Return a figure with one line per method: the mean loss by band of positions with its
    standard error, and beside it, if they were measured, the share of pass keys found by length.
    """
    rows, facts = fit.rows, fit.facts
    key_lengths = sorted({row["length"] for row in rows if row["metric"] == "passkey"})
    figure, axes = blank(LIGHT, 11 if key_lengths else 7, 4.4, across=2 if key_lengths else 1)
    # the methods that were measured on text
    names = [
        name
        for name in facts["methods"]
        if any(row["method"] == name and row["metric"] == "text" for row in rows)
    ]
    # their names, such as "8k-16k"
    bands = [f"{short_length(low)}-{short_length(high)}" for low, high in facts["bands"]]
    for place, name in enumerate(names):
        # there are six colours; every further six methods have another line style
        style = {
            "color": LIGHT.colour(place),
            "linestyle": ("-", "--", ":", "-.")[place // 6 % 4],
            "label": name,
        }
        style |= {
            "linewidth": 2.4 if name == fit.recommendation.method else 1.2,
            "marker": "o",
            "markersize": 3,
        }
        of_method = [row for row in rows if row["method"] == name]
        # [windows, bands]
        losses = np.array(
            [
                row["bands"]
                for row in of_method
                if row["metric"] == "text" and row["length"] == facts["to"]
            ]
        )
        error = (
            losses.std(0, ddof=1) / len(losses) ** 0.5
            if len(losses) > 1
            else np.zeros(losses.shape[1])
        )
        axes[0].errorbar(range(len(bands)), losses.mean(0), yerr=error, capsize=2, **style)
        if key_lengths:
            key_rows = [row for row in of_method if row["metric"] == "passkey"]
            shares = [
                np.mean([row["found"] for row in key_rows if row["length"] == length])
                for length in key_lengths
            ]
            axes[1].plot(key_lengths, [100 * share for share in shares], **style)
    axes[0].set_xticks(range(len(bands)), bands)
    label_axes(axes[0], LIGHT, title="Loss by band of positions", x="tokens", y="nats per token")
    if key_lengths:
        label_axes(axes[1], LIGHT, title="Pass keys found", x="tokens", y="%")
    legend(axes[-1], LIGHT, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return finish(figure, LIGHT)


def write_page(fit: Fit, folder: str | Path) -> Path:
    """Write report.html and, if matplotlib is installed, fit.png into a folder; return the path of
    the page.
    """
    folder = Path(folder)
    columns, cells = fit.table()
    body = [f"<h1>{html.escape(fit.facts['model'])} at {fit.facts['to']:,} tokens</h1>"]
    body += [f"<p>{html.escape(line)}</p>" for line in fit.sentences()]
    body += _pictures(fit, folder)
    body.append(
        html.table_html(
            Table("Every method", tuple(columns), [tuple(each) for each in cells], note(fit.facts))
        )
    )
    body += _pass_keys_by_depth(fit)
    if fit.config is not None:
        lines = str(audit(fit.config)).splitlines()
        body.append(
            html.table_html(
                Table(f"What engines compute from {CONFIG}", ("",), [(line,) for line in lines])
            )
        )
        # through JSON, because values may be of types that JSON does not have
        body.append(html.details_html(CONFIG, json.loads(json.dumps(fit.config, default=str))))
    body.append(html.details_html("Settings", json.loads(json.dumps(fit.facts, default=str))))
    write_atomically(folder / PAGE, html.document("ropewalk fit", body))
    return folder / PAGE


def _pictures(fit: Fit, folder: Path) -> list[str]:
    """Write fit.png, and return a list with the same picture as HTML; if matplotlib is not
    installed, write nothing and return [].
    """
    try:
        import matplotlib  # noqa: F401 - only to see whether it is installed
    except ImportError:
        return []
    figure = draw_fit(fit)
    folder.mkdir(parents=True, exist_ok=True)
    save(figure, folder / "fit.png")
    with TemporaryDirectory() as temporary:
        return [
            html.picture_html(
                save(figure, Path(temporary) / "fit.svg"), "loss and pass keys by method"
            )
        ]


def _pass_keys_by_depth(fit: Fit) -> list[str]:
    """Return a list with one HTML table, which says of each method and length at which depths it
    found the pass key; [] if no pass key was measured.
    """
    key_rows = [row for row in fit.rows if row["metric"] == "passkey"]
    if not key_rows:
        return []
    depths = sorted({row["depth"] for row in key_rows})
    found = {(row["method"], row["length"], row["depth"]): row["found"] for row in key_rows}
    words = {1: "yes", 0: "no", None: "-"}  # None: not measured
    cells = []
    for name, length in dict.fromkeys((row["method"], row["length"]) for row in key_rows):
        cells.append(
            (f"{name}, {length:,}", *(words[found.get((name, length, depth))] for depth in depths))
        )
    columns = ("method, tokens", *(f"{depth:.0%}" for depth in depths))
    return [
        html.table_html(Table("Pass keys by depth", columns, cells, "0% is the start of the text."))
    ]
