"""What a run tells and writes: lines where there is no terminal, bars where there is one, files,
and numbers for TensorBoard.
"""

import errno
import io
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ropewalk.interop.checkpoint.atomic_folder import atomic_folder
from ropewalk_cli.commands import demo
from ropewalk_lab import log, studies
from ropewalk_lab.json_lines import write_atomically
from ropewalk_lab.log import LOG, Log
from ropewalk_lab.progress import Progress
from ropewalk_lab.studies import jobs
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.rows import row


def training_log(models: Path) -> Path:
    """The log of one training in a folder of models."""
    path = models / "rope-0-1a2b" / LOG
    path.parent.mkdir()
    path.write_text(json.dumps({"step": 20, "loss": 2.5}) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("seconds", "quiet", "printed"), [(0.0, False, True), (60.0, False, False), (0.0, True, False)]
)
def test_running_trainings_are_printed_as_lines_where_there_is_no_terminal(
    capsys, tmp_path, monkeypatch, seconds, quiet, printed
):
    monkeypatch.setattr(jobs, "LINES", seconds)
    training_log(tmp_path)
    jobs._Status("encodings", 4, 1, quiet).show_trainings(tmp_path)
    assert capsys.readouterr().err == (
        "encodings: rope-0 step 20 loss 2.50 (1 of 4)\n" if printed else ""
    )


@pytest.mark.parametrize(("age", "shown"), [(14.5, "rope-0 step 20 loss 2.50"), (15.5, "running")])
def test_a_training_that_wrote_nothing_for_15_seconds_is_not_printed(
    capsys, tmp_path, monkeypatch, age, shown
):
    monkeypatch.setattr(jobs, "LINES", 0.0)
    path, now = training_log(tmp_path), time.time()
    os.utime(path, (now - age, now - age))
    monkeypatch.setattr(jobs, "time", SimpleNamespace(time=lambda: now, monotonic=time.monotonic))
    jobs._Status("encodings", 4, 1, quiet=False).show_trainings(tmp_path)
    assert capsys.readouterr().err == f"encodings: {shown} (1 of 4)\n"


def test_lines_of_progress_are_at_most_twenty_seconds_apart():
    assert jobs.LINES + jobs.POLL <= 20


def test_a_finished_job_is_printed_with_its_seconds_and_its_number(capsys, tmp_path):
    runner = JobRunner(
        tmp_path / "squares", Workspace(tmp_path, torch.device("cpu")), {}, 1, 1, quiet=False
    )
    runner.run(Job(name, lambda workspace: [row("area", 4.0)]) for name in ("one", "two"))
    assert capsys.readouterr().err == "squares: one, 0 s (1 of 2)\nsquares: two, 0 s (2 of 2)\n"


@pytest.mark.parametrize("before", [None, "7"])
def test_workers_get_one_openmp_thread_and_the_variable_is_restored(monkeypatch, before):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if before is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    with jobs._one_openmp_thread():
        assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ.get("OMP_NUM_THREADS") == before


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_bar_begins_with_what_is_done(monkeypatch):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    Progress("train", 10, 4, enabled=True).close()
    assert "4/10" in shown.getvalue()


def test_a_pipe_gets_a_line_every_few_seconds(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ropewalk_lab.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    progress = Progress("train", 40, 0, enabled=True)
    for step in range(1, 41):
        now[0] = step  # one step a second
        progress.show(step, f"loss\x1b {step}")
    progress.show(40, "the end", 41, now=True)
    progress.close()
    lines = [f"train: loss\\x1b {step} ({step} of 40)\n" for step in (10, 20, 30, 40)]
    assert capsys.readouterr().err == "".join(lines) + "train: the end (40 of 41)\n"


@pytest.mark.parametrize("enabled", [True, False])
def test_a_terminal_has_one_line_that_changes(monkeypatch, enabled):
    shown = Terminal()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "30")
    progress = Progress("fit", 0, 0, enabled=enabled)
    progress.show(1, "window 1 " + "x" * 90)
    progress.show(2, "window 2")
    progress.close()
    if not enabled:
        assert shown.getvalue() == ""
        return
    written = shown.getvalue().removesuffix("\n").split("\r")[1:]
    assert "\n" not in "".join(written)
    assert all(each.endswith("\x1b[K") and len(each) < 30 + 3 for each in written)
    assert written[-1].startswith("fit 2 0:00 window 2")


def test_tensorboard_gets_every_number_of_a_row_at_its_step(tmp_path, monkeypatch):
    added = []
    board = SimpleNamespace(add_scalar=lambda *values: added.append(values))
    monkeypatch.setattr(log, "_tensorboard", lambda folder: board)
    line = {
        "step": 3,
        "loss": 2.5,
        "done": True,
        "text": "a",
        "evaluation": {"valid": {"count": 4}},
    }
    Log(tmp_path, tensorboard=True).write([line])
    assert added == [("loss", 2.5, 3), ("evaluation/valid/count", 4, 3)]


def test_a_file_is_written_with_the_folders_it_needs(tmp_path):
    write_atomically(tmp_path / "a" / "b" / "c.txt", "rope")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "rope"


def test_a_full_disk_names_the_file_and_leaves_no_draft(tmp_path, monkeypatch):
    (tmp_path / "c.txt").write_text("old")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*c\.txt'"):
        write_atomically(tmp_path / "c.txt", "new")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"c.txt": "old"}
    with (
        pytest.raises(OSError, match=r"No space left on device: '.*folder'"),
        atomic_folder(tmp_path / "folder"),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["c.txt"]


def test_a_file_is_utf_8_on_every_machine(tmp_path, monkeypatch):
    """As on a machine whose default encoding is ASCII."""
    usual = Path.open

    def as_ascii(self, mode="r", buffering=-1, encoding=None, **options):
        return usual(
            self, mode, buffering, encoding or (None if "b" in mode else "ascii"), **options
        )

    monkeypatch.setattr(Path, "open", as_ascii)
    write_atomically(tmp_path / "c.txt", "绳é")
    assert (tmp_path / "c.txt").read_bytes() == "绳é".encode()


@pytest.mark.parametrize("size", [demo.SHORT, demo.FULL], ids=["short", "full"])
def test_the_settings_of_the_demo_are_valid(size):
    for name, changes in size.studies.items():
        settings = studies.STUDIES[name].settings("cpu", changes)
        assert settings["encodings" if name == "encodings" else "methods"]
    assert demo.SHORT.steps < demo.FULL.steps
