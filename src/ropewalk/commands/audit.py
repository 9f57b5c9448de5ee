"""`ropewalk audit`: what other engines compute from one config, and where they part from transformers."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ropewalk.commands import console
from ropewalk.interop.engines.audit import Audit, Finding
from ropewalk.interop.engines.audit import audit as run_audit
from ropewalk.interop.engines.rules import ENGINES, REFERENCE

COLUMNS = ("magnitude", "logits", "first pair", "pairs", "worst score", "mean", "0.1 rad off", "pi off", "tokens")


def audit(
    config: Annotated[Path, typer.Argument(help="A config.json, or the folder of a model.")],
    length: Annotated[int | None, typer.Option(help="Tokens of the longest sequence of a batch.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="The longest sequence an engine is started for.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Show what transformers, vLLM, SGLang, mlx-lm and llama.cpp compute from one config, and how much they differ."""
    found = run_audit(config, length=length, max_model_len=max_model_len)
    if json:
        print(json_format.dumps(found.as_dict(), indent=2))
        return
    out = console()
    for layer_type, asked in dict.fromkeys((f.layer_type, f.length) for f in found.findings):
        group = [f for f in found.findings if (f.layer_type, f.length) == (layer_type, asked)]
        out.print(_table(f"{layer_type}, sequences of {asked:,} tokens", group))
    for line in _reasons(found):
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
    size = f"{finding.magnitude:.5g}"
    found = finding.difference
    if found is None:
        return [size, "reference" if finding.engine == REFERENCE else "the same"]
    return [
        size,
        f"x {found.temperature:.4g}",
        "-" if found.first_pair is None else str(found.first_pair),
        str(found.pairs),
        f"{found.score_worst:.3g}",
        f"{found.score_mean:.3g}",
        "never" if found.until_tenth is None else f"after {found.until_tenth:,}",
        "never" if found.until_half_turn is None else f"after {found.until_half_turn:,}",
        found.tokens,
    ]


def _reasons(found: Audit) -> list[str]:
    """Each rule once, with the engine it belongs to, where and when it was read."""
    lines = {
        f"{ENGINES[f.engine].title}, {rule.about}: {rule.does} ({rule.reference}; read {rule.read})"
        for f in found.findings
        for rule in f.rules
    }
    return [*sorted(lines), *(f"warning: {text}" for text in found.warnings)]
