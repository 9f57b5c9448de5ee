"""The scripts in benchmarks/: importable without a GPU, listed in their README, and right on tiny
sizes.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.bench.rows import run_script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_importable_and_in_the_readme(name):
    module = importlib.import_module(name)
    assert Path(module.__file__).parent == BENCHMARKS
    assert module.__doc__
    assert f"| `{name}.py` |" in (BENCHMARKS / "README.md").read_text(encoding="utf-8")


def test_every_results_file_of_the_readme_exists():
    named = {
        word.strip("`,|")
        for word in (BENCHMARKS / "README.md").read_text(encoding="utf-8").split()
        if ".jsonl" in word
    }
    assert {
        name
        for name in named - {"rows.jsonl"}
        if not (BENCHMARKS.parent / "results" / name).exists()
    } == set()


def test_a_script_prints_its_rows_and_writes_them_with_the_machine(capsys, monkeypatch, tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    monkeypatch.setattr(sys, "argv", ["script.py", "--device", "cpu", "--out", str(path)])
    run_script("About.", {"cuda": lambda: [{"us": 0}], "cpu": lambda: [{"us": 1}, {"us": 2}]})
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["us"] for row in printed] == [1, 2]
    assert {"machine", "python", "versions", "date"} <= set(printed[0])
    assert [json.loads(line) for line in path.read_text().splitlines()] == printed


def test_two_source_trees_take_turns_in_being_timed_first(monkeypatch, capsys, tmp_path):
    import two_trees

    asked, times = [], {"old": iter((10.0, 12.0, 14.0)), "new": iter((20.0, 12.0, 7.0))}

    def measure(source, shapes):
        asked.append(source.name)
        assert shapes == ["cpu decode"]
        case = {"shape": "cpu decode", "order": "bhsd", "dtype": "bfloat16", "pass": "forward"}
        return [{**case, "us": next(times[source.name])}]

    monkeypatch.setattr(two_trees, "measure", measure)
    options = [
        "--before",
        "old",
        "--after",
        "new",
        "--runs",
        "3",
        "--shape",
        "cpu decode",
        "--out",
        str(tmp_path / "rows.jsonl"),
    ]
    monkeypatch.setattr(sys, "argv", ["two_trees.py", *options])
    two_trees.main()
    assert asked == ["old", "new", "new", "old", "old", "new"]
    row = capsys.readouterr().out.splitlines()[2]
    # the ratios are 2, 1 and 1/2
    assert (
        row == "| decode bf16 | 12.0 (11.0 to 13.0) | 12.0 (9.5 to 16.0) | 1.000 (0.750 to 1.500) |"
    )
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 6


def test_linear_attention_is_timed_beside_the_softmax_and_beside_half_its_length():
    import attention

    rows = list(attention.measure_cpu(lengths=(64, 128), rounds=2))
    assert [row["contender"] for row in rows] == [
        "torch, fused softmax",
        "ropewalk, linear",
        "ropewalk, linear",
    ]
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
        training_step.measure(
            config,
            batch=1,
            seq=8,
            rounds=1,
            steps=1,
            device="cpu",
            dtype=torch.float32,
            compiled=False,
        )
    )
    assert [row["contender"] for row in rows] == ["ropewalk, eager", "transformers, eager"]
    assert all(row["loss_error"] < 1e-5 and row["tokens_per_second"] > 0 for row in rows)


def test_a_model_computes_the_same_with_each_kernel_and_without_it():
    import kernel_worth

    for kernel in kernel_worth.KERNELS:
        if kernel.rows:  # a kernel of captured decode steps, which need a GPU
            continue
        model = Decoder(DecoderConfig(17, 24, 36, 2, 6, 2, **kernel.changes)).eval()
        tokens = kernel_worth.random_tokens(model, 1, 9)
        expected = model(tokens)
        with kernel.switched_off() as switch:
            if kernel.instead == "torch's FlexAttention":  # it needs a GPU
                continue
            torch.testing.assert_close(model(tokens), expected)
        assert switch.called  # the model asks the function that is switched off
        row = kernel_worth.compare(kernel_worth.training_step(model, 1, 5), kernel, rounds=1)
        gain = 100 * (row["without_ms"] / row["with_ms"] - 1)
        assert row["gain_percent"] == pytest.approx(gain, abs=0.1)


def test_real_models_runs_every_part_on_the_given_model_and_texts(tmp_path):
    import real_models
    from ropewalk_lab.studies import STUDIES

    for name in ("a.txt", "b.txt", "c.md"):
        (tmp_path / name).write_text(name * (3 if name == "b.txt" else 1))
    texts = real_models.texts_of(tmp_path)
    assert [text.name for text in texts] == ["a.txt", "b.txt"]
    changes = real_models.changes_of(
        texts, argparse.Namespace(model=Path("m.gguf"), preset="gpu", set=["windows=7"])
    )
    for part in real_models.LIMITS.keys() - {"fit"}:
        study = STUDIES[part]
        known = [change for change in changes if change.partition("=")[0] in study.presets["gpu"]]
        settings = study.settings("gpu", known)
        assert (settings["model"], settings["text"]) == ("m.gguf", [str(text) for text in texts])
        assert settings.get("windows", 7) == 7
        assert settings.get("train_text", str(texts[1])) == str(texts[1])


def test_real_models_stops_a_part_at_its_limit_and_packs_what_it_wrote(tmp_path, capsys):
    import real_models

    started = {
        name: subprocess.Popen([sys.executable, "-c", code])
        for name, code in (("fit", ""), ("real_kv", "while 1: 0"))
    }
    ended = {
        each["part"]: each["code"]
        for each in real_models.wait_for(dict(started), {"fit": 60, "real_kv": 0.5})
    }
    assert ended == {"fit": 0, "real_kv": 124}
    assert started["real_kv"].poll() is not None
    assert {json.loads(line)["part"] for line in capsys.readouterr().out.splitlines()} == {
        "fit",
        "real_kv",
    }
    (tmp_path / "models").mkdir()
    for name in ("models/rows.jsonl", "fit.log", "model.gguf"):
        (tmp_path / name).write_text("x")
    real_models.pack(tmp_path)
    with tarfile.open(tmp_path / "rows.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["fit.log", "models/rows.jsonl"]


def test_invariance_yields_the_parts_that_ended_within_its_limit(monkeypatch):
    import invariance

    def count(seeds):
        """Take no time for the first part and half a second for every other one."""
        time.sleep(0.5 if seeds[0] else 0)
        return [("torch.float32", seed, 10) for seed in seeds]

    monkeypatch.setattr(invariance, "ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(invariance, "_count", count)
    for name, value in (("DRAWS", 400), ("PART", 2), ("SECONDS", 0.2)):
        monkeypatch.setattr(invariance, name, value)
    began = time.monotonic()
    first, *others = invariance.measure()
    assert time.monotonic() - began < 20
    assert (first["dtype"], first["draws"], first["differing"], first["compared"]) == (
        "torch.float32",
        2,
        1,
        20,
    )
    assert {row["draws"] for row in others} == {0}


def test_a_configuration_that_fails_comes_last_in_rows_of_json(monkeypatch):
    sweep = importlib.import_module("sweep")

    def time_of(calls, replays):
        if calls[0] is None:
            raise RuntimeError("out of registers")
        return calls[0]

    monkeypatch.setattr(sweep, "replay_us", time_of)
    rows = sweep._sweep({}, {"fails": [None], "slow": [4.0], "fast": [2.0]}, 1.0)
    assert [row["config"] for row in rows] == ["fast", "slow", "fails"]
    assert json.loads(json.dumps(rows[-1], allow_nan=False)) == {
        "config": "fails",
        "error": "out of registers",
    }
