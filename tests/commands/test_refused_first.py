"""What a command can refuse is refused before its work begins."""

import re

import pytest

from command_line import call
from finetune_tiny import write_checkpoint, write_triplets
from ropewalk.commands import lab


def test_a_setting_that_one_study_lacks_is_refused_before_any_study_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(lab, "run_study", lambda *_, **__: pytest.fail("a study ran"))
    given = ["lab", "run", "encodings", "precision", "--preset", "smoke", "--set", "windows=3", "--out", tmp_path / "out"]
    code, _, err = call(capsys, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert "with a setting of precision" in err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--epochs", "1e308"], r"--epochs: must be > 0 and <= 1e\+06; got 1e\+308"),
        (["--set", "model.start=5"], "start: must be the folder of a checkpoint, .* got 5"),
    ],
)
def test_numbers_that_no_fine_tuning_has_are_refused(tmp_path, capsys, more, said):
    start, train = write_checkpoint(tmp_path / "start"), write_triplets(tmp_path / "train.json", 20)
    given = ["lab", "finetune", start, "--train", train, "--folder", tmp_path / "run", "--device", "cpu", *more]
    code, _, err = call(capsys, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(said, err), err
