"""Study `real_extend`: a pretrained model beyond its trained length, zero-shot, with each method
that it can use: loss by band and LongPPL.

Words of this module:
  row      one measurement: a metric, its values, and fields. "loss", of one `band`, and "seconds"
           have a value for each window, "long_ppl" one over all windows, with `keys`, how many
           tokens it counts. All have `method`, `factor` and `trained` (the trained length)
  job      one call of a function such as `measure`; a runner runs the jobs for the settings and the
           seeds of the study, and stores their rows
  band     positions such as "8k-16k"; "within": a text of the trained length
  meter    measures a method, and keeps what it has measured
  LongPPL  the perplexity of key tokens, those that need a long context
  facts    what a report says of the run beside its rows: settings, seeds, texts
"""

from __future__ import annotations

from typing import Any

from ropewalk.attention.remap import REMAPPINGS
from ropewalk.errors import RopeError
from ropewalk.interop.patch import patched
from ropewalk_lab.fit.methods import Method
from ropewalk_lab.fit.open_model import trained_length
from ropewalk_lab.fit.summary import short_length
from ropewalk_lab.fit.text import long_ppl
from ropewalk_lab.scores import Score
from ropewalk_lab.studies.findings import Claim, Findings, Table, cell, claim_order
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.presets import ABOUT, presets_of
from ropewalk_lab.studies.real import (
    known_methods,
    make_meter,
    open_real,
    real_facts,
    source_note,
)
from ropewalk_lab.studies.real_picture import picture
from ropewalk_lab.studies.rows import Row, distinct, row, score, scores_by, select
from ropewalk_lab.studies.study import Study

#: (better, worse): which method has the lower loss in the last band, as papers and forums claim
ORDER = (("yarn", "none"), ("yarn", "ntk"), ("ntk", "linear"), ("longrope", "yarn"))
PRESETS = presets_of("real_extend")


def run(runner: JobRunner) -> dict[str, Any]:
    """Run one job for each factor and return the facts for the report.

    Each job stores the losses of each window in a ledger, so that a run that was stopped continues.
    """
    shared = runner.pick("model", "text", "methods", "windows", "search")
    rows = runner.run(
        Job(f"factor-{factor:g}", measure, {"factor": factor, **shared})
        for factor in runner.settings["factors"]
    )
    return real_facts(runner, rows[0]["trained"])


def measure(
    workspace: Workspace,
    *,
    factor: float,
    model: str,
    text: list[str],
    methods: list[str],
    windows: int,
    search: int,
) -> list[Row]:
    """Measure each method at one factor on the same windows; return the rows.

    Methods that the model cannot use are left out, and longrope without a search; raise an error if
    no method is left.

    factor   the windows have `factor` times the trained length
    windows  how many windows are shared among the texts
    search   candidates of the search for LongRoPE's factors; 0: no search
    """
    loaded, encode = open_real(model, workspace.device)
    trained = trained_length(loaded)
    with patched(loaded):
        meter = make_meter(
            workspace,
            loaded,
            encode,
            text,
            name=model,
            trained=trained,
            factor=factor,
            windows=windows,
            search=search,
        )
        factors = None
        if search and "longrope" in methods:
            factors = meter.find_longrope(search)
        rows: list[Row] = []
        # raised if no method could be measured; this first error is for longrope alone
        refused = RopeError(
            "search", "must be at least 1 to measure longrope, whose factors are searched", search
        )
        for name, method in known_methods(methods, factors).items():
            try:
                meter.measure(name, method)
            except RopeError as error:  # a family may not have every scaling
                refused = error
                continue
            rows += _rows(meter, name, method, factor)
    if not rows:
        raise refused
    return rows


def _rows(meter: Any, name: str, method: Method, factor: float) -> list[Row]:
    """Return the rows of one method from what the meter has measured at a factor: for each window
    the loss by band, the loss of a text of the trained length and the seconds; and LongPPL over all
    windows, unless they have no key tokens.
    """
    samples = meter.samples
    measured = [each for each in meter.rows_of({name: method}) if each["metric"] == "text"]
    far = sorted(
        (each for each in measured if each["length"] == samples.to), key=lambda each: each["window"]
    )
    near = sorted(
        (each for each in measured if each["length"] == samples.trained),
        key=lambda each: each["window"],
    )
    fields = {"method": name, "factor": factor, "trained": samples.trained}
    rows = [
        row(
            "loss",
            [each["bands"][place] for each in far],
            band=f"{short_length(low)}-{short_length(high)}",
            **fields,
        )
        for place, (low, high) in enumerate(samples.bands)
    ]
    rows.append(row("loss", [each["loss"] for each in near], band="within", **fields))
    ppl = long_ppl([each["key_sum"] for each in far], [each["key_count"] for each in far])
    if ppl is not None:
        num_keys = sum(each["key_count"] for each in far)
        # 1e9 stands for itself and for more
        rows.append(row("long_ppl", min(ppl, 1e9), keys=num_keys, **fields))
    return [*rows, row("seconds", [each["seconds"] for each in far], **fields)]


def findings(rows: list[Row], facts: dict[str, Any]) -> Findings:
    """Return the loss by method and band for each factor, LongPPL, and the claims."""
    tables = []
    for factor in distinct(rows, "loss", "factor"):
        of_factor = select(rows, "loss", factor=factor)
        bands, names = distinct(of_factor, "loss", "band"), distinct(of_factor, "loss", "method")
        cells = []
        for name in names:
            ppl = select(rows, "long_ppl", factor=factor, method=name)
            losses = [cell(score(of_factor, "loss", method=name, band=band)) for band in bands]
            cells.append((name, *losses, f"{ppl[0]['mean']:.2f}" if ppl else "-"))
        windows = len(of_factor[0]["values"])
        note = (
            f"Nats per token ± standard error over {windows} windows, zero-shot. 'within': texts "
            "of the trained length."
        )
        title, columns = f"Loss at {factor:g}x by band of positions", ("method", *bands, "LongPPL")
        tables.append(Table(title, columns, cells, f"{note} {source_note(facts)}"))
    return Findings(tables, {"real_extend": lambda: picture(rows, facts)}, claims(rows))


def claims(rows: list[Row]) -> list[Claim]:
    """Return the claims of ORDER, and that each remapping has a lower loss than YaRN, in the last
    band of each factor. A claim about a method that was not measured is left out.
    """
    result = []
    for factor in distinct(rows, "loss", "factor"):
        of_factor = select(rows, "loss", factor=factor)
        names = distinct(of_factor, "loss", "method")
        last_band = [band for band in distinct(of_factor, "loss", "band") if band != "within"][-1]
        losses: dict[str, Score | None] = dict(
            scores_by(of_factor, "loss", "method", names, band=last_band)
        )
        for better, worse in (*ORDER, *((name, "yarn") for name in REMAPPINGS)):
            if better in losses and worse in losses:
                text = f"At {factor:g}x, {better} has a lower loss than {worse} in {last_band}"
                result.append(claim_order(text, losses, [better, worse], same_model=True))
    return result


STUDY = Study(
    "real_extend",
    ABOUT["real_extend"],
    PRESETS,
    run,
    findings,
    seeded=False,
)
