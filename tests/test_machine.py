"""What is stored with a measured row about the machine."""

import platform

import torch

from ropewalk.machine import cores, machine, version, versions


def test_a_row_has_the_machine_versions_and_date():
    here = machine("cpu")
    assert list(here) == ["machine", "python", "versions", "date"]
    assert here["machine"].startswith(platform.machine())
    assert here["versions"]["torch"] == torch.__version__
    assert len(here["date"]) == len("2026-01-01")


def test_only_installed_packages_have_a_version():
    assert version("no-such-package") is None
    assert list(versions(("torch", "no-such-package"))) == ["torch"]
    assert cores() >= 1
