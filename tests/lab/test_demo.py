"""The demo: self-check, short benchmark, two studies and one page."""

import json
import re
from dataclasses import replace
from pathlib import Path

from lab_tiny import write_text

from ropewalk import cli
from ropewalk.kernels import BACKENDS
from ropewalk_lab import report_html, selfcheck, studies
from ropewalk_lab.studies.findings import Table


def test_the_demo_runs_both_studies_into_one_page(capsys, tmp_path, monkeypatch):
    clock = selfcheck.clock
    monkeypatch.setattr(
        selfcheck, "clock", lambda run, device="cpu", seconds=0.0: clock(run, device, 0.0)
    )
    timed = [
        {
            "contender": "ropewalk",
            "dtype": "float32",
            "pass": "forward",
            "us": 5.0,
            "times_copy": 1.5,
            "rms_error": 1e-8,
        }
    ]
    monkeypatch.setattr("ropewalk_lab.bench.cpu.measure", lambda *_, **__: timed)
    monkeypatch.setattr("ropewalk_lab.studies.study.cores", lambda: 1)
    text = write_text(tmp_path / "text")
    for name in ("encodings", "extend"):
        smoke = studies.STUDIES[name].presets["smoke"]
        changes = [f"data.source={text}", f"data.cache={tmp_path / 'cache'}"]
        monkeypatch.setitem(
            studies.STUDIES,
            name,
            replace(studies.STUDIES[name], presets={"smoke": smoke | {"changes": changes}}),
        )
    cli.main(
        (
            "demo",
            "--preset",
            "smoke",
            "--tokens",
            "3",
            "--device",
            "cpu",
            "--json",
            "--out",
            str(tmp_path / "demo"),
        )
    )
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert list(found["studies"]) == ["encodings", "extend"]
    page = (tmp_path / "demo" / "report.html").read_text(encoding="utf-8")
    for words in (
        "Loss by context length",
        "Zero-shot",
        "Short benchmark",
        "Precision of cos and sin",
        "keeps the norm",
    ):
        assert words in page
    assert "not measured" not in page.lower()
    assert_the_first_screen_has_the_measured_numbers(page, found, tmp_path / "demo" / "extend")
    assert len(list((tmp_path / "demo" / "models").glob("rope-0-*"))) == 1


def assert_the_first_screen_has_the_measured_numbers(page: str, found: dict, study: Path) -> None:
    first = page.partition("</h1>")[2].partition("studies:")[0]
    (far,) = (
        row for row in found["precision"] if row["policy"] == "exact" and row["position"] == 10**7
    )
    assert f"at most {far['error']:.0e};" in first
    times = {
        row["name"]: row["milliseconds"] for row in found["speed"] if row["dtype"] == "float32"
    }
    fastest = min(time for name, time in times.items() if time and name in BACKENDS)
    assert (
        f"{times['rotate_half in plain torch'] / fastest:.1f} times as fast as rotate_half" in first
    )
    rows = [json.loads(line) for line in (study / "rows.jsonl").read_text().splitlines()]
    losses = [row for row in rows if row["metric"] == "loss" and row["tuned"] == 0]
    longest = max(row["length"] for row in losses)
    (before,) = (row for row in losses if row["length"] == longest and row["method"] == "none")
    assert f"Loss {before['mean']:.2f} before" in first
    assert "<img" in first


def test_a_folded_table_has_its_title_as_summary_and_numbers_do_not_wrap():
    table = Table("As published", ("model", "loss"), [("a long name of a model", "3.5 ± 0.1")])
    folded = report_html.folded_html(table)
    assert re.match(r"<details[^>]*><summary>As published</summary>", folded)
    # words may wrap; a number and its error stay on one line
    assert "<td>a long name of a model</td>" in folded
    assert '<td class="number">3.5 ± 0.1</td>' in folded
