"""Parts of a training, one at a time: micro-batches, old checkpoints, the optimizer's state, the
clip, the speed of bfloat16.
"""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk_lab import checkpoint, precision
from ropewalk_lab.batches import Batch
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.gradients import GradientNorms
from ropewalk_lab.loader import Loader
from ropewalk_lab.schedule import Stage


class Numbered:
    """Batches whose tokens are the numbers of their samples."""

    vocab_size, fingerprint = 100, "numbered"

    def batch(self, index: np.ndarray, length: int) -> Batch:
        tokens = torch.from_numpy(index)[:, None].repeat(1, length)
        return Batch(tokens, tokens, tokens.numel())


def test_micro_batches_are_consecutive_parts_of_a_step():
    loader = Loader(Numbered(), (Stage(5, 6, 4),), 2, Parallel())
    found = [batch.inputs[:, 0].tolist() for batch in loader.load(3).micro_batches]
    assert found == [[18, 19, 20], [21, 22, 23]]  # three steps of six samples came before


def test_an_old_checkpoint_that_cannot_be_removed_stays(tmp_path):
    """A user has moved the checkpoint to another disk and left a link, which rmtree does not remove."""
    (tmp_path / "elsewhere").mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "step-000000001").symlink_to(tmp_path / "elsewhere")
    checkpoint.write_checkpoint(run, 2, {"model.safetensors": {"x": torch.ones(2)}}, {}, keep=1)
    assert [path.name for path in checkpoint.checkpoints(run)] == [
        "step-000000002",
        "step-000000001",
    ]
    assert (tmp_path / "elsewhere").is_dir()


def test_damaged_checkpoints_of_later_steps_do_not_count_as_kept(tmp_path):
    """Steps 8 and 9 are damaged, so the run goes on from step 5 and saves step 7."""
    files = {"model.safetensors": {"x": torch.ones(2)}}
    for step in (5, 8, 9):
        checkpoint.write_checkpoint(tmp_path, step, files, {}, keep=3)
    for step in (8, 9):
        (tmp_path / f"step-{step:09d}" / "model.safetensors").write_bytes(b"")
    checkpoint.write_checkpoint(tmp_path, 7, files, {}, keep=2)
    assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
        "step-000000007",
        "step-000000005",
    ]
    newest = checkpoint.read_newest(tmp_path)
    assert newest is not None
    assert newest[0]["step"] == 7


@pytest.mark.parametrize(("fused", "device"), [(True, "meta"), (False, "cpu")])
def test_the_step_of_a_fused_optimizer_is_on_the_device_of_the_weights(fused, device):
    """The meta device stands for a GPU; torch has no fused AdamW for it, so an object with the same
    attributes is used.
    """
    model = nn.Linear(3, 2, bias=False, device="meta")
    optimizer: Any = SimpleNamespace(defaults={"fused": fused}, state=defaultdict(dict))
    checkpoint.load_optimizer(
        model, optimizer, {"step weight": torch.tensor(7.0), "exp_avg weight": torch.ones(2, 3)}
    )
    found = {name: value.device.type for name, value in optimizer.state[model.weight].items()}
    assert found == {"step": device, "exp_avg": "meta"}


def test_a_tiny_gradient_is_clipped_as_torch_does():
    """Its norm, 5e-6, is so small that the 1e-6 in the denominator matters."""
    ours, theirs = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    for model in (ours, theirs):
        model.weight.grad = torch.tensor([[3e-6, 4e-6]])
    norms = GradientNorms(ours, Parallel())
    norms.clip(norms.measure()[0], 1e-6)
    nn.utils.clip_grad_norm_(theirs.parameters(), 1e-6)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("float32", "bfloat16", "faster"), [(2.0, 1.0, True), (1.0, 1.0, False), (1.0, 2.0, False)]
)
def test_bfloat16_is_faster_only_if_it_takes_less_time(monkeypatch, float32, bfloat16, faster):
    clock = iter([0.0, float32, 10.0, 10.0 + bfloat16])
    monkeypatch.setattr(precision, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    # without the cache, which holds the answer of this machine
    measured = precision.bfloat16_is_faster.__wrapped__
    assert measured() is faster


@pytest.mark.parametrize(
    ("asked", "device", "faster", "used"),
    [
        ("bfloat16", "cpu", True, "bfloat16"),
        ("bfloat16", "cpu", False, "float32"),
        ("bfloat16", "cuda", False, "bfloat16"),
        ("float32", "cpu", True, "float32"),
        ("float32", "cuda", False, "float32"),
    ],
)
def test_only_a_cpu_that_is_slower_in_bfloat16_trains_in_float32(
    monkeypatch, asked, device, faster, used
):
    monkeypatch.setattr(precision, "bfloat16_is_faster", lambda: faster)
    assert precision.usable_precision(asked, torch.device(device)) == used


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_autocast_is_of_the_device_and_in_bfloat16(monkeypatch, device):
    asked = []
    monkeypatch.setattr(torch, "autocast", lambda *given: asked.append(given))
    precision.autocast("bfloat16", torch.device(device))
    assert asked == [(device, torch.bfloat16)]
    with precision.autocast("float32", torch.device(device)):
        assert len(asked) == 1
