"""Study `precision`: the error of cos and sin at large positions, for our precisions and for the
methods of other engines. Nothing is trained.

Words of this module:
  row    one measurement: the largest "error" of cos and sin, with the fields `way`, the method that
         computes them, and `position`
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from typing import Any

from ropewalk.spec import RopeSpec
from ropewalk_lab.analysis import COS_SIN_METHODS, USED_BY, error_curves
from ropewalk_lab.studies.findings import FAILS, HOLDS, Claim, Findings, Table, line_figure
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.rows import Row, distinct, row, select
from ropewalk_lab.studies.study import Study

#: how many positions the largest error is taken over, unless a setting says otherwise
WIDTH = 5
PRESETS = presets_of("precision")
#: the largest error of cos and sin that counts as exact
BOUND = 1e-6


def run(runner: JobRunner) -> dict[str, Any]:
    """Run the only job, which takes about a second; return the facts for the report."""
    runner.run([Job("curves", measure, runner.pick("positions", "head_dim", "width"))])
    return {}


def measure(workspace: Workspace, *, positions: list[int], head_dim: int, width: int) -> list[Row]:
    """Return rows of the largest error of each method over the last `width` positions up to each of
    `positions`.

    The reference is arithmetic of high precision, with frequencies of 40 digits.
    """
    curves = error_curves(RopeSpec(head_dim=head_dim), positions, width=width)
    return [
        row("error", error, way=method, position=position)
        for method, errors in curves.items()
        for position, error in zip(positions, errors, strict=True)
    ]


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the errors by method and position as a table and a figure, and the claim about the
    exact method.
    """
    positions = distinct(rows, "error", "position")
    errors = {}
    for method in COS_SIN_METHODS:
        errors[method] = [
            select(rows, "error", way=method, position=position)[0]["mean"]
            for position in positions
        ]
    cells = [
        (method, USED_BY[method], *(f"{error:.1e}" for error in curve))
        for method, curve in errors.items()
    ]
    columns = ("method", "used by", *(f"{position:,}" for position in positions))
    # facts without settings: as with the preset "cpu"
    width = facts.get("settings", PRESETS["cpu"])["width"]
    note = f"Over the last {width} positions up to each position."
    table = Table("Largest error of cos and sin", columns, cells, note)
    # a logarithmic axis has no 0
    series = {
        method: (positions, [max(error, 1e-9) for error in curve])
        for method, curve in errors.items()
    }
    figure = line_figure(
        series,
        title="Error of cos and sin by position",
        x="position",
        y="largest error",
        log_y=True,
    )
    worst = max(errors["exact"])
    text = f"The error of the exact method is within {BOUND:g} at every position"
    claim = Claim(text, HOLDS if worst <= BOUND else FAILS, f"largest {worst:.1e}")
    return Findings([table], {"precision": figure}, [claim])


STUDY = Study(
    "precision",
    ABOUT["precision"],
    PRESETS,
    run,
    findings,
    seeded=False,
)
