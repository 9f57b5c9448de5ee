"""`ropewalk fit`: measure every method of extending a model's context, and recommend one."""

from __future__ import annotations

import json as json_format
from pathlib import Path

from ropewalk_cli.commands import console, device_of, table
from ropewalk_cli.commands.model_argument import model_path
from ropewalk_lab.fit import Step
from ropewalk_lab.fit import fit as fit_model
from ropewalk_lab.fit.measure import print_step
from ropewalk_lab.fit.session import CONFIG
from ropewalk_lab.fit.summary import note
from ropewalk_lab.fit_page import PAGE, write_page
from ropewalk_lab.progress import Progress


def fit(
    model: str,
    to: int,
    text: list[str] | None,
    method: list[str] | None,
    windows: int,
    passkeys: int,
    search: int,
    long_ppl: bool,
    trained: int | None,
    seed: int,
    out: Path,
    device: str,
    json: bool,
) -> None:
    """Measure every method of reading `to` tokens, print the table and the recommendation, and
    write everything into a folder.

    windows, passkeys, search, long_ppl, trained and seed are those of `ropewalk.fit`.
    """
    # how many measurements there will be is not known before the model is loaded
    bar = Progress("fit", total=0, done=0, enabled=not json)

    def report(step: Step) -> None:
        """Show the measurement that begins: on the bar of a terminal, as a line in a pipe."""
        if bar.visible:
            bar.show(step.number, step.text, step.total)
        elif not json:
            print_step(step)

    try:
        result = fit_model(
            model_path(model),
            to,
            text=[model_path(each) for each in text] if text else None,
            methods=method or None,
            windows=windows,
            passkeys=passkeys,
            search=search,
            long_ppl=long_ppl,
            trained=trained,
            out=out,
            device=device_of(device),
            seed=seed,
            report=report,
        )
    finally:
        bar.close()
    write_page(result, out)
    columns, cells = result.table()
    if json:
        rows = [dict(zip(columns, each, strict=True)) for each in cells]
        data = {
            **result.decision.as_dict(),
            "table": rows,
            "skipped": result.skipped,
            "facts": result.facts,
        }
        print(json_format.dumps(data, indent=2, default=str))
        return
    console().print(
        table(f"{result.facts['model']} at {to:,} tokens", columns, cells, note(result.facts))
    )
    for line in result.sentences():
        console().print(line, soft_wrap=True)
    written = [name for name in (CONFIG, "fit.png", PAGE) if (out / name).exists()]
    console().print(f"written to {out}: rows.jsonl, fit.json, {', '.join(written)}", soft_wrap=True)
