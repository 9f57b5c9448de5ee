"""Write the data files of the page from the results: who computes what, and what methods cost.

PYTHONPATH=tools python -m page.data
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from engines.matrix_rows import rows as matrix_rows
from ropewalk.config import file as config_file
from ropewalk_lab.page.answers import as_text

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
DATA = ROOT / "src" / "ropewalk_lab" / "page" / "static" / "data"
#: tables of runs of engines, and of stacks with the vectors
TABLES, STACKS, VECTORS = ("engines.jsonl",), "stacks.json", ROOT / "conformance"
#: the result of a cell of a stack as the verdict of a run
VERDICTS = {"agrees": "same", "differs": "pairs", "refuses": "error", "not expressible": "cannot"}
#: config keys of the size of the small models, which no rope depends on
SIZES = frozenset(
    [
        "architectures",
        "hidden_act",
        "intermediate_size",
        "moe_intermediate_size",
        "num_hidden_layers",
        "rms_norm_eps",
        "tie_word_embeddings",
        "torch_dtype",
        "vocab_size",
        "initializer_range",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_bias",
        "attention_dropout",
        "mlp_bias",
    ]
)
#: studies that the page shows, in its order: results/lab/<name>
STUDIES = (
    "h200_real_extend", "h200_real_passkey", "h200_fit", "h200_real_tune_codes", "h200_methods",
    "h200_extend", "h200_passkey", "h200_encodings", "cpu_three_seeds_extend",
    "cpu_three_seeds_encodings",
)  # fmt: skip
METRICS = ("loss", "found")
#: fields of a row that name its series; the mean is taken over rows that differ in other fields
NAMED = ("method", "model", "base", "factor", "objective", "tuned", "steps")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table: JSON lines, a JSON list, or an object with a list `rows`."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    found = json.loads(text)
    return found["rows"] if isinstance(found, Mapping) else found


def stack_rows(stacks: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the cells of stacks that were run with the conformance vectors as rows of runs."""
    configs = {}
    for path in VECTORS.glob("*.json"):
        group = json.loads(path.read_text(encoding="utf-8"))
        for case in group.get("cases", ()):
            if isinstance(case.get("config"), Mapping):
                configs[f"{group['group']}/{case['id']}"] = case["config"]
    found = []
    for stack in stacks:
        about = {key: stack[key] for key in ("stack", "version", "date")}
        for name, cell in stack["cells"].items():
            words = ". ".join(filter(None, (cell.get("words"), cell.get("because"))))
            row = {
                **about,
                "config": name,
                "config_json": configs.get(name),
                "error": words or None,
            }
            row |= {"verdict": VERDICTS[cell["result"]], "first_pair": cell.get("first_pair")}
            if cell.get("magnitude") and not cell.get("pairs_off"):
                row |= {"verdict": "magnitude", "spec_magnitude": 1, "magnitude": cell["magnitude"]}
            found.append(row)
    return found


def matrix(tables: Iterable[list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the configs that were run, and what each engine did with them."""
    configs = {row.name: row.config for row in matrix_rows()}
    engines: dict[tuple[str, str], dict[str, str]] = {}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for measured in tables:
        for each in measured:
            name, version = each.get("engine") or each["stack"], str(each.get("version", ""))
            engines.setdefault(
                (name, version),
                {"name": name, "version": version, "date": str(each.get("date", ""))},
            )
            key = (each["config"], each.get("length"), each.get("max_model_len"))
            config = each.get("config_json") or configs.get(each["config"])
            if config is None:  # a config that is no longer run
                continue
            row = rows.setdefault(key, _row(each, config))
            cells = row["cells"].setdefault(f"{name} {version}", [])
            cells.append(_cell(each))
    order = [f"{name} {version}" for name, version in engines]
    for row in rows.values():
        row["cells"] = [row["cells"].get(name) for name in order]
    return {"engines": list(engines.values()), "rows": list(rows.values())}


def _row(each: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return one row of the matrix without its cells."""
    text = config_file.text_part(config)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    ropes = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    kinds = {str(one.get("rope_type") or one.get("type") or "default") for one in ropes}
    scaled = sorted(kinds - {"default"})
    return {
        "name": each["config"],
        "length": each.get("length"),
        "started": each.get("max_model_len"),
        "family": str(text.get("model_type") or text.get("_class_name")),
        "scaling": scaled[0] if scaled else "default",
        "config": as_text({key: value for key, value in config.items() if key not in SIZES}),
        "cells": {},
    }


def _cell(each: Mapping[str, Any]) -> list[Any]:
    """Return [state, layer type, first pair, factor on logits, text] of one run."""
    verdict, text = each["verdict"], each.get("error") or each.get("evidence")
    states = {"same": "same", "error": "refused", "no spec": "unknown", "magnitude": "factor"}
    state = (states | {"cannot": "cannot"}).get(verdict, "differs")
    ours, theirs = each.get("spec_magnitude"), each.get("magnitude")
    logits = round((theirs / ours) ** 2, 6) if ours and theirs else None
    return [
        state,
        each.get("layer_type"),
        each.get("first_pair"),
        None if logits == 1 or "magnitude" not in verdict else logits,
        None if text is None else str(text)[:240],
    ]


def methods(folder: Path) -> dict[str, Any]:
    """Return {name of a study: its date, trained length, and curves by metric}."""
    found = {}
    for name in STUDIES:
        if (folder / name / "fit.json").exists():
            found[name] = _fit(folder / name)
        else:
            found |= _studies(folder / name)
    return found


def _studies(folder: Path) -> dict[str, Any]:
    """Return {name: curves} of one study, the mean over windows, seeds and depths; one for each
    factor if the windows of a factor differ from those of another.
    """
    about = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    rows = [row for row in read_rows(folder / "rows.jsonl") if row["metric"] in METRICS]
    unscaled = {row["factor"] for row in rows if row.get("method") == "none" and "factor" in row}
    if len(unscaled) < 2:
        return {folder.name: _study(about, rows)}
    found = {}
    for factor in sorted(unscaled - {1}):  # factor 1: the trained length, which all have
        of_factor = [{**row, "factor": factor} for row in rows if row["factor"] in (1, factor)]
        found[f"{folder.name} x{factor:g}"] = _study(about, of_factor)
    return found


def _study(about: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the curves of the rows of one study."""
    varied = [name for name in NAMED if len({json.dumps(row.get(name)) for row in rows}) > 1]
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        end = row.get("end") or row.get("length") or _end(row.get("band"))
        if end is None:
            continue
        by_end = values.setdefault(row["metric"], {}).setdefault(_name(row, varied), {})
        by_end.setdefault(int(end), []).append(row["mean"])
    trained = about.get("trained") or about["train"]["stages"][0]["length"]
    return _as_curves(about.get("machine") or {}, trained, values)


def _fit(folder: Path) -> dict[str, Any]:
    """Return the curves of a measurement of `ropewalk fit`."""
    about = json.loads((folder / "fit.json").read_text(encoding="utf-8"))
    values: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in read_rows(folder / "rows.jsonl"):
        if row["metric"] == "passkey":
            by_end = values.setdefault("found", {}).setdefault(row["method"], {})
            by_end.setdefault(row["length"], []).append(float(row["found"]))
        elif row["metric"] == "text" and row.get("bands"):
            by_end = values.setdefault("loss", {}).setdefault(row["method"], {})
            for (_, end), loss in zip(about["bands"], row["bands"], strict=False):
                if loss is not None:
                    by_end.setdefault(end, []).append(loss)
    return _as_curves(about.get("machine") or {}, about["trained"], values)


def _as_curves(machine: Mapping[str, Any], trained: int | None, values: Mapping[str, Any]) -> dict:
    curves = {
        metric: {
            series: [
                [end, round(math.fsum(each) / len(each), 5)] for end, each in sorted(ends.items())
            ]
            for series, ends in of_metric.items()
        }
        for metric, of_metric in values.items()
    }
    return {"date": machine.get("date"), "trained": trained, "curves": curves}


def _name(row: Mapping[str, Any], varied: Iterable[str]) -> str:
    """Return the name of a series: the fields that differ within its study."""
    parts = []
    for name in varied:
        value = row.get(name)
        if name == "factor":
            if row.get("method") != "none" and value not in (None, 1, 1.0):
                parts.append(f"x{value:g}")
        elif name in ("tuned", "steps"):
            if value:
                parts.append(f"{value} steps")
        elif name == "base":
            parts.append(f"base {value:g}")
        elif value is not None:
            parts.append(str(value))
    return " ".join(parts)


def _end(band: str | None) -> int | None:
    """Return the last token of a band such as "4k-8k"."""
    if not band or "-" not in band:
        return None
    end = band.split("-")[1]
    return int(end[:-1]) * 1024 if end.endswith("k") else int(end)


def written(data: Mapping[str, Any]) -> str:
    """Return JSON with a line for each entry of its lists."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list):
            lines = ",\n".join(json.dumps(each, ensure_ascii=False) for each in value)
            parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def files() -> dict[str, str]:
    """Return {name of a data file: its text}."""
    tables = [read_rows(RESULTS / name) for name in TABLES]
    tables.append(stack_rows(read_rows(RESULTS / STACKS)))
    found = matrix(tables)
    found["releases"] = read_rows(RESULTS / "engine_releases.jsonl")
    return {"matrix.json": written(found), "methods.json": written(methods(RESULTS / "lab"))}


def main() -> None:
    DATA.mkdir(exist_ok=True)
    for name, text in files().items():
        (DATA / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
