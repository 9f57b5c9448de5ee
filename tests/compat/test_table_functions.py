"""MiniMind's and Meta's functions against their formulas, written out in mpmath and in complex
float64.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch
from torch.testing import assert_close

from ropewalk import RopeError
from ropewalk.compat import meta, minimind

B, S, H, D = 2, 7, 3, 10
X = torch.zeros(B, S, H, D)
#: what `inference_rope_scaling` sets in MiniMind
YARN = {
    "type": "yarn",
    "factor": 16,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32,
    "beta_slow": 1,
    "attention_factor": 1.0,
}


def ladder(dim, base):
    return [mpmath.mpf(base) ** (-mpmath.mpf(2 * i) / dim) for i in range(dim // 2)]


def minimind_frequencies(dim, base, end, scaling):
    """Return (radians per step, magnitude) by MiniMind's formulas."""
    radians = ladder(dim, base)
    if scaling is None:
        return radians, 1.0
    length = scaling.get("original_max_position_embeddings", 2048)
    if end > length:
        turns = lambda b: dim * mpmath.log(length / (b * 2 * mpmath.pi)) / (2 * mpmath.log(base))
        low = max(int(mpmath.floor(turns(scaling.get("beta_fast", 32)))), 0)
        high = min(int(mpmath.ceil(turns(scaling.get("beta_slow", 1)))), dim // 2 - 1)
        for i, omega in enumerate(radians):
            ramp = min(max(mpmath.mpf(i - low) / max(high - low, 0.001), 0), 1)
            radians[i] = omega * (1 - ramp + ramp / scaling.get("factor", 16))
    return radians, scaling.get("attention_factor", 1.0)


def exact_rows(radians, magnitude, positions):
    cos = [[float(magnitude * mpmath.cos(p * r)) for r in radians] for p in positions]
    sin = [[float(magnitude * mpmath.sin(p * r)) for r in radians] for p in positions]
    return torch.tensor(cos, dtype=torch.float64), torch.tensor(sin, dtype=torch.float64)


@pytest.mark.parametrize(
    ("dim", "end", "base", "scaling"),
    [
        (96, 4096, 1e6, None),
        (96, 4096, 1e6, YARN),
        (96, 2048, 1e6, YARN),
        (
            10,
            64,
            1e4,
            {"original_max_position_embeddings": 16, "factor": 3.0, "attention_factor": 1.5},
        ),
        # MiniMind cuts YaRN's ramp at the last pair, transformers at the index of the last dimension;
        # in this case the two differ
        (
            10,
            200_000,
            100.0,
            {"original_max_position_embeddings": 131072, "factor": 8, "beta_fast": 2000},
        ),
        (10, 64, 1e4, {"original_max_position_embeddings": 16, "beta_fast": 2, "beta_slow": 2}),
        (10, 4096, 1e4, {}),
    ],
)
def test_tables_of_minimind_are_exact(dim, end, base, scaling):
    cos, sin = minimind.precompute_freqs_cis(dim, end, base, scaling)
    assert cos.shape == sin.shape == (end, dim)
    assert cos.dtype == torch.float32
    positions = [0, 1, 2, end // 3, end - 1]
    expected = exact_rows(*minimind_frequencies(dim, base, end, scaling), positions)
    for table, exact in zip((cos, sin), expected, strict=True):
        assert_close(table[positions].double(), exact.repeat(1, 2), rtol=0, atol=2e-7)


def rotated_half(x, cos, sin):
    """x [B, S, H, D] by full tables [..., S, D], in float64, as MiniMind writes it."""
    a, b = x.double().chunk(2, dim=-1)
    return x.double() * cos.double().unsqueeze(-2) + torch.cat(
        (-b, a), dim=-1
    ) * sin.double().unsqueeze(-2)


@pytest.mark.parametrize(
    "ids",
    [None, torch.tensor([3, 0, 9, 2, 2, 5, 1]), torch.tensor([[0] * 3 + [0, 1, 2, 3], range(7)])],
)
def test_minimind_rotates_by_the_rows_of_its_tables(ids):
    q, k = torch.randn(B, S, H, D), torch.randn(B, S, 1, D)
    cos, sin = minimind.precompute_freqs_cis(D, 12, 1e4, {"attention_factor": 1.25})
    rows = (cos[:S], sin[:S]) if ids is None else (cos[ids], sin[ids])
    given = (cos[:S], sin[:S]) if ids is None else (cos, sin)
    for found, x in zip(minimind.apply_rotary_pos_emb(q, k, *given, ids), (q, k), strict=True):
        assert_close(found.double(), rotated_half(x, *rows), rtol=0, atol=2e-6)
    heads_first = minimind.apply_rotary_pos_emb(
        q.transpose(1, 2), k.transpose(1, 2), *given, ids, unsqueeze_dim=0
    )
    for found, x in zip(heads_first, (q, k), strict=True):
        assert_close(found.transpose(1, 2).double(), rotated_half(x, *rows), rtol=0, atol=2e-6)


def test_minimind_keeps_the_dtype_and_the_gradient():
    q = torch.randn(B, S, H, D, dtype=torch.bfloat16, requires_grad=True)
    cos, sin = minimind.precompute_freqs_cis(D, S)
    rotated, _ = minimind.apply_rotary_pos_emb(q, q.detach(), cos, sin)
    assert rotated.dtype == torch.bfloat16
    rotated.backward(rotated.detach())
    assert_close(q.grad, q.detach(), rtol=2**-6, atol=2**-7)


def meta_frequencies(dim, theta, scaled):
    radians = ladder(dim, theta)
    if not scaled:
        return radians
    found = []
    for omega in radians:
        length = 2 * mpmath.pi / omega
        smooth = (8192 / length - 1) / 3
        blend = (1 - smooth) * omega / 8 + smooth * omega
        found.append(omega if length < 2048 else omega / 8 if length > 8192 else blend)
    return found


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_tables_of_meta_have_exact_angles_of_its_float32_frequencies(theta, scaled):
    table = meta.precompute_freqs_cis(64, 300, theta, scaled)
    assert table.dtype == torch.complex64
    assert table.shape == (300, 32)
    cos, sin = exact_rows(meta_frequencies(64, theta, scaled), 1, [0, 1, 17, 299])
    # frequencies are float32, as the checkpoint was trained with: 300 steps of half a unit in the
    # last place
    assert_close(
        table[[0, 1, 17, 299]].to(torch.complex128), torch.complex(cos, sin), rtol=0, atol=1e-4
    )
    assert_close(table[[0, 1]].to(torch.complex128), torch.complex(cos, sin)[:2], rtol=0, atol=2e-7)


def complex_rotation(x, table):
    z = torch.view_as_complex(x.double().unflatten(-1, (-1, 2))) * table.to(
        torch.complex128
    ).unsqueeze(-2)
    return torch.view_as_real(z).flatten(-2)


@pytest.mark.parametrize("rows", [False, True], ids=["shared", "by_row"])
def test_meta_rotates_by_its_table_and_gradients_by_the_conjugate_table(rows):
    q, k = torch.randn(B, S, H, D, requires_grad=True), torch.randn(B, S, 1, D)
    table = meta.precompute_freqs_cis(D, 20)
    table = table[torch.tensor([[3], [9]]) + torch.arange(S)] if rows else table[5 : 5 + S]
    found = meta.apply_rotary_emb(q, k, table)
    for mine, x in zip(found, (q, k), strict=True):
        assert_close(mine.double(), complex_rotation(x.detach(), table), rtol=0, atol=2e-6)
    weight = torch.randn_like(q)
    found[0].backward(weight)
    assert_close(
        q.grad.double(), complex_rotation(weight, table.conj().resolve_conj()), rtol=0, atol=2e-6
    )


def test_meta_gradients_reach_a_table():
    x, table = torch.randn(B, S, H, D), meta.precompute_freqs_cis(D, S).requires_grad_()
    weight = torch.randn_like(x)
    (meta.apply_rotary_emb(x, x, table)[0] * weight).sum().backward()
    z, w = (torch.view_as_complex(t.unflatten(-1, (-1, 2))) for t in (x, weight))
    assert_close(table.grad, (z.conj() * w).sum(dim=(0, 2)))


def test_reshape_for_broadcast_gives_the_view_of_meta():
    table = meta.precompute_freqs_cis(D, S)
    view = meta.reshape_for_broadcast(table, torch.zeros(B, S, H, D // 2))
    assert view.shape == (1, S, 1, D // 2)
    assert view.data_ptr() == table.data_ptr()
    # any number of axes between tokens and pairs
    assert meta.reshape_for_broadcast(table, torch.zeros(B, S, D // 2)).shape == (1, S, D // 2)
    many = meta.reshape_for_broadcast(table, torch.zeros(B, S, H, 2, D // 2))
    assert many.shape == (1, S, 1, 1, D // 2)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: minimind.precompute_freqs_cis(D, 0), "end"),
        (
            lambda: minimind.precompute_freqs_cis(
                D, 99, 1e4, {"factor": 0.5, "original_max_position_embeddings": 9}
            ),
            "factor",
        ),
        (
            lambda: minimind.precompute_freqs_cis(D, 99, 1e4, {"attention_factor": 0}),
            "attention_factor",
        ),
        (lambda: minimind.precompute_freqs_cis(D, 4096, 0.5, {}), "theta"),
        (
            lambda: minimind.apply_rotary_pos_emb(
                X, X, *[torch.zeros(B, S, D)] * 2, torch.arange(S)
            ),
            "cos",
        ),
        (lambda: meta.apply_rotary_emb(X, X, torch.zeros(S, D // 2)), "freqs_cis"),
        (
            lambda: meta.apply_rotary_emb(X, X, torch.zeros(S, 4, dtype=torch.complex64)),
            "freqs_cis",
        ),
        (
            lambda: meta.reshape_for_broadcast(torch.zeros(S, 4), torch.zeros(B, S, H, 5)),
            "freqs_cis",
        ),
        (lambda: meta.precompute_freqs_cis(D, -1), "end"),
    ],
)
def test_wrong_arguments_of_table_functions_are_refused_by_name(call, field):
    with pytest.raises(RopeError) as error:
        call()
    assert error.value.field == field


def test_tables_are_exact_at_position_one_million():
    far = 1_000_000
    cos, _ = minimind.precompute_freqs_cis(4, far + 1, 1e4)
    assert_close(cos[far, 0].item(), np.cos(float(far)), rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    ("ids", "field"), [([0, 1, 2, 3, 4, 5, -1], "position_ids"), ([0, 1, 2, 3, 4, 5, 12], "cos")]
)
def test_minimind_refuses_positions_without_a_row(ids, field):
    q, (cos, sin) = torch.randn(B, S, H, D), minimind.precompute_freqs_cis(D, 12)
    with pytest.raises(RopeError) as error:
        minimind.apply_rotary_pos_emb(q, q.clone(), cos, sin, torch.tensor(ids))
    assert error.value.field == field
