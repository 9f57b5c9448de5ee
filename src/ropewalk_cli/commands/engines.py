"""`ropewalk engines`: run the engines that are installed here and compare what they compute with
the spec of each config.
"""

from __future__ import annotations

import json as json_format
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ropewalk.errors import RopeError
from ropewalk_cli.commands import Json
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk.engines.matrix import Row


def engines(
    only: Annotated[
        list[Literal["hf", "vllm", "sglang", "mlx-lm", "llama.cpp", "onnxruntime"]] | None,
        Option("Run only this engine; hf is transformers."),
    ] = None,
    match: Annotated[str, Option("Run only the configs whose name contains this.")] = "",
    all_rows: Annotated[
        bool, Option("Also run configs of no real checkpoint, which engines may read differently.")
    ] = False,
    json: Json = False,
) -> None:
    """Run the inference engines that are installed here on small models, and compare their ropes
    with each config's spec.

    Each engine builds its own model from the config and rotates unit vectors. Engines that are not
    installed are listed with the reason.
    """
    from ropewalk.engines.installed import run, why_not
    from ropewalk.engines.readers import TITLES
    from ropewalk.engines.record import verdict_rows

    names: list[str] = list(dict.fromkeys(only or TITLES))
    selected = _rows(match, all_rows)
    not_run = {name: reason for name in names if (reason := why_not(name)) is not None}
    if only and len(not_run) == len(names):
        reasons = "; ".join(dict.fromkeys(not_run.values()))
        raise RopeError("only", f"must name an engine that can run here: {reasons}", only)
    by_id = {row.id: row for row in selected}
    results: list[dict[str, Any]] = []
    for name in names:
        if name not in not_run:
            results += verdict_rows(run(name, selected), by_id, date="")
    if json:
        print(json_format.dumps({"rows": results, "not_run": not_run}, indent=2))
        return
    say(*verdicts(results), style="bold")
    for name, reason in not_run.items():
        say(f"{TITLES[name]}: not run, because {reason}")
    different = [row for row in results if row["verdict"] not in ("same", "no spec")]
    lines = [
        (
            row["engine"],
            row["config"],
            f"{row['length']:,}",
            row["verdict"],
            _text(row.get("first_pair")),
            _text(row.get("magnitude")),
            row.get("error", ""),
        )
        for row in different
    ]
    if lines:
        columns = ("engine", "config", "tokens", "differs in", "first pair", "magnitude", "error")
        note = "first pair: the first that rotates otherwise than the spec of the config says."
        table("", columns, lines, note)


def verdicts(results: list[dict[str, Any]]) -> list[str]:
    """Return a sentence for each engine: how many configs it computes as their spec says."""
    lines = []
    for engine in dict.fromkeys(row["engine"] for row in results):
        of_engine = [row for row in results if row["engine"] == engine]
        counts = Counter(row["verdict"] for row in of_engine)
        # every other verdict names what differs
        differs = sum(
            count
            for verdict, count in counts.items()
            if verdict not in ("same", "error", "no spec")
        )
        parts = [
            f"{counts['same']} of {len(of_engine)} as their spec says",
            f"{differs} differ",
            f"{counts['error']} refused",
        ]
        lines.append(f"{engine} {of_engine[0]['version']}: {', '.join(parts)}.")
    return lines or ["No engine was run."]


def _rows(match: str, all_rows: bool) -> list[Row]:
    """Return the rows to run, whose name contains `match`: those of real checkpoints, or with
    `all_rows` also the others.
    """
    from ropewalk.engines.matrix_rows import REAL, rows

    # the name of a row is that of its model, a comma, and the spelling of its config keys (v4 or v5
    # of transformers)
    selected = [
        row
        for row in rows()
        if match in row.name and (all_rows or row.name.partition(",")[0] in REAL)
    ]
    if not selected:
        raise RopeError(
            "match",
            "must be a part of the name of a config; --all-rows adds further configs",
            match,
        )
    return selected


def _text(value: object) -> str:
    return "" if value is None else str(value)
