"""Other releases of an engine: which cells differ from the recorded one, and since which release
none does.
"""

import copy
import json
from pathlib import Path

import pytest

from engines.record import TABLES, shipped
from engines.releases import compare

RECORD = json.loads((Path(__file__).parents[2] / "results" / TABLES).read_text(encoding="utf-8"))
NAMES = {"llama-2, v4": 4096, "gemma-3, v4": 32768, "deepseek-v2, v5": 163840}


def output_of_a_runner():
    """What mlx-lm's runner wrote for three rows, rebuilt from the record: a rope, two layer types,
    an error.
    """
    rows, results = RECORD["engines"]["mlx-lm"]["rows"], []
    for name, length in NAMES.items():
        found = {"name": name, "length": length, "max_model_len": None}
        ropes = rows[f"{name} at {length}"]
        if any(isinstance(rope, str) for rope in ropes.values()):
            results.append({**found, "error": "another text"})
            continue
        values = [
            dict(
                zip(
                    ("radians", "magnitude", "axis", "layout", "width"),
                    RECORD["ropes"][i],
                    strict=True,
                )
            )
            for i in ropes.values()
        ]
        made = [{**rope, "axis": rope["axis"] or [0] * len(rope["radians"])} for rope in values]
        layers = (
            [0]
            if len(made) == 1
            else [list(ropes).index("sliding_attention")] * 5
            + [list(ropes).index("full_attention")]
        )
        results.append({**found, "layers": layers, "ropes": made})
    return {"engine": "mlx-lm", "version": "0.1.2", "results": results}


def test_a_release_that_computes_the_same_differs_nowhere():
    found = compare(RECORD, output_of_a_runner(), "2026-11")
    assert (found["engine"], found["version"], found["cells"], found["differ"]) == (
        "mlx-lm",
        "0.1.2",
        4,
        0,
    )
    assert found["compared_with"] == RECORD["engines"]["mlx-lm"]["version"]


def test_the_first_cell_that_differs_is_named():
    output = copy.deepcopy(output_of_a_runner())
    output["results"][1]["ropes"][0]["magnitude"] += 0.01
    output["results"][2] = {
        **output["results"][0],
        **{key: output["results"][2][key] for key in ("name", "length")},
    }
    found = compare(RECORD, output, "2026-11")
    assert found["differ"] == 2
    assert found["first"].startswith("gemma-3, v4 at 32768")


@pytest.mark.parametrize(
    ("differ", "oldest"),
    [
        ({"0.9.0": 0, "0.10.1": 0}, "0.9.0"),
        ({"0.9.0": 0, "0.9.5": 3, "0.10.1": 0}, "0.10.1"),
        ({"0.10.1": 1}, None),
        ({}, None),
    ],
)
def test_the_range_ends_at_a_release_that_differs(differ, oldest):
    version = RECORD["engines"]["mlx-lm"]["version"]
    lines = [
        {"engine": "mlx-lm", "version": each, "compared_with": version, "differ": n}
        for each, n in differ.items()
    ]
    assert shipped(RECORD, "mlx-lm", lines)["since"] == oldest
    other = [{**line, "compared_with": "0.0"} for line in lines]
    assert shipped(RECORD, "mlx-lm", other)["since"] is None
