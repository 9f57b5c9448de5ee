"""Rope inside DDP and FSDP2, on one process with gloo: nothing to broadcast, nothing to shard,
nothing changed.
"""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ropewalk as rw
from helpers import HEAD_DIM, sample_spec
from torch_release import needs_torch_2_7


class Layer(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.linear, self.rope = nn.Linear(HEAD_DIM, HEAD_DIM), rw.Rope(spec)

    def forward(self, x):
        return self.rope(self.linear(x), offset=30_000)


@pytest.fixture
def group(tmp_path):
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("this torch has no gloo")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["default", "learnable"])
def test_ddp_changes_no_result_and_gives_every_parameter_a_gradient(group, name):
    layer = Layer(sample_spec(name))
    x = torch.randn(2, 3, 7, HEAD_DIM)
    expected = layer(x)
    wrapped = nn.parallel.DistributedDataParallel(layer)
    assert torch.equal(wrapped(x), expected)
    wrapped(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@needs_torch_2_7("fully_shard needs an accelerator")
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_fsdp2_in_mixed_precision_rotates_by_exact_angles(group):
    """FSDP2 casts weights and activations to bfloat16, but not the angles by which they are rotated."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    layer = Layer(sample_spec())
    x = torch.randn(2, 3, 7, HEAD_DIM)
    half = layer.linear.weight.bfloat16(), layer.linear.bias.bfloat16()
    expected = layer.rope(nn.functional.linear(x.bfloat16(), *half), offset=30_000)
    mesh = init_device_mesh("cpu", (1,))
    fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    found = layer(x)
    assert torch.equal(found, expected)
    found.sum().backward()
    assert layer.linear.weight.grad is not None
