"""Remapped distances with frequencies that depend on the length of the sequence."""

import pytest
import torch

from ropewalk.attention import Attention, KVCache
from ropewalk.attention.remap import DualChunk, ReRope, SelfExtend
from ropewalk.frequencies import Dynamic
from ropewalk.spec import RopeSpec
from tensor_forms import tensors

SPEC = RopeSpec(8, scaling=Dynamic(factor=2.0, original_length=16))
SEQ = 40


@pytest.mark.parametrize(
    "remapping", [ReRope(8), SelfExtend(2, 8), DualChunk(12, 4)], ids=lambda each: each.name
)
@pytest.mark.parametrize("kind", ["default", "shared", "uint8", "padding"])
def test_remapped_pieces_use_the_frequencies_of_the_true_length(remapping, kind):
    """The expected scores rotate by the remapped distances, with the frequencies that each row has at
    its length, the last position + 1.
    """
    torch.manual_seed(0)
    layer = Attention(32, 4, encoding=SPEC, remapping=remapping).double()
    x, rows, call = torch.randn(2, SEQ, 32).double(), torch.arange(SEQ).expand(2, -1), {}
    real = torch.ones(2, SEQ, dtype=torch.bool)
    if kind == "shared":
        rows, call = rows + 5, {"positions": torch.arange(SEQ) + 5}
    elif kind == "uint8":
        rows = rows + 256 - SEQ
        call = {"positions": rows.to(torch.uint8)}
    elif kind == "padding":
        real = torch.arange(SEQ).expand(2, -1) >= torch.tensor([[13], [0]])
        rows, call = (real.cumsum(-1) - 1).clamp(min=0), {"padding": real}
    q, k, v = layer.project(x)
    expected = []
    for b, positions in enumerate(rows):
        radians = tensors(SPEC, int(positions[-1]) + 1).radians
        angles = remapping.distances(positions, positions)[..., None] * radians
        q_pairs, k_pairs = (torch.complex(t[b, ..., :4], t[b, ..., 4:]) for t in (q, k))
        scores = torch.einsum(
            "hic,ijc,hjc->hij",
            q_pairs,
            torch.polar(torch.ones_like(angles), angles),
            k_pairs.conj(),
        ).real
        sees = torch.ones(SEQ, SEQ).tril().bool() & real[b]
        weights = (scores * layer.scale).masked_fill(~sees, float("-inf")).softmax(-1)
        expected.append(layer.o_proj((weights @ v[b]).transpose(0, 1).flatten(-2))[real[b]])
    for cache in (None, KVCache()):
        found = layer(x, cache=cache, **call).out
        torch.testing.assert_close(found[real], torch.cat(expected), atol=1e-10, rtol=1e-8)


def test_remapped_attention_of_no_tokens_gives_no_output():
    assert Attention(32, 4, encoding=SPEC, remapping=SelfExtend(2, 8))(
        torch.zeros(2, 0, 32)
    ).out.shape == (2, 0, 32)
