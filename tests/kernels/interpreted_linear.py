"""Laws of the linear-attention kernels: on the CPU by Triton's interpreter (test_triton.py), on a
GPU as they are.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import elu, normalize, relu
from torch.testing import assert_close

import ropewalk as rw
from ropewalk.attention import LinearAttention, linear_attention
from ropewalk.attention.linear_sums import State
from ropewalk.errors import RopeError
from ropewalk.kernels.linear_attention import api as kernels

pytestmark = pytest.mark.sampled
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
B, H, S, D, WIDTH = 2, 2, 71, 10, 6
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
FORMS = [("numerator", "elu"), ("numerator", "relu"), ("cosine", "elu")]


def draw(dtype=torch.float32, seq=S, head_dim=D, **options):
    sizes = (head_dim, head_dim, WIDTH)
    return [
        torch.randn(B, H, seq, size, device=DEVICE)
        .to(dtype)
        .requires_grad_(options.get("grad", False))
        for size in sizes
    ]


def rotated(x, positions, layout):
    """RoPE as a complex product in float64."""
    half = x.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    one = torch.ones((), dtype=torch.float64, device=x.device)
    wheel = torch.polar(one, positions[:, None, :, None] * radians)
    if layout == "interleaved":
        return torch.view_as_real(
            torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous()) * wheel
        ).flatten(-2)
    y = torch.complex(x[..., :half], x[..., half:]) * wheel
    return torch.cat((y.real, y.imag), dim=-1)


def by_definition(q, k, v, positions, form, phi, scale, real, layout):
    """(outputs, how much larger the products are than their sums), from the n x n weights in
    float64.
    """
    q, k, v = q.double(), k.double(), v.double()
    if form == "numerator":
        feature = {"elu": lambda x: elu(x) + 1, "relu": relu}[phi]
        q, k = feature(q), feature(k)
        top, bottom = rotated(q, positions, layout) @ rotated(k, positions, layout).mT, q @ k.mT
    else:
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
        top = bottom = 1 + scale * (
            rotated(q, positions, layout) @ rotated(k, positions, layout).mT
        )
    seen = torch.ones(q.shape[-2], q.shape[-2], device=q.device).tril() * real[:, None, None, :]
    total = (bottom * seen).sum(-1, keepdim=True)
    some = total.abs() > 1e-6
    total = torch.where(some, total, 1.0)
    # rotated features are rounded by their size, and nearly orthogonal ones have a far smaller
    # product
    sizes = ((q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :]) * seen).sum(
        -1, keepdim=True
    )
    return torch.where(some, ((top * seen) @ v) / total, 0.0), 1 + sizes / total


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("form", "phi"), FORMS)
def test_linear_attention_equals_the_quadratic_definition(form, phi, dtype, layout):
    q, k, v = draw(dtype)
    rope = rw.Rope(rw.RopeSpec(D, layout=layout))
    positions = torch.randint(0, 90, (B, S), device=DEVICE)
    real = torch.rand(B, S, device=DEVICE) > 0.2
    scale = torch.tensor([0.3, 0.9], device=DEVICE).view(2, 1, 1) if form == "cosine" else 1.0
    got, _ = linear_attention(
        q, k, v, rope, positions, form=form, phi=phi, scale=scale, padding=real, backend="triton"
    )
    exact, amplified = by_definition(q, k, v, positions, form, phi, scale, real, layout)
    assert got.dtype == dtype
    assert ((got.double() - exact).abs() / amplified).max() < TOLERANCE[dtype] * v.abs().max()


@pytest.mark.parametrize(
    ("first", "second"), [("torch", "triton"), ("triton", "torch"), ("triton", "triton")]
)
@pytest.mark.parametrize(("form", "phi"), FORMS)
def test_one_backend_continues_from_the_state_of_the_other(form, phi, first, second):
    q, k, v = draw()
    rope, how = rw.Rope(rw.RopeSpec(D)), {"form": form, "phi": phi}
    whole, last = linear_attention(q, k, v, rope, backend="torch", **how)
    head, state = linear_attention(*(t[:, :, :40] for t in (q, k, v)), rope, backend=first, **how)
    tail, state = linear_attention(
        *(t[:, :, 40:] for t in (q, k, v)), rope, state=state, backend=second, **how
    )
    assert_close(torch.cat((head, tail), dim=2), whole, atol=2e-5, rtol=1e-4)
    for ours, theirs in zip(state, last, strict=True):
        assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_segments_of_several_chunks_equal_plain_torch(monkeypatch):
    """Programs go through several chunks each, and start from what the segments before them left."""
    monkeypatch.setattr(kernels, "NARROW", (16, 2))
    monkeypatch.setattr(kernels, "PROGRAMS", 2 * B * H)
    q, k, v = draw()
    rope = rw.Rope(rw.RopeSpec(D))
    got, state = linear_attention(q, k, v, rope, backend="triton")
    whole, last = linear_attention(q, k, v, rope, backend="torch")
    assert_close(got, whole, atol=2e-5, rtol=1e-4)
    assert_close(state.kv_sum, last.kv_sum, atol=2e-4, rtol=1e-4)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("form", "dtype"),
    [("numerator", torch.float32), ("cosine", torch.float32), ("numerator", torch.bfloat16)],
    ids=str,
)
def test_gradients_equal_those_of_plain_torch(form, dtype):
    q, k, v = draw(dtype, grad=True)
    scale = torch.full((H, 1, 1), 0.6, device=DEVICE, requires_grad=True)
    start = State(
        torch.rand(B, H, D + (form == "cosine"), WIDTH, device=DEVICE, requires_grad=True),
        torch.rand(B, H, D + (form == "cosine"), device=DEVICE, requires_grad=True),
        torch.tensor([4, 9], device=DEVICE),
    )
    inputs = [q, k, v, start.kv_sum, start.k_sum, *([scale] if form == "cosine" else [])]
    found = []
    for backend in ("torch", "triton"):
        out, state = linear_attention(
            q,
            k,
            v,
            rw.Rope(rw.RopeSpec(D)),
            form=form,
            scale=scale if form == "cosine" else 1.0,
            state=start,
            backend=backend,
        )
        found.append(
            torch.autograd.grad(
                out.square().sum() + state.kv_sum.sin().sum() + state.k_sum.sin().sum(), inputs
            )
        )
    tolerance = {torch.float32: 2e-4, torch.bfloat16: 0.05}[dtype]
    for ours, theirs in zip(found[1], found[0], strict=True):
        assert_close(ours, theirs, atol=tolerance, rtol=5 * tolerance)


def test_strided_views_and_a_magnitude_equal_plain_torch():
    yarn = rw.frequencies.Yarn(factor=4.0, original_length=64)
    rope = rw.Rope(rw.RopeSpec(D, scaling=yarn, magnitude_on="q"))
    wide = torch.randn(B, S, H, 3 * D, device=DEVICE).transpose(1, 2)
    q, k, v = wide.split(D, dim=-1)
    got, _ = linear_attention(q, k, v, rope, backend="triton")
    expected, _ = linear_attention(q, k, v, rope, backend="torch")
    assert_close(got, expected, atol=2e-5, rtol=1e-4)


def test_a_layer_takes_the_kernels_by_itself_and_trains():
    layer = LinearAttention(12, 3).to(DEVICE)
    x = torch.randn(2, 9, 12, device=DEVICE)
    layer(x)[0].square().mean().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize(
    ("spec", "options", "reason"),
    [
        (rw.RopeSpec(D), {"phi": lambda x: x.exp()}, "features"),
        (rw.RopeSpec(D), {"causal": False}, "bidirectional"),
        (rw.RopeSpec(D, rotary_dim=4), {}, "whole heads"),
        (rw.RopeSpec(D, scaling=rw.frequencies.XPos()), {}, "xPos"),
        (rw.RopeSpec(D, precision="hf"), {}, "exact phases"),
    ],
)
def test_a_call_that_the_kernels_refuse_runs_in_torch_unless_triton_is_named(spec, options, reason):
    q, k, v = draw(seq=5)
    with pytest.raises(RopeError, match=reason):
        linear_attention(q, k, v, rw.Rope(spec), backend="triton", **options)
    linear_attention(q, k, v, rw.Rope(spec), **options)


@pytest.mark.parametrize("encoding", ["none", "learned"])
def test_models_without_a_rotation_are_not_rotated_by_the_kernels(encoding):
    """Attention does not depend on the positions if they are added to the embeddings, or if the
    model has none.
    """
    sizes = {
        "vocab_size": 30,
        "hidden_size": 24,
        "intermediate_size": 16,
        "num_layers": 1,
        "num_heads": 2,
        "length": 40,
    }
    choices = {"encoding": encoding, "attention": "linear"}
    decoder = rw.Decoder(rw.models.DecoderConfig(**sizes, **choices))
    encoder = rw.RoFormer(rw.models.RoFormerConfig(**sizes, **choices, causal=True))
    x = torch.randn(1, 7, 24, device=DEVICE)
    near, far = (torch.arange(7, device=DEVICE)[None] * step for step in (1, 5))
    own, other = decoder.layers[0].self_attn.to(DEVICE), encoder.layers[0].attention.to(DEVICE)
    assert_close(
        own.attend(x, near, None, None, None), own.attend(x, far, None, None, None), rtol=0, atol=0
    )
    assert_close(other(x, near)[0], other(x, far)[0], rtol=0, atol=0)
