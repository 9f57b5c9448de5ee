"""Record what engines computed: the rows for runners, the ropes they read back, and a verdict for
each against the spec.

python -m ropewalk.engines.record rows rows.json
python -m ropewalk.engines.record write --results results --date 2026-11
results-of-runners.json ...
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.engines.matrix import Row
from ropewalk.engines.matrix_rows import rows
from ropewalk.engines.measured import (
    LayerRope,
    first_difference,
    layer_of_type,
    specs_of,
    verdict,
)
from ropewalk.engines.readers import ENGINES, TITLES
from ropewalk.errors import RopeError

#: files in the folder of results: one verdict a line, and every rope that was read back, each once
VERDICTS, TABLES = "engines.jsonl", "engine_tables.json"
#: one other release of an engine a line, written by `releases`
RELEASES = "engine_releases.jsonl"
#: the names that runners give their engine
KEYS = {"transformers": "hf"}
#: the keys of a rope that are recorded, in this order
ROPE_KEYS = ("radians", "magnitude", "axis", "layout", "width")


def cells(
    output: Mapping[str, Any], by_id: Mapping[str, Row]
) -> Iterator[tuple[Row, str, dict[str, Any] | str | None]]:
    """Yield (row, layer type, rope) of what a runner found; the rope is None if the layer does not
    rotate, or the error.

    output  what a runner wrote. A result lists each different rope once in "ropes"; its "layers"
            has an entry for each layer, the index of its rope in that list, or None
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
                index = result["layers"][layer] if layer < len(result["layers"]) else None
                yield row, layer_type, None if index is None else result["ropes"][index]


def verdict_rows(
    output: Mapping[str, Any], by_id: Mapping[str, Row], date: str
) -> Iterator[dict[str, Any]]:
    """Yield a row for each config and layer type: what the engine did, measured against the spec of
    `from_hf`.
    """
    runner_name: str = output["engine"]
    engine = TITLES[KEYS.get(runner_name, runner_name)]
    for row, layer_type, rope in cells(output, by_id):
        about = {
            "engine": engine,
            "version": output["version"],
            "date": date,
            "config": row.name,
            "length": row.length,
            "max_model_len": row.max_model_len,
            "layer_type": layer_type,
        }
        specs = specs_of(row.config)
        if isinstance(rope, str):
            yield {**about, "verdict": "error", "error": rope}
        elif isinstance(specs, RopeError):
            yield {**about, "verdict": "no spec", "error": str(specs)[:160]}
        else:
            spec = specs[layer_type]
            ours = None if spec is None else LayerRope.of_spec(spec, row.length)
            theirs = None if rope is None else LayerRope.read(rope)
            yield {
                **about,
                "verdict": verdict(ours, theirs),
                "first_pair": None
                if ours is None or theirs is None
                else first_difference(ours, theirs),
                "magnitude": None if theirs is None else theirs.magnitude,
                "spec_magnitude": None if ours is None else round(ours.magnitude, 6),
                "layout": None if theirs is None else theirs.layout,
            }


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


def rows_digest(digested: Iterable[Row]) -> str:
    """Return a digest of the configs and lengths of rows."""
    return hashlib.sha256(
        json.dumps([asdict(row) for row in digested], sort_keys=True).encode()
    ).hexdigest()


def recorded_rope(record: Mapping[str, Any], rope: int) -> LayerRope:
    """Return the rope with index `rope` in a record, which is what `recorded` returns."""
    radians, magnitude, axis, layout, _ = record["ropes"][rope]
    return LayerRope.of(radians, magnitude, axis or [0] * len(radians), layout)


def runs_module(record: Mapping[str, Any], releases: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the text of runs.py: the families with the scalings that every engine ran, and version
    and date of each engine.

    releases    other releases and in how many cells they differ; the oldest of those that are the
                same is written too
    """
    engines = {engine: record["engines"][engine] for engine in ENGINES}
    families: dict[str, set[str]] = {}
    for row in rows():
        layer_types = [set(engine["rows"].get(row.id, {})) for engine in engines.values()]
        for layer_type in set.intersection(*layer_types):  # those that every engine ran
            model_type, scaling = _model_type_and_scaling(row, layer_type)
            families.setdefault(model_type, set()).add(scaling)
    lines = [
        '"""What was run: the scalings of each family, and version and date of each engine. Written by `make engines`."""',  # noqa: E501
        "",
        "from __future__ import annotations",
        "",
        "# fmt: off",
        "#: model_type -> the scalings that every engine ran",
        "FAMILIES: dict[str, tuple[str, ...]] = {",
        *(
            f'    "{name}": {_tuple(sorted(scalings))},'
            for name, scalings in sorted(families.items())
        ),
        "}",
        "#: engine -> its version, and when it was run",
        "RUNS: dict[str, tuple[str, str]] = {",
        *(
            f'    "{engine}": ("{each["version"]}", "{each["date"]}"),'
            for engine, each in engines.items()
        ),
        "}",
    ]
    oldest = {engine: _oldest_same_release(record, engine, releases) for engine in ENGINES}
    since = {engine: version for engine, version in oldest.items() if version is not None}
    lines.append(
        "#: the oldest release that computes the same in every row, of those that were run"
    )
    return "\n".join([*lines, f"SINCE: dict[str, str] = {json.dumps(since)}", ""])


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
    compared.sort(
        key=lambda release: [int(part) for part in release["version"].split(".")], reverse=True
    )  # the newest first
    oldest = None
    for release in compared:
        if release["differ"]:
            break
        oldest = release["version"]
    return oldest


def read_releases(results: Path) -> list[dict[str, Any]]:
    """Return the lines about other releases in the folder of results."""
    path = results / RELEASES
    return (
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if path.exists()
        else []
    )


def _tuple(names: list[str]) -> str:
    """Return names as the source text of a tuple, with double quotes."""
    return "(" + ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "") + ")"


def _model_type_and_scaling(row: Row, layer_type: str) -> tuple[str, str]:
    """Return the model_type and the name of the scaling of one layer type of a row."""
    text = config_file.text_part(config_file.load(dict(row.config)))
    specs = specs_of(row.config)
    spec = None if isinstance(specs, RopeError) else specs[layer_type]
    return text["model_type"], "default" if spec is None else spec.scaling.name


def main() -> None:
    """Write the configs that the engines run ("rows"), or the verdicts, the ropes and `runs.py`
    from their outputs ("write").
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("rows").add_argument("out", type=Path)
    write = commands.add_parser("write")
    write.add_argument("--results", type=Path, required=True)
    write.add_argument("--date", required=True)
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
    (options.results / VERDICTS).write_text("\n".join(lines) + "\n", encoding="utf-8")
    record = recorded(outputs, options.date)
    (options.results / TABLES).write_text(
        json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8"
    )
    (Path(__file__).parent / "runs.py").write_text(
        runs_module(record, read_releases(options.results)), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
