"""The tests can fail: each of seven mistakes of real libraries is put into the code, and a test named
beside it must fail; without --full, three mistakes are tried.

`python tools/mutate.py` does the same with thousands of generated mutants.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: module, the right text, the wrong text, the test that must fail
MISTAKES = [
    (
        "kernels/rotation/definition",
        "(a * cos - b * sin, a * sin + b * cos",
        "(a * cos + b * sin, b * cos - a * sin",
        "kernels/test_reference.py",
    ),
    (
        "kernels/rotation/definition",
        '    if layout == "half":\n',
        '    if layout != "half":\n',
        "kernels/test_reference.py",
    ),
    (
        "frequencies/banded",
        "turns = self.beta_fast, self.beta_slow",
        "turns = self.beta_slow, self.beta_fast",
        "test_frequencies.py::test_fast_pairs_of_yarn_stay_and_slow_ones_interpolate",
    ),
    (
        "frequencies/formulas",
        "    if truncate:\n",
        "    if True:\n",
        "test_frequencies.py::test_changing_a_field_of_yarn_changes_its_frequencies",
    ),
    (
        "frequencies/per_pair",
        "ops.exceeds(length, self.original_length)",
        "ops.exceeds(length + 1, self.original_length)",
        "test_frequencies.py::test_the_longrope_switch_is_after_the_trained_length",
    ),
    (
        "frequencies/formulas",
        "ops.multiples(2, dim // 2) / dim)",
        "ops.multiples(2, dim // 2) / (dim - 2))",
        "test_frequencies.py::test_the_plain_frequencies_of_128_dimensions_have_the_published_figures",
    ),
    (
        "table",
        "magnitude_on(spec, frequencies.magnitude, key) ** magnitude_power",
        "1.0",
        "test_table.py::test_cos_and_sin_are_multiplied_by_the_magnitude_to_magnitude_power",
    ),
]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the runner forks, and this system cannot")
def test_every_mistake_is_found(full):
    made = MISTAKES if full else MISTAKES[::3]
    options = [
        text
        for module, right, wrong, test in made
        for text in ("--replace", module, right, wrong, f"tests/{test}")
    ]
    command = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "mutate.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("killed: ") == len(made)


@pytest.mark.parametrize(("module", "right"), [mistake[:2] for mistake in MISTAKES], ids=str)
def test_every_right_text_occurs_once(module, right):
    assert (ROOT / "src" / "ropewalk" / f"{module}.py").read_text(encoding="utf-8").count(
        right
    ) == 1


def test_every_mutated_module_and_its_tests_exist(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    from mutant_tests import TESTS

    modules = [f"src/ropewalk/{name}.py" for name in TESTS]
    tests = [f"tests/{name.partition('::')[0]}.py" for names in TESTS.values() for name in names]
    assert [path for path in modules + tests if not (ROOT / path).is_file()] == []
