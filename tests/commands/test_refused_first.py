"""What a command can refuse is refused before its work begins."""

import json
import re

import pytest

from command_line import call
from finetune_tiny import write_checkpoint, write_triplets
from ropewalk import cli
from ropewalk_cli.commands import lab
from ropewalk_lab.studies import STUDIES

EXAMPLE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}


def test_a_setting_that_one_study_lacks_is_refused_before_any_study_runs(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        "ropewalk_lab.studies.run_study", lambda *_, **__: pytest.fail("a study ran")
    )
    given = [
        "lab",
        "run",
        "encodings",
        "precision",
        "--preset",
        "smoke",
        "--set",
        "windows=3",
        "--out",
        tmp_path / "out",
    ]
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
def test_too_many_epochs_and_a_number_as_the_start_are_refused(tmp_path, capsys, more, said):
    start, train = write_checkpoint(tmp_path / "start"), write_triplets(tmp_path / "train.json", 20)
    given = [
        "lab",
        "finetune",
        start,
        "--train",
        train,
        "--folder",
        tmp_path / "run",
        "--device",
        "cpu",
        *more,
    ]
    code, _, err = call(capsys, *given)
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(said, err), err


def test_extend_makes_the_missing_folder_of_its_output_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(EXAMPLE))
    out = tmp_path / "new" / "folder" / "x.json"
    code, _, err = call(
        capsys, "extend", tmp_path / "config.json", "yarn", "--factor", 4, "--out", out
    )
    assert (code, err) == (0, "")
    assert json.loads(out.read_text())["rope_scaling"]["factor"] == 4


@pytest.mark.parametrize("place", ["", "config.json/x.json"])
def test_extend_refuses_a_path_that_is_no_file_in_a_folder(tmp_path, capsys, place):
    (tmp_path / "config.json").write_text(json.dumps(EXAMPLE))
    code, _, err = call(
        capsys, "extend", tmp_path / "config.json", "yarn", "--factor", 4, "--out", tmp_path / place
    )
    assert (code, err) == (
        2,
        f"ropewalk: --out: must be the path of a file, not a folder or below a file; "
        f"got '{tmp_path / place}'\n",
    )


def test_a_folder_for_predictions_is_refused_before_the_evaluation(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "ropewalk_lab.finetuning.evaluate_file",
        lambda *_, **__: pytest.fail("the model was evaluated"),
    )
    code, _, err = call(
        capsys, "lab", "evaluate", tmp_path, tmp_path / "x.tsv", "--predictions", tmp_path
    )
    assert (code, err) == (
        2,
        f"ropewalk: --predictions: must be the path of a file, not a folder or below a file; "
        f"got '{tmp_path}'\n",
    )


@pytest.mark.parametrize("names", [["all"], ["encodings", "all"]])
def test_all_beside_other_names_is_every_study(tmp_path, capsys, monkeypatch, names):
    ran = []
    monkeypatch.setattr(
        "ropewalk_lab.studies.run_study", lambda study, *_, **__: ran.append(study.name)
    )
    monkeypatch.setattr(lab, "_write_report", lambda *_: None)
    code, _, err = call(
        capsys,
        "lab",
        "run",
        *names,
        "--preset",
        "smoke",
        "--device",
        "cpu",
        "--out",
        tmp_path,
        "--json",
    )
    assert (code, err) == (0, "")
    assert ran == list(STUDIES)


def test_extend_writes_a_file_with_the_mode_of_every_new_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(EXAMPLE))
    code, _, _ = call(
        capsys,
        "extend",
        tmp_path / "config.json",
        "yarn",
        "--factor",
        4,
        "--out",
        tmp_path / "new.json",
    )
    assert code == 0
    assert (tmp_path / "new.json").stat().st_mode == (tmp_path / "config.json").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "new.json"]


@pytest.mark.parametrize(
    ("study", "change", "known"),
    [
        ("extend", 'methods=["none", "yarm"]', "yarn"),
        ("extend", 'tuned_methods=["yarm"]', "yarn"),
        ("encodings", 'encodings=["rope", "ropes"]', "alibi"),
    ],
)
def test_a_name_that_a_study_does_not_know_is_refused_before_a_training(
    tmp_path, capsys, study, change, known
):
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        cli.main(("lab", "run", study, "--preset", "smoke", "--out", str(out), "--set", change))
    said = capsys.readouterr().err
    assert change.partition("=")[0] in said
    assert known in said
    assert not (out / "models").exists()
