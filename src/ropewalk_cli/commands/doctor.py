"""`ropewalk doctor config.json`: print what is wrong with a config, what each mistake changes in
the rotation, and the corrected config.
"""

from __future__ import annotations

import json as json_format
import re
from pathlib import Path
from typing import Annotated, Literal

import ropewalk as rw
from ropewalk.diagnosis.report import report_words
from ropewalk_cli.commands import (
    Example,
    Json,
    OptionalConfig,
    config_or_example,
    model_path,
    output_path,
)
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say

STYLES = {"error": "red", "warning": "yellow"}
Engine = Literal["transformers", "vllm", "sglang", "mlx-lm", "llama.cpp"]


def doctor(
    config: OptionalConfig = None,
    example: Example = None,
    engine: Annotated[
        Engine | None,
        Option("Also compare what this engine computes, and print only its flags, if it has any."),
    ] = None,
    length: Annotated[
        int | None, Option("Tokens of the longest sequence that the model will be used with.")
    ] = None,
    draft: Annotated[
        Path | None, Option("The config of a draft model, which needs the same rope.")
    ] = None,
    language: Annotated[Literal["en", "zh"], Option("Language of the report.")] = "en",
    out: Annotated[Path | None, Option("Also write the corrected config to this file.")] = None,
    json: Json = False,
) -> None:
    """Print what is wrong with a config, what each mistake changes in the rotation, and the
    corrected config with the flags of engines.

    Exit status: 0 nothing to change, 3 warnings, 4 errors, 2 refused.
    """
    if out is not None:
        output_path(out)  # raise an error before the work
    try:
        found = rw.doctor(
            config_or_example(config, example),
            engine,
            length,
            draft=None if draft is None else model_path(draft),
            language=language,
        )
    except rw.RopeError as error:
        if json:  # what reads JSON needs an object for a refused file too
            told = {"verdict": str(error), "severity": "refused", "exit_status": 2}
            print(json_format.dumps({**told, "findings": [], "corrected": None}, indent=2))
        raise
    if out is not None and found.corrected is not None:
        text = json_format.dumps(found.corrected, indent=2, default=str)
        out.write_text(text + "\n", encoding="utf-8")
    if json:
        print(json_format.dumps(found.as_dict(), indent=2, allow_nan=False, default=str))
    else:
        first, *rest = str(found).split("\n")
        say(first, style="bold")
        names = report_words(language)["names"]
        styles = {names[severity]: style for severity, style in STYLES.items()}
        for line in rest:
            say(line, style=styles.get(re.split(r"\W", line)[0], ""))
        if out is not None:
            outcome = "nothing to write" if found.corrected is None else f"written: {out}"
            say("", outcome)
    if found.exit_status:
        raise SystemExit(found.exit_status)
