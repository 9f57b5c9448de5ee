"""Progress without a terminal: a line every few seconds while models are trained; both sizes of the demo have valid settings."""

import json

import pytest

from ropewalk.commands import demo
from ropewalk.lab import studies
from ropewalk.lab.log import LOG
from ropewalk.lab.studies import jobs


@pytest.mark.parametrize(("seconds", "quiet", "printed"), [(0.0, False, True), (60.0, False, False), (0.0, True, False)])
def test_trainings_are_told_in_lines(capsys, tmp_path, monkeypatch, seconds, quiet, printed):
    monkeypatch.setattr(jobs, "LINES", seconds)
    (tmp_path / "rope-0-1a2b").mkdir()
    (tmp_path / "rope-0-1a2b" / LOG).write_text(json.dumps({"step": 20, "loss": 2.5}) + "\n", encoding="utf-8")
    jobs._Status("encodings", 4, 1, quiet).show_trainings(tmp_path)
    assert capsys.readouterr().err == ("encodings: rope-0 step 20 loss 2.50 (1 of 4)\n" if printed else "")


def test_a_line_comes_at_least_every_twenty_seconds():
    assert jobs.LINES + jobs.POLL <= 20


@pytest.mark.parametrize("size", [demo.SHORT, demo.FULL], ids=["short", "full"])
def test_the_settings_of_the_demo_are_valid(size):
    for name, changes in size.studies.items():
        settings = studies.STUDIES[name].settings("cpu", changes)
        assert settings["encodings" if name == "encodings" else "methods"]
    assert demo.SHORT.steps < demo.FULL.steps
