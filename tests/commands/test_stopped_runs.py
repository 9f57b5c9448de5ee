"""Ctrl-C and SIGTERM end a training with exit code 130, after its checkpoint and its outcome."""

import json
import os
import signal
from types import SimpleNamespace

import pytest

from command_line import call
from finetune_tiny import write_checkpoint, write_triplets
from ropewalk.commands import train
from ropewalk.lab.runs import HeldOut


@pytest.fixture
def interrupted(monkeypatch):
    """Send a signal to this process at the first evaluation of a run."""

    def send(number):
        monkeypatch.setattr(HeldOut, "__call__", lambda self, trainer: os.kill(os.getpid(), number) or {})

    return send


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_ends_with_130(tmp_path, capsys, interrupted, number):
    changes = ["data.task=copy", "train.stages=[{length=16,batch=2,steps=5}]", "train.evaluate_every=3"]
    given = ["train", "smoke", "--folder", tmp_path / "run", "--device", "cpu", "--json"]
    given += [word for change in changes for word in ("--set", change)]
    interrupted(number)
    code, out, _ = call(capsys, *given)
    assert (code, json.loads(out)["stopped"], json.loads(out)["step"]) == (130, True, 4)
    code, out, _ = call(capsys, *given, "--set", "train.evaluate_every=0")
    assert (code, json.loads(out)["stopped"], json.loads(out)["step"]) == (0, False, 5)


def test_a_stopped_fine_tuning_ends_with_130(tmp_path, capsys, interrupted):
    start, train = write_checkpoint(tmp_path / "start"), write_triplets(tmp_path / "train.json", 64)
    given = ["lab", "finetune", start, "--train", train, "--folder", tmp_path / "run", "--length", 16, "--device", "cpu"]
    interrupted(signal.SIGINT)
    code, out, err = call(capsys, *given, "--epochs", 3)
    assert (code, err) == (130, "")
    assert out.startswith("stopped at step")


def test_a_loss_that_is_not_known_is_a_dash(capsys, tmp_path):
    outcome = SimpleNamespace(stopped=True, step=0, loss=None, seconds=1.0)
    train.show(SimpleNamespace(outcome=outcome, model=None, reason="stopped"), tmp_path)
    assert capsys.readouterr().out.startswith("stopped at step 0, loss -, 1 s; log: ")
    assert (train.loss_text(0.0), train.loss_text(1.23456)) == ("0.0000", "1.2346")
