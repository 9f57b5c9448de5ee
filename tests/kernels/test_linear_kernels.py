"""The linear-attention kernels without a GPU: where they apply, and their machine code for sm_90."""

from __future__ import annotations

import pytest
import torch
from hopper import CompileInstead, registers_and_spills

import ropewalk as rw
from ropewalk.attention import linear_attention
from ropewalk.errors import RopeError
from ropewalk.kernels.linear_attention import api as kernels
from torch_release import needs_triton_3_6

triton = pytest.importorskip("triton", reason="triton has no build for this platform")


def test_a_cpu_tensor_is_taken_by_torch_and_the_reason_is_told(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.randn(1, 3, 5, 10)
    with pytest.raises(RopeError, match="CUDA tensors"):
        linear_attention(q, q, q, rw.Rope(rw.RopeSpec(10)), backend="triton")
    assert linear_attention(q, q, q, rw.Rope(rw.RopeSpec(10)))[0].shape == q.shape


@needs_triton_3_6
@pytest.mark.parametrize("feature", kernels.FEATURES)
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [(torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 64)],
    ids=str,
)
def test_it_fits_a_hopper(dtype, head_dim, feature, tmp_path, monkeypatch):
    """Every kernel, with the arguments one real call gives it; a wide head spills and is fastest
    so, others hardly do.
    """
    built: list = []
    operand = {"OPERAND": triton.language.bfloat16} if dtype == torch.bfloat16 else {}
    monkeypatch.setattr(kernels, "untyped", lambda kernel: CompileInstead(kernel, built, **operand))
    monkeypatch.setattr(kernels, "has_sine_unit", lambda x: True)
    rows = head_dim + (feature == "cosine")
    x = torch.empty(1, 16, 256, head_dim, dtype=dtype)
    call = kernels.LinearCall(rw.RopeSpec(head_dim), feature, torch.arange(256)[None], None, 1e-6)
    scale = torch.ones(()) if feature == "cosine" else None
    kernels.run(x, x, x, torch.zeros(1, 16, rows, head_dim), torch.zeros(1, 16, rows), scale, call)
    assert [name for name, _ in built] == ["segment_sums", "segment_out"]
    if head_dim <= 64:
        assert all(registers_and_spills(code, tmp_path)[1] <= 64 for _, code in built)
    assert all(
        code.metadata.shared <= 232_448 for _, code in built
    )  # what one multiprocessor of a Hopper has
