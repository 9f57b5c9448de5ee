"""Ten thousand configs that must be read, and ten thousand with one field spoiled that must be refused by its name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

COUNT = 10_000


@pytest.mark.parametrize(("kind", "seed"), [("valid", 20210420), ("spoiled", 20230629)])
def test_ten_thousand_configs(kind, seed):
    """Valid: none refused, none wrong. Spoiled: none accepted, none refused under another name."""
    script = Path(__file__).with_name("config_fuzz.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(ropewalk.__file__).parents[1])}
    run = subprocess.run(
        [sys.executable, str(script), kind, str(COUNT), str(seed)],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split()[0] == str(COUNT)
