"""`ropewalk audit`: compare the rope that other engines compute from a config with the one of transformers."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ropewalk.commands import console
from ropewalk.interop.engines import ENGINES, REFERENCE, Audit, Finding
from ropewalk.interop.engines import audit as run_audit

COLUMNS = ("magnitude", "logits", "first pair", "pairs", "worst score", "mean", "0.1 rad off", "pi off", "tokens")


def audit(
    config: Annotated[Path, typer.Argument(help="A config.json, or a model folder that contains one.")],
    length: Annotated[int | None, typer.Option(help="Length of the longest sequence of a batch, in tokens.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="The maximum sequence length that engines are started with.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Compare the rope that transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from the same config."""
    result = run_audit(config, length=length, max_model_len=max_model_len)
    if json:
        print(json_format.dumps(result.as_dict(), indent=2))
        return
    out = console()
    for layer_type, tokens in dict.fromkeys((f.layer_type, f.length) for f in result.findings):
        group = [f for f in result.findings if (f.layer_type, f.length) == (layer_type, tokens)]
        out.print(_table(f"{layer_type}, sequences of {tokens:,} tokens", group))
    for line in _reasons(result):
        out.print(line)


def _table(title: str, findings: list[Finding]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("engine", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name)
    for finding in findings:
        table.add_row(ENGINES[finding.engine].title, *_cells(finding))
    return table


def _cells(finding: Finding) -> list[str]:
    if finding.magnitude is None:
        return [finding.problem or "not known"]
    magnitude, difference = f"{finding.magnitude:.5g}", finding.difference
    if difference is None:
        return [magnitude, "reference" if finding.engine == REFERENCE else "the same"]
    return [
        magnitude,
        f"x {difference.temperature:.4g}",
        "-" if difference.first_pair is None else str(difference.first_pair),
        str(difference.pairs),
        f"{difference.score_worst:.3g}",
        f"{difference.score_mean:.3g}",
        "never" if difference.until_tenth is None else f"after {difference.until_tenth:,}",
        "never" if difference.until_half_turn is None else f"after {difference.until_half_turn:,}",
        difference.tokens,
    ]


def _reasons(result: Audit) -> list[str]:
    """Return a line for each rule of an engine, with its source and the date it was read, then the warnings."""
    lines = {
        f"{ENGINES[f.engine].title}, {rule.about}: {rule.does} ({rule.reference}; read {rule.read})"
        for f in result.findings
        for rule in f.rules
    }
    return [*sorted(lines), *(f"warning: {text}" for text in result.warnings)]
