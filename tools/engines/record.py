"""Write the rows for the runners, which run one engine each, and record what these found: the ropes
that they read back from the engine, and a verdict on each against the spec of its config.

python -m engines.record rows rows.json
python -m engines.record write --results results --date 2026-11 results-of-runners.json ...

The folder `tools` must be on PYTHONPATH. Engines without a file among the results keep what is recorded of
them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines.matrix_rows import rows
from ropewalk.config import file as config_file
from ropewalk.engines import ENGINES
from ropewalk.engines.recorded import AS_DESCRIBED, FOLDER, digest
from ropewalk.errors import RopeError
from ropewalk_lab.engines_run.installed import TITLES
from ropewalk_lab.engines_run.measured import (
    KEYS,
    LayerRope,
    ServedConfig,
    cells,
    specs_of,
    verdict,
    verdict_rows,
)

#: files in the folder of results: one verdict a line, and every rope that was read back, each once
VERDICTS, TABLES = "engines.jsonl", "engine_tables.json"
#: a line for each release of an engine that was compared with the recorded one; `engines.releases`
#: writes it
RELEASES = "engine_releases.jsonl"
#: the keys of a rope that are recorded, in this order
ROPE_KEYS = ("radians", "magnitude", "axis", "layout", "width")


def recorded(outputs: Iterable[Mapping[str, Any]], date: str) -> dict[str, Any]:
    """Return "ropes", each different rope that was read back, and "engines", which of them each row
    and layer type has.

    "rows_digest" identifies the rows that were run: the ropes of other configs are not known.
    """
    by_id, ropes, engines = {row.id: row for row in rows()}, [], {}
    index_of: dict[str, int] = {}  # a rope as JSON -> its index in `ropes`
    for output in outputs:
        engine_rows: dict[str, dict[str, Any]] = {}
        for row, layer_type, rope in cells(output, by_id):
            entry: Any = rope  # an error, or None if the layer does not rotate
            if isinstance(rope, Mapping):
                # a rope with one axis has None in place of a list of zeros
                values = [
                    rope[key] if key != "axis" or any(rope["axis"]) else None for key in ROPE_KEYS
                ]
                entry = index_of.setdefault(json.dumps(values), len(index_of))
                if entry == len(ropes):
                    ropes.append(values)
            engine_rows.setdefault(row.id, {})[layer_type] = entry
        engines[KEYS.get(output["engine"], output["engine"])] = {
            "version": output["version"],
            "date": date,
            "rows": engine_rows,
        }
    return {"ropes": ropes, "engines": engines, "rows_digest": rows_digest(by_id.values())}


def rows_digest(digested: Iterable[ServedConfig]) -> str:
    """Return a digest of the configs and lengths of rows."""
    return hashlib.sha256(
        json.dumps([asdict(row) for row in digested], sort_keys=True).encode()
    ).hexdigest()


def recorded_rope(record: Mapping[str, Any], rope: int) -> LayerRope:
    """Return the rope with index `rope` in a record, which is what `recorded` returns."""
    radians, magnitude, axis, layout, _ = record["ropes"][rope]
    return LayerRope.of(radians, magnitude, axis or [0] * len(radians), layout)


def shipped(
    record: Mapping[str, Any], engine: str, releases: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return the data file of the package with what an engine was recorded to compute.

    releases    the lines of RELEASES: in how many cells each further release of an engine differs
                from the recorded one; the oldest of them that computes the same, like all later
                ones, is written too

    A rope is written once, and not at all if it is what the config describes. Configs without
    weights and those that `from_hf` refuses are left out.
    """
    ran = record["engines"][engine]
    ropes: list[list[Any]] = []
    cells: dict[str, dict[str, Any]] = {}
    families: dict[str, set[str]] = {}
    for row in rows():
        specs = specs_of(row.config)
        found = ran["rows"].get(row.id)
        if found is None or isinstance(specs, RopeError):
            continue
        text = config_file.text_part(config_file.load(dict(row.config)))
        name = digest(text, specs, row.length, row.max_model_len)
        for layer_type, rope in found.items():
            spec = specs[layer_type]
            scaling = "default" if spec is None else spec.scaling.name
            families.setdefault(text["model_type"], set()).add(scaling)
            if spec is None or (isinstance(rope, str) and "no weights" in rope):
                continue
            entry: Any = rope
            if isinstance(rope, int):
                theirs = recorded_rope(record, rope)
                if verdict(LayerRope.of_spec(spec, row.length), theirs) == "same":
                    entry = AS_DESCRIBED
                else:
                    axes = list(theirs.axis) if any(theirs.axis) else None
                    values = [list(theirs.radians), theirs.magnitude, axes]
                    if values not in ropes:
                        ropes.append(values)
                    entry = ropes.index(values)
            cells.setdefault(name, {})[layer_type] = entry
    return {
        "engine": engine,
        "version": ran["version"],
        "date": ran["date"],
        "since": _oldest_same_release(record, engine, releases),
        "families": {name: sorted(scalings) for name, scalings in sorted(families.items())},
        "ropes": ropes,
        "cells": cells,
    }


def write_shipped(
    record: Mapping[str, Any], releases: list[dict[str, Any]], folder: Path = FOLDER
) -> None:
    """Write the data file of every engine that `audit` knows into the package."""
    for engine in ENGINES:
        path = folder / f"{engine}-{record['engines'][engine]['version']}.json"
        path.write_text(in_lines(shipped(record, engine, releases)), encoding="utf-8")


def in_lines(data: Mapping[str, Any]) -> str:
    """Return a data file as JSON with a line for each family, rope and config."""
    parts = []
    for key, value in data.items():
        if isinstance(value, dict):
            inner = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in value.items()]
            text = "{\n  " + ",\n  ".join(inner) + "\n }" if inner else "{}"
        elif isinstance(value, list):
            text = "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if value else "[]"
        else:
            text = json.dumps(value)
        parts.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _oldest_same_release(
    record: Mapping[str, Any], engine: str, releases: Iterable[Mapping[str, Any]]
) -> str | None:
    """Return the oldest release such that it and all later ones that were run compute the same as
    the recorded one, or None.
    """
    version = record["engines"][engine]["version"]
    compared = [
        each
        for each in releases
        if each["engine"] == TITLES[engine] and each["compared_with"] == version
    ]
    # the newest first
    compared.sort(
        key=lambda release: [int(part) for part in release["version"].split(".")], reverse=True
    )
    oldest = None
    for release in compared:
        if release["differ"]:
            break
        oldest = release["version"]
    return oldest


def read_releases(results: Path) -> list[dict[str, Any]]:
    """Return the lines of RELEASES in the folder of results; [] without that file."""
    path = results / RELEASES
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def main() -> None:
    """Write the configs that the engines run ("rows"), or from their outputs the verdicts, the ropes
    and the data files of the package ("write").
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows").add_argument("out", type=Path)
    write = commands.add_parser("write")
    write.add_argument("--results", type=Path, required=True)
    write.add_argument("--date", required=True)
    write.add_argument("--package", type=Path, default=FOLDER)
    write.add_argument("outputs", type=Path, nargs="+")
    options = parser.parse_args()
    if options.command == "rows":
        options.out.write_text(json.dumps([asdict(row) for row in rows()]), encoding="utf-8")
        return
    outputs = [json.loads(path.read_text(encoding="utf-8")) for path in options.outputs]
    by_id = {row.id: row for row in rows()}
    lines = [
        json.dumps(row) for output in outputs for row in verdict_rows(output, by_id, options.date)
    ]
    record = recorded(outputs, options.date)
    old_tables, old_verdicts = options.results / TABLES, options.results / VERDICTS
    if old_tables.exists() and old_verdicts.exists():
        record, lines = _with_others(record, lines, old_tables, old_verdicts)
    old_verdicts.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (options.results / TABLES).write_text(
        json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    write_shipped(record, read_releases(options.results), options.package)


def _with_others(
    record: dict[str, Any], lines: list[str], tables: Path, verdicts: Path
) -> tuple[dict[str, Any], list[str]]:
    """Return a new record and its verdicts together with those of the engines that were not run
    again; the rows must be the same.
    """
    old = json.loads(tables.read_text(encoding="utf-8"))
    others = [name for name in old["engines"] if name not in record["engines"]]
    if not others:
        return record, lines
    if old["rows_digest"] != record["rows_digest"]:
        raise RopeError("outputs", "must be of every engine if the rows have changed", others)
    ropes, index_of = [], {}
    merged: dict[str, Any] = {}
    for name in TITLES:
        source = record if name in record["engines"] else old
        if name not in source["engines"]:
            continue
        of_engine = source["engines"][name]
        new_rows: dict[str, dict[str, Any]] = {}
        for row_id, found in of_engine["rows"].items():
            for layer_type, rope in found.items():
                entry = rope
                if isinstance(rope, int):
                    values = source["ropes"][rope]
                    entry = index_of.setdefault(json.dumps(values), len(ropes))
                    if entry == len(ropes):
                        ropes.append(values)
                new_rows.setdefault(row_id, {})[layer_type] = entry
        merged[name] = {**of_engine, "rows": new_rows}
    by_title: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    for line in lines:
        by_title[json.loads(line)["engine"]].append(line)
    for line in verdicts.read_text(encoding="utf-8").splitlines():
        title = json.loads(line)["engine"]
        if title in [TITLES[name] for name in others]:
            by_title[title].append(line)
    together = [line for of_title in by_title.values() for line in of_title]
    return {"ropes": ropes, "engines": merged, "rows_digest": record["rows_digest"]}, together


if __name__ == "__main__":
    main()
