"""What a command can refuse is refused before its work begins."""

import pytest

from command_line import call
from ropewalk.commands import lab


def test_a_setting_that_one_study_lacks_is_refused_before_any_study_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lab, "run_study", lambda *_, **__: pytest.fail("a study ran"))
    given = ["lab", "run", "encodings", "precision", "--preset", "smoke", "--set", "windows=3", "--out", tmp_path / "out"]
    code, _, err = call(capsys, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert "with a setting of precision" in err
