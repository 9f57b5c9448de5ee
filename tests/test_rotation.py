"""The token axis, the strides of x, and in place or not: none of these changes a bit of the result."""

from __future__ import annotations

import random

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from helpers import (
    AXES,
    DTYPES,
    HEAD_DIM,
    backend_or_skip,
    definition,
    rotate_qk,
    sample_positions,
    sample_spec,
)
from ropewalk import rotation
from ropewalk.kernels import request as request_module

B, H, S = 2, 3, 7
every_backend = pytest.mark.parametrize("backend", rw.kernels.BACKENDS)
both_layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])
#: name -> (the order of the axes batch, head and token in x, the axis of the tokens)
ORDERS = {"BHSD": ((0, 1, 2), -2), "BSHD": ((0, 2, 1), -3), "SBHD": ((2, 0, 1), -4)}


def bits(x):
    """Return the bits of floats as integers: NaN equals itself, and -0.0 differs from 0.0."""
    return x.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


@pytest.mark.sampled(by=["backend"])
@every_backend
@both_layouts
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [None, 1, B])
def test_tokens_may_be_on_any_axis(order, rows, layout, backend):
    axes, seq_dim = ORDERS[order]
    spec = sample_spec(layout=layout)
    x = torch.randn(B, H, S, HEAD_DIM)
    run_by = backend_or_skip(backend, x, spec)
    positions = torch.randint(0, 100, (S,) if rows is None else (rows, S))
    expected = definition(x, spec, positions).float()
    for dim in (seq_dim, seq_dim + 4):
        found = rotation.rotate(x.permute(*axes, 3), spec, positions, seq_dim=dim, backend=run_by)
        assert_close(found, expected.permute(*axes, 3), rtol=0, atol=2e-6)


@every_backend
@pytest.mark.parametrize(
    ("shape", "seq_dim"),
    [
        ((S, HEAD_DIM), -2),
        ((B, S, HEAD_DIM), -2),
        ((S, H, HEAD_DIM), -3),
        ((B, 2, H, S, HEAD_DIM), -2),
    ],
)
def test_tensors_of_two_to_five_axes_rotate_by_their_own_positions(shape, seq_dim, backend):
    """[S, D], [B, S, D], packed [T, H, D], five axes: every token is rotated by its own position."""
    spec = sample_spec()
    x = torch.randn(shape)
    run_by = backend_or_skip(backend, x, spec, seq_dim)
    tokens_last = x.movedim(seq_dim, -2).reshape(-1, 1, S, HEAD_DIM)
    found = rotation.rotate(x, spec, offset=5, seq_dim=seq_dim, backend=run_by)
    expected = definition(tokens_last, spec, torch.arange(S) + 5).float()
    assert_close(
        found.movedim(seq_dim, -2).reshape(-1, 1, S, HEAD_DIM), expected, rtol=0, atol=2e-6
    )


def test_packed_tokens_have_heads_and_no_rows():
    spec, x = sample_spec(), torch.randn(S, H, HEAD_DIM)
    assert_refused(
        "positions",
        lambda: rotation.rotate(x, spec, torch.zeros(H, S, dtype=torch.int64), seq_dim=-3),
    )
    angle = torch.randn(1, H, S, HEAD_DIM // 2)  # one table a head
    rotated = rotation.rotate_by(x, angle.cos(), angle.sin(), layout="half", seq_dim=-3)
    z = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)[0].transpose(
        0, 1
    )
    assert_close(rotated, torch.cat((z.real, z.imag), -1))


def test_with_five_axes_the_first_axis_is_the_batch():
    spec, x = sample_spec(), torch.randn(B, 2, H, S, HEAD_DIM)
    positions = torch.randint(0, 100, (B, S))
    found = rotation.rotate(x, spec, positions)
    for row in range(B):
        assert_close(
            found[row], definition(x[row], spec, positions[row]).float(), rtol=0, atol=2e-6
        )


@every_backend
@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_keys_may_have_another_number_of_heads_than_queries(kv_heads, backend):
    spec = sample_spec("yarn")
    q, k = torch.randn(B, 6, S, HEAD_DIM), torch.randn(B, kv_heads, S, HEAD_DIM)
    run_by, positions = backend_or_skip(backend, q, spec), torch.randint(0, 100, (B, S))
    rotated = rotate_qk(q, k, spec, positions, backend=run_by)
    for found, x in zip(rotated, (q, k), strict=True):
        assert_close(found, definition(x, spec, positions).float(), rtol=0, atol=2e-6)


@every_backend
def test_queries_and_keys_are_multiplied_by_their_own_magnitudes(backend):
    q, k = torch.randn(2, B, H, S, HEAD_DIM)
    for spec in (sample_spec("xpos"), sample_spec("yarn", magnitude_on="q")):
        run_by, positions = backend_or_skip(backend, q, spec), sample_positions(spec, B, S, high=60)
        rotated = rotate_qk(q, k, spec, positions, backend=run_by)
        for found, x, key in zip(rotated, (q, k), (False, True), strict=True):
            exact = definition(x, spec, positions, key=key)
            assert_close(found.double(), exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("axis", AXES)
def test_offsets_and_positions_of_every_shape_and_dtype_agree(axis):
    spec = sample_spec(axis=axis)
    x = torch.randn(B, H, S, spec.head_dim)
    full = (torch.arange(S) + 4).expand(B, S)
    expected = rotation.rotate(x, spec, full.expand(spec.num_axes, B, S))
    for where in (
        {"offset": 4},
        {"offset": torch.tensor(4)},
        {"offset": torch.tensor([4, 4], dtype=torch.int32)},
        {"positions": full},
        {"positions": full[0]},
        {"positions": full[:1].to(torch.uint8)},
        {"positions": full.to(torch.int16)},
    ):
        assert torch.equal(bits(rotation.rotate(x, spec, **where)), bits(expected)), where


def test_each_row_may_have_its_own_offset():
    spec, x = sample_spec(), torch.randn(B, H, S, HEAD_DIM)
    offsets = torch.tensor([3, 50])
    expected = definition(x, spec, offsets[:, None] + torch.arange(S)).float()
    assert_close(rotation.rotate(x, spec, offset=offsets), expected, rtol=0, atol=2e-6)


@every_backend
@pytest.mark.parametrize("dtype", DTYPES)
@both_layouts
def test_in_place_is_the_same_and_takes_no_memory_of_its_own(dtype, layout, backend):
    spec = sample_spec("yarn", layout=layout)
    x = torch.randn(B, H, S, HEAD_DIM).to(dtype)
    run_by, positions = backend_or_skip(backend, x, spec), torch.randint(0, 10**7, (B, S))
    expected = rotation.rotate(x, spec, positions, backend=run_by)
    own = x.clone()
    found = rotation.rotate(own, spec, positions, inplace=True, backend=run_by)
    assert found is own
    assert torch.equal(bits(own), bits(expected))
    q, k = x.clone(), x[:, :1].clone()
    rotated = rotate_qk(q, k, spec, positions, inplace=True, backend=run_by)
    assert rotated[0] is q
    assert rotated[1] is k
    assert torch.equal(bits(k), bits(expected[:, :1]))
    assert torch.equal(bits(q), bits(expected))


def test_in_place_on_slices_of_a_fused_projection():
    """q and k are interleaved in one tensor, and share no element."""
    spec = sample_spec()
    fused = torch.randn(B, S, (H + 2) * HEAD_DIM)
    before = fused.clone()
    heads = fused.view(B, S, H + 2, HEAD_DIM)
    q, k, v = heads[:, :, :H], heads[:, :, H : H + 1], heads[:, :, H + 1 :]
    rotate_qk(q, k, spec, seq_dim=-3, inplace=True)
    x = before.view(B, S, H + 2, HEAD_DIM).transpose(1, 2)
    expected = definition(x[:, : H + 1], spec, torch.arange(S)).float()
    assert_close(heads[:, :, : H + 1].transpose(1, 2), expected, rtol=0, atol=2e-6)
    assert torch.equal(v, before.view(B, S, H + 2, HEAD_DIM)[:, :, H + 1 :])


@pytest.mark.parametrize(
    "about",
    [{"name": "xpos"}, {"name": "yarn", "magnitude_on": "q"}],
    ids=["xpos", "magnitude on q"],
)
def test_in_place_with_gradients_keys_are_multiplied_by_their_own_magnitude(about):
    spec, positions = sample_spec(**about), torch.randint(0, 60, (B, S))
    q, k = (x.requires_grad_() for x in torch.randn(2, B, H, S, HEAD_DIM, dtype=torch.float64))
    rotated = (
        *rotate_qk(q * 1, k * 1, spec, positions, inplace=True),
        rotation.rotate(k * 1, spec, positions, key=True, inplace=True),
    )
    for found, x, key in zip(rotated, (q, k, k), (False, True, True), strict=True):
        assert_close(found.detach(), definition(x, spec, positions, key=key), rtol=0, atol=1e-12)
        weights = torch.randn_like(x)
        (grad,) = torch.autograd.grad(found, x, weights)
        assert_close((grad * x).sum(), (weights * found).sum())  # a rotation is linear


@pytest.mark.parametrize("backend", [None, "eager", "reference"])
@pytest.mark.parametrize("inplace", [False, True])
def test_layouts_that_are_not_contiguous(backend, inplace):
    spec = sample_spec()
    full = torch.randn(B, H, 2 * S, 2 * HEAD_DIM)
    views = {
        "stepped tokens": full[:, :, ::2, :HEAD_DIM],
        "stepped dims": full[:, :, :S, ::2],
        "a slice": full[:, 1:, 3 : 3 + S, 2 : 2 + HEAD_DIM],
        "transposed": torch.randn(B, HEAD_DIM, H, S).permute(0, 2, 3, 1),
        "channels last": torch.randn(B, H, S, HEAD_DIM).contiguous(
            memory_format=torch.channels_last
        ),
        "tokens before heads": torch.randn(B, S, H, HEAD_DIM).transpose(1, 2),
        "expanded": torch.randn(B, 1, S, HEAD_DIM).expand(B, H, S, HEAD_DIM),
        # torch.empty_like of this puts the heads innermost
        "windows": torch.randn(400).as_strided((B, H, S, HEAD_DIM), (110, 1, 14, 1)),
    }
    positions = torch.randint(0, 10**7, (B, S))
    for name, view in views.items():
        expected = rotation.rotate(view.contiguous(), spec, positions, backend=backend)
        if inplace and name in ("expanded", "windows"):
            continue
        rest = full.clone()
        found = rotation.rotate(view, spec, positions, inplace=inplace, backend=backend)
        assert torch.equal(bits(found), bits(expected)), name
        assert inplace or torch.equal(full, rest), name


@pytest.mark.sampled(by=["backend"])
@pytest.mark.parametrize("backend", [None, *rw.kernels.BACKENDS])
@pytest.mark.parametrize("dtype", DTYPES)
@both_layouts
def test_random_strided_views_equal_contiguous(dtype, layout, backend, full):
    """25 random views for each backend, dtype and layout, with --full 1,000; without a named backend
    each view takes the kernel that is picked for it.
    """
    dice = random.Random(7)
    memory = torch.randn(6000).to(dtype)
    spec = sample_spec(layout=layout)
    for _ in range(1000 if full else 25):
        sizes = [dice.randint(0, 3), dice.randint(1, 3), dice.randint(1, 5), HEAD_DIM]
        strides = [dice.randint(0, 200) for _ in range(3)] + [
            1 if backend == "cpu" else dice.randint(1, 4)
        ]
        view = memory.as_strided(sizes, strides, dice.randint(0, 100))
        run_by = backend and backend_or_skip(backend, view, spec)
        positions = torch.randint(-(2**40), 2**40, (sizes[0], sizes[2]))
        found = rotation.rotate(view, spec, positions, backend=run_by)
        expected = rotation.rotate(view.contiguous(), spec, positions, backend=run_by)
        assert torch.equal(bits(found), bits(expected)), (sizes, strides)


@every_backend
@pytest.mark.parametrize("shape", [(0, H, S, HEAD_DIM), (B, 0, S, HEAD_DIM), (B, H, 0, HEAD_DIM)])
@pytest.mark.parametrize(
    "name", ["default", "dynamic", "longrope", "dynamic_yarn", "learnable", "xpos"]
)
def test_empty_tensors_keep_their_shape_and_have_gradients(shape, name, backend):
    spec = sample_spec(name)
    x = torch.randn(shape, requires_grad=True)
    rope = rw.Rope(spec, backend=backend_or_skip(backend, x, spec))
    for where in (
        {},
        {"positions": torch.zeros(shape[0], shape[2], dtype=torch.int64)},
        {"offset": 5},
    ):
        q, k = rope(x, x, **where)
        assert q.shape == k.shape == x.shape
        q.sum().backward()
    cos, sin = rope.cos_sin(torch.zeros(shape[2], dtype=torch.int64))
    assert cos.shape == sin.shape == (shape[2], spec.pairs)


@every_backend
def test_strides_beyond_32_bits(backend):
    """Rows 2^31 elements apart: an index that wraps would read or write the wrong row."""
    spec = sample_spec()
    apart = 2**31 + 8
    try:
        # pages of memory are taken only where they are written
        memory = torch.empty(apart + 200, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("4.3 GB of address space are not to be had")
    x = memory.as_strided((2, 1, S, HEAD_DIM), (apart, 1, HEAD_DIM, 1))
    x.copy_(torch.randn(x.shape))
    run_by = backend_or_skip(backend, x, spec)
    exact = definition(x, spec, torch.arange(S))
    found = rotation.rotate(x, spec, backend=run_by)
    assert_close(found.double(), exact, rtol=0, atol=4e-3)
    rotation.rotate(x, spec, inplace=True, backend=run_by)
    assert torch.equal(x, found)


def test_nan_and_infinity_reach_only_their_own_pair():
    spec, x = sample_spec(), torch.randn(1, 1, S, HEAD_DIM)
    x[0, 0, 3, 2] = float("nan")
    x[0, 0, 4, 3] = float("inf")
    bad = ~rotation.rotate(x, spec, offset=1).isfinite()
    expected = torch.zeros_like(bad)
    expected[0, 0, 3, [2, 7]] = True
    expected[0, 0, 4, [3, 8]] = True
    assert torch.equal(bad, expected)


@pytest.mark.parametrize("name", ["eager", "reference"])
def test_a_backend_is_chosen_by_name_and_an_unknown_one_refused(name):
    x, spec = torch.randn(1, 1, S, HEAD_DIM), sample_spec()
    assert_close(
        rotation.rotate(x, spec, backend=name),
        definition(x, spec, torch.arange(S)).float(),
        rtol=0,
        atol=2e-6,
    )
    with pytest.raises(rw.RopeError, match=r"must be one of .*eager") as caught:
        rotation.rotate(x, spec, backend="abacus")
    assert caught.value.field == "backend"


def test_rotate_qk_takes_the_axis_before_the_last_as_tokens_by_default():
    q, k, spec = torch.randn(2, 7, 10), torch.randn(2, 7, 10), rw.RopeSpec(10)
    for found, x in zip(rotate_qk(q, k, spec, offset=3), (q, k), strict=True):
        torch.testing.assert_close(
            found, definition(x[:, None], spec, torch.arange(3, 10).expand(2, 7))[:, 0].float()
        )


def test_rotate_half_is_a_quarter_turn_of_every_pair():
    assert rw.rotate_half(torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])).tolist() == [
        [-3, -4, 1, 2],
        [-7, -8, 5, 6],
    ]


def test_a_call_with_an_offset_reads_the_cached_rows(monkeypatch):
    """A second call computes no cos and sin."""
    spec, x = sample_spec(theta=77.0), torch.randn(B, H, S, HEAD_DIM)
    rotation.rotate(x, spec, offset=40, backend="eager")
    monkeypatch.setattr(
        request_module, "cos_sin", lambda *_, **__: pytest.fail("rows were made again")
    )
    for offset in (0, 3):
        expected = definition(x, spec, torch.arange(S) + offset).float()
        assert_close(
            rotation.rotate(x, spec, offset=offset, backend="eager"), expected, rtol=0, atol=2e-6
        )


@pytest.mark.parametrize("trained", ["neither", "cos", "sin", "both, under no_grad"])
def test_rotate_by_runs_a_kernel_unless_its_tables_need_gradients(trained):
    x, cos, sin = torch.randn(B, H, S, 10), torch.randn(S, 5), torch.randn(S, 5)
    cos.requires_grad_(trained[:3] in ("cos", "bot"))
    sin.requires_grad_(trained[:3] in ("sin", "bot"))
    with torch.set_grad_enabled(trained in ("neither", "cos", "sin")):
        if trained in ("cos", "sin"):
            rotation.rotate_by(x, cos, sin, layout="half").sum().backward()
            a, b = x[..., :5], x[..., 5:]
            # d/dcos of (a cos - b sin) + (a sin + b cos) is a + b, d/dsin is a - b
            found, expected = (cos.grad, a + b) if trained == "cos" else (sin.grad, a - b)
            assert_close(found, expected.sum((0, 1)))
        else:
            with pytest.raises(rw.RopeError, match="triton"):
                rotation.rotate_by(x, cos, sin, layout="half", backend="triton")


@pytest.mark.parametrize(
    ("layout", "layout_out"), [("half", "interleaved"), ("interleaved", "half")]
)
def test_the_gradient_of_rotate_by_is_read_in_layout_out_and_written_in_layout(layout, layout_out):
    """The gradient of x: the pairs of the result's gradient times the conjugate of the rotation."""
    x, weights = torch.randn(2, B, H, S, 10, dtype=torch.float64)
    angle, size = torch.randn(S, 5, dtype=torch.float64), 1.7
    x.requires_grad_()
    rotated = rotation.rotate_by(
        x, size * angle.cos(), size * angle.sin(), layout=layout, layout_out=layout_out
    )
    (rotated * weights).sum().backward()
    read = {
        "half": lambda y: y.unflatten(-1, (2, 5)).mT,
        "interleaved": lambda y: y.unflatten(-1, (5, 2)),
    }
    z = torch.view_as_complex(read[layout_out](weights).contiguous()) * torch.polar(
        torch.full_like(angle, size), -angle
    )
    assert_close(read[layout](x.grad), torch.view_as_real(z))


@pytest.mark.parametrize("start", [-1, 5, 1.0, True])
def test_a_table_rotation_starts_within_the_head(start):
    x, table = torch.randn(B, H, S, 14), torch.ones(S, 5)
    assert_refused(
        "x" if start == 5 else "start",
        lambda: rotation.rotate_by(x, table, table, layout="half", start=start),
    )
    assert_close(rotation.rotate_by(x, table, 0 * table, layout="half", start=4), x)
