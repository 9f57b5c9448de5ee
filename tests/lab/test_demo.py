"""The demo: self-check, short benchmark, two studies and one page."""

import json
from dataclasses import replace

from lab_tiny import write_text

from ropewalk import cli
from ropewalk_lab import selfcheck, studies


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
        "Recommendations",
    ):
        assert words in page
    assert len(list((tmp_path / "demo" / "models").glob("rope-0-*"))) == 1
