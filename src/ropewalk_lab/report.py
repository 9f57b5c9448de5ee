"""The report: one self-contained HTML page about all studies in a folder, with published results
for comparison.

Words of this module:
  run       a study that was run, in a folder of any name
  row       one measurement of a run: a dict with a metric, the values, and fields that say what was
            measured
  facts     what was run and how, from `study.json`: study, preset, seeds, settings, machine, text
  findings  the tables, figures and claims that a study computes from its rows; a claim is a
            statement with the verdict whether it holds
  preset    the size of a run; those of TOO_SHORT allow no conclusions
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ropewalk.errors import RopeError, choice
from ropewalk_lab import report_html as html
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.published import beside
from ropewalk_lab.recommendations import NOT_RUN, StudyResult, recommend
from ropewalk_lab.studies import STUDIES, read_study
from ropewalk_lab.studies.findings import SEED_NOISE, TOO_SHORT, Findings, Table, concluded
from ropewalk_lab.studies.rows import Row
from ropewalk_lab.studies.study import FACTS, draw_figures

NAME = "report.html"
#: facts that a report names for every study
NEEDED_FACTS = ("preset", "seeds", "settings", "machine")


def read_all(folder: str | Path) -> dict[str, tuple[Findings, dict[str, Any]]]:
    """Return the findings and facts of every run of a study in a folder, by the name of its folder."""
    return {name: (result.findings, result.facts) for name, result in read_results(folder).items()}


def read_results(folder: str | Path) -> dict[str, StudyResult]:
    """Return every run of a study in a folder, by the name of its folder, in the order of STUDIES.

    One study may have several runs, in folders of any name; `study.json` says which study it is.
    """
    results = []
    for path in sorted(Path(folder).glob(f"*/{FACTS}")):
        rows, facts = read_study(path.parent)
        study = STUDIES[choice(f"{path.parent.name}/{FACTS}, study", facts.get("study"), STUDIES)]
        if absent := [name for name in NEEDED_FACTS if name not in facts]:
            raise RopeError(
                f"{path.parent.name}/{FACTS}",
                f"must have {', '.join(NEEDED_FACTS)}; run the study again",
                absent,
            )
        # a run that was too short loses its claims here
        findings = concluded(study.findings(rows, facts), facts)
        results.append((path.parent.name, StudyResult(rows, facts, findings)))
    if not results:
        raise RopeError(
            "folder",
            "must contain a study; run: ropewalk lab run encodings --out FOLDER",
            str(folder),
        )
    order = list(STUDIES)
    return dict(
        sorted(results, key=lambda name_and_result: order.index(name_and_result[1].facts["study"]))
    )


def write_report(
    folder: str | Path,
    sections: Sequence[Table] = (),
    *,
    lead: html.Lead | None = None,
    redraw: bool = False,
) -> Path:
    """Write report.html into a folder of studies and return its path.

    sections  tables to add after the studies
    lead      what the page says first, before the links to the studies and the counts of claims
    redraw    draw the figures again from the rows, into the folder of each study
    """
    folder = Path(folder)
    results = read_results(folder)
    if redraw:
        for name, result in results.items():
            draw_figures(result.findings, folder / name)
    long_enough = {
        name: result
        for name, result in results.items()
        if result.facts.get("preset") not in TOO_SHORT
    }
    # runs of a preset in TOO_SHORT have no claims: `read_results` has removed them
    claims = [claim for result in results.values() for claim in result.findings.claims]
    advice = [each for each in recommend(long_enough) if each.advice != NOT_RUN]
    body = [
        html.lead_html(lead) if lead else "<h1>ropewalk lab</h1>",
        html.summary_html(list(results), claims),
        html.recommendations_html(advice),
    ]
    body += [_section(name, result, folder / name) for name, result in results.items()]
    body += [html.table_html(table) for table in sections]
    write_atomically(folder / NAME, html.document("ropewalk lab", body))
    return folder / NAME


def _section(name: str, result: StudyResult, folder: Path) -> str:
    """Return the HTML section of one study: claims, figures, tables, published values and settings."""
    findings, study = result.findings, STUDIES[result.facts["study"]]
    with TemporaryDirectory() as temporary:
        paths = {figure: folder / f"{figure}.svg" for figure in findings.figures}
        # if the folder lacks a figure, draw all of them in a temporary one
        if not all(path.exists() for path in paths.values()):
            paths = {path.stem: path for path in draw_figures(findings, Path(temporary), ("svg",))}
        pictures = [html.picture_html(path, figure) for figure, path in paths.items()]
    parts = [
        (
            f'<section id="{html.escape(name)}"><h2>{html.escape(name)}</h2><p '
            f'class="ask">{html.escape(study.about)}</p>'
        ),
        f'<p class="fails">{html.escape(TOO_SHORT[result.facts["preset"]])}</p>'
        if result.facts["preset"] in TOO_SHORT
        else "",
        html.claims_html(findings.claims),
        *pictures,
        *map(html.table_html, findings.tables),
        # published numbers, their source, and ours beside them
        *(html.folded_html(beside(each, findings)) for each in study.published),
        (
            f'<p class="note">{html.escape(noise(result.rows, result.facts))} '
            f"{html.escape(_environment(result.facts))}</p>"
        ),
        html.details_html("Settings", result.facts),
    ]
    return "\n".join(parts) + "</section>"


def noise(rows: list[Row], facts: dict[str, Any]) -> str:
    """Return a sentence about the noise between trainings: measured if there are several seeds,
    otherwise the published value.

    It is "" with one seed if the study does not depend on seeds, and with several if no loss was
    measured with more than one of them.
    """
    if facts["seeds"] == 1:
        said = (
            f"One seed: comparisons of two trainings include a deviation of {SEED_NOISE} for each of "
            "them, as published for tiny models."
        )
        return said if STUDIES[facts["study"]].seeded else ""
    by_setting: dict[tuple, list[float]] = {}  # losses of rows that differ only in the seed
    for row in rows:
        if row["metric"] == "loss":
            setting = tuple(
                sorted(
                    (name, value)
                    for name, value in row.items()
                    if name not in ("seed", "mean", "values")
                )
            )
            by_setting.setdefault(setting, []).append(row["mean"])
    deviations = [statistics.stdev(means) for means in by_setting.values() if len(means) > 1]
    if not deviations:
        return ""
    return (
        f"{facts['seeds']} seeds: the median deviation of a loss between seeds is "
        f"{statistics.median(deviations):.4f}."
    )


def _environment(facts: dict[str, Any]) -> str:
    """Return one or two short sentences: preset, seeds, device, versions and date of a study; then
    the names of a pretrained model and of its texts, or the fingerprint of the text that the study
    trained on, if it has one.
    """
    machine, corpus = facts["machine"], facts.get("corpus", {})
    versions = f"torch {machine['torch']}, Python {machine['python']}, {machine['date']}."
    text = f" Text: sha256 {corpus['fingerprint'][:16]}." if corpus else ""
    # the name of a pretrained model; a study that trains its models has their settings there
    if isinstance(facts.get("model"), str):
        text = f" Model {facts['model']}, text {', '.join(facts.get('text', []))}."
    return (
        f"Preset {facts['preset']}, {facts['seeds']} seeds, {machine['device']}, {versions}{text}"
    )
