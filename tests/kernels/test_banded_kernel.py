"""The kernel of attention over a band without a GPU: what it runs, and machine code;
interpreted_banded.py has its laws.
"""

from __future__ import annotations

import os

import pytest
import torch
from banded_calls import calls
from hopper import CompileInstead, registers_and_spills

from ropewalk.attention import lse
from ropewalk.attention.backends import Call
from ropewalk.attention.masks import Visibility
from ropewalk.attention.remap import DualChunk, SelfExtend
from ropewalk.errors import RopeError
from ropewalk.kernels.banded_attention import api, definition
from torch_release import needs_triton_3_6

triton = pytest.importorskip("triton", reason="triton has no build for this platform")


def test_a_call_that_the_kernel_cannot_run_goes_to_plain_torch(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    call = calls(SelfExtend(4, 8), 1, 2, 2, 17, 16, 16)[0]
    with pytest.raises(RopeError, match="CUDA tensors"):
        lse.attend_with_lse(call, "triton")
    torch.testing.assert_close(lse.attend_with_lse(call).out, lse.run_math(call).out)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert lse.triton_why_not(call) is None
    call.q.requires_grad_()
    assert "no backward" in lse.triton_why_not(call)
    masked = Call(
        call.q, call.k, call.v, 1.0, Visibility(True, padding=torch.ones(1, 17, dtype=torch.bool))
    )
    assert "no other mask" in lse.triton_why_not(masked)


@pytest.mark.parametrize("remapping", [SelfExtend(4, 8), DualChunk(12, 3)], ids=str)
def test_the_definition_equals_attention_in_blocks_of_queries(remapping, monkeypatch):
    """`run_math` computes the same another way: from masks of any kind, a few queries at a time."""
    monkeypatch.setattr(lse, "MOST_SCORES", 100)
    monkeypatch.setattr(lse.banded_attention, "run", definition.run)
    for call in calls(remapping, 2, 6, 2, 37, 16, 24, torch.float64):
        found, expected = lse.run_triton(call), lse.run_math(call)
        torch.testing.assert_close(found.out, expected.out)
        torch.testing.assert_close(found.lse, expected.lse)


@needs_triton_3_6
@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_kernel_spills_nothing_and_fits_into_the_shared_memory_of_a_hopper(
    head_dim, tmp_path, monkeypatch
):
    built: list = []
    monkeypatch.setattr(api, "untyped", lambda kernel: CompileInstead(kernel, built, TILES=0))
    lse.run_triton(calls(SelfExtend(4, 64), 1, 6, 2, 256, head_dim, head_dim, torch.bfloat16)[1])
    ((_, code),) = built
    assert registers_and_spills(code, tmp_path)[1] == 0
    assert code.metadata.shared <= 232_448  # what one multiprocessor of a Hopper has
    assert "wgmma" in code.asm["ptx"]


@needs_triton_3_6
@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(128, torch.bfloat16), (64, torch.float32), (128, torch.float32)], ids=str
)  # fmt: skip
def test_on_a_consumer_gpu_the_kernel_takes_only_what_fits_into_shared_memory(
    head_dim, dtype, monkeypatch
):
    built: list = []
    monkeypatch.setattr(
        api, "untyped", lambda kernel: CompileInstead(kernel, built, capability=89, TILES=0)
    )
    monkeypatch.setattr(api, "shared_memory", lambda device: 99 << 10)
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # why_not then takes tensors of the CPU
    call = calls(SelfExtend(4, 64), 1, 6, 2, 256, head_dim, head_dim, dtype)[1]
    reason = lse.triton_why_not(call)
    monkeypatch.delenv("TRITON_INTERPRET")
    lse.run_triton(call)
    ((_, code),) = built
    assert (reason is None) == (code.metadata.shared <= 99 << 10)
    assert reason is None or "shared memory" in reason
    assert code.metadata.shared <= api.WIDE_FLOAT32_BYTES
