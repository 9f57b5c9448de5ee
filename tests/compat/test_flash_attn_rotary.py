"""flash-attn's rotary API against its documented formulas in complex float64; the package itself
needs a GPU.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from ropewalk import RopeError
from ropewalk.compat import flash_attn

B, S, H, D, DIM = 2, 7, 3, 14, 10
LAYOUTS = pytest.mark.parametrize("interleaved", [False, True], ids=["half", "interleaved"])


def complex_pairs(x, interleaved):
    """Return the pairs of x [..., 2P] as complex numbers [..., P]."""
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, dim=-1)
    return torch.complex(a.double(), b.double())


def rotated(x, z, interleaved):
    """Return x [..., S, H, D] with the pairs of its first 2P dimensions times z [..., S, P]."""
    width = 2 * z.shape[-1]
    y = complex_pairs(x[..., :width], interleaved) * z.unsqueeze(-2)
    parts = (y.real, y.imag)
    y = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return torch.cat((y, x[..., width:].double()), dim=-1)


def phases(positions, dim=DIM, base=10000.0):
    """e^{i angle} [..., P] of positions [...]."""
    radians = base ** -(torch.arange(0, dim, 2).double() / dim)
    return torch.exp(1j * positions.double().unsqueeze(-1) * radians)


def growth(positions, center, scale_base, dim=DIM):
    zeta = (torch.arange(0, dim, 2).double() + 0.4 * dim) / (1.4 * dim)
    return zeta ** ((positions.double().unsqueeze(-1) - center) / scale_base)


def tables(rows=40):
    z = phases(torch.arange(rows))
    return z.real.float(), z.imag.float()


def near(found, exact, tolerance=2e-6):
    assert_close(found.double(), exact, rtol=0, atol=tolerance)


def cut(x, cu_seqlens):
    return [x[a:b] for a, b in pairwise(cu_seqlens)]


@LAYOUTS
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("offset", [0, 5, torch.tensor([4, 31])], ids=["none", "int", "rows"])
def test_each_token_is_rotated_by_the_table_row_of_its_position(interleaved, inplace, offset):
    x = torch.randn(B, S, H, D)
    start = offset.unsqueeze(-1) if isinstance(offset, torch.Tensor) else offset
    exact = rotated(x, phases(start + torch.arange(S)), interleaved)
    before = x.clone()
    found = flash_attn.apply_rotary_emb(x, *tables(), interleaved, inplace, offset)
    near(found, exact)
    assert (found is x) == inplace
    assert torch.equal(x, before) != inplace


@LAYOUTS
@pytest.mark.parametrize("offset", [0, 3, torch.tensor([2, 0, 9])], ids=["none", "int", "rows"])
def test_positions_begin_again_in_each_packed_sequence(interleaved, offset):
    cu_seqlens = torch.tensor([0, 4, 5, 11], dtype=torch.int32)
    x = torch.randn(11, H, D)
    starts = offset.tolist() if isinstance(offset, torch.Tensor) else [offset] * 3
    parts = [
        rotated(part, phases(start + torch.arange(len(part))), interleaved)
        for part, start in zip(cut(x, cu_seqlens.tolist()), starts, strict=True)
    ]
    found = flash_attn.apply_rotary_emb(
        x, *tables(), interleaved, seqlen_offsets=offset, cu_seqlens=cu_seqlens, max_seqlen=6
    )
    near(found, torch.cat(parts))


@LAYOUTS
def test_gradients_are_rotated_by_the_opposite_angle(interleaved):
    x = torch.randn(B, S, H, D, requires_grad=True)
    weight = torch.randn(B, S, H, D)
    flash_attn.apply_rotary_emb(x, *tables(), interleaved, seqlen_offsets=3).backward(weight)
    near(x.grad, rotated(weight, phases(3 + torch.arange(S)).conj(), interleaved))


@LAYOUTS
def test_apply_rotary_emb_torch_rotates_and_rotate_half_is_a_quarter_turn(interleaved):
    x = torch.randn(B, S, H, D)
    cos, sin = tables(S)
    near(
        flash_attn.apply_rotary_emb_torch(x, cos, sin, interleaved),
        rotated(x, phases(torch.arange(S)), interleaved),
    )
    quarter = rotated(x, torch.full((S, D // 2), 1j, dtype=torch.complex128), interleaved)
    near(flash_attn.rotate_half(x, interleaved), quarter)


def fused(kind):
    """Return a random fused projection, the arguments that name its heads, and a function that
    returns the views q, k and v of such a projection.
    """
    if kind == "three":
        return torch.randn(B, S, 3, H, D), {}, lambda x: (x[:, :, 0], x[:, :, 1], x[:, :, 2])
    return (
        torch.randn(B, S, H + 2, D),
        {"num_heads_q": H},
        lambda x: (x[:, :, :H], x[:, :, H : H + 1], x[:, :, H + 1 :]),
    )


@LAYOUTS
@pytest.mark.parametrize("kind", ["three", "grouped"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own_key_tables"])
def test_queries_and_keys_of_a_fused_projection_are_rotated_in_place(interleaved, kind, own):
    qkv, named, views = fused(kind)
    before = qkv.clone()
    cos, sin = tables()
    key = {"cos_k": cos / 2, "sin_k": sin / 2} if own else {}
    found = flash_attn.apply_rotary_emb_qkv_(
        qkv, cos, sin, **key, interleaved=interleaved, seqlen_offsets=2, **named
    )
    assert found is qkv
    z = phases(2 + torch.arange(S))
    for after, x, factor in zip(
        views(qkv), views(before), (z, z / 2 if own else z, torch.ones_like(z)), strict=True
    ):
        near(after, rotated(x, factor, interleaved))


def test_keys_of_packed_keys_and_values_are_rotated_in_place():
    kv = torch.randn(B, S, 2, H, D)
    before = kv.clone()
    assert flash_attn.apply_rotary_emb_kv_(kv, *tables(), seqlen_offsets=torch.tensor([3, 0])) is kv
    near(
        kv[:, :, 0],
        rotated(before[:, :, 0], phases(torch.tensor([[3], [0]]) + torch.arange(S)), False),
    )
    assert torch.equal(kv[:, :, 1], before[:, :, 1])


@LAYOUTS
@pytest.mark.parametrize("kind", ["three", "grouped"])
@pytest.mark.parametrize("offset", [0, 9, torch.tensor([0, 10**7])], ids=["none", "int", "rows"])
def test_the_module_rotates_a_fused_projection(interleaved, kind, offset):
    qkv, named, views = fused(kind)
    before = qkv.clone()
    rotary = flash_attn.RotaryEmbedding(DIM, base=500.0, interleaved=interleaved)
    assert rotary(qkv, seqlen_offset=offset, **named) is qkv
    start = offset.unsqueeze(-1) if isinstance(offset, torch.Tensor) else offset
    # the module's frequencies are float32, as trained; its angles are exact multiples of these
    z = torch.exp(1j * (start + torch.arange(S)).double().unsqueeze(-1) * rotary.inv_freq.double())
    for after, x, factor in zip(views(qkv), views(before), (z, z, torch.ones_like(z)), strict=True):
        near(after, rotated(x, factor, interleaved))


def test_the_modules_frequencies_are_the_formula():
    exact = 500.0 ** -(torch.arange(0, DIM, 2).double() / DIM)
    assert_close(
        flash_attn.RotaryEmbedding(DIM, base=500.0).inv_freq.double(), exact, rtol=4e-7, atol=0
    )


@pytest.mark.parametrize("q_len", [S, 2], ids=["same", "fewer_queries"])
def test_the_module_rotates_queries_and_pairs_of_keys_and_values(q_len):
    q, kv = torch.randn(B, q_len, H, D), torch.randn(B, S, 2, 1, D)
    q_before, kv_before = q.clone(), kv.clone()
    found = flash_attn.RotaryEmbedding(DIM)(q, kv, seqlen_offset=4)
    assert found[0] is q
    assert found[1] is kv
    near(q, rotated(q_before, phases(4 + torch.arange(q_len)), False))
    near(kv[:, :, 0], rotated(kv_before[:, :, 0], phases(4 + torch.arange(S)), False))
    assert torch.equal(kv[:, :, 1], kv_before[:, :, 1])


@pytest.mark.parametrize(
    ("given", "call", "center"),
    [
        ({}, {}, S // 2),
        ({}, {"max_seqlen": 30}, 15),
        ({"xpos_center": 11}, {}, 11),
        ({"xpos_center": 11}, {"seqlen_offset": 6}, 11),
        ({"xpos_center": -3}, {}, -3),
    ],
    ids=["own_length", "longest", "given", "given_and_offset", "before_the_start"],
)
@pytest.mark.parametrize("pairs", [False, True], ids=["qkv", "q_and_kv"])
def test_xpos_multiplies_queries_by_its_factor_and_divides_keys_by_it(given, call, center, pairs):
    rotary = flash_attn.RotaryEmbedding(DIM, scale_base=64.0, **given)
    steps = call.get("seqlen_offset", 0) + torch.arange(S)
    z, size = phases(steps), growth(steps, center, 64.0)
    qkv = torch.randn(B, S, 3, H, D)
    q, kv = qkv[:, :, 0].clone(), qkv[:, :, 1:].clone()
    expected = rotated(q, z * size, False), rotated(kv[:, :, 0], z / size, False)
    if pairs:
        rotary(q, kv, **call)
        found = q, kv[:, :, 0]
    else:
        rotary(qkv, **call)
        found = qkv[:, :, 0], qkv[:, :, 1]
    for mine, exact in zip(found, expected, strict=True):
        near(mine, exact)


def test_xpos_divides_keys_of_another_number_than_the_queries_by_its_factor():
    """Cross attention rotates them in two calls."""
    rotary = flash_attn.RotaryEmbedding(DIM, scale_base=64.0, xpos_center=11)
    q, kv = torch.randn(B, 2, H, D), torch.randn(B, S, 2, H, D)
    factors = [growth(torch.arange(count), 11, 64.0) for count in (2, S)]
    queries = rotated(q.clone(), phases(torch.arange(2)) * factors[0], False)
    keys = rotated(kv[:, :, 0].clone(), phases(torch.arange(S)) / factors[1], False)
    rotary(q, kv)
    near(q, queries)
    near(kv[:, :, 0], keys)


@pytest.mark.parametrize("key", [False, True])
def test_the_modules_tables_serve_the_functions(key):
    rotary = flash_attn.RotaryEmbedding(DIM, scale_base=64.0)
    cos, sin = rotary.cos_sin(30, key=key)
    steps = torch.arange(30)
    z = phases(steps) * growth(steps, 15, 64.0) ** (-1 if key else 1)
    near(cos, z.real)
    near(sin, z.imag)


def test_the_module_holds_nothing_that_a_cast_could_round():
    rotary = flash_attn.RotaryEmbedding(DIM).half()
    assert rotary.state_dict() == {}
    assert list(rotary.buffers()) == []
    assert_close(
        rotary.inv_freq.double(),
        10000.0 ** -(torch.arange(0, DIM, 2).double() / DIM),
        rtol=4e-7,
        atol=0,
    )


def test_gradients_flow_through_a_fused_projection():
    x = torch.randn(B, S, 3, H, D, requires_grad=True)
    weight = torch.randn(B, S, 3, H, D)
    (flash_attn.RotaryEmbedding(DIM)(x * 1.0, seqlen_offset=2) * weight).sum().backward()
    back = phases(2 + torch.arange(S)).conj()
    for i, z in enumerate((back, back, torch.ones_like(back))):
        near(x.grad[:, :, i], rotated(weight[:, :, i], z, False))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (
            lambda: flash_attn.apply_rotary_emb(
                torch.randn(B, S, H, D), *tables(), seqlen_offsets=34
            ),
            "cos",
        ),
        (
            lambda: flash_attn.apply_rotary_emb(
                torch.randn(B, S, H, D), *tables(), seqlen_offsets=torch.tensor([0, 34])
            ),
            "cos",
        ),
        (lambda: flash_attn.apply_rotary_emb(torch.randn(S, H, D), *tables()), "x"),
        (
            lambda: flash_attn.apply_rotary_emb(
                torch.randn(B, S, H, D), *tables(), cu_seqlens=torch.tensor([0, 7])
            ),
            "x",
        ),
        (lambda: flash_attn.apply_rotary_emb(torch.randn(B, S, H, 8), *tables()), "x"),
        (lambda: flash_attn.apply_rotary_emb_qkv_(torch.randn(B, S, 5, D), *tables()), "qkv"),
        (
            lambda: flash_attn.apply_rotary_emb_qkv_(
                torch.randn(B, S, 6, D), *tables(), num_heads_q=3
            ),
            "qkv",
        ),
        (lambda: flash_attn.apply_rotary_emb_qkv_(torch.randn(B, S, 3, H, 8), *tables()), "qkv"),
        (lambda: flash_attn.apply_rotary_emb_kv_(torch.randn(B, S, 2, H, 8), *tables()), "kv"),
        (lambda: flash_attn.apply_rotary_emb_kv_(torch.randn(B, S, 3, H, D), *tables()), "kv"),
        (lambda: flash_attn.RotaryEmbedding(DIM, pos_idx_in_fp32=False), "pos_idx_in_fp32"),
        (lambda: flash_attn.RotaryEmbedding(9), "rotary_dim"),
        (
            lambda: flash_attn.RotaryEmbedding(DIM, scale_base=64.0)(
                torch.randn(B, S, 3, H, D), seqlen_offset=1
            ),
            "xpos_center",
        ),
        (lambda: flash_attn.RotaryEmbedding(DIM, scale_base=64.0, xpos_center=2.5), "xpos_center"),
        (
            lambda: flash_attn.apply_rotary_emb(
                torch.randn(B, S, H, D), *tables(), seqlen_offsets=-1
            ),
            "seqlen_offsets",
        ),
        (
            lambda: flash_attn.apply_rotary_emb(
                torch.randn(9, H, D),
                *tables(),
                seqlen_offsets=torch.tensor([1, 2, 3]),
                cu_seqlens=torch.tensor([0, 2, 9]),
            ),
            "seqlen_offsets",
        ),
        *(
            (
                lambda offset=offset: flash_attn.apply_rotary_emb(
                    torch.randn(9, H, D),
                    *tables(),
                    seqlen_offsets=offset,
                    cu_seqlens=torch.tensor([0, 2, 9]),
                ),
                "seqlen_offsets",
            )
            for offset in (1.5, torch.tensor([1.5, 2.5]))
        ),
    ],
)
def test_wrong_arguments_of_flash_attn_functions_are_refused_by_name(call, field):
    with pytest.raises(RopeError) as error:
        call()
    assert error.value.field == field


SHORT, NARROW = (torch.ones(3, DIM // 2),) * 2, (torch.ones(40, 2), torch.ones(40, 3))


@pytest.mark.parametrize(
    ("of_keys", "field"),
    [
        ({"cos_k": SHORT[0], "sin_k": SHORT[1]}, "cos_k"),
        ({"cos_k": NARROW[0], "sin_k": NARROW[1]}, "sin_k"),
        ({"sin_k": torch.ones(40, 2)}, "sin_k"),
        ({"cos_k": torch.ones(40, DIM // 2).long()}, "cos_k"),
        ({"cos_k": torch.ones(40, 8), "sin_k": torch.ones(40, 8)}, "qkv"),
    ],
)
def test_queries_stay_as_they_are_if_the_tables_of_the_keys_are_refused(of_keys, field):
    qkv = torch.randn(B, S, 3, H, D)
    before = qkv.clone()
    with pytest.raises(RopeError) as error:
        flash_attn.apply_rotary_emb_qkv_(qkv, *tables(), **of_keys)
    assert error.value.field == field
    assert torch.equal(qkv, before)


@pytest.mark.parametrize(
    "kv",
    [
        torch.randn(B, 9, 2, H, D + 2),
        torch.randn(B + 1, 9, 2, H, D),
        torch.ones(B, 9, 2, H, D).long(),
    ],
)
def test_queries_stay_as_they_are_if_the_keys_are_refused(kv):
    q = torch.randn(B, S, H, D)
    before = q.clone()
    with pytest.raises(RopeError) as error:
        flash_attn.RotaryEmbedding(DIM)(q, kv, seqlen_offset=torch.tensor([1, 2]))
    assert error.value.field == "kv"
    assert torch.equal(q, before)


def test_tokens_past_the_last_boundary_have_no_offset():
    x = torch.randn(9, H, D)
    found = flash_attn.apply_rotary_emb(
        x, *tables(), seqlen_offsets=torch.tensor([5, 7]), cu_seqlens=torch.tensor([0, 2, 6])
    )
    near(found, rotated(x, phases(torch.tensor([5, 6, 7, 8, 9, 10, 0, 1, 2])), False))
