"""What a release publishes: one version everywhere, a changelog for users, checks on both machines."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

import ropewalk as rw

ROOT = Path(__file__).parents[1]
yaml = pytest.importorskip("yaml", reason="reads the workflow")


def test_package_citation_and_changelog_have_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == rw.__version__
    assert f"## [{rw.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_has_at_most_80_lines():
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 80


def test_every_extra_is_explained():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    table = (ROOT / "docs" / "start.md").read_text(encoding="utf-8").partition("## Extras")[2]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))))
    assert set(project["optional-dependencies"]) <= named
    assert project["authors"] == [{"name": "The ropewalk maintainers"}]


def test_the_workflow_checks_and_builds_on_x86_and_arm():
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))["jobs"]
    ran = {
        step["run"]: job["strategy"]["matrix"]
        for job in jobs.values()
        for step in job["steps"]
        if "run" in step
    }
    both = ["ubuntu-24.04", "ubuntu-24.04-arm"]
    assert ran[".ci/run"]["machine"] == ran["make release"]["machine"] == both
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {shlex.split(each)[1] for each in ran if each.startswith("make ")}
    assert made == {"release", "test-torch", "test-transformers"}
    assert made <= targets
    releases = ran["make test-transformers TRANSFORMERS=${{ matrix.transformers }}"]["transformers"]
    assert releases[0].startswith("4.51.")
    assert releases[-1].startswith("5.")


@pytest.mark.parametrize(
    "folder", sorted((ROOT / "plugins").glob("*/")), ids=lambda path: path.name
)
def test_every_plug_in_says_how_it_is_installed(folder):
    assert f"./plugins/{folder.name}" in (folder / "README.md").read_text(encoding="utf-8")
