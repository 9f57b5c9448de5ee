"""The linear-attention kernels without a GPU: where they apply, and their machine code for sm_90."""

from __future__ import annotations

import pytest
import torch
from hopper import CompileInstead, registers_and_spills

import ropewalk as rw
from ropewalk.attention import linear_attention
from ropewalk.errors import RopeError
from ropewalk.kernels.linear_attention import api as kernels
from ropewalk.kernels.linear_attention import definition
from torch_release import needs_triton_3_6

triton = pytest.importorskip("triton", reason="triton has no build for this platform")


def test_a_cpu_tensor_is_computed_by_torch_and_backend_triton_raises_the_reason(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    q = torch.randn(1, 3, 5, 10)
    with pytest.raises(RopeError, match="CUDA tensors"):
        linear_attention(q, q, q, rw.Rope(rw.RopeSpec(10)), backend="triton")
    assert linear_attention(q, q, q, rw.Rope(rw.RopeSpec(10)))[0].shape == q.shape


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("feature", kernels.FEATURES)
def test_the_definition_equals_sums_over_chunks(feature, layout):
    """Two calls in a row, so that the second has a state; some tokens are padding, and the first of
    a row sees no key.
    """
    torch.manual_seed(2)
    spec = rw.RopeSpec(10, layout=layout)
    q, k, v = (torch.randn(2, 3, 40, size, dtype=torch.float64) for size in (10, 10, 6))
    positions, real = torch.randint(0, 90, (2, 40)), torch.rand(2, 40) > 0.2
    real[0, 0] = False
    scale = torch.tensor([0.3, 0.9, 0.5], dtype=torch.float64).view(3, 1, 1)
    cosine = feature == "cosine"
    how = {"form": "cosine", "scale": scale} if cosine else {"phi": feature}
    state, rows = None, 11 if cosine else 10
    sums = torch.zeros(2, 3, rows, 6).double(), torch.zeros(2, 3, rows).double()
    for part in (slice(0, 17), slice(17, 40)):
        tensors, at, some = [t[:, :, part] for t in (q, k, v)], positions[:, part], real[:, part]
        options = {"padding": some, "state": state, "chunk": 8, "backend": "torch", **how}
        want, state = linear_attention(*tensors, rw.Rope(spec), at, **options)
        call = kernels.LinearCall(spec, feature, at, some, 1e-6)
        got, *sums = definition.run(*tensors, *sums, scale if cosine else None, call)
        for ours, theirs in zip((got, *sums), (want, *state[:2]), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert not want.isnan().any()


@needs_triton_3_6
@pytest.mark.parametrize("feature", kernels.FEATURES)
@pytest.mark.parametrize(
    ("dtype", "head_dim"),
    [(torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 64)],
    ids=str,
)
def test_the_linear_kernels_fit_into_the_shared_memory_of_a_hopper(
    dtype, head_dim, feature, tmp_path, monkeypatch
):
    """Both kernels are compiled with the arguments of one real call. For heads of 64 dims they spill
    at most 64 bytes of registers; for heads of 128 they spill more, which is the fastest choice.
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
    # what one multiprocessor of a Hopper has
    assert all(code.metadata.shared <= 232_448 for _, code in built)
