"""Ctrl-C and SIGTERM end a training with exit code 130, after its checkpoint and its outcome."""

import errno
import json
import os
import signal
from types import SimpleNamespace

import pytest

from command_line import call
from finetune_tiny import write_checkpoint, write_triplets
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder, lock_folder
from ropewalk_cli.commands import train
from ropewalk_lab.runs import HeldOut


@pytest.fixture
def interrupted(monkeypatch):
    """Send a signal to this process at the first evaluation of a run."""

    def send(number):
        monkeypatch.setattr(
            HeldOut, "__call__", lambda self, trainer: os.kill(os.getpid(), number) or {}
        )

    return send


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_ends_with_130(tmp_path, capsys, interrupted, number):
    changes = [
        "data.task=copy",
        "train.stages=[{length=16,batch=2,steps=5}]",
        "train.evaluate_every=3",
    ]
    given = ["train", "smoke", "--folder", tmp_path / "run", "--device", "cpu", "--json"]
    given += [word for change in changes for word in ("--set", change)]
    interrupted(number)
    code, out, _ = call(capsys, *given)
    assert (code, json.loads(out)["stopped"], json.loads(out)["step"]) == (130, True, 4)
    code, out, _ = call(capsys, *given, "--set", "train.evaluate_every=0")
    assert (code, json.loads(out)["stopped"], json.loads(out)["step"]) == (0, False, 5)


def test_a_stopped_fine_tuning_ends_with_130(tmp_path, capsys, interrupted):
    start, train = write_checkpoint(tmp_path / "start"), write_triplets(tmp_path / "train.json", 64)
    given = [
        "lab",
        "finetune",
        start,
        "--train",
        train,
        "--folder",
        tmp_path / "run",
        "--length",
        16,
        "--device",
        "cpu",
    ]
    interrupted(signal.SIGINT)
    code, out, err = call(capsys, *given, "--epochs", 3)
    assert (code, err) == (130, "")
    assert out.startswith("stopped at step")


def test_two_runs_in_one_folder_at_once_are_refused(tmp_path, capsys):
    """Both would write one log, and each would remove the checkpoints of the other."""
    run, changes = (
        tmp_path / "runs" / "one",
        ["data.task=copy", "train.stages=[{length=16,batch=2,steps=2}]"],
    )
    given = [
        "train",
        "smoke",
        "--folder",
        run,
        "--device",
        "cpu",
        *(word for each in changes for word in ("--set", each)),
    ]
    run.mkdir(parents=True)
    first = lock_folder(run)  # held by another run
    code, out, err = call(capsys, *given)
    assert (code, out, list(run.iterdir())) == (2, "", [])
    assert err.startswith(
        "ropewalk: --folder: must not be that of a run that is still going; wait for it"
    )
    os.close(first)
    assert call(capsys, *given)[0] == 0


def test_a_refused_run_leaves_no_folder(tmp_path, capsys):
    code, _, _ = call(
        capsys, "train", "smoke", "--folder", tmp_path / "run", "--set", "model.encoding=nonsense"
    )
    assert (code, list(tmp_path.iterdir())) == (2, [])


def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", flock)
    with atomic_folder(tmp_path / "model") as draft:
        (draft / "weights").write_text("1")
    assert (tmp_path / "model" / "weights").read_text() == "1"


def test_a_loss_that_is_not_known_is_a_dash(capsys, tmp_path):
    outcome = SimpleNamespace(stopped=True, step=0, loss=None, seconds=1.0)
    train.show(SimpleNamespace(outcome=outcome, model=None, reason="stopped"), tmp_path)
    assert capsys.readouterr().out.startswith("stopped at step 0, loss -, 1 s; log: ")
    assert (train.loss_text(0.0), train.loss_text(1.23456)) == ("0.0000", "1.2346")
