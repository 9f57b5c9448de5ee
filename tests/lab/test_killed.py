"""kill -9 at any moment: the run that continues equals, bit for bit, a run that was not killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk_lab import checkpoint
from ropewalk_lab.log import read_log

SCRIPT = Path(__file__).with_name("killed_runs.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks its runs")
@pytest.mark.parametrize("seed", [0])
def test_a_killed_run_resumes_to_the_same_bits(tmp_path, seed):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), str(seed)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    killed_at = json.loads(done.stdout.splitlines()[-1])
    assert all(0 < step < 26 for step in killed_at), killed_at
    whole, killed = (read_log(tmp_path / run / "log.jsonl") for run in ("whole", "killed"))
    assert [row["step"] for row in whole] == [row["step"] for row in killed] == list(range(1, 27))
    for name in ("loss", "gradient", "rate", "smoothed"):
        assert [row[name] for row in whole] == [row[name] for row in killed]
    files = [
        checkpoint.read_checkpoint(tmp_path / run / "step-000000026")[1]
        for run in ("whole", "killed")
    ]
    for name in files[0]:
        assert files[0][name].keys() == files[1][name].keys()
        assert all((files[0][name][key] == files[1][name][key]).all() for key in files[0][name])
