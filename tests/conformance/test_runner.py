"""The runner: arrays of any library, keywords, errors, the command and the pytest plug-in."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import call
from conformance.plain import Plain
from ropewalk.errors import RopeError
from ropewalk_conformance import load, run
from ropewalk_conformance.arrays import dtype_of, library_of, maker, to_lists
from ropewalk_conformance.runner import NOT_RUN, RAISED, REFUSED, SAME

LISTS = """
def inv_freq(config):
    if config.get("rope_scaling"):
        raise NotImplementedError("no scaling here")
    dim = config["head_dim"]
    return [{theta} ** (-2 * i / dim) for i in range(dim // 2)]
"""


class Foreign:
    """An array of an unknown library, with only what the runner needs: a dtype and `tolist`."""

    dtype = "foreign.bfloat16"

    def __init__(self, values):
        self.values = values

    def tolist(self):
        return self.values


def test_arrays_of_every_library_become_lists():
    assert to_lists(torch.tensor([[1.0, 2.5]], dtype=torch.bfloat16, requires_grad=True)) == [
        [1, 2.5]
    ]
    assert to_lists(np.float16([1, 0.5])) == [1, 0.5]
    assert to_lists((Foreign([1.0]), [Foreign([2.0])])) == [[1.0], [[2.0]]]
    assert to_lists(torch.tensor(1 + 2j)) == 1 + 2j
    assert dtype_of((torch.zeros(1), torch.zeros(1, dtype=torch.bfloat16))) == "bfloat16"
    assert dtype_of(Foreign([])) == "bfloat16"
    with pytest.raises(RopeError, match="must be arrays"):
        to_lists(object())


def test_a_function_gets_arrays_of_the_library_that_its_module_imports():
    assert library_of(Plain().rotate) == "numpy"
    assert library_of(test_arrays_of_every_library_become_lists) == "torch"
    assert library_of(math.sqrt) == "list"
    assert maker("numpy")([1, 2], "int64").dtype == np.int64
    assert maker("torch")([1.0], "bfloat16").dtype == torch.bfloat16
    with pytest.raises(RopeError, match="arrays"):
        maker("tinygrad")


def test_a_case_that_needs_a_keyword_is_not_run_without_it():
    report = run(inv_freq=lambda config: Plain().inv_freq(config), groups="longrope layer-types")
    assert {each.status for each in report.results} == {NOT_RUN}
    assert {each.words for each in report.results} == {
        "the function takes no keyword length",
        "the function takes no keyword part",
    }
    assert not report.passed  # nothing was run


def test_what_a_config_means_is_passed_to_a_function_that_takes_it():
    def inv_freq(config, rope, part=None):
        dims = rope["rotary_dim"]
        return [rope["theta"] ** (-2 * i / dims) for i in range(dims // 2)]

    assert run(inv_freq=inv_freq, groups="default").passed


def test_refusals_exceptions_and_wrong_results_are_reported_differently():
    def refuses(config):
        raise NotImplementedError("no YaRN\x1b[31m")

    report = run(inv_freq=refuses, groups="yarn")
    assert {each.status for each in report.results} == {REFUSED}
    assert "\x1b" not in str(report)
    report = run(inv_freq=lambda config: [1.0][3], groups="yarn")
    assert {each.status for each in report.results} == {RAISED}
    assert "IndexError" in str(report)
    report = run(inv_freq=lambda config: [math.nan] * 32, groups="linear")
    assert [each.words for each in report.results] == ["NaN", "NaN"]
    report = run(inv_freq=lambda config: [1.0] * 7, groups="linear")
    assert "7 numbers, expected" in str(report)


def test_a_function_may_not_change_the_vectors():
    def inv_freq(config):
        found = Plain().inv_freq(config)
        config.clear()
        return found

    assert run(inv_freq=inv_freq, groups="default").passed
    assert run(inv_freq=inv_freq, groups="default").passed
    assert load("default")["cases"][0]["config"]["model_type"] == "llama"


def test_unknown_functions_and_groups_are_refused():
    with pytest.raises(RopeError, match="functions"):
        run(invfreq=abs)
    with pytest.raises(RopeError, match="functions"):
        run(math)
    with pytest.raises(RopeError, match="groups"):
        run(inv_freq=abs, groups="yarm")


def test_optional_groups_do_not_fail_a_run_unless_they_are_named():
    def cos_sin(config, positions, part=None):
        w, size = Plain().inv_freq(config, part, int(positions.max()) + 1)
        if positions.ndim == 3:
            return Plain().cos_sin(config, positions, part)
        angle = np.float32(positions)[..., None] * np.float32(w)
        return size * np.cos(angle), size * np.sin(angle)

    report = run(cos_sin=cos_sin)
    assert report.passed
    assert [each.mistake for each in report.findings] == ["angle_float32"]
    assert not run(cos_sin=cos_sin, groups=["far"]).passed


def test_the_command_exits_with_1_for_a_wrong_rope_and_names_the_mistake(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("right_rope.py").write_text(LISTS.format(theta='config["rope_theta"]'))
    Path("wrong_rope.py").write_text(LISTS.format(theta=10000))
    groups = ["--group", "default", "--group", "linear"]
    code, out, _ = call(capsys, "conformance", "--module", "right_rope", *groups)
    assert (code, "4 same, 2 refused" in out) == (0, True)
    wrong = ["--module", "wrong_rope.py", "--group", "default", "--json"]
    code, out, _ = call(capsys, "conformance", *wrong)
    found = json.loads(out)
    assert code == 1
    assert [each["mistake"] for each in found["findings"]] == ["theta_default"]
    assert found["counts"][SAME] == 2
    code, out, _ = call(capsys, "conformance")
    assert (code, "video-positions" in out) == (0, True)
    code, _, error = call(capsys, "conformance", "--module", "no_such_rope")
    assert (code, "must be importable" in error) == (2, True)


def test_the_pytest_fixture_fails_a_test_whose_rope_is_wrong(tmp_path):
    (tmp_path / "test_rope.py").write_text(
        LISTS.format(theta=10000) + "def test_rope(rope_conformance):\n"
        "    rope_conformance(inv_freq=inv_freq, groups='default')\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "ropewalk_conformance.plugin",
        "-p",
        "no:cacheprovider",
    ]
    # an installed package is found by its entry point; here it is named, so only once
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "test_rope.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 1
    assert "theta_default: theta is 10,000 instead of the config's." in done.stdout
    assert "1 failed" in done.stdout
