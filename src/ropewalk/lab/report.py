"""The report: every study found in a folder on one page that needs nothing else, beside what was published."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.lab.anchors import ANCHORS
from ropewalk.lab.guidance import Value, guidance
from ropewalk.lab.report_html import (
    anchor_html,
    claims_html,
    details_html,
    document,
    escape,
    guidance_html,
    picture_html,
    summary_html,
    table_html,
)
from ropewalk.lab.studies import STUDIES, read_study
from ropewalk.lab.studies.page import SEED_NOISE, Page, Table
from ropewalk.lab.studies.rows import Row
from ropewalk.lab.studies.study import FACTS

NAME = "report.html"


def read_all(folder: str | Path) -> dict[str, tuple[Page, dict[str, Any]]]:
    """The page and facts of every study that was run into a folder."""
    return {name: (found.page, found.facts) for name, found in _found(Path(folder)).items()}


def _found(folder: Path) -> dict[str, Value]:
    found = {}
    for name, study in STUDIES.items():
        if (folder / name / FACTS).exists():
            rows, facts = read_study(folder / name)
            found[name] = Value(rows, facts, study.page(rows, facts))
    if not found:
        raise RopeError("folder", "must hold a study; run: ropewalk lab run encodings --out FOLDER", str(folder))
    return found


def write_report(folder: str | Path, sections: Sequence[Table] = ()) -> Path:
    """Write report.html into a folder of studies; its path. `sections` are tables to come after the studies."""
    folder = Path(folder)
    found = _found(folder)
    advice = guidance(found)
    claims = [claim for each in found.values() for claim in each.page.claims]
    body = [summary_html(list(found), claims), guidance_html(advice)]
    body += [_section(name, each, folder / name) for name, each in found.items()]
    body += [table_html(each.title, each.columns, each.rows, each.note) for each in sections]
    path = folder / NAME
    draft = path.with_suffix(".part")
    draft.write_text(document("ropewalk lab", body), encoding="utf-8")
    os.replace(draft, path)
    return path


def _section(name: str, found: Value, folder: Path) -> str:
    study, facts = STUDIES[name], found.facts
    parts = [f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p class="ask">{escape(study.about)}</p>']
    parts.append(claims_html(found.page.claims))
    parts += [
        picture_html(folder / f"{figure}.svg", figure) for figure in found.page.figures if (folder / f"{figure}.svg").exists()
    ]
    parts += [table_html(table.title, table.columns, table.rows, table.note) for table in found.page.tables]
    parts += [anchor_html(ANCHORS[anchor]) for anchor in study.anchors]
    parts.append(f'<p class="note">{escape(noise(found.rows, facts))} {escape(_where(facts))}</p>')
    parts.append(details_html("Settings", facts))
    return "\n".join(parts) + "</section>"


def noise(rows: list[Row], facts: dict[str, Any]) -> str:
    """How much a training differs from the next, measured where there are several seeds."""
    if facts["seeds"] == 1:
        added = f"a deviation of {SEED_NOISE} between seeds added, as published for tiny models."
        return f"One seed: two trainings are told apart with {added}"
    deviations = []
    keys = {_key(r) for r in rows}
    for key in keys:
        means = [r["mean"] for r in rows if _key(r) == key]
        if len(means) > 1:
            middle = sum(means) / len(means)
            deviations.append((sum((m - middle) ** 2 for m in means) / (len(means) - 1)) ** 0.5)
    typical = sorted(deviations)[len(deviations) // 2] if deviations else 0.0
    return f"{facts['seeds']} seeds: the median deviation of a loss between seeds is {typical:.4f}."


def _key(r: Row) -> tuple:
    """What rows of different seeds share."""
    if r["metric"] != "loss":
        return ()
    return tuple(sorted((name, value) for name, value in r.items() if name not in ("seed", "mean", "values")))


def _where(facts: dict[str, Any]) -> str:
    machine, corpus = facts["machine"], facts.get("corpus", {})
    told = (
        f"Preset {facts['preset']}, {machine['device']}, torch {machine['torch']}, Python {machine['python']}, {machine['date']}."
    )
    return told + (f" Text: sha256 {corpus['fingerprint'][:16]}." if corpus else "")
