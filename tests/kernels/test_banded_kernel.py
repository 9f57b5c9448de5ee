"""The kernel of attention over a band without a GPU: equal to plain torch under the interpreter, and machine code for sm_90."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hopper import CompileInstead, registers_and_spills

from ropewalk.attention import lse
from ropewalk.attention.backends import Call
from ropewalk.attention.masks import Visibility
from ropewalk.attention.remap import DualChunk, SelfExtend
from ropewalk.errors import RopeError
from ropewalk.kernels.banded import api
from torch_release import needs_triton_3_6

triton = pytest.importorskip("triton", reason="triton has no build for this platform")


def calls(remapping, batch, heads, k_heads, tokens, head_dim, width, dtype=torch.float32):
    torch.manual_seed(0)
    positions = torch.arange(tokens).expand(batch, -1)
    q, k = torch.randn(batch, heads, tokens, head_dim, dtype=dtype), torch.randn(batch, k_heads, tokens, head_dim, dtype=dtype)
    v = torch.randn(batch, k_heads, tokens, width, dtype=dtype)
    return [Call(q, k, v, 0.3, Visibility(True, band=piece.band)) for piece in remapping.pieces(positions, positions)]


def compare_with_plain_torch() -> None:
    """Odd sizes, grouped heads, values of another width, and queries that see no key of a piece."""
    for remapping in (SelfExtend(4, 64), DualChunk(96, 20)):
        for sizes in ((1, 4, 2, 261, 20, 20), (2, 6, 2, 5, 16, 24)):
            for call in calls(remapping, *sizes):
                assert lse.triton_why_not(call) is None
                expected, found = lse.run_math(call), lse.attend_with_lse(call)
                torch.testing.assert_close(found.out, expected.out, atol=1e-5, rtol=1e-5)
                torch.testing.assert_close(found.lse, expected.lse, atol=1e-5, rtol=1e-5)


def test_it_equals_plain_torch_under_the_interpreter():
    code = "import test_banded_kernel; test_banded_kernel.compare_with_plain_torch()"
    paths = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


def test_what_it_cannot_run_goes_to_plain_torch(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    call = calls(SelfExtend(4, 8), 1, 2, 2, 17, 16, 16)[0]
    with pytest.raises(RopeError, match="CUDA tensors"):
        lse.attend_with_lse(call, "triton")
    torch.testing.assert_close(lse.attend_with_lse(call).out, lse.run_math(call).out)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert lse.triton_why_not(call) is None
    call.q.requires_grad_()
    assert "no backward" in lse.triton_why_not(call)
    masked = Call(call.q, call.k, call.v, 1.0, Visibility(True, padding=torch.ones(1, 17, dtype=torch.bool)))
    assert "no other mask" in lse.triton_why_not(masked)


@needs_triton_3_6
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize("head_dim", [64, 128])
def test_it_fits_a_hopper(head_dim, tmp_path, monkeypatch):
    built: list = []
    monkeypatch.setattr(api, "untyped", lambda kernel: CompileInstead(kernel, built, TILES=0))
    lse.run_triton(calls(SelfExtend(4, 64), 1, 6, 2, 256, head_dim, head_dim, torch.bfloat16)[1])
    ((_, code),) = built
    assert registers_and_spills(code, tmp_path)[1] == 0
    assert code.metadata.shared <= 232_448  # what one multiprocessor of a Hopper has
    assert "wgmma" in code.asm["ptx"]


@needs_triton_3_6
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")
@pytest.mark.parametrize(
    ("head_dim", "dtype"), [(128, torch.bfloat16), (64, torch.float32), (128, torch.float32)], ids=str
)  # fmt: skip
def test_on_a_consumer_gpu_it_takes_what_fits_into_shared_memory(head_dim, dtype, monkeypatch):
    built: list = []
    monkeypatch.setattr(api, "untyped", lambda kernel: CompileInstead(kernel, built, capability=89, TILES=0))
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
