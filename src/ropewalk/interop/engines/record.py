"""Record what engines computed: the rows for runners, the ropes they read back, and a verdict for each against the spec.

python -m ropewalk.interop.engines.record rows rows.json
python -m ropewalk.interop.engines.record write --results results --date 2026-11 results-of-runners.json ...
"""

from __future__ import annotations

import argparse
import hashlib
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
    """Yield (row, layer type, rope) of what a runner found; the rope is None if the layer does not rotate, or the error.

    output  what a runner wrote; a result has each different rope once in "ropes", and in "layers" the index of each layer's
    by_id   the rows by their id; results of other rows are left out
    """
    for result in output["results"]:
        row = by_id.get(Row(result["name"], {}, result["length"], result["max_model_len"]).id)
        if row is None:
            continue
        specs = specs_of(row.config)
        types = ["full_attention"] if isinstance(specs, RopeError) else list(specs)
        for layer_type, layer in layer_of_type(row.config, types).items():
            if "error" in result:
                yield row, layer_type, result["error"].split("\n")[0][:160]
            else:
                rope = result["layers"][layer] if layer < len(result["layers"]) else None
                yield row, layer_type, None if rope is None else result["ropes"][rope]


def verdict_rows(output: Mapping[str, Any], by_id: Mapping[str, Row], date: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each config and layer type: what the engine did, measured against the spec of `from_hf`."""
    runner_name: str = output["engine"]
    engine = TITLES[KEYS.get(runner_name, runner_name)]
    for row, layer_type, rope in cells(output, by_id):
        about = {
            "engine": engine, "version": output["version"], "date": date, "config": row.name, "length": row.length,
            "max_model_len": row.max_model_len, "layer_type": layer_type,
        }  # fmt: skip
        specs = specs_of(row.config)
        if isinstance(rope, str):
            yield {**about, "verdict": "error", "error": rope}
        elif isinstance(specs, RopeError):
            yield {**about, "verdict": "no spec", "error": str(specs)[:160]}
        else:
            spec = specs[layer_type]
            ours = None if spec is None else Table.of_spec(spec, row.length)
            theirs = None if rope is None else Table.read(rope)
            pair = None if ours is None or theirs is None else first_difference(ours, theirs)
            sizes = {"magnitude": theirs and theirs.magnitude, "spec_magnitude": ours and round(ours.magnitude, 6)}
            yield {**about, "verdict": verdict(ours, theirs), "first_pair": pair, **sizes, "layout": rope and rope["layout"]}


def recorded(outputs: Iterable[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """Return every rope that was read back, each once, and for each engine and row which of them its layer types have.

    "rows_digest" is that of the rows that were run: the ropes of other configs are not known.
    """
    by_id, ropes, engines = {row.id: row for row in rows()}, [], {}
    place_of: dict[str, int] = {}  # a rope as JSON -> its index in `ropes`
    for output in outputs:
        of_engine: dict[str, dict[str, Any]] = {}
        for row, layer_type, rope in cells(output, by_id):
            if isinstance(rope, Mapping):
                # a rope with one axis has None in place of a list of zeros
                values = [rope[key] if key != "axis" or any(rope["axis"]) else None for key in ROPE_KEYS]
                rope = place_of.setdefault(json.dumps(values), len(place_of))
                if rope == len(ropes):
                    ropes.append(values)
            of_engine.setdefault(row.id, {})[layer_type] = rope
        engines[KEYS.get(output["engine"], output["engine"])] = {"version": output["version"], "date": date, "rows": of_engine}
    return {"ropes": ropes, "engines": engines, "rows_digest": rows_digest(by_id.values())}


def rows_digest(some: Iterable[Row]) -> str:
    """Return a digest of the configs and lengths of rows."""
    return hashlib.sha256(json.dumps([asdict(row) for row in some], sort_keys=True).encode()).hexdigest()


def table_of(record: Mapping[str, Any], rope: int) -> Table:
    """Return one rope of what `recorded` returns, by its index."""
    radians, magnitude, axis, layout, _ = record["ropes"][rope]
    return Table.of(radians, magnitude, axis or [0] * len(radians), layout)


def runs_module(record: Mapping[str, Any], releases: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the text of runs.py: the families with the scalings that every engine ran, and version and date of each engine.

    releases    other releases and in how many cells they differ; the oldest of those that are the same is written too
    """
    by_id, engines = {row.id: row for row in rows()}, {engine: record["engines"][engine] for engine in ENGINES}
    ran = ({(row_id, layer_type) for row_id in each["rows"] for layer_type in each["rows"][row_id]} for each in engines.values())
    families: dict[str, set[str]] = {}
    for row_id, layer_type in set.intersection(*ran):
        model_type, scaling = _kind(by_id[row_id], layer_type)
        families.setdefault(model_type, set()).add(scaling)
    lines = [
        '"""What was run: the scalings of each family, and version and date of each engine. Written by `make engines`."""', "",
        "from __future__ import annotations", "", "# fmt: off", "#: model_type -> the scalings that every engine ran",
        "FAMILIES: dict[str, tuple[str, ...]] = {",
        *(f'    "{name}": {_tuple(sorted(scalings))},' for name, scalings in sorted(families.items())), "}",
        "#: engine -> its version, and when it was run", "RUNS: dict[str, tuple[str, str]] = {",
        *(f'    "{engine}": ("{each["version"]}", "{each["date"]}"),' for engine, each in engines.items()), "}",
    ]  # fmt: skip
    since = {engine: oldest for engine in ENGINES if (oldest := _oldest(record, engine, releases)) is not None}
    lines.append("#: the oldest release that computes the same in every row, of those that were run")
    return "\n".join([*lines, f"SINCE: dict[str, str] = {json.dumps(since)}", ""])


def _oldest(record: Mapping[str, Any], engine: str, releases: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the oldest release such that it and all later ones that were run compute the same as the recorded one, or None."""
    version = record["engines"][engine]["version"]
    of_engine = [line for line in releases if line["engine"] == TITLES[engine] and line["compared_with"] == version]
    oldest = None
    for line in sorted(of_engine, key=lambda line: [int(part) for part in line["version"].split(".")], reverse=True):
        if line["differ"]:
            break
        oldest = line["version"]
    return oldest


def read_releases(results: Path) -> list[dict[str, Any]]:
    """Return the lines about other releases in the folder of results."""
    path = results / RELEASES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def _tuple(names: list[str]) -> str:
    """Return names as the source text of a tuple, with double quotes."""
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


def _kind(row: Row, layer_type: str) -> tuple[str, str]:
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
