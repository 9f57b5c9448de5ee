"""PoPE, FoPE, RoPE++, Selective RoPE and PaTH: published numbers, definitions written out, and what
they cannot do.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import KVCache
from ropewalk.attention.path import PathAttention, path_scores, path_scores_in_chunks
from ropewalk.attention.selective import (
    SelectiveAttention,
    linear_by_steps,
    linear_by_sums,
)
from ropewalk.encodings import Fourier, Polar, RotaryPlus, Sizes
from ropewalk.rotation import rotate_by_phase

D = 8
PLACES, CHANNELS = (
    torch.arange(12, dtype=torch.float64)[:, None],
    torch.arange(D, dtype=torch.float64),
)
#: q and k [1, 1, 12, 8] for which the published scores are stated: in float64, half layout, theta
#: 1e4, not scaled by 1 / sqrt(head_dim)
Q, K = (
    (0.5 * PLACES + CHANNELS).cos()[None, None],
    (0.3 * PLACES + 0.7 * CHANNELS).sin()[None, None],
)
OMEGA = 1e4 ** (-torch.arange(4, dtype=torch.float64) / 4)


def scores(encoding) -> torch.Tensor:
    at = torch.arange(12)
    return encoding.rotate(Q, at, key=False) @ encoding.rotate(K, at, key=True).mT


def near(found, wanted) -> None:
    assert_close(found, torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=6e-7)


def sizes(heads: int = 1, length: int = 64) -> Sizes:
    return Sizes(heads, D, heads * D, length)


def test_pope_gives_the_published_numbers():
    pope = Polar(sizes()).double()
    near(scores(pope)[0, 0, 3, [1, 3]], [2.953679, 3.605677])
    torch.nn.init.constant_(pope.delta, -math.pi / 2)
    near(scores(pope)[0, 0, 3, 1], -0.974405)
    torch.nn.init.constant_(pope.delta, 1.0)  # a positive delta counts as 0
    near(scores(pope)[0, 0, 3, 1], 2.953679)


@pytest.mark.parametrize(
    "spec", [rw.RopeSpec(D), rw.RopeSpec(2 * D, rotary_dim=D), rw.RopeSpec(2 * D, rotary_start=2)]
)
def test_pope_refuses_a_spec_that_does_not_rotate_twice_the_head(spec):
    assert_refused("spec", lambda: Polar(sizes(), spec))
    near(
        scores(Polar(sizes(), rw.RopeSpec(2 * D, layout="interleaved")).double())[0, 0, 3, [1, 3]],
        [2.953679, 3.605677],
    )


def test_pope_equals_its_definition_with_shared_keys_and_far_positions():
    pope = Polar(sizes(4)).double()
    torch.nn.init.uniform_(pope.delta, -6.0, -0.1)
    q, k = (
        torch.randn(2, 4, 5, D, dtype=torch.float64),
        torch.randn(2, 2, 7, D, dtype=torch.float64),
    )
    q_at, k_at = torch.tensor([3, 9, 1, 0, 40]), torch.arange(7) * 5
    found = (
        pope.rotate(q, q_at, key=False) @ pope.rotate(k, k_at, key=True).repeat_interleave(2, 1).mT
    )
    sp = torch.nn.functional.softplus
    for head in range(4):
        omega = 1e4 ** (-CHANNELS / D)
        angle = (k_at[None, :, None] - q_at[:, None, None]) * omega + pope.delta[head].detach()
        wanted = torch.einsum("bic,bjc,ijc->bij", sp(q[:, head]), sp(k[:, head // 2]), angle.cos())
        assert_close(found[:, head], wanted, rtol=0, atol=1e-12)
    far = (
        pope.rotate(q, q_at + 2**40, key=False)
        @ pope.rotate(k, k_at + 2**40, key=True).repeat_interleave(2, 1).mT
    )
    assert_close(far, found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("package", ["PoPE_pytorch", "x_transformers"])
def test_pope_equals_two_other_packages(package):
    peer = pytest.importorskip(package)
    q, k = torch.randn(1, 3, 9, D), torch.randn(1, 3, 9, D)
    pope = Polar(sizes(3))
    torch.nn.init.uniform_(pope.delta, -6.0, 0.0)
    at = torch.arange(9)
    ours = pope.rotate(q, at, key=False) @ pope.rotate(k, at, key=True).mT
    if package == "PoPE_pytorch":
        theirs = peer.PoPE(D, heads=3)
        theirs.bias.data.copy_(pope.delta.data)
        found = theirs.apply_pope_to_qk(theirs(9), q, k)
    else:
        module = peer.x_transformers
        theirs = module.PolarEmbedding(D, 3)
        theirs.learned_bias.data.copy_(pope.delta.data[:, None])
        freqs, bias = theirs(at)
        found = (
            module.apply_polar_pos_emb(q, freqs[:, None]),
            module.apply_polar_pos_emb(k, freqs[:, None] + bias),
        )
    assert_close(ours, found[0] @ found[1].mT, rtol=0, atol=2e-5)


def test_fope_gives_the_published_number_and_is_not_relative():
    fope = Fourier(sizes(), gain=0.0).double()
    # the first two pairs take 6.3 and 62.8 tokens for a turn
    assert fope.kept == 2
    assert Fourier(sizes(length=32)).kept == 1
    assert not any(parameter.requires_grad for parameter in fope.parameters())
    assert all(
        parameter.requires_grad for parameter in Fourier(sizes(), learnable=True).parameters()
    )
    near(scores(fope)[0, 0, 3, 1], -3.276981)
    mixed = Fourier(sizes(), gain=0.6).double()
    at = torch.arange(12)
    moved = mixed.rotate(Q, at + 5, key=False) @ mixed.rotate(K, at + 5, key=True).mT
    assert (moved - scores(mixed)).abs().max() > 1e-3


@pytest.mark.parametrize("per_head", [False, True])
def test_fope_equals_its_definition_for_each_row_and_head(per_head):
    fope = Fourier(sizes(3), gain=0.5, per_head=per_head).double()
    x, at = (
        torch.randn(2, 3, 5, D, dtype=torch.float64),
        torch.tensor([[0, 1, 2, 3, 4], [9, 7, 5, 3, 60]]),
    )
    found = fope.rotate(x, at, key=True)
    for b in range(2):
        for h in range(3):
            for s in range(5):
                angle = at[b, s] * OMEGA[:2]
                mixes = [m[h] if per_head else m for m in (fope.cos_mix, fope.sin_mix)]
                ones = torch.ones(2, dtype=torch.float64)
                cos, sin = (
                    torch.cat((t @ m.detach(), ones))
                    for t, m in zip((angle.cos(), angle.sin()), mixes, strict=True)
                )
                a, c = x[b, h, s, :4], x[b, h, s, 4:]
                assert_close(
                    found[b, h, s],
                    torch.cat((a * cos - c * sin, c * cos + a * sin)),
                    rtol=0,
                    atol=1e-12,
                )
    assert_close(fope.rotate(x[1:], at[1], key=True), found[1:])
    assert_refused(
        "heads", lambda: Fourier(sizes(3), per_head=True).rotate(x[:, :1].float(), at, key=True)
    )


def test_a_cache_refuses_to_move_keys_of_fope_and_moves_those_of_pope():
    at = torch.arange(5)[None]
    for name, moves in (("fope", False), ("pope", True)):
        layer = rw.Attention(16, 2, encoding=name, length=64).double()
        x, cache = torch.randn(1, 5, 16, dtype=torch.float64), KVCache()
        layer(x, at, cache=cache)
        assert (layer.encoding.why_not("rerotate") is None) == moves
        if not moves:
            assert "no rotation" in str(
                assert_refused("encoding", lambda: cache.shift(3, layer.encoding))  # noqa: B023
            )
            continue
        cache.shift(3, layer.encoding)
        again = KVCache()
        layer(x, at + 3, cache=again)
        assert_close(cache.seen.k, again.seen.k, rtol=0, atol=1e-12)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rope_plus_has_the_real_and_the_imaginary_score_of_each_head(layout):
    plus = RotaryPlus(sizes(4), rw.RopeSpec(D, layout=layout))
    q, k = (
        torch.randn(2, 4, 6, D, dtype=torch.float64),
        torch.randn(2, 2, 6, D, dtype=torch.float64),
    )
    at = torch.arange(6) * 3
    heads = plus.rotate(q, at, key=False)
    assert heads.shape == (2, 8, 6, D)
    found = heads @ plus.rotate(k, at, key=True).repeat_interleave(4, 1).mT
    first, second = (
        (slice(0, 4), slice(4, 8)) if layout == "half" else (slice(0, 8, 2), slice(1, 8, 2))
    )
    complex_q, complex_k = (torch.complex(x[..., first], x[..., second]) for x in (q, k))
    rotations = torch.polar(torch.ones(6, 4, dtype=torch.float64), at[:, None] * OMEGA)
    product = (complex_q * rotations).conj() @ (complex_k * rotations).repeat_interleave(2, 1).mT
    assert_close(found[:, 0::2], product.real, rtol=0, atol=1e-12)
    assert_close(found[:, 1::2], -product.imag, rtol=0, atol=1e-12)


def test_rope_plus_gives_the_published_number_and_runs_in_attention():
    plus = RotaryPlus(sizes())
    near(scores(plus)[0, :, 3, 1], [-2.386078, -1.156781])
    layer = rw.Attention(32, 4, 2, encoding=RotaryPlus(sizes(4)), backend=None).double()
    x, cache = torch.randn(2, 7, 32, dtype=torch.float64), KVCache()
    whole = layer(x).out
    pieces = [layer(x[:, a:b], cache=cache).out for a, b in ((0, 4), (4, 5), (5, 7))]
    assert layer.o_proj.in_features == 64
    assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-12)


def test_the_gradient_of_a_phase_is_the_derivative_of_the_rotation():
    x, phase = (
        torch.randn(2, 3, 5, D, dtype=torch.float64),
        torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True),
    )
    g = torch.randn_like(x)
    (found,) = torch.autograd.grad(rotate_by_phase(x, phase), phase, g)
    quarter = rotate_by_phase(x, phase.detach() + math.pi / 2)
    assert_close(found, (g * quarter)[..., :4] + (g * quarter)[..., 4:], rtol=0, atol=1e-12)


def test_selective_phases_give_the_published_number():
    phi = torch.tensor([1, 0.5, 2, 0], dtype=torch.float64)
    angles = phi.cumsum(0)[:, None] * OMEGA  # inclusive
    q, k = rotate_by_phase(Q[:, :, :4], angles), rotate_by_phase(K[:, :, :4], angles)
    near((q @ k.mT)[0, 0, 3, 1], -2.386078)


def test_linear_attention_token_by_token_equals_that_by_sums():
    q, k, v = (torch.randn(2, 3, 7, D, dtype=torch.float64) for _ in range(3))
    steps, log_decay = (
        torch.randn(2, 3, 7, 4, dtype=torch.float64),
        -torch.rand(2, 3, 7, dtype=torch.float64),
    )
    by_sums, by_frame = (
        run(q, k, v, steps, log_decay) for run in (linear_by_sums, linear_by_steps)
    )
    assert_close(by_sums, by_frame, rtol=0, atol=1e-12)
    first = linear_by_sums(*(t[:, :, :3] for t in (q, k, v, steps, log_decay)))
    second = linear_by_sums(*(t[:, :, 3:] for t in (q, k, v, steps, log_decay)), first[1])
    assert_close(torch.cat((first[0], second[0]), 2), by_sums[0], rtol=0, atol=1e-12)
    assert_close(second[1], by_sums[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SelectiveAttention(24, 3),
        lambda: SelectiveAttention(24, 3, form="linear"),
        lambda: PathAttention(24, 3, chunk=4),
    ],
)
def test_a_sequence_in_pieces_equals_the_whole_and_every_weight_gets_a_gradient(make):
    layer = make().double()
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    whole, state, pieces = layer(x)[0], None, []
    for a, b in ((0, 5), (5, 6), (6, 11)):
        out, state = layer(x[:, a:b], state)
        pieces.append(out)
    assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-11)
    changed = x.clone()
    changed[:, 7] += 1
    assert_close(layer(changed)[0][:, :7], whole[:, :7], rtol=0, atol=1e-12)
    whole.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


def path_inputs(count: int = 4):
    w = torch.nn.functional.normalize((PLACES + 2 * CHANNELS).cos()[:count], dim=-1)
    return (
        Q[0, 0, :count],
        K[0, 0, :count],
        w,
        torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64),
    )


def test_path_gives_the_published_numbers():
    found = path_scores(*path_inputs())
    near(found[3], [-1.551662, -2.160007, -2.572226, -2.819485])
    q, k, w, beta = path_inputs()
    reflections = [
        torch.eye(D, dtype=torch.float64) - b * torch.outer(a, a)
        for a, b in zip(w, beta, strict=True)
    ]
    assert_close(found[3, 1], k[1] @ reflections[2] @ reflections[3] @ q[3])


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_path_in_chunks_equals_the_definition(chunk):
    q, k = torch.randn(2, 2, 3, 11, 6, dtype=torch.float64)
    w = torch.nn.functional.normalize(torch.randn(2, 3, 11, 6, dtype=torch.float64), dim=-1)
    beta = 2 * torch.rand(2, 3, 11, dtype=torch.float64)
    beta[..., 4] = 0
    found, keys = path_scores_in_chunks(q, k, w, beta, chunk)
    assert_close(found, path_scores(q, k, w, beta), rtol=0, atol=1e-12)
    assert keys.shape == k.shape


def test_path_equals_the_naive_code_of_fla():
    naive = pytest.importorskip("fla.ops.path_attn.naive").naive_path_attn
    q, k, v = torch.randn(3, 2, 13, 3, D)
    w, beta = (
        torch.nn.functional.normalize(torch.randn(2, 13, 3, D), dim=-1),
        2 * torch.rand(2, 13, 3),
    )
    theirs = naive(q, k, v, w, beta, torch.zeros(2, 13, 3), 0.4, chunk_size=4)
    scores, _ = path_scores_in_chunks(
        *(t.transpose(1, 2) for t in (q, k, w)), beta.transpose(1, 2), 5
    )
    hidden = torch.ones(13, 13, dtype=torch.bool).triu(1)
    ours = (0.4 * scores).masked_fill(hidden, float("-inf")).softmax(-1) @ v.transpose(1, 2)
    assert_close(ours.transpose(1, 2), theirs, rtol=0, atol=2e-5)


def test_the_mixes_of_fope_have_the_deviation_of_its_authors():
    """gain / sqrt(kept pairs), over 16 heads of 32 kept pairs."""
    torch.manual_seed(0)
    many = Sizes(num_heads=16, head_dim=64, model_dim=1024, length=2**20)
    made = Fourier(many, gain=0.4, per_head=True)
    for mix in (made.cos_mix, made.sin_mix):
        noise = mix.detach() - torch.eye(made.kept)
        assert made.kept == 32
        assert noise.std().item() == pytest.approx(0.4 / math.sqrt(32), rel=0.05)
