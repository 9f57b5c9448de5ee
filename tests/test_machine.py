"""What is stored with a measured row about the machine."""

import os
import platform
from datetime import date

import pytest
import torch

from ropewalk_lab import machine as machines
from ropewalk_lab.machine import cores, machine, version, versions


def test_a_row_has_the_machine_versions_and_date():
    here = machine("cpu")
    assert list(here) == ["machine", "python", "versions", "date"]
    assert here["machine"].startswith(platform.machine())
    assert here["python"] == platform.python_version()
    assert here["versions"]["torch"] == torch.__version__
    assert here["date"] == date.today().isoformat()


def test_only_installed_packages_have_a_version():
    assert version("no-such-package") is None
    assert list(versions(("torch", "no-such-package"))) == ["torch"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: Some CPU: fast\nmodel name\t: Other", "x86 Some CPU: fast"),
        ("processor\t: 0\nCPU part\t: 0xd4f\n", "x86 0xd4f"),
        ("processor\t: 0\n", "x86 plain"),
        (None, "x86 plain"),
    ],
)
def test_a_processor_is_named_by_its_model(monkeypatch, tmp_path, text, name):
    info = tmp_path / "cpuinfo"
    if text is not None:
        info.write_text(text)
    monkeypatch.setattr(machines, "Path", lambda _: info)
    monkeypatch.setattr(platform, "machine", lambda: "x86")
    monkeypatch.setattr(platform, "processor", lambda: "plain")
    assert machine("cpu")["machine"] == name


def test_only_cores_that_this_process_may_use_are_counted(monkeypatch):
    monkeypatch.setattr(
        os, "sched_getaffinity", lambda process: {0: {3, 5, 8}}[process], raising=False
    )
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores() == 64
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1
