"""What `audit` says is what the engines computed: its rules against the ropes that were read back
from runs of every engine.
"""

from __future__ import annotations

import ast
import copy
import json
from pathlib import Path

import pytest

from ropewalk.engines.audit import audit
from ropewalk.engines.matrix_rows import rows
from ropewalk.engines.measured import LayerRope, specs_of, verdict
from ropewalk.engines.readers import ENGINES, TITLES
from ropewalk.engines.record import (
    TABLES,
    VERDICTS,
    read_releases,
    recorded_rope,
    rows_digest,
    runs_module,
)
from ropewalk.engines.runs import FAMILIES, RUNS, SINCE
from ropewalk.errors import RopeError

RESULTS = Path(__file__).parents[2] / "results"
RECORD = json.loads((RESULTS / TABLES).read_text(encoding="utf-8"))
ROWS = {row.id: row for row in rows()}


def claims(row):
    """(engine, layer type, finding, what was recorded) of everything that audit says about a row."""
    for finding in audit(row.config, length=row.length, max_model_len=row.max_model_len).findings:
        yield finding, RECORD["engines"][finding.engine]["rows"][row.id][finding.layer_type]


def is_right(finding, recorded) -> bool:
    """Whether what audit says is what was run: the numbers, or that the engine does not start."""
    if isinstance(recorded, str):
        return finding.problem is not None
    if finding.problem is not None:
        return False
    ours = LayerRope.of(finding.radians, finding.magnitude, finding.axis_of_pair, None)
    return verdict(ours, None if recorded is None else recorded_rope(RECORD, recorded)) == "same"


def count(some) -> tuple[int, int, list[str]]:
    known = unknown = 0
    wrong = []
    for row in some:
        if isinstance(specs_of(row.config), RopeError):
            continue
        for finding, recorded in claims(row):
            if finding.problem is not None and finding.problem.startswith("not known"):
                unknown += 1
                continue
            known += 1
            if not is_right(finding, recorded):
                wrong.append(f"{finding.engine}: {row.id}: {finding.problem}")
    return known, unknown, wrong


@pytest.mark.slow
def test_no_verdict_is_wrong(full):
    """Every row with --full, else every eighth."""
    known, unknown, wrong = count(list(ROWS.values())[:: 1 if full else 8])
    assert wrong == []
    assert known > 200
    assert unknown <= 0.05 * (known + unknown)


def test_a_wrong_number_is_seen():
    row = ROWS["llama-2, v4 at 4096"]
    finding, recorded = next(iter(claims(row)))
    assert is_right(finding, recorded)
    other = {**row.config, "rope_theta": 10_001.0}
    assert not is_right(audit(other, length=4096).findings[0], recorded)


def test_the_record_is_that_of_these_configs():
    """A row that is changed must be run again; results/engine_tables.json has the digest of the
    rows that were run.
    """
    assert RECORD["rows_digest"] == rows_digest(ROWS.values())


def test_every_engine_ran_every_row():
    assert list(RECORD["engines"]) == list(TITLES)
    assert len({row.name for row in ROWS.values()}) >= 60
    for engine, ran in RECORD["engines"].items():
        assert ran["rows"].keys() == ROWS.keys(), engine
        assert engine not in ENGINES or ENGINES[engine].tree in ran["version"]


def test_onnx_runtime_computes_every_spec_that_it_is_given():
    same = 0
    for name, found in RECORD["engines"]["onnxruntime"]["rows"].items():
        specs = specs_of(ROWS[name].config)
        for layer_type, rope in found.items():
            if isinstance(rope, str):
                assert isinstance(specs, RopeError) or any(
                    spec.needs_length for spec in specs.values() if spec is not None
                ), name
            elif rope is None:
                assert specs[layer_type] is None, name
            else:
                spec = specs[layer_type]
                assert (
                    verdict(LayerRope.of_spec(spec, ROWS[name].length), recorded_rope(RECORD, rope))
                    == "same"
                ), name
                same += 1
    assert same > 300


def test_the_committed_files_belong_together():
    lines = [
        json.loads(line) for line in (RESULTS / VERDICTS).read_text(encoding="utf-8").splitlines()
    ]
    recorded = {
        (TITLES[engine], name, layer_type)
        for engine, ran in RECORD["engines"].items()
        for name, found in ran["rows"].items()
        for layer_type in found
    }
    ids = {(row.name, row.length, row.max_model_len): row.id for row in ROWS.values()}
    told = {
        (
            line["engine"],
            ids[line["config"], line["length"], line["max_model_len"]],
            line["layer_type"],
        )
        for line in lines
    }
    assert told == recorded
    module = Path(__file__).parents[2] / "src" / "ropewalk" / "engines" / "runs.py"
    text = runs_module(RECORD, read_releases(RESULTS))
    assert module.read_text(encoding="utf-8") == text
    written = [
        ast.literal_eval(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.AnnAssign)
    ]
    assert written == [FAMILIES, RUNS, SINCE]


def test_a_scaling_that_one_engine_did_not_run_is_not_written():
    record = copy.deepcopy(RECORD)
    rows = record["engines"]["vllm"]["rows"]
    for row_id in [
        row_id for row_id in rows if ROWS[row_id].config.get("model_type") == "qwen3_moe"
    ]:
        del rows[row_id]
    assert '"qwen3_moe": ("yarn",)' in runs_module(RECORD)
    assert '"qwen3_moe"' not in runs_module(record)
