"""What a Decoder gives to the kernels of a GPU, and what it refuses to give, tested without a GPU;
tests/gpu runs the kernels.
"""

import pytest
import torch
from torch import nn

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import KVCache
from ropewalk.models import (
    Decoder,
    DecoderConfig,
    RoFormer,
    RoFormerConfig,
    decoder_attention,
    generation,
)
from tensor_forms import tensors

pytest.importorskip("triton", reason="triton has no build for this platform")
decode_step = pytest.importorskip("ropewalk.models.decode_step")
SIZES = {
    "vocab_size": 13,
    "hidden_size": 12,
    "intermediate_size": 8,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
}


class OnCuda(nn.Parameter):
    """A tensor that says that it is on a GPU."""

    is_cuda = True


def make(**options):
    torch.manual_seed(2)
    model = Decoder(DecoderConfig(**{**SIZES, "head_dim": 6, **options})).eval()
    model.embed_tokens.weight = OnCuda(model.embed_tokens.weight.data)
    return model


@pytest.fixture(autouse=True)
def _no_capture(monkeypatch):
    """A torch without CUDA cannot say whether a stream is being captured."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def hooked(register):
    model = make()
    getattr(model.layers[1].mlp, register)(lambda *_: None)
    return model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_dim": 256},
        {"qk_norm": True},
        {"layer_types": ("full", "nope")},
        {"activation": "swish"},
    ],
    ids=str,
)
def test_these_decoders_can_be_captured_in_a_graph(options):
    assert decode_step.why_not(make(**options), torch.zeros(256, 3, dtype=torch.int64)) is None


@pytest.mark.parametrize(
    ("model", "rows", "reason"),
    [
        (make, 257, "at most 256 rows"),
        (lambda: hooked("register_forward_hook"), 1, "GatedNetwork has forward hooks"),
        (lambda: hooked("register_forward_pre_hook"), 1, "GatedNetwork has forward hooks"),
        (lambda: make(head_dim=258), 1, "head_dim must be even and at most 256"),
        (lambda: make(head_dim=7, encoding="none"), 1, "head_dim must be even and at most 256"),
        (lambda: make(activation="gelu"), 1, "silu, not gelu"),
        (lambda: make(encoding="learned"), 1, "added to the embeddings"),
        (lambda: make(encoding="alibi"), 1, "Alibi has no decode kernel"),
        (lambda: make(remapping=rw.attention.remap.ReRope(4)), 1, "a remapping"),
        (lambda: make().train(), 1, "training mode"),
        (lambda: make().double(), 1, "must be a plain torch.float"),
    ],
)
def test_why_not_names_what_keeps_a_step_from_being_captured(model, rows, reason):
    assert reason in decode_step.why_not(model(), torch.zeros(rows, 3, dtype=torch.int64))


def test_why_not_graph_says_that_a_roformer_has_no_decode_kernels(monkeypatch):
    monkeypatch.setattr(generation, "why_no_triton", lambda x: None)  # as on a GPU
    sizes = {
        "vocab_size": 13,
        "hidden_size": 12,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 8,
    }
    model = RoFormer(RoFormerConfig(**sizes, head="causal_lm", causal=True)).eval()
    given = torch.ones(1, 3, dtype=torch.int64)
    assert "only a Decoder" in str(
        assert_refused("graph", lambda: model.generate(given, 2, graph=True))
    )


def plain(x, weight, bias, *, spec, positions, heads, norm):
    """The heads [B, S, H, D] of x @ weight^T + bias, q and k normed and rotated, as written in the
    fused call's contract.
    """
    q, k, v = (
        nn.functional.linear(x, weight, bias)
        .unflatten(-1, (-1, spec.head_dim))
        .split((*heads, heads[1]), dim=-2)
    )
    if norm is not None:
        q, k = (
            t / (t.square().mean(-1, keepdim=True) + norm.eps).sqrt() * w
            for t, w in ((q, norm.q_weight), (k, norm.k_weight))
        )
    z = torch.exp(1j * positions[:, None, None] * tensors(spec).radians)
    q, k = (
        torch.view_as_real(torch.complex(*t.chunk(2, -1)) * z).movedim(-1, -2).flatten(-2)
        for t in (q, k)
    )
    return q, k, v


@pytest.mark.parametrize(
    "cache", [None, KVCache(), KVCache(rotated=False)], ids=["none", "rotated", "not rotated"]
)
@pytest.mark.parametrize(
    "options",
    [{"qk_norm": True, "norm_eps": 0.3}, {"qk_norm": True, "qkv_bias": True}, {"qkv_bias": True}],
    ids=str,
)
def test_the_fused_projection_is_the_projection_normed_and_rotated(monkeypatch, options, cache):
    """The layer's own path serves a cache of keys that are not rotated, and heads without norms."""
    monkeypatch.setattr(decoder_attention, "FEWEST_TOKENS", 1)
    monkeypatch.setattr(decoder_attention, "qkv_norm_rope", plain)
    layer = make(**options).double().layers[0].self_attn
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x, positions = OnCuda(torch.randn(2, 5, 12, dtype=torch.float64)), torch.arange(5) + 3
    found = layer.project_rotated(x, positions, cache)
    if "qk_norm" not in options or (cache is not None and cache.rotated is False):
        assert found is None
        return
    q, k, v = layer.project(x)
    expected = (
        layer.encoding.rotate(q, positions, key=False),
        layer.encoding.rotate(k, positions, key=True),
        v,
    )
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_head_norm_holds_the_weights_and_epsilon_of_the_q_and_k_norms():
    layer = make(qk_norm=True, norm_eps=0.25).layers[0].self_attn
    norm = layer.head_norm()
    assert norm.q_weight is layer.q_norm.weight
    assert norm.k_weight is layer.k_norm.weight
    assert norm.eps == 0.25
    assert make().layers[0].self_attn.head_norm() is None


@pytest.mark.parametrize(
    ("cache", "capacity", "held"), [("growing", 2, 9), ("static", None, 9), ("static", 40, 40)]
)
def test_a_captured_step_holds_the_prompt_and_all_new_tokens(monkeypatch, cache, capacity, held):
    """A growing cache does not use its capacity."""
    opened = []
    monkeypatch.setattr(generation, "why_not_graph", lambda *_: None)
    monkeypatch.setattr(
        decode_step, "captured_step", lambda model, rows, tokens: opened.append((rows, tokens))
    )
    generation._graph_opener(
        make(), torch.zeros(2, 3, dtype=torch.int64), cache, 6, capacity, True
    )()
    assert opened == [(2, held)]
