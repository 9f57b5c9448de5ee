"""`ropewalk inspect config.json`: print a checkpoint's rope settings, trained and served length,
precision, memory, and advice.

Words of this module:
  checkpoint  what `read_checkpoint` read from a config: {layer type: its facts, or None if it does not
              rotate}, and the explanation of every value
  facts       the spec of a layer type with its trained and served length, and what follows from them
  layer       the same as plain data, as `_layer` returns it; a report has one for each layer type
  coverage    how many turns each pair makes over a length; an angle is new if training has not shown
              it to the pair
"""

from __future__ import annotations

import json as json_format
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.safe_text import shown
from ropewalk_cli.commands import (
    Details,
    Example,
    Json,
    OptionalConfig,
    config_or_example,
    picture_path,
)
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk.analysis import Checkpoint, Facts

#: the figures that `--plot` draws for every layer type
PLOTTED = ("spectrum", "coverage", "similarity", "precision")
ERROR_NOTE = (
    "compared with transformers' float32 frequencies, which the checkpoint was trained with"
)
#: number of pairs that are printed; --json has all of them
SHOWN_PAIRS = 9
PAIRS_LEGEND = (
    "wavelength: tokens per turn, without and with the scaling. trained, served: turns of the "
    "pair over that length. band: what the scaling does to the pair. new angles: whether it "
    "reaches angles that did not occur in training."
)
MEMORY_LEGEND = (
    "full: one row per position. two-level: two short tables. none: no table. auto: what Rope "
    "keeps by default."
)
FIGURE_LEGEND = "figure: `ropewalk figures FOLDER --config CONFIG --only FIGURE` draws it"
#: labels with their unit, where the name alone does not say it
LABELS = {
    "trained": "trained (tokens)",
    "served": "served (tokens)",
    "window": "attention window (tokens)",
    "shortest_wavelength": "shortest wavelength (tokens)",
    "longest_wavelength": "longest wavelength (tokens)",
    "first_negative_cosine_sum": "first negative cosine sum (distance in tokens)",
}


def inspect(
    config: OptionalConfig = None,
    example: Example = None,
    trained: Annotated[
        int | None, Option("Context length in training, in tokens; by default from the config.")
    ] = None,
    served: Annotated[
        int | None, Option("Context length in use, in tokens; by default the config's maximum.")
    ] = None,
    plot: Annotated[
        Path | None, Option("Also write figures to this .png, .svg or .pdf file.")
    ] = None,
    guide: Annotated[
        bool, Option("Also print a table of recommended scalings by use case.")
    ] = False,
    details: Details = False,
    json: Json = False,
) -> None:
    """Print the main numbers of a checkpoint's rope, such as its trained and served length, and the
    most important advice.

    With --details also every value with its source, wavelengths and coverage of some pairs, the
    precision and the memory of each way to compute cos and sin, and all advice.
    """
    if plot is not None:
        picture_path(plot)  # raise an error for a wrong suffix before the analysis
    checkpoint = rw.analysis.read_checkpoint(config_or_example(config, example), trained, served)
    report = gather(checkpoint, whole=details or json)
    if guide:
        report["guide"] = [asdict(use) for use in rw.analysis.GUIDE]
    if plot is not None:
        _plot(checkpoint, plot)
        report["plot"] = str(plot)
    if json:
        print(json_format.dumps(report, indent=2, allow_nan=False, default=_plain))
        return
    _show(report, details)


def gather(checkpoint: Checkpoint, whole: bool = True) -> dict[str, Any]:
    """Return everything that `inspect` prints, as plain data. If not `whole`, leave out the numbers
    that take half of the time and that only --details and --json show.
    """
    explanation = checkpoint.explanation
    values = explanation.as_dict()
    layers = {
        name: _layer(checkpoint, name, facts, values.get(name, {}), whole)
        for name, facts in checkpoint.layers.items()
    }
    return {
        "model_type": explanation.model_type,
        "warnings": list(explanation.warnings),
        "layers": layers,
    }


def _layer(
    checkpoint: Checkpoint, name: str, facts: Facts | None, values: dict[str, Any], whole: bool
) -> dict[str, Any]:
    """Return everything about the layers of type `name` as plain data.

    values  {setting: its value and its source}
    whole   with the numbers that take long to compute
    """
    if facts is None:
        return {"values": values, "rotates": False}
    trained_from, served_from = checkpoint.sources[name]
    lengths = {
        "trained": facts.trained,
        "served": facts.served,
        "trained_from": trained_from,
        "served_from": served_from,
    }
    errors = {
        method: {"error": error, "used_by": rw.analysis.USED_BY[method]}
        for method, error in facts.errors.items()
    }
    return {
        "values": values,
        "rotates": True,
        "summary": lengths | _summary(facts) | (_slow_summary(facts) if whole else {}),
        "pairs": _pairs(facts),
        "precision": errors,
        "memory_bytes": facts.memory,
        "advice": [asdict(advice) for advice in rw.analysis.advise(facts)],
    }


def _summary(facts: Facts) -> dict[str, Any]:
    """Return the main numbers of a layer type by name."""
    aliasing = facts.aliasing
    critical = rw.analysis.critical_dimension(
        rw.analysis.plain_radians(facts.spec), facts.trained_distance
    )
    return {
        "window": facts.window,
        "rotated_dimensions": 2 * facts.spec.pairs,
        "critical_dimension": critical,
        # critical: how many dimensions are in pairs that make a whole turn in training
        "pairs_below_one_turn_in_training": facts.spec.pairs - critical // 2,
        "pairs_with_new_angles_unscaled": sum(facts.coverage.new_angles(facts.coverage.unscaled)),
        "pairs_with_new_angles": facts.new_angles,
        "shortest_wavelength": _finite(aliasing.shortest),
        "longest_wavelength": _finite(aliasing.longest),
        "pairs_that_repeat_when_served": aliasing.repeating,
        "bands": dict(Counter(facts.bands)),
        "magnitude": facts.spec.magnitude(facts.served),
        "softmax_factor": facts.spec.extra_softmax_factor,
    }


def _slow_summary(facts: Facts) -> dict[str, Any]:
    """Return the numbers of a layer type that need a sum over all pairs at many distances."""
    return {"first_negative_cosine_sum": facts.first_negative}


def _pairs(facts: Facts) -> list[dict[str, Any]]:
    """Return one dict per pair: wavelengths, turns, band and whether it reaches new angles."""
    coverage = facts.coverage
    has_new_angles = coverage.new_angles(coverage.scaled)
    plain_waves, scaled_waves = (
        rw.analysis.wavelengths(rw.analysis.plain_radians(facts.spec)),
        rw.analysis.wavelengths(facts.radians),
    )
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


def _plain(value: Any) -> dict[str, Any]:
    """Return a value that JSON has no form for, such as a temperature, as {"class": its name, its
    fields}.
    """
    return {"class": type(value).__name__, **asdict(value)}


def _finite(value: float) -> float | None:
    """Return None for infinity (the wavelength of a pair that does not rotate), since JSON has no
    infinity.
    """
    return float(value) if math.isfinite(value) else None


def _plot(checkpoint: Checkpoint, path: Path) -> None:
    """Write a picture with the figures PLOTTED of every layer type; raise an error if no layer type
    rotates.
    """
    from ropewalk_lab.plots import View, contact_sheet, draw, save

    layers = {name: facts for name, facts in checkpoint.layers.items() if facts is not None}
    if not layers:
        raise RopeError(
            "--plot",
            "must be left out: no layer of this config rotates, so there is nothing to draw",
            str(path),
        )
    views = {name: View(facts.spec, facts.trained, facts.served) for name, facts in layers.items()}
    figures = {
        f"{layer}: {name}": draw(name, view) for layer, view in views.items() for name in PLOTTED
    }
    save(contact_sheet(figures, across=2), path)


def _show(report: dict[str, Any], details: bool) -> None:
    """Print the report: a verdict per layer type, warnings, main numbers and, with `details`, all
    tables.
    """
    rotated = {name: layer for name, layer in report["layers"].items() if layer["rotates"]}
    for name, layer in report["layers"].items():
        about = ", ".join(filter(None, (report["model_type"], name)))
        say(shown(f"{about}: {verdict(layer)}"), style="bold")
    for text in report["warnings"]:
        say(shown(f"warning: {text}"), style="yellow")
    if rotated:
        _show_numbers(rotated)
    for name, layer in rotated.items() if details else ():
        say(shown(name), style="bold")
        _show_tables(layer)
    if "guide" in report:
        rows = [
            (use["use"], use["choose"], use["because"], use["figure"]) for use in report["guide"]
        ]
        table("Which scaling for which use", ("use", "choose", "because", "figure"), rows)
    if not details:
        say(
            "--details shows every value with its source, the pairs, precision, memory and all "
            "advice"
        )
    if "plot" in report:
        say(f"written: {report['plot']}")


def verdict(layer: dict[str, Any]) -> str:
    """Return the most important advice for a layer type and its reason, as one line."""
    if not layer["rotates"]:
        return "no rope"
    if not layer["advice"]:
        return f"nothing to change at {layer['summary']['served']:,} tokens."
    first = layer["advice"][0]
    return f"{first['because']}. {first['advice']}"


def _show_numbers(layers: dict[str, dict[str, Any]]) -> None:
    """Print the table of the main numbers, one column for each layer type."""
    columns = {name: _main_numbers(layer) for name, layer in layers.items()}
    labels = next(iter(columns.values()))  # every layer type has the same ones
    rows = [(label, *(column[label] for column in columns.values())) for label in labels]
    table("", ("", *columns), [row for row in rows if any(row[1:])])


def _main_numbers(layer: dict[str, Any]) -> dict[str, str]:
    """Return the main numbers of a layer type as texts, by label."""
    values, summary = (
        {name: entry["value"] for name, entry in layer["values"].items()},
        layer["summary"],
    )
    factor = f", factor {_cell(values['factor'])}" if "factor" in values else ""
    error = layer["precision"]["hf"]["error"]
    full = layer["memory_bytes"].get("full")  # None: one table cannot hold these angles
    return {
        "scaling": f"{values.get('rope_type', 'default')}{factor}",
        "theta": _cell(values.get("theta")),
        "rotated dimensions of a head": _cell(summary["rotated_dimensions"]),
        "trained length (tokens)": _cell(summary["trained"]),
        "served length (tokens)": _cell(summary["served"]),
        "attention window (tokens)": _cell(summary["window"]) if summary["window"] else "",
        "pairs with angles that training never showed": (
            f"{summary['pairs_with_new_angles']} of {len(layer['pairs'])}"
        ),
        "longest wavelength (tokens)": _cell(summary["longest_wavelength"]),
        f"error of float32 angles (bfloat16 rounds by {rw.analysis.BFLOAT16_ROUNDING:.1e})": f"{error:.1e}",
        "memory of cos and sin, one full table (bytes)": "" if full is None else _cell(full),
    }


def _show_tables(layer: dict[str, Any]) -> None:
    """Print all tables of a layer type: values, lengths, some of its pairs, precision, memory and
    advice.
    """
    values = [
        (name, _short(entry["value"]), entry["source"]) for name, entry in layer["values"].items()
    ]
    summary = [
        (LABELS.get(name) or name.replace("_", " "), _cell(value))
        for name, value in layer["summary"].items()
    ]
    all_pairs, served = layer["pairs"], layer["summary"]["served"]
    last, steps = len(all_pairs) - 1, SHOWN_PAIRS - 1
    pairs_shown = dict.fromkeys(round(last * i / steps) for i in range(SHOWN_PAIRS))
    pairs = [tuple(map(_cell, all_pairs[i].values())) for i in pairs_shown]
    headers = (
        "pair",
        "wavelength",
        "scaled",
        "trained",
        "served, unscaled",
        "served",
        "band",
        "new angles",
    )
    errors = [
        (name, f"{entry['error']:.1e}", entry["used_by"])
        for name, entry in layer["precision"].items()
    ]
    memory = [(strategy, f"{size:,}") for strategy, size in layer["memory_bytes"].items()]
    advice = [(item["advice"], item["because"], item["figure"]) for item in layer["advice"]]
    near, of = f"near token {served:,}", f"for {served:,} tokens"
    table("Values", ("field of the spec", "value", "from"), values)
    table("Length", ("", ""), summary)
    table(f"Pairs ({len(pairs)} of {len(all_pairs)})", headers, pairs, PAIRS_LEGEND)
    table(f"Error of cos and sin {near}", ("angle", "error", "used by"), errors, ERROR_NOTE)
    table(f"Memory of cos and sin {of}", ("Rope(tables=...)", "bytes kept"), memory, MEMORY_LEGEND)
    if advice:
        table("Advice", ("do", "because", "figure"), advice, FIGURE_LEGEND)


def _cell(value: Any) -> str:
    """Return a value as the text of a table cell."""
    if isinstance(value, dict):
        return ", ".join(f"{count} {name}" for name, count in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "none" if value is None else str(value)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:37] + "..."
