"""Tables of documents from rows by hand, in cases that the committed rows do not have."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ropewalk_lab.bench import tables
from ropewalk_lab.studies.findings import Claim, Table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def lines_of(table):
    """The cells of each line after the header, by the first cell."""
    found = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {first: rest for first, *rest in found}


def test_the_speed_of_a_contender_is_a_mean_of_its_plain_rows():
    row = {"contender": "ropewalk", "shape": "A", "order": "bshd", "pass": "forward"}
    rows = [{**row, "percent_of_copy": percent} for percent in (90.0, 70.0)]
    rows.append({**row, "percent_of_copy": 10.0, "variant": "packed"})
    rows.append({**row, "pass": "forward+backward", "percent_of_copy": 60.0})
    assert lines_of(tables.gpu_table(rows))["ropewalk"][:2] == ["80 / 60", "- / -"]


def test_a_decode_step_has_the_latest_two_runs_of_decode_steps():
    row = {"contender": "ropewalk", "shape": "B", "pass": "forward"}
    rows = [{**row, "run": run, "us": float(run)} for run in (1, 2, 3)]
    rows.append({**row, "pass": "eager loop", "run": 3, "us": 41.2})
    # a later run of another benchmark
    rows.append({"contender": "ropewalk, fused", "shape": "T64", "run": 9, "us": 1.0})
    cells = lines_of(tables.decode_table(rows))["ropewalk"]
    assert cells == ["2.00 to 3.00", "41", "-", "-"]


def test_the_fused_kernel_has_the_latest_two_of_its_own_runs():
    row = {"contender": "ropewalk, fused", "shape": "T64", "percent_of_copy": 80.0}
    rows = [{**row, "run": run, "us": float(run)} for run in (1, 2, 3)]
    rows.append({"contender": "ropewalk", "shape": "A", "run": 9, "us": 1.0})
    cells = lines_of(tables.fused_table(rows))["ropewalk, fused"]
    assert cells[:2] == ["2.00 to 3.00 us, 80 %", "- us, - %"]


def test_a_generation_without_a_measured_limit_has_a_dash():
    row = {"what": "generate", "shape": "x shape", "batch": 1, "contender": "ropewalk"}
    row |= {"steps_per_s": 100.4, "first_token_ms": 9.6}
    rows = [{**row, "run": 1, "percent_of_limit": None}]
    assert tables.generation_table(rows).splitlines()[2].split(" | ")[4:6] == ["100", "-"]
    rows.append({**row, "run": 2, "percent_of_limit": 61.7})
    assert tables.generation_table(rows).splitlines()[2].split(" | ")[3:6] == ["2", "100", "62 %"]


def test_the_cost_of_invariance_has_a_line_for_each_batch_and_a_column_for_each_model():
    def step(model, rows, prompt, cost):
        return {
            "what": "step of greedy generation", "model": f"{model} shape", "rows": rows,
            "prompt": prompt, "cost_percent": cost,
        }  # fmt: skip

    measured = [
        step("A", 16, 128, 3.6),
        {"what": "invariance", "model": "A shape", "rows": 1, "different_rows": 0},
        step("A", 1, 4096, -1.4),
        step("B", 16, 128, 11.0),
    ]
    assert tables.invariance_table(measured).splitlines() == [
        "| rows | tokens before the step | A | B |",
        "| --- | ---: | ---: | ---: |",
        "| 1 | 4,096 | -1 % | - |",
        "| 16 | 128 | 4 % | 11 % |",
    ]


def test_a_cpu_table_has_the_latest_time_however_long_it_is():
    case = {"shape": "cpu mid", "order": "bhsd", "dtype": "float32", "pass": "forward"}
    rows = [
        {**case, "contender": "a", "us": 10.0, "times_copy": 5.0},
        {**case, "contender": "a", "us": 3e6, "times_copy": 1.5},
        {**case, "contender": "b", "skipped": "why"},
        {**case, "contender": "a", "shape": "cpu decode", "us": 12.6, "times_copy": 9.0},
    ]
    assert lines_of(tables.cpu_table(rows)) == {"a": ["1.50", "13 us"]}


def test_the_lead_over_transformers_is_that_of_ropewalk():
    row = {"shape": "x", "pass": "forward", "run": 2, "quartiles_ms": [1.0, 3.0]}
    row |= {"ms": 2.0, "times_faster": 1.25}
    leads = {"liger-kernel, patch": [7.0, 8.0, 9.0], "transformers": [0.25, 0.5, 0.75]}
    rows = [
        {**row, "contender": "ropewalk, patch", "ahead_ms": leads},
        {**row, "contender": "liger-kernel, patch", "ahead_ms": leads},
        {**row, "contender": "ropewalk, patch", "run": 1},
        {
            **{"shape": "y", "pass": "step", "contender": "ropewalk", "us": 1500.0},
            **{"times_faster": 2.0, "tokens_per_second": 8000, "peak_bytes": 2e9},
        },
    ]
    ours, liger, step = (
        line.strip("| ").split(" | ") for line in tables.models_table(rows).splitlines()[2:]
    )
    assert ours[-1] == (
        "1.250 times as fast; interquartile range 1.00 to 3.00 ms; faster by 0.50 ms "
        "(95 % interval: 0.25 to 0.75)"
    )
    assert liger[-1] == "1.250 times as fast; interquartile range 1.00 to 3.00 ms"
    assert step[-2:] == ["1.5 ms", "8,000 tokens/s, 2.00 GB"]


@pytest.mark.parametrize(
    ("us", "shown"),
    [(123.4, "0.123 ms"), (99_940.0, "99.9 ms"), (123_456.0, "123 ms"), (1_234_567.0, "1,235 ms")],
)
def test_a_time_has_three_digits(us, shown):
    assert tables._time_and_memory({"us": us, "peak_bytes": 0}) == f"{shown}, 0 MB"


def test_memory_is_that_of_the_plain_forward_call_in_bfloat16():
    row = {"shape": "A", "dtype": "bfloat16", "order": "bshd", "contender": "ropewalk"}
    rows = [
        {**row, "pass": "forward", "peak_bytes": 5 * 2**20},
        {**row, "pass": "forward", "peak_bytes": 6 * 2**20, "variant": "packed"},
        {**row, "pass": "forward+backward", "peak_bytes": 7 * 2**20},
        {**row, "pass": "forward", "peak_bytes": 8 * 2**20, "dtype": "float32"},
    ]
    assert lines_of(tables.memory_table(rows))["ropewalk"] == ["5", "no row"]


@pytest.fixture
def pages(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    import tables as page_tables

    return page_tables


def test_tables_are_made_anew_by_the_beginning_of_their_names(pages, monkeypatch):
    monkeypatch.setattr(pages, "MAKERS", {"cpu": lambda: "1\n", "cpu-b": lambda: "2\n"})

    def block(name, text):
        return f"<!-- {name}: start -->\n{text}<!-- {name}: end -->\n"

    old = block("cpu", "old\n") + "between\n" + block("cpu-b", "old\n")
    assert pages.page(old) == block("cpu", "1\n") + "between\n" + block("cpu-b", "2\n")
    assert pages.page(old, "cpu") == pages.page(old)
    assert pages.page(old, "cpu-") == block("cpu", "old\n") + "between\n" + block("cpu-b", "2\n")


@pytest.mark.parametrize("chosen", ["", "cpu"])
def test_all_pages_are_written_and_then_the_charts_of_their_rows(
    pages, monkeypatch, tmp_path, capsys, chosen
):
    text = (
        "<!-- gpu: start -->\nold\n<!-- gpu: end -->\n<!-- cpu: start -->\nold\n<!-- cpu: end -->\n"
    )
    (tmp_path / "below").mkdir()
    for name in ("a.md", "below/b.md"):
        (tmp_path / name).write_text(text)
    drawn = []
    rows = {
        "h200.jsonl": [{"shape": shape} for shape in "ABDG"],
        "cpu.jsonl": ["cpu"],
        "h200_projection.jsonl": ["qkv"],
    }
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    monkeypatch.setattr(pages, "MAKERS", {"gpu": lambda: "G\n", "cpu": lambda: "C\n"})
    monkeypatch.setattr(pages, "rows", SimpleNamespace(read=lambda path: rows[path.name]))
    monkeypatch.setattr(
        pages,
        "chart",
        SimpleNamespace(
            **{
                f"{name}_chart": lambda rows, path, name=name: drawn.append((name, rows, path.name))
                for name in ("gpu", "cpu", "projection")
            }
        ),
    )
    reduced = []
    pictures = SimpleNamespace(reduced=lambda path: reduced.append(path.name))
    monkeypatch.setitem(sys.modules, "pictures", pictures)
    monkeypatch.setattr(sys, "argv", ["tables.py", *([chosen] if chosen else [])])
    pages.main()
    gpu = "old" if chosen else "G"
    made = f"<!-- gpu: start -->\n{gpu}\n<!-- gpu: end -->\n<!-- cpu: start -->\nC\n<!-- cpu: end -->\n"
    assert {(tmp_path / name).read_text() for name in ("a.md", "below/b.md")} == {made}
    if chosen:
        assert drawn == reduced == []
    else:
        assert drawn == [
            ("gpu", [{"shape": "A"}, {"shape": "D"}], "gpu.png"),
            ("cpu", ["cpu"], "cpu.png"),
            ("projection", ["qkv"], "projection.png"),
        ]
        assert reduced == ["gpu.png", "cpu.png", "projection.png"]


def test_a_time_over_a_copy_is_a_mean_of_ratios(pages):
    """1.1 and 1.75; the ratio of the sums would be 1.39."""
    runs = [{"us": 11.0, "copy_us": 10.0}, {"us": 14.0, "copy_us": 8.0}]
    assert pages._over_copy(runs) in ("1.42", "1.43")
    assert pages._over_copy([]) == "-"


@pytest.mark.parametrize("claims", [6, 7])
def test_more_than_six_claims_of_a_study_are_folded(pages, monkeypatch, claims):
    found = SimpleNamespace(
        tables=[Table(f"t{i}", ("a", "b"), [(f"row {i}", "1")], "") for i in range(3)],
        claims=[Claim(f"claim {i}", "holds" if i else "fails", "why") for i in range(claims)],
    )
    machine = {"device": "a core", "torch": "2", "date": "today"}
    facts = {"study": "s", "machine": machine, "seeds": claims - 5}
    theirs = Table("5 < 6", ("c",), [("theirs",)], "their note")
    monkeypatch.setattr(pages, "read_study", lambda folder: ([], facts))
    monkeypatch.setattr(pages, "STUDIES", {"s": SimpleNamespace(findings=lambda *_: found)})
    monkeypatch.setattr(pages, "compared", lambda names, findings: [theirs] if names else [])
    text = pages.study_block(Path("x"), 2, ("their",))
    assert ("row 1" in text, "row 2" in text) == (True, False)
    assert "<summary>5 &lt; 6</summary>\n\ntheir note\n\n| c |" in text
    assert text.count("- claim ") == claims
    folded = "<summary>7 claims: fails 1, holds 6</summary>" in text
    assert folded == (claims > 6)
    seeds = "1 seed," if claims == 6 else "2 seeds,"
    assert f"\n{seeds} a core, torch 2, today.\n" in text


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        ({"verdict": "same"}, "same"),
        ({"verdict": "no spec"}, "no spec"),
        ({"verdict": "error"}, "refused"),
        ({"verdict": "rotated", "magnitude": None}, "not rotated"),
        ({"verdict": "rotated", "magnitude": 1.0}, "rotated"),
        ({"verdict": "frequencies", "first_pair": 0, "magnitude": 1.0}, "pair 0"),
        (
            # twice the magnitude of q and of k: four times the logits
            {
                **{"verdict": "frequencies, magnitude", "first_pair": 3},
                **{"magnitude": 3.0, "spec_magnitude": 1.5},
            },
            "pair 3, logits x 4",
        ),
        (
            {
                **{"verdict": "magnitude", "first_pair": None},
                **{"magnitude": 1.0, "spec_magnitude": 2.0},
            },
            "logits x 0.25",
        ),
    ],
)
def test_a_cell_of_an_engine_says_what_it_does(pages, row, cell):
    assert pages._engine_cell(row) == cell


def test_a_stack_that_failed_has_no_counts_and_groups_say_the_gravest_outcome(pages, monkeypatch):
    def cell(result, **more):
        return {"result": result, "mistake": None, "because": "a reason", **more}

    stacks = [
        {
            **{"stack": "One", "version": "1", "date": "today", "how": "run"},
            "cells": {
                "a/1": cell("agrees"),
                "a/2": cell("refuses"),
                "ab/1": cell("differs", magnitude=1.234),
                "c/1": cell("agrees"),
                "c/2": cell("not expressible"),
            },
        },
        {"stack": "Two", "version": "2", "date": "today", "how": "run", "failed": "no wheel"},
    ]
    monkeypatch.setattr(pages, "json", SimpleNamespace(loads=lambda _: stacks))
    engines = [
        {"engine": "ONE", "version": "1", "date": "then"},
        {"engine": "three", "version": "3", "date": "then"},
        {"engine": "three", "version": "3", "date": "then"},
    ]
    monkeypatch.setattr(pages, "rows", SimpleNamespace(read=lambda _: engines))
    blocks = pages.stack_blocks.__wrapped__()
    assert blocks["stacks-summary"].splitlines()[2:] == [
        "| One 1 | today | run | 2 | 1 | 1 | 1 |",
        "| Two 2 | today | run | no wheel | | | |",
        "| three 3 | then | recorded | [other cells](engines.md) | | | |",
    ]
    assert blocks["stacks-groups"].splitlines() == [
        "| stack | a | ab | c |",
        "|---|---|---|---|",
        "| One | refuses | differs | agrees |",
    ]
    assert blocks["stacks-because"].splitlines()[2:] == [
        "| One | ab/1 | magnitude x 1.23 |  | a reason |"
    ]


def test_a_fit_names_every_method_that_is_as_good(pages, monkeypatch, tmp_path):
    import json

    facts = {
        "recommended": {"method": "yarn", "reason": "Least loss", "equal": ["ntk", "pi"]},
        "machine": {"machine": "a core", "date": "today"},
    }
    (tmp_path / pages.FACTS).write_text(json.dumps(facts))
    (tmp_path / pages.ROWS).write_text("")
    table = SimpleNamespace(
        table=lambda rows, facts: (["method"], [["yarn"]]), note=lambda facts: "A note."
    )
    monkeypatch.setattr(pages, "summary", table)
    text = pages.fit_block(tmp_path)
    assert "Recommended: `yarn`. Least loss. No difference beyond the noise: ntk, pi.\n" in text
    facts["recommended"]["equal"] = []
    (tmp_path / pages.FACTS).write_text(json.dumps(facts))
    assert "noise" not in pages.fit_block(tmp_path)
