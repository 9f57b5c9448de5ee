"""`ropewalk engines`: run the engines that are installed here and compare what they compute with
the spec of each config.

Words of this module: a result is what one engine computed for one config, length and layer type. Its
"verdict" is "same", "error" (the engine refused the config), "no spec" (ropewalk has none for it), or
what differs from the spec.
"""

from __future__ import annotations

import json as json_format
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ropewalk.errors import RopeError
from ropewalk_cli.commands import Json
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.engines_run.measured import ServedConfig


def engines(
    only: Annotated[
        list[Literal["hf", "vllm", "sglang", "mlx-lm", "llama.cpp", "onnxruntime"]] | None,
        Option("Run only this engine; hf is transformers."),
    ] = None,
    match: Annotated[str, Option("Run only the configs whose name contains this.")] = "",
    json: Json = False,
) -> None:
    """Run the inference engines that are installed here on small models, and compare their ropes
    with each config's spec.

    Each engine builds its own model from the config and rotates unit vectors. Engines that are not
    installed are listed with the reason.
    """
    from ropewalk_lab.engines_run.installed import TITLES, run, why_not
    from ropewalk_lab.engines_run.measured import verdict_rows

    names: list[str] = list(dict.fromkeys(only or TITLES))
    selected = _rows(match)
    not_run = {name: reason for name in names if (reason := why_not(name)) is not None}
    if only and len(not_run) == len(names):
        reasons = "; ".join(dict.fromkeys(not_run.values()))
        raise RopeError("only", f"must name an engine that can run here: {reasons}", only)
    by_id = {row.id: row for row in selected}
    results: list[dict[str, Any]] = []
    for name in names:
        if name not in not_run:
            results += verdict_rows(run(name, [asdict(row) for row in selected]), by_id, date="")
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
    """Return a sentence for each engine: how many of its results, one for each config, length and
    layer type, are as the spec of the config says.
    """
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


def _rows(match: str) -> list[ServedConfig]:
    """Return small models with the ropes of well-known checkpoints whose name contains `match`, at
    their trained and their served length.
    """
    from ropewalk.config.examples import EXAMPLES
    from ropewalk_lab.engines_run.measured import ServedConfig
    from ropewalk_lab.engines_run.small import complete_config

    rows = []
    for name, checkpoint in EXAMPLES.items():
        config = complete_config(checkpoint)
        if match.lower() in name.lower() and config is not None:
            served = checkpoint["max_position_embeddings"]
            trained = checkpoint.get("original_max_position_embeddings", served)
            rows += [ServedConfig(name, config, each) for each in dict.fromkeys((trained, served))]
    if not rows:
        names = ", ".join(name for name, each in EXAMPLES.items() if complete_config(each))
        raise RopeError("match", f"must be a part of the name of a checkpoint: {names}", match)
    return rows


def _text(value: object) -> str:
    return "" if value is None else str(value)
