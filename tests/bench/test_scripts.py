"""The scripts in benchmarks/: importable without a GPU, listed in their README, and right on tiny sizes."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import torch

from ropewalk.bench.rows import run_script
from ropewalk.models import DecoderConfig

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_importable_and_in_the_readme(name):
    module = importlib.import_module(name)
    assert Path(module.__file__).parent == BENCHMARKS
    assert module.__doc__
    assert f"| `{name}.py` |" in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def test_every_results_file_of_the_readme_exists():
    named = {word.strip("`,|") for word in (BENCHMARKS / "README.md").read_text(encoding="utf-8").split() if ".jsonl" in word}
    assert {name for name in named - {"rows.jsonl"} if not (BENCHMARKS.parent / "results" / name).exists()} == set()


def test_a_script_prints_its_rows_and_writes_them_with_the_machine(capsys, monkeypatch, tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["script.py", "--device", "cpu", "--out", str(path)])
    run_script("About.", {"cuda": lambda: [{"us": 0}], "cpu": lambda: [{"us": 1}, {"us": 2}]})
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["us"] for row in printed] == [1, 2]
    assert {"machine", "python", "versions", "date"} <= set(printed[0])
    assert [json.loads(line) for line in path.read_text().splitlines()] == printed


def test_linear_attention_is_timed_beside_the_softmax_and_beside_half_its_length():
    import attention

    rows = list(attention.measure_cpu(lengths=(64, 128), rounds=2))
    assert [row["contender"] for row in rows] == ["torch, fused softmax", "ropewalk, linear", "ropewalk, linear"]
    softmax, short, long = (row["us"] for row in rows)
    assert rows[1]["times_faster"] == pytest.approx(softmax / short, abs=0.006)
    assert rows[2]["times_half_the_length"] == pytest.approx(long / short, abs=0.006)


def test_the_trainer_is_measured_beside_a_bare_loop(tmp_path, monkeypatch):
    import trainer as script

    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    bare, trainer, data = script.measure("smoke", steps=10, rounds=2, device="cpu")
    assert [row["contender"] for row in (bare, trainer, data)] == ["bare loop", "trainer", "data"]
    assert bare["percent_of_bare"] == 100
    assert trainer["percent_of_bare"] == pytest.approx(100 * bare["us"] / trainer["us"], abs=0.2)
    assert trainer["tokens_per_second"] == pytest.approx(4 * 32 / trainer["us"] * 1e6, rel=0.01)
    assert 0 < data["us"] < trainer["us"]


def test_a_training_step_is_timed_on_models_with_equal_losses():
    import training_step

    config = DecoderConfig(17, 24, 36, 2, 6, 2)
    rows = list(
        training_step.measure(config, batch=1, seq=8, rounds=1, steps=1, device="cpu", dtype=torch.float32, compiled=False)
    )
    assert [row["contender"] for row in rows] == ["ropewalk, eager", "transformers, eager"]
    assert all(row["loss_error"] < 1e-5 and row["tokens_per_second"] > 0 for row in rows)


def test_real_models_runs_every_part_on_the_given_model_and_texts(tmp_path):
    import argparse

    import real_models

    texts = tmp_path / "texts"
    texts.mkdir()
    for name in ("a.txt", "b.txt", "c.md"):
        (texts / name).write_text(name * (3 if name == "b.txt" else 1))
    args = argparse.Namespace(
        model=Path("m.gguf"), texts=texts, out=tmp_path / "out", preset="gpu", set=["seeds=2"], to=64, windows=3, search=0
    )
    fit = real_models.command("fit", args)
    assert fit[1:5] == ["-m", "ropewalk", "fit", "m.gguf"]
    assert [fit[place + 1] for place, word in enumerate(fit) if word == "--text"] == [str(texts / "a.txt"), str(texts / "b.txt")]
    tune = real_models.command("real_tune", args)
    changes = [tune[place + 1] for place, word in enumerate(tune) if word == "--set"]
    assert changes[:3] == ['model="m.gguf"', f'text=["{texts}/a.txt", "{texts}/b.txt"]', "seeds=2"]
    assert changes[3] == f'train_text="{texts}/b.txt"'
    from ropewalk.lab.studies import STUDIES

    for part in real_models.LIMITS.keys() - {"fit"}:
        given = [each for each in changes if part == "real_tune" or not each.startswith("train_text")]
        assert STUDIES[part].settings("gpu", given)["model"] == "m.gguf"
    assert sum(real_models.LIMITS.values()) <= 600
