"""The trainer's benchmark, on a CPU and a tiny preset: rows for a bare loop, the trainer and the data."""

import pytest

from ropewalk.bench.gpu_trainer import measure


def test_the_trainer_is_measured_beside_a_bare_loop(tmp_path, monkeypatch):
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    bare, trainer, data = measure("smoke", steps=10, rounds=2, device="cpu")
    assert [row["contender"] for row in (bare, trainer, data)] == ["bare loop", "trainer", "data"]
    assert bare["percent_of_bare"] == 100
    assert trainer["percent_of_bare"] == pytest.approx(100 * bare["us"] / trainer["us"], abs=0.2)
    assert trainer["tokens_per_second"] == pytest.approx(4 * 32 / trainer["us"] * 1e6, rel=0.01)
    assert 0 < data["us"] < trainer["us"]
