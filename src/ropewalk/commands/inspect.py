"""`ropewalk inspect config.json`: print a checkpoint's rope settings, usable length, precision, memory, and advice."""

from __future__ import annotations

import json as json_format
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from ropewalk import analysis
from ropewalk.analysis import Checkpoint, Facts
from ropewalk.commands import console
from ropewalk.plots import View, contact_sheet, draw, format_of, save

#: the figures that `--plot` draws for every layer type
PLOTTED = ("spectrum", "coverage", "similarity", "precision")
ERROR_NOTE = "compared with transformers' float32 frequencies, which the checkpoint was trained with"
#: number of pairs that are printed; --json has all of them
SHOWN_PAIRS = 9


def inspect(
    config: Annotated[Path, typer.Argument(help="A config.json, or a model folder that contains one.")],
    trained: Annotated[
        int | None, typer.Option(help="Context length in training, in tokens; by default from the config.")
    ] = None,
    served: Annotated[int | None, typer.Option(help="Context length in use, in tokens; by default the config's maximum.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also write figures to this .png, .svg or .pdf file.")] = None,
    guide: Annotated[bool, typer.Option("--guide", help="Also print a table of recommended scalings by use case.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Print a checkpoint's rope settings and where each comes from, wavelengths, coverage, precision, memory, and advice."""
    if plot is not None:
        format_of(plot)  # raise an error for a wrong suffix before the analysis
    checkpoint = analysis.read_checkpoint(config, trained, served)
    report = gather(checkpoint)
    if guide:
        report["guide"] = [asdict(use) for use in analysis.GUIDE]
    if plot is not None:
        _plot(checkpoint, plot)
        report["plot"] = str(plot)
    if json:
        print(json_format.dumps(report, indent=2, allow_nan=False))
        return
    _show(console(), report)


def gather(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return everything that `inspect` prints, as plain data."""
    explanation = checkpoint.explanation
    values = explanation.as_dict()
    layers = {name: _layer(checkpoint, name, facts, values.get(name, {})) for name, facts in checkpoint.layers.items()}
    return {"model_type": explanation.model_type, "warnings": list(explanation.warnings), "layers": layers}


def _layer(checkpoint: Checkpoint, name: str, facts: Facts | None, values: dict[str, Any]) -> dict[str, Any]:
    if facts is None:
        return {"values": values, "rotates": False}
    sources = dict(zip(("trained_from", "served_from"), checkpoint.sources[name], strict=True))
    errors = {name: {"error": error, "used_by": analysis.USED_BY[name]} for name, error in facts.errors.items()}
    return {
        "values": values,
        "rotates": True,
        "summary": {"trained": facts.trained, "served": facts.served} | sources | _summary(facts),
        "pairs": _pairs(facts),
        "precision": errors,
        "memory_bytes": facts.memory,
        "advice": [asdict(each) for each in analysis.advise(facts)],
    }


def _summary(facts: Facts) -> dict[str, Any]:
    aliasing = facts.aliasing
    critical = analysis.critical_dimension(analysis.plain_radians(facts.spec), facts.trained_distance)
    return {
        "window": facts.window,
        "rotated_dimensions": 2 * facts.spec.pairs,
        "critical_dimension": critical,
        "pairs_below_one_turn_in_training": facts.spec.pairs - critical // 2,
        "pairs_with_new_angles_unscaled": int(facts.coverage.new_angles(facts.coverage.unscaled).sum()),
        "pairs_with_new_angles": facts.new_angles,
        "shortest_wavelength": _finite(aliasing.shortest),
        "longest_wavelength": _finite(aliasing.longest),
        "pairs_that_repeat_when_served": aliasing.repeating,
        "bands": dict(Counter(facts.bands)),
        "magnitude": float(facts.spec.ladder_frequencies(facts.served).magnitude),
        "softmax_factor": facts.spec.extra_softmax_factor,
        "first_negative_cosine_sum": facts.first_negative,
    }


def _pairs(facts: Facts) -> list[dict[str, Any]]:
    coverage = facts.coverage
    has_new_angles = coverage.new_angles(coverage.scaled)
    plain_waves, scaled_waves = analysis.wavelengths(analysis.plain_radians(facts.spec)), analysis.wavelengths(facts.radians)
    return [
        {
            "pair": i,
            "wavelength": _finite(plain_waves[i]),
            "scaled_wavelength": _finite(scaled_waves[i]),
            "turns_in_training": float(coverage.trained[i]),
            "turns_served_unscaled": float(coverage.unscaled[i]),
            "turns_served": float(coverage.scaled[i]),
            "band": facts.bands[i],
            "new_angles": bool(has_new_angles[i]),
        }
        for i in range(facts.spec.pairs)
    ]


def _finite(value: float) -> float | None:
    """Return None for infinity (the wavelength of a pair that does not rotate), since JSON has no infinity."""
    return float(value) if math.isfinite(value) else None


def _plot(checkpoint: Checkpoint, path: Path) -> None:
    layers = {name: facts for name, facts in checkpoint.layers.items() if facts is not None}
    views = {name: View(facts.spec, facts.trained, facts.served) for name, facts in layers.items()}
    figures = {f"{layer}: {name}": draw(name, view) for layer, view in views.items() for name in PLOTTED}
    save(contact_sheet(figures, across=2), path)


def _show(out: Console, report: dict[str, Any]) -> None:
    out.print(f"model_type {report['model_type'] or 'not given'}")
    for text in report["warnings"]:
        out.print(f"warning: {text}", style="yellow", soft_wrap=True)
    for name, layer in report["layers"].items():
        out.print()
        out.print(name if layer["rotates"] else f"{name}: no rope", style="bold")
        for table in _tables(layer) if layer["rotates"] else ():
            out.print(table)
    if "guide" in report:
        rows = [(use["use"], use["choose"], use["because"], use["figure"]) for use in report["guide"]]
        out.print(_table("Which scaling for which use", ("use", "choose", "because", "figure"), rows))
    if "plot" in report:
        out.print(f"written: {report['plot']}", soft_wrap=True)


def _tables(layer: dict[str, Any]) -> list[Table]:
    values = [(name, _short(entry["value"]), entry["source"]) for name, entry in layer["values"].items()]
    summary = [(name.replace("_", " "), _cell(value)) for name, value in layer["summary"].items()]
    rows, served = layer["pairs"], layer["summary"]["served"]
    pairs = np.unique(np.linspace(0, len(rows) - 1, SHOWN_PAIRS).round().astype(int))
    ladder = [tuple(map(_cell, rows[i].values())) for i in pairs]
    headers = ("pair", "wavelength", "scaled", "turns trained", "unscaled", "served", "band", "new angles")
    errors = [(name, f"{entry['error']:.1e}", entry["used_by"]) for name, entry in layer["precision"].items()]
    memory = [(form.replace("_", " "), f"{size:,}") for form, size in layer["memory_bytes"].items()]
    advice = [(each["advice"], each["because"], each["figure"]) for each in layer["advice"]]
    return [
        _table("Values", ("field of the spec", "value", "from"), values),
        _table("Length", ("", ""), summary),
        _table(f"Pairs ({len(pairs)} of {len(rows)})", headers, ladder),
        _table(f"Error of cos and sin near token {served:,}", ("angle", "error", "used by"), errors, ERROR_NOTE),
        _table("Memory of cos and sin", ("form", "bytes"), memory),
        _table("Advice", ("do", "because", "figure"), advice),
    ]


def _table(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], note: str | None = None) -> Table:
    table = Table(*columns, title=title, title_justify="left", caption=note, caption_justify="left", show_header=any(columns))
    for row in rows:
        table.add_row(*row)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
