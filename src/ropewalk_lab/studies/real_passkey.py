"""Study `real_passkey`: a pretrained model finds five digits in a long text, by length and depth,
with each method that it can use.

Words of this module:
  row    one measurement: whether a pass key was "found", 1 or 0, with the fields `method`, `length`
         of the text, and `depth`, from 0 (start) to 1 (end)
  job    one call of a function such as `measure`; a runner runs the jobs for the settings and the
         seeds of the study, and stores their rows
  meter  measures a method, and keeps what it has measured
  facts  what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.interop.patch import patched
from ropewalk_lab.fit.open_model import trained_length
from ropewalk_lab.fit.passkeys import passkey_lengths, shortest_passkey
from ropewalk_lab.plots import LIGHT, blank, finish, label_axes
from ropewalk_lab.scores import Score
from ropewalk_lab.studies.findings import Claim, Findings, Table, claim_order
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.real import (
    known_methods,
    make_meter,
    open_real,
    real_facts,
    source_note,
)
from ropewalk_lab.studies.rows import Row, distinct, row, select
from ropewalk_lab.studies.study import Study

PRESETS = presets_of("real_passkey")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run the only job of this study and return the facts for the report."""
    settings = runner.pick("model", "text", "methods", "factor", "depths", "lengths")
    rows = runner.run([Job("passkey", measure, settings)])
    return real_facts(runner, rows[0]["trained"])


def measure(
    workspace: Workspace,
    *,
    model: str,
    text: list[str],
    methods: list[str],
    factor: float,
    depths: int,
    lengths: list[int],
) -> list[Row]:
    """Ask the model with each method for the same pass keys, at every length and depth; return the
    rows.

    Methods that the model cannot use are left out, and so is longrope; raise an error if no method
    is left.

    factor   how many times the trained length the methods extend the model to
    depths   how many depths there are at each length
    lengths  of the texts, in tokens; []: those of `passkey_lengths` up to `factor` times the
             trained length, without those too short for a pass key
    """
    loaded, encode = open_real(model, workspace.device)
    trained = trained_length(loaded)
    if not lengths:
        shortest = shortest_passkey(encode)
        lengths = [
            each for each in passkey_lengths(trained, round(factor * trained)) if each >= shortest
        ]
    with patched(loaded):
        meter = make_meter(
            workspace,
            loaded,
            encode,
            text,
            name=model,
            trained=trained,
            factor=factor,
            lengths=lengths,
            num_depths=depths,
        )
        rows: list[Row] = []
        # raised if no method could be measured; this first error is for longrope alone
        refused = RopeError(
            "methods",
            "must have one besides longrope, whose factors are not searched here",
            methods,
        )
        for name, method in known_methods(methods).items():
            try:
                meter.measure(name, method)
            except RopeError as error:  # a family may not have every scaling
                refused = error
                continue
            of_method = meter.rows_of({name: method})
            fields = {"method": name, "factor": factor, "trained": trained}
            rows += [
                row("found", each["found"], length=each["length"], depth=each["depth"], **fields)
                for each in of_method
            ]
    if not rows:
        raise refused
    return rows


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the share of pass keys found by method and length, a heat map, and the claims."""
    names, lengths, depths = (
        distinct(rows, "found", field) for field in ("method", "length", "depth")
    )
    cells = [(name, *(_share(_values(rows, name, length)) for length in lengths)) for name in names]
    note = (
        f"{len(depths)} depths for each length; the model has to continue with the five digits. "
        f"{source_note(facts)}"
    )
    table = Table(
        "Pass keys found", ("method", *(f"{length:,}" for length in lengths)), cells, note
    )
    return Findings(
        [table],
        {"real_passkey": _heat_map(rows, names, lengths, depths)},
        claims(rows, facts["trained"]),
    )


def _values(rows: list[Row], name: str, length: int) -> list[float]:
    """Return 1 for each pass key that a method found at a length, 0 for the others."""
    return [each["mean"] for each in select(rows, "found", method=name, length=length)]


def _share(values: list[float]) -> str:
    """Return the mean and its standard error as text; "-" without values."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{np.mean(values):.0%} ± {error:.0%}" if values else "-"


def _heat_map(
    rows: list[Row], names: list[str], lengths: list[int], depths: list[float]
) -> Callable[[], Any]:
    """Return a function that draws which pass keys each method found, by length and depth."""

    def draw() -> Any:
        """Return a figure with one panel per method."""
        figure, panels = blank(LIGHT, max(6.0, 2.2 * len(names)), 3.4, across=len(names))
        found = {
            (each["method"], each["length"], each["depth"]): each["mean"]
            for each in rows
            if each["metric"] == "found"
        }
        for ax, name in zip(panels, names, strict=True):
            grid = [
                [found.get((name, length, depth), np.nan) for length in lengths] for depth in depths
            ]
            ax.imshow(grid, aspect="auto", cmap="viridis", vmin=0, vmax=1, interpolation="nearest")
            ax.grid(visible=False)
            ax.set_xticks(
                range(len(lengths)), [f"{length / 1000:.3g}k" for length in lengths], rotation=90
            )
            ax.set_yticks(
                range(len(depths)),
                [f"{depth:.0%}" for depth in depths] if ax is panels[0] else [""] * len(depths),
            )
            label_axes(ax, LIGHT, title=name, x="tokens", y="depth" if ax is panels[0] else "")
        return finish(figure, LIGHT)

    return draw


def claims(rows: list[Row], trained: int) -> list[Claim]:
    """Return up to three claims: YaRN misses fewer pass keys than no scaling beyond the trained
    length, and more within it; and within it dynamic YaRN misses fewer than YaRN.

    A claim about a method that was not measured is left out.
    """
    names = distinct(rows, "found", "method")

    def missed(name: str, beyond: bool) -> Score | None:
        """Return which pass keys a method missed, beyond the trained length or within it; None if
        none was asked for.
        """
        asked = [
            each
            for each in select(rows, "found", method=name)
            if (each["length"] > trained) == beyond
        ]
        return Score(np.array([[1 - each["mean"] for each in asked]])) if asked else None

    result = []
    for better, worse, beyond in (
        ("yarn", "none", True),
        ("none", "yarn", False),
        ("dynamic_yarn", "yarn", False),
    ):
        if {better, worse} <= set(names):
            pair = {name: missed(name, beyond) for name in (better, worse)}
            where = "Beyond" if beyond else "Within"
            text = f"{where} the trained length, {better} misses fewer pass keys than {worse}"
            result.append(claim_order(text, pair, [better, worse], same_model=True))
    return result


STUDY = Study(
    "real_passkey",
    ABOUT["real_passkey"],
    PRESETS,
    run,
    findings,
    seeded=False,
)
