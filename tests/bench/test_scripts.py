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
from types import SimpleNamespace

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
    # on a CPU the peak is what lasts from step to step: the parameters and AdamW's moments
    model = Decoder(config)
    optimizer = torch.optim.AdamW(model.parameters())
    model.loss(torch.zeros(1, 8, dtype=torch.int64)).backward()
    optimizer.step()
    moments = [
        value for state in optimizer.state.values() for value in state.values() if value.ndim
    ]
    lasting = sum(each.nbytes for each in (*model.parameters(), *moments))
    assert {row["peak_bytes"] for row in rows} == {lasting}


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


def test_the_gain_of_a_kernel_is_the_time_that_its_absence_adds():
    """Without it, 5 ms take 6: a fifth longer, although it is a sixth less with it."""
    import kernel_worth

    times = {"with": [4.0, 5.0, 5.5], "without": [6.0, 9.0, 5.7]}
    assert kernel_worth.compared(times) == {
        "with_ms": 5.0,
        "without_ms": 6.0,
        "gain_percent": 20.0,
        "spread_percent": 55.0,  # from 5.7 to 9, of 6
    }


@pytest.mark.parametrize("tied", [True, False])
def test_a_decode_step_reads_all_weights_and_the_cache(tied, monkeypatch):
    """Half of the new tokens are cached on average; the cache is that of the model itself."""
    import decode

    randint = torch.randint
    monkeypatch.setattr(
        torch, "randint", lambda *args, device=None, **options: randint(*args, **options)
    )
    model = Decoder(DecoderConfig(17, 24, 36, 2, 6, 2, tie_embeddings=tied)).eval()
    prompt, limit, row = decode._case(model, "tiny", 3, 1e9, length=10)
    assert prompt.shape == (3, 10)
    caches, length = model.caches(), 10 + decode.NEW // 2
    with torch.no_grad():
        model.features(torch.zeros(3, length, dtype=torch.int64), caches=caches)
    held = sum(each.seen.k.numel() + each.seen.v.numel() for each in caches)
    # a matrix of embeddings that is not the head's is read by the row
    weights = sum(each.numel() for each in model.parameters()) - (0 if tied else 17 * 24)
    assert limit == pytest.approx(2 * (weights + held) / 1e9)  # bfloat16
    assert row == {"shape": "tiny", "batch": 3, "copy_GBps": 1}


def test_the_time_of_a_step_is_without_that_of_the_prompt_and_of_the_opening(monkeypatch):
    """A prompt takes 10 ms, with the first token; what is done once, 3 ms; a step 2 ms."""
    import decode

    monkeypatch.setattr(decode, "seconds", lambda call, repeats: call() / 1e3)
    row = decode.step_row(lambda new: 10 + (3 + 2 * (new - 1) if new > 1 else 0), 0.0005, shape="x")
    assert (row["steps_per_s"], row["step_ms"]) == (500.0, 2.0)
    assert (row["limit_ms"], row["percent_of_limit"]) == (0.5, 25.0)
    assert (row["first_token_ms"], row["opening_ms"]) == (10.0, 3.0)


def test_the_speed_of_jax_is_in_per_cent_of_adding_one(monkeypatch):
    """By a clock of its own: adding one takes 100 us, a rotation 400 us."""
    import jax_rotate

    random = SimpleNamespace(normal=lambda *_, **__: 0, key=lambda _: 0, randint=lambda *_: 0)
    numpy = SimpleNamespace(bfloat16=None, int32=None, arange=lambda *_, **__: 0)
    jax = SimpleNamespace(
        jit=lambda call: call,
        random=random,
        numpy=numpy,
        devices=lambda: [SimpleNamespace(device_kind="none")],
        __version__="0",
    )
    rotation = SimpleNamespace(rotate=None)
    for name, module in (("jax", jax), ("jax.numpy", numpy), ("ropewalk.jax", rotation)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(jax_rotate, "error_at", lambda *_: 1e-8)
    monkeypatch.setattr(jax_rotate, "seconds", lambda call, *args: 1e-4 if len(args) == 2 else 4e-4)
    rows = list(jax_rotate.measure(jax_rotate.SMALL))
    assert [row["positions"] for row in rows] == ["[S]", "[B, S]"]
    for row in rows:
        assert (row["us"], row["us_add_one"], row["percent_of_add_one"]) == (400.0, 100.0, 25.0)
