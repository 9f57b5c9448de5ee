"""The draw of random configs, how a cell of it is judged, and the draws that were run."""

from __future__ import annotations

import importlib
import json
import math
from pathlib import Path

import pytest

from engines.matrix import ServedConfig
from ropewalk.engines.audit import audit
from ropewalk.errors import RopeError

ROOT = Path(__file__).parents[2]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
}
ROPE = {
    "radians": [1.0, 0.1, 0.01, 0.001],
    "magnitude": 1.0,
    "axis": [0] * 4,
    "layout": "half",
    "width": 8,
}


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("draw_configs"), importlib.import_module("audit_draw")


def test_a_seed_gives_the_same_configs_and_another_seed_others(tools):
    draw = tools[0].draw
    first = draw(7, 300)
    assert draw(7, 20) == first[:20] != draw(8, 20)
    assert len({row.id for row in first}) == 300
    drawn = {row.config["model_type"] for row in first}
    assert len(drawn) > 0.9 * len(tools[0].DRAWN)
    assert json.loads(json.dumps([row.config for row in first])) == [row.config for row in first]


@pytest.mark.parametrize(
    ("change", "rope", "kind"),
    [
        ({}, ROPE, "right"),
        ({}, {**ROPE, "magnitude": 1.1}, "wrong"),
        ({}, {**ROPE, "radians": [1.0, 0.1, 0.01, 0.0011]}, "wrong"),
        ({}, None, "wrong"),
        ({}, "TypeError: an error of the engine", "wrong"),
        ({}, "ValueError: no weights: transformers cannot build this model", "not run"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": None}},
            "TypeError: an error",
            "right error",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": None}}, ROPE, "wrong"),
        ({"model_type": "mllama_text_model"}, ROPE, "not known"),
        ({"rope_theta": -1.0}, "ValueError: an error", "right error"),
        ({"_class_name": "FluxTransformer2DModel"}, ROPE, "refused"),
    ],
)
def test_a_cell_is_judged_by_what_the_engine_did(tools, change, rope, kind):
    row = ServedConfig("one", {**CONFIG, **change}, 64)
    result = (
        {"error": rope}
        if isinstance(rope, str)
        else {"layers": [0 if rope else None], "ropes": [rope] if rope else []}
    )
    output = {
        "engine": "vllm",
        "version": "0",
        "results": [{"name": "one", "length": 64, "max_model_len": None, **result}],
    }
    assert [found for found, _ in tools[1].compare([row], output)] == [kind]


def test_audit_knows_nearly_every_engine_of_the_configs_of_a_draw(tools):
    rows = tools[0].draw(7, 40)
    problems = [finding.problem or "" for row in rows for finding in _findings(row)]
    assert len(problems) > 150
    assert sum(problem.startswith("not known") for problem in problems) < 0.1 * len(problems)


def _findings(row):
    try:
        return audit(row.config, length=row.length, max_model_len=row.max_model_len).findings
    except ValueError:
        return ()


def test_the_numbers_of_the_last_draw_on_the_page_are_those_in_the_results(tools):
    lines = [
        json.loads(line)
        for line in (ROOT / "results" / "engine_draws.jsonl")
        .read_text(encoding="utf-8")
        .splitlines()
    ]
    last = [line for line in lines if line["seed"] == lines[-1]["seed"]]
    kinds = ("right", "right error", "wrong", "not known", "not run", "refused")
    cells = sum(line[kind] for line in last for kind in kinds)
    page = (ROOT / "docs" / "engines-audit.md").read_text(encoding="utf-8")
    assert f"{last[0]['configs']} configs and {cells:,} cells, no verdict was wrong" in page
    assert sum(line["wrong"] for line in last) == 0
    assert sum(line["not known"] + line["refused"] for line in last) < 0.05 * cells
    assert f"{len(tools[0].DRAWN)} families" in page


def test_recent_families_are_known_in_every_engine(tools):
    recent = importlib.import_module("draw_recent")
    matrix = importlib.import_module("engines.matrix")
    text = [matrix.VISION[name][0] if name in matrix.VISION else name for name in recent.DRAWN]
    assert len(set(text)) == 60
    for release in tools[1].ENGINES.values():
        assert [name for name in text if name not in release.families] == []
    first = recent.draw(7, 120)
    assert recent.draw(7, 20) == first[:20] != recent.draw(8, 20)
    assert {row.config["model_type"] for row in first} == set(recent.DRAWN)


SEED = 4001
#: the 200 configs of this seed that the engines were run with
RUNS = ROOT / "results" / "engine_mistakes.jsonl"


def test_no_verdict_about_a_mistake_is_wrong(tools):
    """Engines' runs of configs with mistakes, against what audit says by its rules alone."""
    draw = importlib.import_module("draw_mistakes").draw
    measured = importlib.import_module("ropewalk_lab.engines_run.measured")
    rows = draw(SEED, 200)
    assert len({row.config["model_type"] for row in rows}) >= 20
    runs = [json.loads(line) for line in RUNS.read_text(encoding="utf-8").splitlines()]
    chosen, unknown, wrong = range(0, 200, 4), 0, []
    audits = {index: _audited(rows[index]) for index in chosen}
    cells = [run for run in runs if run["row"] in audits]
    assert len(cells) == 4 * len(chosen)
    for run in cells:
        row, found = rows[run["row"]], audits[run["row"]]
        findings = {} if found is None else {f.layer_type: f for f in found.of(run["engine"])}
        layers = measured.layer_of_type(row.config, list(findings))
        for layer_type, finding in findings.items():
            if (finding.problem or "").startswith("not known"):
                unknown += 1
            elif (finding.problem is None) == ("error" in run) or (
                finding.problem is None and not _is_run(finding, run, layers[layer_type])
            ):
                wrong.append((row.id, run["engine"], layer_type, finding.problem))
        unknown += not findings
    assert not wrong
    assert unknown <= 0.05 * len(cells)


MENDED = [
    json.loads(line)
    for line in (ROOT / "results" / "engine_mends.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("run", MENDED, ids=lambda run: f"{run['engine']}, {run['name']}")
def test_audit_agrees_with_the_runs_in_engine_mends(run):
    """Each line of results/engine_mends.jsonl is a run of a config with an unusual rule."""
    measured = importlib.import_module("ropewalk_lab.engines_run.measured")
    found = _audited(ServedConfig(run["name"], run["config"], run["length"]))
    assert found is not None
    findings = {finding.layer_type: finding for finding in found.of(run["engine"])}
    layers = measured.layer_of_type(run["config"], list(findings))
    for layer_type, finding in findings.items():
        if "error" in run:
            assert (finding.problem or "").startswith("refused")
        else:
            assert finding.problem is None
            assert _is_run(finding, run, layers[layer_type])


def _audited(row):
    try:
        return audit(row.config, length=row.length, records={})
    except RopeError:
        return None


def _is_run(finding, run, layer):
    """Whether the rope that was read from a run, of which some pairs were kept, is the one of a
    finding.
    """
    index = run["layers"][layer] if layer < len(run["layers"]) else None
    if index is None:
        return not any(finding.radians)
    rope = run["ropes"][index]
    if not rope["magnitude"]:  # cos and sin are 0
        return finding.magnitude == 0
    # pairs at the end that stand still may be left out
    radians = [*finding.radians, *[0.0] * (rope["pairs"] - len(finding.radians))]
    kept = sorted({0, 1, rope["pairs"] // 2, rope["pairs"] - 1})
    ours = [math.remainder(radians[pair], 2 * math.pi) for pair in kept]
    rotating = [a for a, r in zip(finding.axis_of_pair, finding.radians, strict=False) if r]
    return (
        ours == pytest.approx(rope["radians"], rel=2e-5, abs=1e-12)
        and finding.magnitude == pytest.approx(rope["magnitude"], rel=2e-5)
        and set(rotating) >= set(rope["axes"]) - {0}
    )


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"model_type": "lfm2", "full_attn_idxs": [3, 1]}, {"full_attention": 1}),
        ({"model_type": "deepseek_v4", "compress_ratios": [128, 4, 0]}, {"compress": 0, "main": 2}),
        ({"model_type": "deepseek_v4", "compress_ratios": [128, 4, 128]}, {"compress": 0}),
        ({"model_type": "bailing_hybrid", "layer_group_size": 2}, {"full_attention": 1}),
        ({"model_type": "kolibri1"}, {"full_attention": 4, "sliding_attention": 0}),
        ({"model_type": "granite_swa"}, {"full_attention": 0, "sliding_attention": 1}),
        ({"model_type": "flint"}, {"full_attention": 0, "sliding_attention": 2}),
        ({"model_type": "flint", "num_hidden_layers": 3}, {"full_attention": 0}),
        ({"model_type": "zaya"}, {"hybrid": 0}),
        ({"model_type": "laguna"}, {"full_attention": 0}),
        (
            {"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1]},
            {"full_attention": 0, "sliding_attention": 1},
        ),
    ],
)
def test_a_layer_type_is_compared_at_a_layer_that_has_it(tools, config, layers):
    measured = importlib.import_module("ropewalk_lab.engines_run.measured")
    names = ["main", "compress"] if config["model_type"] == "deepseek_v4" else [*layers]
    extra = ["sliding_attention"] if config["model_type"] == "flint" else []
    extra += ["hybrid_sliding"] if config["model_type"] == "zaya" else []
    found = measured.layer_of_type({"num_hidden_layers": 6, **config}, [*names, *extra])
    assert found == layers


def test_a_seed_of_mistakes_gives_the_same_configs_and_every_mistake(tools):
    mistakes = importlib.import_module("draw_mistakes")
    assert mistakes.draw(5, 40) == mistakes.draw(5, 40) != mistakes.draw(6, 40)
    names = {row.name.split(", ", 1)[1] for row in mistakes.draw(8, 4000)}
    assert names == {*mistakes.MISTAKES, *mistakes.OF_VISION, *mistakes.OF_LAYERS}
