"""Random configs that must be read, and random configs with one field spoiled that must be refused
by its name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

SEED = 20210420


@pytest.mark.slow
def test_random_valid_configs_are_read_and_spoiled_ones_refused_by_name(full):
    """Valid: none refused, none wrong. Spoiled: none accepted, none refused under another name.
    With --full, 10,000 of each.
    """
    count = 10_000 if full else 600
    script = Path(__file__).with_name("config_fuzz.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(ropewalk.__file__).parents[1])}
    command = [sys.executable, str(script), str(count), str(SEED)]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split()[:4] == [str(count), "valid", "and", str(count)]
