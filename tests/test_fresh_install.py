"""The blocks of the README run, from installation to report, in a fresh environment that has
ropewalk from its wheel.

The environment also has the libraries of the one that runs the tests, so that torch is not
downloaded again; it does not see the sources.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "ropewalk"
VECTORS = ROOT / "conformance"
README = (ROOT / "README.md").read_text(encoding="utf-8")
pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """What follows `ropewalk` in each line of the shell blocks; the page that waits for a browser
    is opened by its own tests.
    """
    lines = [
        shlex.split(line, comments=True) for block in blocks("sh") for line in block.splitlines()
    ]
    assert {words[0] for words in lines} == {"make", "pip", "ropewalk"}
    return [words[1:] for words in lines if words[0] == "ropewalk" and words[1] != "explore"]


def run(command: list, folder: Path, timeout: int = 240) -> str:
    """Return the standard output of a command that must succeed; it does not see this checkout."""
    env = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, so that no build folder appears in the checkout.

    The native library that set-up built is up to date, so it is not built again, which takes twenty
    seconds.
    """
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=left_out)
    shutil.copytree(VECTORS, copy / "conformance")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, copy],
        folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel) -> Path:
    """The folder of commands of the fresh environment."""
    folder = wheel.parent / "env"
    venv.create(folder, with_pip=False, symlinks=True)
    inside = {"base": str(folder), "platbase": str(folder)}
    libraries = Path(sysconfig.get_path("purelib", vars=inside))
    # Python searches a folder that a .pth file names, but reads no .pth files in it, so an editable
    # install of ropewalk there stays unseen
    (libraries / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    commands = Path(sysconfig.get_path("scripts", vars=inside))
    run(
        [*pip, "--python", commands / "python", "install", "--no-deps", "--no-index", wheel], folder
    )
    return commands


def test_the_wheel_has_every_file_of_the_package(wheel):
    packed = set(zipfile.ZipFile(wheel).namelist())
    files = [
        file for file in SOURCES.rglob("*") if file.is_file() and file.suffix not in (".pyc", ".so")
    ]
    assert [
        name
        for name in (f"ropewalk/{file.relative_to(SOURCES).as_posix()}" for file in files)
        if name not in packed
    ] == []
    assert "ropewalk/kernels/cpu/_cpu.so" in packed or shutil.which("cc") is None
    vectors = {f"ropewalk_conformance/vectors/{file.name}" for file in VECTORS.glob("*.json")}
    assert len(vectors) > 20
    assert vectors <= packed


def test_the_readme_rotates_patches_extends_and_makes_a_report():
    """The README has lines to copy that rotate a tensor, patch a model, extend it and make a report."""
    python, shell = "\n".join(blocks("python")), "\n".join(blocks("sh"))
    steps = {"rotate": r"rope\(q, k", "patch": r"rw\.patch\(", "extend": r"rw\.extend\("}
    assert [step for step, call in steps.items() if not re.search(call, python)] == []
    assert re.search(r"^make demo\b|^ropewalk demo\b", shell, re.MULTILINE)


@pytest.fixture(scope="module")
def folder(fresh, tmp_path_factory) -> Path:
    """The folder in which the Python blocks of the README have run; they write the models that its
    commands read.
    """
    folder = tmp_path_factory.mktemp("readme")
    place = "import ropewalk\nprint(ropewalk.__file__)\n"
    (folder / "readme.py").write_text("\n".join([*blocks("python"), place]), encoding="utf-8")
    said = run([fresh / "python", "-W", "error", "-W", "ignore:mlx-lm at", "readme.py"], folder)
    assert Path(said.splitlines()[-1]).is_relative_to(fresh.parent)
    return folder


ALL = """
import contextlib, io, json, sys
import ropewalk_cli

sys.modules["torch"] = None  # the README says that these commands do not need it
said = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            ropewalk_cli.main(words)
        except SystemExit as end:
            assert (words[0], end.code) == ("doctor", 4), words  # 4: errors in the config
    said[" ".join(words)] = out.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(fresh, folder) -> dict[str, str]:
    """Return what `info` and the commands of the README print, by the words after `ropewalk`."""
    words = [["info", "--json"], *commands()]
    return json.loads(
        run([fresh / "python", "-c", ALL, json.dumps(words)], folder).splitlines()[-1]
    )


def test_info_in_the_new_environment_states_the_version_of_the_wheel(wheel, said):
    assert json.loads(said["info --json"])["versions"]["ropewalk"] == wheel.name.split("-")[1]


def test_the_commands_of_the_readme_print_the_verdicts_that_it_shows(said):
    """The output of each begins with the verdict that the README shows for it."""
    (printed,) = blocks("console")
    for words, verdict in zip(commands(), printed.split("\n\n"), strict=True):
        assert said[" ".join(words)].startswith(" ".join(verdict.split()))


def test_the_python_blocks_of_the_readme_write_the_models_that_they_name(folder):
    config = json.loads((folder / "longer" / "config.json").read_text(encoding="utf-8"))
    assert config["max_position_embeddings"] == 256
    assert "yarn" in json.dumps(config)
    name = "model.layers.0.self_attn.q_proj.weight"
    assert load_file(folder / "my_model" / "model.safetensors")[name].shape == (48, 48)


def test_demo_writes_its_report_in_the_new_environment(fresh, tmp_path):
    """`make demo` without its trainings."""
    assert re.search(
        r"^demo:.*\n\t\S*ropewalk demo$",
        (ROOT / "Makefile").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    run([fresh / "ropewalk", "demo", "--check-only", "--tokens", "16", "--out", "report"], tmp_path)
    report = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "# " in report
    assert all(
        (tmp_path / "report" / picture).exists()
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", report)
    )
