"""Rotated values, shared keys and values, and MLA: against definitions in loops, and against
transformers' DeepSeek attention.
"""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import Attention, KVCache, LatentAttention
from ropewalk.attention.choices import HeadNorm, LearnedSinks, RotatedValues
from ropewalk.attention.remap import SelfExtend
from ropewalk.encodings import Sizes
from ropewalk.encodings.plus import RotaryPlus
from ropewalk.frequencies import Dynamic, XPos, Yarn
from tensor_forms import tensors

DIM, HEADS, SEQ = 24, 4, 7


def drawn(layer):
    """The layer in float64 with weights large enough that attention is far from uniform."""
    torch.manual_seed(5)
    layer = layer.double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def rotated_x(x, position, spec, sign=1):
    """One vector, each pair rotated by sign * position * frequency, in complex numbers."""
    first = torch.arange(spec.pairs)
    first, second = (
        (first, first + spec.pairs) if spec.layout == "half" else (2 * first, 2 * first + 1)
    )
    first, second = first + spec.rotary_start, second + spec.rotary_start
    z = torch.complex(x[first], x[second]) * torch.exp(1j * sign * position * tensors(spec).radians)
    y = x.clone()
    y[first], y[second] = z.real, z.imag
    return y


def derotated_by_definition(layer, x, positions):
    """out_i = sum_j a_ij R((j - i) w) v_j, one query at a time."""
    spec, groups = layer.encoding.rope.spec, layer.num_heads // layer.num_kv_heads
    batch, seq, _ = x.shape
    q, k, v = layer.project(x)
    v = k if layer.shares_values else v
    out = torch.zeros(batch, seq, layer.num_heads, layer.head_dim, dtype=x.dtype)
    for b in range(batch):
        for h in range(layer.num_heads):
            for i in range(seq):
                at = positions[b].tolist()
                seen = [j for j in range(i + 1) if layer.window is None or i - j < layer.window]
                query = rotated_x(q[b, h, i], at[i], spec)
                scores = (
                    torch.stack(
                        [query @ rotated_x(k[b, h // groups, j], at[j], spec) for j in seen]
                    )
                    * layer.scale
                )
                values = torch.stack(
                    [rotated_x(v[b, h // groups, j], at[j] - at[i], spec) for j in seen]
                )
                out[b, i, h] = scores.softmax(0) @ values
    return layer.o_proj(out.flatten(-2))


VALUES = [
    ("own values", rw.RopeSpec(10), {"num_kv_heads": 2, "values": RotatedValues()}),
    (
        "own, partial",
        rw.RopeSpec(10, rotary_dim=6, rotary_start=3, layout="interleaved"),
        {"window": 3, "values": RotatedValues()},
    ),
    (
        "shared",
        rw.RopeSpec(10, rotary_start=6, layout="interleaved"),
        {"num_kv_heads": 1, "values": RotatedValues(shared=True)},
    ),
    (
        "shared, normed",
        rw.RopeSpec(10, theta=50.0),
        {"num_kv_heads": 2, "values": RotatedValues(shared=True), "qk_norm": HeadNorm()},
    ),
]
values = pytest.mark.parametrize(
    ("spec", "options"), [case[1:] for case in VALUES], ids=[case[0] for case in VALUES]
)


@values
def test_rotated_values_equal_the_definition(spec, options):
    layer = drawn(Attention(DIM, HEADS, head_dim=10, encoding=spec, **options))
    x, positions = torch.randn(2, SEQ, DIM, dtype=torch.float64), torch.randint(0, 400, (2, SEQ))
    expected = derotated_by_definition(layer, x, positions)
    for backend in ("sdpa", "math"):
        layer.backend = backend
        assert_close(layer(x, positions).out, expected, rtol=0, atol=1e-11)


@values
@pytest.mark.parametrize("rotated", [True, False])
def test_rotated_values_decode_from_a_moved_cache_as_in_one_pass(spec, options, rotated):
    layer = drawn(Attention(DIM, HEADS, head_dim=10, encoding=spec, **options))
    x, cache = torch.randn(2, SEQ, DIM, dtype=torch.float64), KVCache(rotated=rotated)
    whole = layer(x).out
    first = layer(x[:, :3], cache=cache).out
    cache.shift(100, layer.encoding)  # all tokens, so no distance changes
    rest = [layer(x[:, i : i + 1], cache=cache).out for i in range(3, SEQ)]
    assert_close(torch.cat([first, *rest], dim=1), whole, rtol=0, atol=1e-10)
    # shared values are not stored twice
    assert (cache.seen.v.shape[-1] == 0) is layer.shares_values


def test_rotated_values_of_padded_and_packed_rows_equal_the_row_alone_and_gradients_the_definition():
    layer = drawn(Attention(DIM, HEADS, 2, 10, values=RotatedValues()))
    x = torch.randn(1, 5, DIM, dtype=torch.float64, requires_grad=True)
    padded = torch.cat([torch.zeros(1, 2, DIM, dtype=torch.float64), x], dim=1)
    alone = layer(x).out
    assert_close(layer(padded, padding=torch.tensor([[False] * 2 + [True] * 5])).out[:, 2:], alone)
    packed = layer(torch.cat([x[:, :2], x], dim=1), documents=torch.tensor([[0] * 2 + [1] * 5])).out
    assert_close(packed[:, 2:], alone)
    positions = torch.arange(5)[None]
    ours, theirs = (
        torch.autograd.grad(out.square().sum(), x)[0]
        for out in (layer(x).out, derotated_by_definition(layer, x, positions))
    )
    assert_close(ours, theirs, rtol=0, atol=1e-9)


def test_rotated_values_give_the_published_number_of_deepseek_v4():
    """K = V, the last 4 of 8 dims rotate, frequencies 1 and 0.01, query 3."""
    p, c = torch.arange(4, dtype=torch.float64)[:, None], torch.arange(8, dtype=torch.float64)
    q, k = torch.cos(0.5 * p + c), torch.sin(0.3 * p + 0.7 * c)

    class Fixed(Attention):
        def project(self, x):
            return q[None, None], k[None, None], k[None, None, :, :0]

    spec = rw.RopeSpec(8, rotary_start=4, layout="interleaved")
    layer = Fixed(8, 1, encoding=spec, values=RotatedValues(shared=True)).double()
    with torch.no_grad():
        layer.o_proj.weight.copy_(torch.eye(8))
    out, weights = layer(torch.zeros(1, 4, 8, dtype=torch.float64), return_weights=True)
    expected = torch.tensor([0.318409, 0.275519, 0.217700, 0.188371], dtype=torch.float64)
    assert_close(weights[0, 0, 3], expected, rtol=0, atol=1e-6)
    expected = torch.tensor([-0.559176, -0.073433, -0.953706, -0.781268], dtype=torch.float64)
    assert_close(out[0, 3, 4:], expected, rtol=0, atol=1e-6)
    kept = layer.encoding.rope.rotate(out[:, None], torch.arange(4))[0, 0, 3, 4:]
    assert_close(
        kept,
        torch.tensor([0.563943, -0.006213, -0.929842, -0.809524], dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )


class GroupedOutput(nn.Module):
    """DeepSeek-V4's output projection on our [B, S, heads * head_dim]."""

    def __init__(self, theirs):
        super().__init__()
        self.a, self.b, self.groups = theirs.o_a_proj, theirs.o_b_proj, theirs.config.o_groups

    def forward(self, out):
        return self.b(self.a(out.unflatten(-1, (self.groups, -1))).flatten(2))


def test_rotated_values_equal_deepseek_v4_of_transformers():
    modeling = pytest.importorskip("transformers.models.deepseek_v4.modeling_deepseek_v4")
    config = modeling.DeepseekV4Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        head_dim=16,
        q_lora_rank=12,
        o_groups=2,
        o_lora_rank=6,
        num_hidden_layers=1,
        layer_types=["sliding_attention"],
        sliding_window=3,
        qk_rope_head_dim=4,
        partial_rotary_factor=0.25,
        vocab_size=11,
    )
    config._attn_implementation = "eager"
    theirs = drawn(modeling.DeepseekV4Attention(config, 0))
    spec = rw.from_hf(config, per_layer=True)["main"]
    assert (spec.rotary_start, spec.rotated_dims, spec.layout) == (12, 4, "interleaved")
    ours = Attention(
        DIM,
        HEADS,
        1,
        16,
        encoding=spec,
        values=RotatedValues(shared=True),
        window=config.sliding_window,
        sinks=LearnedSinks(),
    ).double()
    assert theirs.sinks.abs().min() > 0
    ours.sinks = theirs.sinks
    ours.q_proj = nn.Sequential(theirs.q_a_proj, theirs.q_a_norm, theirs.q_b_proj)
    ours.k_proj, ours.q_norm, ours.k_norm, ours.o_proj = (
        theirs.kv_proj,
        theirs.q_b_norm,
        theirs.kv_norm,
        GroupedOutput(theirs),
    )
    x, positions = torch.randn(2, SEQ, DIM, dtype=torch.float64), torch.arange(SEQ)[None] + 300
    tables = modeling.DeepseekV4RotaryEmbedding(config)(x, positions, layer_type="main")
    i = torch.arange(SEQ)
    hidden = (i[:, None] < i) | (i[:, None] - i >= config.sliding_window)
    mask = torch.zeros(1, 1, SEQ, SEQ, dtype=torch.float64).masked_fill(hidden, -math.inf)
    expected = theirs(x, {"main": tables}, positions, mask)[0]
    # their angles and norms are float32
    assert_close(ours(x, positions.expand(2, -1)).out, expected, rtol=0, atol=2e-5)
    assert (theirs(x, {"main": tables}, positions + 1, mask)[0] - expected).abs().max() < 1e-12


def latent(**options):
    sizes = {"kv_rank": 9, "nope_dim": 6, "rope_dim": 4, "value_dim": 5, "q_rank": 8}
    return drawn(LatentAttention(DIM, HEADS, **sizes | options))


def latent_by_definition(layer, x, positions):
    """Keys and values of every head, one query at a time."""
    spec, (batch, seq, _) = layer.encoding.rope.spec, x.shape
    q, shared, latents = layer.project(x)
    up = layer.kv_b_proj.weight.view(HEADS, layer.nope_dim + layer.value_dim, layer.kv_rank)
    out = torch.zeros(batch, seq, HEADS, layer.value_dim, dtype=x.dtype)
    for b in range(batch):
        at = positions[b].tolist()
        for h in range(HEADS):
            both = latents[b, 0] @ up[h].T
            for i in range(seq):
                query = rotated_x(q[b, h, i, layer.nope_dim :], at[i], spec)
                scores = [
                    q[b, h, i, : layer.nope_dim] @ both[j, : layer.nope_dim]
                    + query @ rotated_x(shared[b, 0, j], at[j], spec)
                    for j in range(i + 1)
                ]
                weights = (
                    torch.stack(scores) / math.sqrt(layer.nope_dim + layer.rope_dim)
                ).softmax(0)
                out[b, i, h] = weights @ both[: i + 1, layer.nope_dim :]
    return layer.o_proj(out.flatten(-2))


@pytest.mark.parametrize("absorbed", [None, True, False])
@pytest.mark.parametrize("q_rank", [8, None])
def test_latent_attention_equals_the_definition(absorbed, q_rank):
    spec = rw.RopeSpec(4, layout="interleaved")
    layer = latent(absorbed=absorbed, encoding=spec, q_rank=q_rank)
    x, positions = torch.randn(2, SEQ, DIM, dtype=torch.float64), torch.randint(0, 400, (2, SEQ))
    expected = latent_by_definition(layer, x, positions)
    for backend in ("sdpa", "math"):
        layer.backend = backend
        assert_close(layer(x, positions).out, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "scaling", [rw.frequencies.Default(), Dynamic(factor=2.0, original_length=4)]
)
def test_a_latent_cache_holds_latents_and_can_be_moved(scaling):
    layer = latent(encoding=rw.RopeSpec(4, scaling=scaling))
    x, cache = torch.randn(2, SEQ, DIM, dtype=torch.float64), KVCache()
    for i in range(SEQ):
        step = layer(x[:, i : i + 1], cache=cache).out
        assert_close(step, layer(x[:, : i + 1]).out[:, -1:], rtol=0, atol=1e-11)
    assert cache.seen.k.shape == (2, 1, SEQ, 4)
    assert cache.seen.v.shape == (2, 1, SEQ, 9)
    if not layer.encoding.rope.spec.needs_length:
        cache.rollback(1)
        cache.shift(50, layer.encoding)
        assert_close(layer(x[:, -1:], cache=cache).out, step, rtol=0, atol=1e-11)


def flops(layer, x, cache=None):
    """The operations of the matrix products in one call."""
    with FlopCounterMode(display=False) as counter:
        layer(x, cache=cache)
    return counter.get_total_flops()


def test_queries_are_multiplied_by_the_up_projection_if_there_are_more_keys():
    x = torch.randn(1, 3 * SEQ, DIM, dtype=torch.float64)
    layers = {
        absorbed: latent(absorbed=absorbed, backend="math") for absorbed in (None, True, False)
    }
    prompt = {absorbed: flops(layer, x) for absorbed, layer in layers.items()}
    assert prompt[None] == prompt[False] != prompt[True]
    step = {}
    for absorbed, layer in layers.items():
        layer(x[:, :-1], cache=(cache := KVCache()))
        step[absorbed] = flops(layer, x[:, -1:], cache)
    # one query instead of 21 latents is multiplied by every head's [nope + value, rank]
    assert step[None] == step[True]
    assert step[None] < step[False]


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    "rope", [{}, {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.7}]
)
def test_latent_attention_equals_deepseek_v3_of_transformers(interleaved, rope):
    modeling = pytest.importorskip("transformers.models.deepseek_v3.modeling_deepseek_v3")
    if rope:
        rope = rope | {"original_max_position_embeddings": 64}
    config = modeling.DeepseekV3Config(
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        q_lora_rank=8,
        kv_lora_rank=9,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=5,
        rope_interleave=interleaved,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4} | rope,
    )
    config._attn_implementation = "eager"
    theirs = drawn(modeling.DeepseekV3Attention(config, 0))
    ours = latent(encoding=rw.from_hf(config))
    ours.load_state_dict(theirs.state_dict())
    assert math.isclose(ours.scale, theirs.scaling)
    x, positions = torch.randn(2, SEQ, DIM, dtype=torch.float64), torch.arange(SEQ)[None] + 90
    tables = modeling.DeepseekV3RotaryEmbedding(config)(x, positions)
    mask = torch.full((1, 1, SEQ, SEQ), -math.inf, dtype=torch.float64).triu(1)
    expected = theirs(x, tables, mask)[0]
    for ours.absorbed in (False, True):
        # their angles and norms are float32
        assert_close(ours(x, positions.expand(2, -1)).out, expected, rtol=0, atol=2e-5)


def scaled(scaling):
    return lambda: Attention(
        DIM, HEADS, encoding=rw.RopeSpec(6, scaling=scaling), values=RotatedValues()
    )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Attention(DIM, HEADS, values=True), "values"),
        (lambda: Attention(DIM, HEADS, encoding="alibi", values=RotatedValues()), "values"),
        (scaled(Yarn(factor=4.0, original_length=64)), "values"),
        (scaled(XPos()), "values"),
        (scaled(Dynamic(factor=2.0)), "values"),
        (lambda: latent(encoding="alibi"), "encoding"),
        (lambda: latent(encoding=rw.RopeSpec(6)), "encoding"),
        (lambda: latent(encoding=RotaryPlus(Sizes(HEADS, 4, DIM, 64))), "encoding"),
        (lambda: latent(remapping=SelfExtend(2, 4)), "remapping"),
        (lambda: latent(qk_norm=HeadNorm()), "qk_norm"),
        (lambda: latent(num_kv_heads=1), "num_kv_heads"),
        (lambda: latent(values=RotatedValues()), "values"),
        (lambda: Attention(DIM, HEADS, qk_norm=True), "qk_norm"),
        (lambda: Attention(DIM, HEADS, rotate_values=True), "rotate_values"),
        (lambda: RotatedValues(shared=1), "shared"),
        (lambda: latent(kv_rank=0), "kv_rank"),
        (lambda: latent(q_rank=0), "q_rank"),
    ],
)
def test_an_error_names_the_bad_option(make, field):
    assert_refused(field, make)


def test_rotated_values_allow_a_magnitude_in_the_softmax_scale():
    spec = rw.RopeSpec(6, scaling=Yarn(factor=4.0, original_length=64), magnitude_on="scale")
    layer = drawn(Attention(DIM, HEADS, encoding=spec, values=RotatedValues()))
    x, positions = torch.randn(1, SEQ, DIM, dtype=torch.float64), torch.arange(SEQ)[None]
    assert_close(layer(x).out, derotated_by_definition(layer, x, positions), rtol=0, atol=1e-11)
