"""The example runners in JavaScript and C++ pass their right ropes; the JavaScript one finds a wrong
rope.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "conformance"
VECTORS = ROOT / "conformance"


def copied(folder, name, old, new):
    """Copy the examples with one change in one file."""
    shutil.copytree(EXAMPLES, folder, dirs_exist_ok=True)
    text = (folder / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")


def javascript(folder):
    command = ["node", str(folder / "runner.mjs"), str(VECTORS)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def cpp(folder, out):
    build = ["g++", "-std=c++17", "-O0", "-o", str(out), str(folder / "runner.cpp")]
    subprocess.run(build, check=True, timeout=120)
    return subprocess.run([str(out), str(VECTORS)], capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_javascript_runner_passes_and_finds_a_wrong_rope(tmp_path):
    done = javascript(EXAMPLES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "67 cases" in done.stdout
    assert done.stdout.endswith(" 0 wrong\n")
    copied(tmp_path, "rope.mjs", "i < Math.floor", "i <= Math.floor")
    done = javascript(tmp_path)
    assert done.returncode == 1
    assert "proportional/gemma4-global" in done.stdout


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_the_cpp_runner_passes(tmp_path):
    done = cpp(EXAMPLES, tmp_path / "runner")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "67 cases" in done.stdout
    assert done.stdout.endswith(" 0 wrong\n")


def test_the_readme_of_the_examples_shows_the_line_that_the_javascript_runner_prints():
    shown = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    assert javascript(EXAMPLES).stdout in shown
