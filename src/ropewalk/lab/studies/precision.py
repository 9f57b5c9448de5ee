"""`precision`: how wrong cos and sin are at far positions, by every way that libraries form them. Nothing is trained."""

from __future__ import annotations

from typing import Any

from ropewalk.analysis import USED_BY, WAYS, error_curves
from ropewalk.lab.studies.page import FAILS, HOLDS, Claim, Page, Table, lines
from ropewalk.lab.studies.rows import Row, chosen, known, row
from ropewalk.lab.studies.study import Study
from ropewalk.lab.studies.workshop import Job, Place, Workshop
from ropewalk.spec import RopeSpec

POSITIONS = [32_768, 131_072, 524_288, 1_048_576, 4_194_304, 10_000_000]
_ALL = {"positions": POSITIONS, "head_dim": 128, "width": 5, "seeds": 1}
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {"positions": [32_768, 10_000_000], "head_dim": 10, "width": 2, "seeds": 1},
    "cpu": _ALL, "gpu": _ALL, "cluster": _ALL,
}  # fmt: skip
BOUND = 1e-6


def run(workshop: Workshop) -> dict[str, Any]:
    """One job: it takes a second."""
    s = workshop.settings
    workshop.each([Job("curves", measure, {name: s[name] for name in ("positions", "head_dim", "width")})])
    return {}


def measure(place: Place, *, positions: list[int], head_dim: int, width: int) -> list[Row]:
    """The largest error of each way near each position, against high-precision arithmetic."""
    curves = error_curves(RopeSpec(head_dim=head_dim), positions, width=width)
    return [
        row("error", error, way=way, position=position)
        for way, errors in curves.items()
        for position, error in zip(positions, errors, strict=True)
    ]


def page(rows: list[Row], facts: dict[str, Any]) -> Page:
    """Errors by way and position."""
    positions = known(rows, "error", "position")
    errors = {way: [chosen(rows, "error", way=way, position=p)[0]["mean"] for p in positions] for way in WAYS}
    cells = [(way, USED_BY[way], *(f"{error:.1e}" for error in found)) for way, found in errors.items()]
    table = Table(
        "Largest error of cos and sin", ("way", "used by", *(f"{p:,}" for p in positions)), cells, "Near each position."
    )
    figure = lines(
        {way: (positions, [max(e, 1e-9) for e in found]) for way, found in errors.items()},
        title="How far an angle can be trusted", x="position", y="largest error", log_y=True,
    )  # fmt: skip
    worst = max(errors["exact"])
    claim = Claim(
        f"The exact angle is within {BOUND:g} at every position", HOLDS if worst <= BOUND else FAILS, f"largest {worst:.1e}"
    )
    return Page([table], {"precision": figure}, [claim])


STUDY = Study("precision", "How wrong do angles get at far positions?", PRESETS, run, page)
