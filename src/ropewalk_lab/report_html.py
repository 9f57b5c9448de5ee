"""HTML of the report: one file that contains its styles and pictures; all texts are escaped."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropewalk_lab.data_files import toml_beside
from ropewalk_lab.recommendations import Recommendation
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED, Claim, Table

STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--quiet:#6b7682;--paper:#fff;--line:#e2e7ec;
--good:#00795a;--bad:#b3470a;--card:#f6f8fa}
@media(prefers-color-scheme:dark){:root{--ink:#e8ecf0;--quiet:#98a3af;--paper:#14181d;--line:#2b333c;
--good:#35c79b;--bad:#f0975a;--card:#1b2128}}
body{margin:2.5rem auto;max-width:60rem;padding:0 1.2rem;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,sans-serif}
h1{margin-bottom:.2rem}h2{margin-top:3rem;border-top:1px solid var(--line);padding-top:1.5rem}
h3{margin:1.6rem 0 .4rem;font-size:1rem}
.ask{font-size:1.1rem}.note,caption,.source{color:var(--quiet);font-size:.85rem;text-align:left}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.3rem .8rem .3rem 0;text-align:left;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:anywhere}
.number{white-space:nowrap}
.published{background:var(--card);border-radius:.5rem;padding:.6rem 1rem;margin:1rem 0}
.verdicts{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem;margin:1.2rem 0}
.verdicts div{background:var(--card);border-radius:.5rem;padding:.8rem 1rem}
.verdicts b{display:block;font-size:1.25rem;line-height:1.3;color:var(--good)}
.verdicts .wrong b{color:var(--bad)}
.lead img{max-height:20rem}
.holds{color:var(--good);font-weight:600}.fails{color:var(--bad);font-weight:600}.tied{color:var(--quiet);font-weight:600}
img{max-width:100%;background:#fff;border-radius:.4rem}pre{overflow-x:auto;font-size:.8rem}
"""
_SUMMARY = toml_beside(__file__)
#: verdict of a claim -> its CSS class
VERDICT_CLASSES = {HOLDS: "holds", FAILS: "fails", TIED: "tied"}


@dataclass(frozen=True)
class Verdict:
    """A result in a few words, the numbers behind it, and whether it is good."""

    headline: str
    numbers: str
    ok: bool = True


@dataclass(frozen=True)
class Lead:
    """The first screen of a page: a title, verdicts, and a picture with its caption."""

    title: str
    verdicts: Sequence[Verdict]
    picture: Path
    caption: str


def escape(text: object) -> str:
    """Return text with HTML characters escaped."""
    return html.escape(str(text))


def document(title: str, body: Iterable[str]) -> str:
    """Return a whole HTML page; `body` are parts of it that are HTML already."""
    content = "\n".join(body)
    head = (
        '<meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(title)}</title>'
    )
    return (
        "<!doctype html>\n<html "
        f'lang="en"><head>{head}<style>{STYLE}</style></head><body>\n{content}\n</body></html>\n'
    )


def lead_html(lead: Lead) -> str:
    """Return the first screen of a page as HTML."""
    cards = "".join(
        f'<div class="{"right" if each.ok else "wrong"}"><b>{escape(each.headline)}</b>'
        f"{escape(each.numbers)}</div>"
        for each in lead.verdicts
    )
    return (
        f'<div class="lead"><h1>{escape(lead.title)}</h1><div class="verdicts">{cards}</div>'
        f'{picture_html(lead.picture, lead.caption)}<p class="note">{escape(lead.caption)}</p></div>'
    )


def _cell_html(cell: str) -> str:
    """Return a table cell as HTML; one without letters, such as a number and its error, stays on
    one line.
    """
    # the e of an exponent, as in 1e-5, does not count as a letter
    style = "" if any(map(str.isalpha, cell.replace("e", ""))) else ' class="number"'
    return f"<td{style}>{escape(cell)}</td>"


def folded_html(table: Table) -> str:
    """Return a table as HTML, of which only the title is shown until it is clicked."""
    return (
        f'<details class="published"><summary>{escape(table.title)}</summary>'
        f"{table_html(replace(table, title=''))}</details>"
    )


def table_html(table: Table) -> str:
    """Return a table with its title and its note as HTML."""
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join("<tr>" + "".join(map(_cell_html, row)) + "</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    heading = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    return f'{heading}<div class="wide"><table><tr>{head}</tr>{rows}</table></div>{note}'


def picture_html(path: Path, name: str) -> str:
    """Return an SVG file as an HTML image in a data URL: inline SVGs of a page could have equal
    ids. `name` is the text for those who cannot see the image.
    """
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<p><img alt="{escape(name)}" src="data:image/svg+xml;base64,{data}"></p>'


def claims_html(claims: Sequence[Claim]) -> str:
    """Return an HTML table of the claims, with verdict and evidence; empty without claims."""
    if not claims:
        return ""
    rows = "".join(
        f'<tr><td class="{VERDICT_CLASSES.get(claim.verdict, "tied")}">{escape(claim.verdict)}</td>'
        f"<td>{escape(claim.text)}</td><td>{escape(claim.evidence)}</td></tr>"
        for claim in claims
    )
    return (
        '<div class="wide"><table><tr><th></th><th>claim</th><th>paired '
        f"difference</th></tr>{rows}</table></div>"
    )


def recommendations_html(recommendations: Sequence[Recommendation]) -> str:
    """Return the recommendations as an HTML table; empty without recommendations."""
    if not recommendations:
        return ""
    rows = [(each.use, each.advice, each.reason) for each in recommendations]
    note = (
        "From the measurements below. An encoding or a method is recommended over another only "
        "if their scores differ by more than the noise. Other rows repeat a claim with its "
        "verdict, or list the models whose loss rises by at most 0.05 from the trained to the "
        "longest length."
    )
    return "<h2>Recommendations</h2>" + table_html(
        Table("", ("use", "recommended", "reason"), rows, note)
    )


def summary_html(names: Sequence[str], claims: Sequence[Claim]) -> str:
    """Return the summary as HTML, in English and Chinese: links to the studies, and how many claims
    hold, fail, or do neither.
    """
    num_hold, num_fail = (
        sum(claim.verdict == verdict for claim in claims) for verdict in (HOLDS, FAILS)
    )
    links = ", ".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in names)
    num_other = len(claims) - num_hold - num_fail
    counts = {
        "studies": len(names),
        "claims": len(claims),
        "hold": num_hold,
        "fail": num_fail,
        "other": num_other,
    }
    english, chinese = (_SUMMARY[language].format(**counts) for language in ("english", "chinese"))
    return f'<p>{len(names)} studies: {links}. {english}</p><p lang="zh">{escape(chinese)}</p>'


def details_html(title: str, data: dict[str, Any]) -> str:
    """Return plain data as JSON in an HTML block that is collapsed until its title is clicked."""
    text = json.dumps(data, indent=2, ensure_ascii=False)
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"
