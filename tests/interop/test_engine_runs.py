"""What `audit` says is what the engines computed: its rules against the ropes that were read back
from runs of every engine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engines.matrix_rows import EXAMPLE, rows
from engines.record import (
    TABLES,
    VERDICTS,
    in_lines,
    read_releases,
    recorded_rope,
    rows_digest,
    shipped,
)
from ropewalk.config.examples import EXAMPLES
from ropewalk.engines import ENGINES, audit
from ropewalk.engines.audit import EngineRun
from ropewalk.engines.difference import Rotation
from ropewalk.engines.recorded import FOLDER, digest, load
from ropewalk.errors import RopeError
from ropewalk_lab.engines_run.installed import TITLES
from ropewalk_lab.engines_run.measured import LayerRope, layer_of_type, specs_of, verdict

RESULTS = Path(__file__).parents[2] / "results"
RECORD = json.loads((RESULTS / TABLES).read_text(encoding="utf-8"))
ROWS = {row.id: row for row in rows()}


def claims(row):
    """(finding, what was recorded) of everything that the rules alone say about a row."""
    served = {"length": row.length, "max_model_len": row.max_model_len}
    try:
        findings = audit(row.config, **served, records={}).findings
    except RopeError:  # what `from_hf` refuses and no row `unread` is about
        return
    for finding in findings:
        recorded = RECORD["engines"][finding.engine]["rows"][row.id]
        if finding.layer_type in recorded:
            yield finding, recorded[finding.layer_type]


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
        for finding, recorded in claims(row):
            if isinstance(recorded, str) and "no weights" in recorded:
                continue
            if finding.problem is not None and finding.problem.startswith("not known"):
                unknown += 1
                continue
            known += 1
            if not is_right(finding, recorded):
                wrong.append(f"{finding.engine}: {row.id}: {finding.problem}")
    return known, unknown, wrong


@pytest.mark.slow
def test_no_verdict_of_audit_contradicts_the_engine_runs(full):
    """Every row with --full, else every eighth."""
    known, unknown, wrong = count(list(ROWS.values())[:: 1 if full else 8])
    assert wrong == []
    assert known > 200
    assert unknown <= 0.05 * (known + unknown)


def test_what_audit_says_of_another_theta_is_not_what_was_recorded():
    row = ROWS["llama-2, v4 at 4096"]
    finding, recorded = next(iter(claims(row)))
    assert is_right(finding, recorded)
    other = {**row.config, "rope_theta": 10_001.0}
    assert not is_right(audit(other, length=4096, records={}).findings[0], recorded)


def test_the_recorded_runs_have_the_digest_of_the_matrix():
    """A row that is changed must be run again; results/engine_tables.json has the digest of the
    rows that were run.
    """
    assert RECORD["rows_digest"] == rows_digest(ROWS.values())


def test_every_engine_ran_every_row():
    assert list(RECORD["engines"]) == list(TITLES)
    assert len({row.name for row in ROWS.values()}) >= 60
    for engine, ran in RECORD["engines"].items():
        assert ran["rows"].keys() == ROWS.keys(), engine
        assert engine not in ENGINES or ENGINES[engine].version == ran["version"]


def test_onnx_runtime_computes_every_spec_that_it_is_given():
    same = 0
    for name, found in RECORD["engines"]["onnxruntime"]["rows"].items():
        specs = specs_of(ROWS[name].config)
        if len(set(layer_of_type(ROWS[name].config, list(found)).values())) < len(found):
            continue  # a family without layer types, whose layers have one rope
        for layer_type, rope in found.items():
            if isinstance(rope, str):
                assert isinstance(specs, RopeError) or any(
                    spec.needs_length for spec in specs.values() if spec is not None
                ), name
            elif isinstance(specs, RopeError):  # it was read when it was run, and is refused since
                assert "mrope" in name, name
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


def test_the_committed_verdicts_and_ropes_are_of_the_same_layers():
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
    computed = {
        (
            line["engine"],
            ids[line["config"], line["length"], line["max_model_len"]],
            line["layer_type"],
        )
        for line in lines
    }
    assert computed == recorded


@pytest.mark.parametrize("engine", ENGINES)
def test_the_data_file_of_the_package_is_that_of_the_runs(engine):
    path = FOLDER / f"{engine}-{RECORD['engines'][engine]['version']}.json"
    assert path.read_text(encoding="utf-8") == in_lines(
        shipped(RECORD, engine, read_releases(RESULTS))
    )
    assert path.stat().st_size < 100_000
    assert load()[engine].version == ENGINES[engine].version


def test_a_config_that_was_run_is_recorded_and_one_that_was_not_rests_on_rules():
    row = ROWS["qwen2.5 yarn, v4 at 131072"]
    for change, known in (({}, "recorded"), ({"rope_theta": 1000001.0}, "rule")):
        found = audit({**row.config, **change}).findings
        assert {finding.known for finding in found} == {known}
    # sizes that no rope depends on
    other = {**row.config, "hidden_size": 64 * 28, "num_attention_heads": 28, "vocab_size": 9}
    assert {finding.known for finding in audit(other).findings} == {"recorded"}
    assert {finding.date for finding in audit(other).findings} == {"2026-11"}


@pytest.mark.parametrize(
    "name",
    [row.name.removeprefix(EXAMPLE) for row in ROWS.values() if row.name.startswith(EXAMPLE)],
)
def test_well_known_checkpoints_are_recorded_and_the_record_is_what_the_rules_say(name):
    findings, by_rule = audit(EXAMPLES[name]).findings, audit(EXAMPLES[name], records={}).findings
    recorded = [finding for finding in findings if finding.known == "recorded"]
    assert {finding.engine for finding in recorded} >= {"hf", "mlx-lm"}
    for finding, rule in zip(findings, by_rule, strict=True):
        assert (finding.difference is None) == (rule.difference is None), finding.engine
        assert finding.radians == pytest.approx(rule.radians, rel=2e-5), finding.engine


def test_a_record_comes_before_a_rule_and_a_run_before_a_record():
    row = ROWS["llama-2, v4 at 4096"]
    record = load()["vllm"]
    (name,) = (each for each in record.cells if each == _digest(row))
    other = replace(record, ropes=[[[1.0, 0.5], 1.5, None]], cells={name: {"full_attention": 0}})
    (finding,) = audit(row.config, records={"vllm": other}).of("vllm")
    assert (finding.known, finding.radians, finding.magnitude) == ("recorded", (1.0, 0.5), 1.5)
    assert finding.evidence == f"recorded, vLLM {record.releases()}, 2026-11"
    run = EngineRun(
        "vllm", "9.9", "2027-01-02", "full_attention", 4096, Rotation((1.0,), 2.0, (0,))
    )
    (finding,) = audit(row.config, records={"vllm": other}, runs=[run]).of("vllm")
    assert (finding.known, finding.version, finding.radians) == ("run", "9.9", (1.0,))
    assert finding.difference.temperature == 4.0
    failed = replace(run, found="TypeError: no")
    (finding,) = audit(row.config, runs=[failed]).of("vllm")
    assert (finding.known, finding.problem) == ("run", "refused: TypeError: no")


def _digest(row):
    return digest(row.config, specs_of(row.config), row.length, row.max_model_len)
