"""Record what engines computed: the rows for runners, the ropes they read back, and a verdict for each against the spec.

python -m ropewalk.interop.engines.record rows rows.json
python -m ropewalk.interop.engines.record write --results results --date 2026-11 results-of-runners.json ...
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.interop.config import file as config_file
from ropewalk.interop.engines.matrix import Row
from ropewalk.interop.engines.matrix_rows import rows
from ropewalk.interop.engines.measured import Table, first_difference, layer_of_type, specs_of, verdict
from ropewalk.interop.engines.readers import ENGINES, TITLES

#: files in the folder of results: one verdict a line, and every rope that was read back, each once
VERDICTS, TABLES = "engines.jsonl", "engine_tables.json"
#: one other release of an engine a line, written by `releases`
RELEASES = "engine_releases.jsonl"
#: the names that runners give their engine
KEYS = {"transformers": "hf"}
#: the keys of a rope that are recorded, in this order
ROPE_KEYS = ("radians", "magnitude", "axis", "layout", "width")


def cells(output: Mapping[str, Any], by_id: Mapping[str, Row]) -> Iterator[tuple[Row, str, dict[str, Any] | str | None]]:
    """Yield (row, layer type, rope) of what a runner found; the rope is None if the layer does not rotate, or the error."""
    for found in output["results"]:
        row = by_id.get(Row(found["name"], {}, found["length"], found["max_model_len"]).id)
        if row is None:
            continue
        specs = specs_of(row.config)
        types = ["full_attention"] if isinstance(specs, RopeError) else list(specs)
        for name, index in layer_of_type(row.config, types).items():
            if "error" in found:
                yield row, name, found["error"].split("\n")[0][:160]
            else:
                rope = found["layers"][index] if index < len(found["layers"]) else None
                yield row, name, None if rope is None else found["ropes"][rope]


def verdict_rows(output: Mapping[str, Any], by_id: Mapping[str, Row], date: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each config and layer type: what the engine did, measured against the spec of `from_hf`."""
    name_of: str = output["engine"]
    engine = TITLES[KEYS.get(name_of, name_of)]
    for row, name, rope in cells(output, by_id):
        made = {
            "engine": engine, "version": output["version"], "date": date, "config": row.name, "length": row.length,
            "max_model_len": row.max_model_len, "layer_type": name,
        }  # fmt: skip
        specs = specs_of(row.config)
        if isinstance(rope, str):
            yield {**made, "verdict": "error", "error": rope}
        elif isinstance(specs, RopeError):
            yield {**made, "verdict": "no spec", "error": str(specs)[:160]}
        else:
            spec = specs[name]
            ours = None if spec is None else Table.of_spec(spec, row.length)
            theirs = None if rope is None else Table.read(rope)
            pair = None if ours is None or theirs is None else first_difference(ours, theirs)
            sizes = {"magnitude": theirs and theirs.magnitude, "spec_magnitude": ours and round(ours.magnitude, 6)}
            yield {**made, "verdict": verdict(ours, theirs), "first_pair": pair, **sizes, "layout": rope and rope["layout"]}


def recorded(outputs: Iterable[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """Return every rope that was read back, each once, and for each engine and row which of them its layer types have."""
    by_id, ropes, engines = {row.id: row for row in rows()}, [], {}
    index: dict[str, int] = {}
    for output in outputs:
        found: dict[str, dict[str, Any]] = {}
        for row, name, rope in cells(output, by_id):
            if isinstance(rope, Mapping):
                values = [rope[key] for key in ROPE_KEYS]
                values[2] = None if not any(rope["axis"]) else rope["axis"]
                rope = index.setdefault(json.dumps(values), len(index))
                if rope == len(ropes):
                    ropes.append(values)
            found.setdefault(row.id, {})[name] = rope
        engines[KEYS.get(output["engine"], output["engine"])] = {"version": output["version"], "date": date, "rows": found}
    return {"ropes": ropes, "engines": engines}


def table_of(record: Mapping[str, Any], rope: int) -> Table:
    """Return one recorded rope."""
    radians, magnitude, axis, layout, _ = record["ropes"][rope]
    return Table.of(radians, magnitude, axis or [0] * len(radians), layout)


def runs_module(record: Mapping[str, Any], releases: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the text of runs.py: version and date of each engine, and the families with the scalings that were run.

    releases    other releases and in how many cells they differ; the oldest of those that are the same is written too
    """
    by_id = {row.id: row for row in rows()}
    lines = [
        '"""What was run: version, date, and the scalings of each family. Written by `make engines`."""', "",
        "from __future__ import annotations", "", "# fmt: off",
        "RUNS: dict[str, tuple[str, str, dict[str, tuple[str, ...]]]] = {",
    ]  # fmt: skip
    kinds_of: dict[tuple[str, str], tuple[str, str]] = {}  # most engines have run the same rows
    for engine in ENGINES:
        ran = record["engines"][engine]
        families: dict[str, set[str]] = {}
        for key in ((name, layer_type) for name, found in ran["rows"].items() for layer_type in found):
            if key not in kinds_of:
                kinds_of[key] = _case(by_id[key[0]], key[1])
            model_type, scaling = kinds_of[key]
            families.setdefault(model_type, set()).add(scaling)
        lines.append(f'    "{engine}": ("{ran["version"]}", "{ran["date"]}", {{')
        lines += [f'        "{name}": {_tuple(sorted(kinds))},' for name, kinds in sorted(families.items())]
        lines.append("    }),")
    since = {engine: oldest for engine in ENGINES if (oldest := _oldest(record, engine, releases)) is not None}
    lines += ["}", "#: the oldest release that computes the same in every row, of those that were run"]
    return "\n".join([*lines, f"SINCE: dict[str, str] = {json.dumps(since)}", ""])


def _oldest(record: Mapping[str, Any], engine: str, releases: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the oldest release before which no other that was run differs from the recorded one."""
    version = record["engines"][engine]["version"]
    own = [line for line in releases if line["engine"] == TITLES[engine] and line["compared_with"] == version]
    found = None
    for line in sorted(own, key=lambda line: [int(part) for part in line["version"].split(".")], reverse=True):
        if line["differ"]:
            break
        found = line["version"]
    return found


def read_releases(results: Path) -> list[dict[str, Any]]:
    """Return the lines about other releases in the folder of results."""
    path = results / RELEASES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _tuple(names: list[str]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


def _case(row: Row, layer_type: str) -> tuple[str, str]:
    """Return the model_type and the name of the scaling of one layer type of a row."""
    text = config_file.text_part(config_file.load(dict(row.config)))
    specs = specs_of(row.config)
    spec = None if isinstance(specs, RopeError) else specs[layer_type]
    return text["model_type"], "default" if spec is None else spec.scaling.name


def main() -> None:
    """Write the rows for runners, or the records of what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows").add_argument("out", type=Path)
    write = commands.add_parser("write")
    write.add_argument("--results", type=Path, required=True)
    write.add_argument("--date", required=True)
    write.add_argument("outputs", type=Path, nargs="+")
    given = parser.parse_args()
    if given.command == "rows":
        given.out.write_text(json.dumps([asdict(row) for row in rows()]), encoding="utf-8")
        return
    outputs = [json.loads(path.read_text(encoding="utf-8")) for path in given.outputs]
    by_id = {row.id: row for row in rows()}
    lines = [json.dumps(row) for output in outputs for row in verdict_rows(output, by_id, given.date)]
    (given.results / VERDICTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = recorded(outputs, given.date)
    (given.results / TABLES).write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    (Path(__file__).parent / "runs.py").write_text(runs_module(record, read_releases(given.results)), encoding="utf-8")


if __name__ == "__main__":
    main()
