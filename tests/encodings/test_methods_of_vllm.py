"""FoPE and dual chunk attention compared with vLLM's modules, where vLLM is installed."""

import os

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from ropewalk.attention.remap import DualChunk
from ropewalk.encodings import Fourier, Sizes

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
config = pytest.importorskip("vllm.config", reason="vLLM is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of vLLM's imports


@pytest.fixture(autouse=True)
def configured():
    """vLLM's modules read its config when they are made."""
    with config.set_current_vllm_config(config.VllmConfig()):
        yield


def test_fope_equals_vllm():
    from vllm.model_executor.layers.rotary_embedding.fope import FourierRotaryEmbedding

    ours = Fourier(Sizes(3, 8, 24, 64), gain=0.6, per_head=True)
    theirs = FourierRotaryEmbedding(8, 8, 64, 1e4, True, torch.float32, False, 3, None, True, 0.5)
    theirs.cos_coef.data.copy_(ours.cos_mix)
    theirs.sin_coef.data.copy_(ours.sin_mix)
    q, k, at = torch.randn(7, 3, 8), torch.randn(7, 3, 8), torch.tensor([0, 1, 2, 3, 40, 62, 63])
    found = theirs.forward_native(at, q.flatten(1), k.flatten(1))
    for x, other, key in zip((q, k), found, (False, True), strict=True):
        assert_close(
            ours.rotate(x.transpose(0, 1)[None], at, key=key)[0].transpose(0, 1),
            other,
            rtol=0,
            atol=2e-5,
        )


def test_the_positions_of_dual_chunk_attention_equal_vllm(monkeypatch):
    from vllm.model_executor.layers.rotary_embedding.dual_chunk_rope import DualChunkRotaryEmbedding

    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch, "device", lambda name: "cpu")  # the module puts its tables on a GPU
    theirs = DualChunkRotaryEmbedding(8, 8, 40, 1e4, True, torch.float32, 10, 3)
    q, k, at = torch.randn(40, 2, 8), torch.randn(40, 1, 8), torch.arange(40)
    rotated_q, rotated_k = theirs.forward_native(at, q.flatten(1), k.flatten(1))
    monkeypatch.undo()
    rope = rw.Rope(rw.RopeSpec(8))
    pieces = DualChunk(10, 3).pieces(at, at)
    # the queries for keys of the same chunk, of the chunk before and of older ones; two more choose
    # sparse tokens
    for piece, other in zip(pieces, rotated_q.chunk(5, dim=-1)[:3], strict=True):
        assert_close(
            rope.rotate(q[None], piece.q_positions, seq_dim=-3)[0].flatten(1),
            other,
            rtol=0,
            atol=5e-6,
        )
        assert_close(
            rope.rotate(k[None], piece.k_positions, seq_dim=-3)[0].flatten(1),
            rotated_k,
            rtol=0,
            atol=5e-6,
        )
