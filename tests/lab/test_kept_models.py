"""A run does not replace a model that it did not write."""

import pytest

from command_line import call
from finetune_tiny import write_checkpoint, write_triplets


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def finetune(capsys, folder, start):
    train = write_triplets(folder / "train.json", 32)
    given = [
        "lab",
        "finetune",
        start,
        "--train",
        train,
        "--folder",
        folder / "run",
        "--length",
        16,
        "--epochs",
        1,
    ]
    return call(capsys, *given, "--device", "cpu", "--json")


@pytest.mark.parametrize("name", ["run/model", "run"])
@pytest.mark.parametrize("has_run_file", [False, True])
def test_a_run_does_not_replace_the_model_it_starts_from(tmp_path, capsys, name, has_run_file):
    start = write_checkpoint(tmp_path / "run" / "model")
    if has_run_file:
        (tmp_path / "run" / "run.json").write_text('{"model": {}}')
    before = contents(start)
    code, _, err = finetune(capsys, tmp_path, tmp_path / name)
    assert (code, err.count("\n")) == (2, 1)
    assert f"--folder: must not be that of the start, because the run replaces {start}" in err
    assert contents(start) == before


def test_a_run_does_not_replace_a_model_that_no_run_wrote(tmp_path, capsys):
    other = write_checkpoint(tmp_path / "run" / "model", seed=1)
    before = contents(other)
    code, _, err = finetune(capsys, tmp_path, write_checkpoint(tmp_path / "start"))
    assert (code, err.count("\n")) == (2, 1)
    assert (
        f"--folder: must be new or that of a run, because the run replaces {other}, which no "
        "run wrote"
    ) in err
    assert contents(other) == before


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"model": 3}'])
def test_a_damaged_record_of_a_run_is_named(tmp_path, capsys, text):
    start = write_checkpoint(tmp_path / "start")
    assert finetune(capsys, tmp_path, start)[0] == 0
    (tmp_path / "run" / "run.json").write_text(text)
    code, _, err = finetune(capsys, tmp_path, start)
    assert (code, err.count("\n")) == (2, 1)
    assert "must have a complete run.json" in err
