"""`ropewalk fit`: measure the methods of extending a model's context, and recommend one."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ropewalk_cli.commands import Device, Json, device_of, model_path, output_folder
from ropewalk_cli.declare import Argument, Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.fit import Step


def fit(
    model: Annotated[
        str,
        Argument(
            "A Hugging Face folder or the name of a model in its cache, a .gguf file, or smollm2 "
            "after `ropewalk lab fetch`."
        ),
    ],
    to: Annotated[int, Option("The context length that is wanted, in tokens.")],
    text: Annotated[
        list[str] | None,
        Option(
            "Text file, folder of .txt files, or a fetched text; by default Python's documentation."
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        Option("Measure only this method; by default all that the model can take."),
    ] = None,
    windows: Annotated[int, Option("Number of windows of text that every method reads.")] = 6,
    passkeys: Annotated[int, Option("Number of pass keys for each length; 0 asks for none.")] = 10,
    search: Annotated[
        int,
        Option("Number of candidates in the search for LongRoPE's factors; 0 leaves longrope out."),
    ] = 0,
    long_ppl: Annotated[
        bool,
        Option(
            "Measure LongPPL; finding its tokens takes as long as reading every window four times."
        ),
    ] = True,
    trained: Annotated[
        int | None, Option("Context length in training; by default from the config.")
    ] = None,
    seed: Annotated[int, Option("Another seed gives other pass keys.")] = 0,
    out: Annotated[
        Path, Option("Folder for rows, config, picture and report; a second run resumes.")
    ] = Path("fit"),
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Measure the methods of extending a model's context on a text, and recommend one.

    It measures the loss by band of positions, and how many pass keys (numbers hidden in a long
    text) the model finds, both also within the trained length. Methods that the model cannot take
    are listed with the reason. Nothing is trained.
    """
    from ropewalk_lab.fit import fit as fit_model
    from ropewalk_lab.fit.session import CONFIG
    from ropewalk_lab.fit.summary import note
    from ropewalk_lab.fit_page import PAGE, write_page
    from ropewalk_lab.progress import Progress

    output_folder(out)
    # how many measurements there will be is not known before the model is loaded
    bar = Progress("fit", total=0, done=0, enabled=not json)

    def report(step: Step) -> None:
        """Show the measurement that begins."""
        bar.show(step.number, step.text, step.total, now=True)

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
            "recommended": vars(result.recommendation),
            "best": vars(result.decision.best),
            "in_config": vars(result.in_config),
            "gain": result.decision.gain,
            "table": rows,
            "skipped": result.skipped,
            "facts": result.facts,
        }
        print(json_format.dumps(data, indent=2, default=str))
        return
    table(f"{result.facts['model']} at {to:,} tokens", columns, cells, note(result.facts))
    say(*result.sentences())
    written = [name for name in (CONFIG, "fit.png", PAGE) if (out / name).exists()]
    say(f"written to {out}: rows.jsonl, fit.json, {', '.join(written)}")
