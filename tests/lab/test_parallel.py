"""Two processes train as one: the same losses, norms and weights, copied, sharded, or with
sequences cut in two.
"""

import json
import socket

import pytest
import torch
import torch.distributed as dist
from rank_cases import WORLD, evaluated_run, shared_run, start

from another_process import start_processes
from ropewalk.errors import RopeError
from ropewalk.models import load
from ropewalk_lab import checkpoint
from ropewalk_lab.distributed import Parallel, launched, pick_device
from ropewalk_lab.log import read_log
from torch_release import OLD_TORCH, needs_torch_2_7

FSDP = pytest.param("fsdp", marks=needs_torch_2_7("fully_shard needs an accelerator"))
KINDS = ["ddp", FSDP, "context"]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    folder = tmp_path_factory.mktemp("ranks")
    alone = shared_run(folder, "none")
    kinds = ["ddp", "context"] if OLD_TORCH else ["ddp", "fsdp", "context"]
    start_processes(start, (str(folder), {kind: free_port() for kind in kinds}), WORLD)
    return folder, alone


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_to_the_losses_of_one(runs, kind):
    folder, alone = runs
    expected, found = alone.log.rows(), read_log(folder / kind / "log.jsonl")
    assert [row["step"] for row in found] == [row["step"] for row in expected] == list(range(1, 10))
    for own, one in zip(found, expected, strict=True):
        assert own["loss"] == pytest.approx(one["loss"], abs=1e-5)
        assert own["gradient"] == pytest.approx(one["gradient"], rel=1e-4)
    for name, norm in expected[-1]["gradients"].items():
        assert found[-1]["gradients"][name] == pytest.approx(norm, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_checkpoint_of_two_processes_has_the_weights_of_one(runs, kind):
    folder, alone = runs
    _, files = checkpoint.read_checkpoint(checkpoint.checkpoints(folder / kind)[0])
    assert files["random.safetensors"]["cpu"].shape[0] == WORLD
    for name, weight in alone.model.named_parameters():
        torch.testing.assert_close(
            files["model.safetensors"][name], weight.detach(), atol=2e-5, rtol=1e-4
        )
    assert (
        files["optimizer.safetensors"].keys()
        == checkpoint.optimizer_tensors(alone.model, alone.optimizer).keys()
    )


@pytest.mark.parametrize("kind", ["ddp", FSDP])
def test_a_model_on_two_processes_predicts_as_on_one(runs, kind):
    folder, alone = runs
    found = torch.load(folder / f"{kind}.answer", weights_only=True)
    torch.testing.assert_close(
        found, alone.predict(torch.arange(16).view(1, 16)), atol=1e-4, rtol=1e-3
    )


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_evaluate_and_write_their_model_as_one(runs, kind):
    folder, _ = runs
    alone = evaluated_run(folder, f"beside-{kind}", Parallel())
    found = json.loads((folder / f"evaluated-{kind}" / "results.json").read_text())["valid"]
    assert found["count"] == alone.held_out["valid"].count
    assert found["loss"] == pytest.approx(alone.held_out["valid"].loss, abs=1e-4)
    assert found["accuracy"] == pytest.approx(
        alone.held_out["valid"].accuracy, abs=2 / found["count"]
    )
    written, expected = (
        load(each).state_dict() for each in (folder / f"evaluated-{kind}" / "model", alone.model)
    )
    for name, weight in expected.items():
        # one step of AdamW is as large as its rate
        torch.testing.assert_close(written[name], weight, atol=2e-3, rtol=1e-3)


def test_a_parallel_kind_that_does_not_fit_torchrun_is_refused(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(RopeError, match="torchrun"), launched("ddp"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RopeError, match="ddp, fsdp or context"), launched("none"):
        pass


def test_a_device_that_is_not_here_is_refused():
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(RopeError, match="CUDA is not available here"):
        pick_device("cuda")
