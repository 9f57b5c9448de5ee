"""The tests can fail: seven faults that were made in real libraries, each noticed by the test that stands for it.

`python tools/mutate.py` does the same with thousands of generated faults.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: module, what is right, what is wrong, who must notice
FAULTS = [
    (
        "kernels/reference",
        "(a * cos - b * sin, a * sin + b * cos",
        "(a * cos + b * sin, b * cos - a * sin",
        "kernels/test_reference.py",
    ),
    ("kernels/reference", '    if layout == "half":\n', '    if layout != "half":\n', "kernels/test_reference.py"),
    (
        "frequencies",
        "ramp(self.beta_fast, self.beta_slow, dim",
        "ramp(self.beta_slow, self.beta_fast, dim",
        "test_frequencies.py::test_fast_pairs_of_yarn_stay_and_slow_ones_interpolate",
    ),
    (
        "scaling",
        "    if truncate:\n",
        "    if True:\n",
        "test_frequencies.py::test_every_field_of_yarn_moves_its_frequencies",
    ),
    (
        "frequencies",
        "as_rows(length > self.original_length)",
        "as_rows(length >= self.original_length)",
        "test_frequencies.py::test_the_longrope_switch_is_after_the_trained_length",
    ),
    (
        "scaling",
        "device=device).to(dtype) / dim)",
        "device=device).to(dtype) / (dim - 2))",
        "test_frequencies.py::test_the_reference_figures_of_128_dimensions",
    ),
    (
        "table",
        "magnitude_on(spec, found.magnitude, key) ** gain",
        "1.0",
        "test_table.py::test_the_magnitude_is_raised_to_the_gain",
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runner forks, and this system cannot")
def test_every_fault_is_noticed():
    faults = [word for module, before, after, test in FAULTS for word in ("--replace", module, before, after, f"tests/{test}")]
    command = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "mutate.py"), *faults]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed: ") == len(FAULTS)
