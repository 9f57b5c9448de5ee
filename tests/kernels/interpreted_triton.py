"""Laws of the Triton kernel, run on the CPU by Triton's interpreter.

`test_triton.py` starts this file in a process of its own: the interpreter must be chosen before
Triton is imported.
"""

from __future__ import annotations

import mpmath
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import ropewalk as rw
from far_positions import LIMITS, RULES, draw, expected, largest_error, rotated_units
from far_positions import near as far_positions
from frequency_oracle import oracle
from helpers import AXES, TOLERANCE, definition, members, rotate_qk, sample_positions, sample_spec
from ropewalk import axes, frequencies, rotation
from ropewalk.kernels import BACKENDS
from ropewalk.kernels.request import Request, TableRequest
from ropewalk.kernels.rotation.triton import launch as triton_launch
from ropewalk.kernels.rotation.triton import plan as triton_plan
from ropewalk.kernels.rotation.triton.config import RotationConfig
from ropewalk.strategies import STRATEGIES
from ropewalk.table import TABLES

pytestmark = pytest.mark.sampled
B, S, Q, K = 2, 3, 3, 2
LAYOUTS = [
    ("half", "half"),
    ("interleaved", "interleaved"),
    ("interleaved", "half"),
    ("half", "interleaved"),
]
F32 = torch.float32


def near(found: Tensor, exact: Tensor) -> None:
    """Check that `found` is `exact` within one rounding to its dtype and a few float32 roundings."""
    size = max(1.0, float(exact.abs().max()))
    assert_close(found.double(), exact, rtol=0, atol=TOLERANCE[found.dtype] * size)


def heads(spec, count, dtype=F32, batch=B, seq=S) -> Tensor:
    return (2 * torch.rand(batch, count, seq, spec.head_dim) - 1).to(dtype)


def both(spec, q, k, positions=None, **how) -> tuple[Tensor, Tensor]:
    return rotate_qk(q, k, spec, positions, backend="triton", **how)


#: name -> (function that copies [B, H, S, D] into this order of axes or of memory, seq_dim)
ORDERS = {
    "bhsd": (lambda x: x.clone(), -2),
    "bshd": (lambda x: x.transpose(1, 2).contiguous(), -3),
    "sbhd": (lambda x: x.permute(2, 0, 1, 3).contiguous(), 0),
    "heads behind tokens in memory": (lambda x: x.transpose(1, 2).contiguous().transpose(1, 2), -2),
}
#: name -> function that returns a tensor of this order as [B, H, S, D]
BACK = {
    "bhsd": lambda x: x,
    "bshd": lambda x: x.transpose(1, 2),
    "sbhd": lambda x: x.permute(1, 2, 0, 3),
    "heads behind tokens in memory": lambda x: x,
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_every_memory_order_is_rotated_in_place_or_not(order, inplace):
    spec = sample_spec()
    place, seq_dim = ORDERS[order]
    q, k, positions = heads(spec, Q), heads(spec, K), sample_positions(spec, B, S)
    placed = place(q), place(k)
    rotated = both(spec, *placed, positions, seq_dim=seq_dim, inplace=inplace)
    for x, given, found, key in zip((q, k), placed, rotated, (False, True), strict=True):
        near(BACK[order](found), definition(x, spec, positions, key=key))
        assert found.stride() == given.stride()
        assert (found is given) == inplace
        assert inplace or torch.equal(BACK[order](given), x)


def test_packed_tokens_and_tensors_without_heads_equal_the_definition():
    spec = sample_spec()
    q, positions = heads(spec, Q, batch=1, seq=7), sample_positions(spec, 1, 7)
    exact = definition(q, spec, positions)
    packed = rotation.rotate(q[0].transpose(0, 1), spec, positions[0], seq_dim=0, backend="triton")
    near(packed.transpose(0, 1), exact[0])
    near(rotation.rotate(q[:, 1], spec, positions, backend="triton"), exact[:, 1])
    near(rotation.rotate(q[0, 1], spec, positions[0], backend="triton"), exact[0, 1])


def test_views_of_one_buffer_rotate_in_place_and_leave_the_values_alone():
    spec = sample_spec()
    qkv = torch.randn(B, S, Q + 2 * K, spec.head_dim)
    before, positions = qkv.clone(), sample_positions(spec, B, S)
    both(spec, qkv[:, :, :Q], qkv[:, :, Q : Q + K], positions, seq_dim=-3, inplace=True)
    exact = definition(before[:, :, : Q + K].transpose(1, 2), spec, positions).transpose(1, 2)
    near(qkv[:, :, : Q + K], exact)
    assert torch.equal(qkv[:, :, Q + K :], before[:, :, Q + K :])


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("layout", "layout_out"), LAYOUTS)
@pytest.mark.parametrize(
    ("head_dim", "rotary_dim", "start"), [(16, 16, 0), (14, 10, 2), (20, 12, 8)]
)
def test_every_layout_and_rotated_slice_equals_the_definition(
    layout, layout_out, head_dim, rotary_dim, start, inplace
):
    spec = rw.RopeSpec(
        head_dim, layout=layout, layout_out=layout_out, rotary_dim=rotary_dim, rotary_start=start
    )
    q, k, positions = heads(spec, Q), heads(spec, 1), sample_positions(spec, B, S)
    exact = definition(q, spec, positions), definition(k, spec, positions)
    for found, wanted in zip(both(spec, q, k, positions, inplace=inplace), exact, strict=True):
        near(found, wanted)
        # dimensions that do not rotate are not rounded
        assert torch.equal(found[..., :start].double(), wanted[..., :start])
        assert torch.equal(
            found[..., start + rotary_dim :].double(), wanted[..., start + rotary_dim :]
        )


# the interpreter chops a float32 to bfloat16 where a GPU rounds it
@pytest.mark.parametrize(("dtype", "ulps"), [(torch.bfloat16, 1.0), (torch.float16, 0.5)])
@pytest.mark.parametrize("order", ["bhsd", "bshd"])
def test_low_precision_is_rounded_once(dtype, ulps, order):
    spec, (place, seq_dim) = sample_spec(layout="interleaved"), ORDERS[order]
    x, positions = heads(spec, Q, dtype), sample_positions(spec, B, S)
    found = BACK[order](
        rotation.rotate(place(x), spec, positions, seq_dim=seq_dim, backend="triton")
    )
    exact = definition(x, spec, positions)
    allowed = ulps * torch.finfo(dtype).eps * exact.abs()
    assert bool(((found.double() - exact).abs() <= 1.01 * allowed + 1e-6).all())


def test_query_and_key_may_have_different_dtypes():
    spec = sample_spec()
    q, k, positions = heads(spec, Q), heads(spec, K, torch.bfloat16), sample_positions(spec, B, S)
    for x, found in zip((q, k), both(spec, q, k, positions), strict=True):
        assert found.dtype == x.dtype
        near(found, definition(x, spec, positions))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_every_scaling_equals_the_definition_on_queries_and_keys(name):
    spec = sample_spec(name)
    length = torch.tensor([9, 40]) if spec.needs_length else None
    q, k, positions = heads(spec, Q), heads(spec, K), sample_positions(spec, B, S, high=60)
    rotated = both(spec, q, k, positions, length=length)
    for x, found, key in zip((q, k), rotated, (False, True), strict=True):
        near(found, definition(x, spec, positions, length, key))


@pytest.mark.parametrize("name", ["yarn", "dynamic_yarn", "xpos"])
@pytest.mark.parametrize(
    ("magnitude_on", "order"), [("qk", "bhsd"), ("q", "bshd"), ("q", "bhsd"), ("scale", "bshd")]
)
def test_magnitudes_multiply_queries_keys_or_neither_as_the_spec_says(name, magnitude_on, order):
    spec, (place, seq_dim) = sample_spec(name, magnitude_on=magnitude_on), ORDERS[order]
    length = torch.tensor([9, 40]) if spec.needs_length else None
    q, k, positions = heads(spec, Q), heads(spec, K), sample_positions(spec, B, S, high=60)
    rotated = both(spec, place(q), place(k), positions, seq_dim=seq_dim, length=length)
    for x, found, key in zip((q, k), rotated, (False, True), strict=True):
        near(BACK[order](found), definition(x, spec, positions, length, key))
        alone = rotation.rotate(
            place(x), spec, positions, seq_dim=seq_dim, length=length, key=key, backend="triton"
        )
        assert_close(alone, found)


@pytest.mark.parametrize(
    ("axis", "order"),
    [(name, ("bhsd", "bshd")[i % 2]) for i, name in enumerate(AXES) if name != "one"],
)
def test_every_axis_map_equals_the_definition(axis, order):
    spec, (place, seq_dim) = sample_spec(axis=axis), ORDERS[order]
    q, k, positions = heads(spec, Q), heads(spec, K), sample_positions(spec, B, S)
    rotated = both(spec, place(q), place(k), positions, seq_dim=seq_dim)
    for x, found in zip((q, k), rotated, strict=True):
        near(BACK[order](found), definition(x, spec, positions))


@pytest.mark.parametrize("name", ["yarn", "dynamic_yarn", "xpos"])
@pytest.mark.parametrize(("layout", "layout_out"), LAYOUTS[1:3])
def test_unrotate_undoes_rotate(name, layout, layout_out):
    spec = sample_spec(name, layout=layout, layout_out=layout_out)
    x, positions = heads(spec, Q), sample_positions(spec, B, S, high=60)
    there = rotation.rotate(x, spec, positions, backend="triton")
    assert_close(rotation.unrotate(there, spec, positions, backend="triton"), x, rtol=0, atol=3e-6)


@pytest.mark.parametrize("name", ["default", "yarn", "xpos"])
def test_the_gradient_is_rotated_by_the_transpose(name):
    """<g, R x> = <R^T g, x>, for a gradient whose memory repeats one number too."""
    spec = sample_spec(name, layout="interleaved", layout_out="half")
    q, k = heads(spec, Q).requires_grad_(), heads(spec, K).requires_grad_()
    positions = sample_positions(spec, B, S, high=60)
    rotated = both(spec, q, k, positions)
    grads = torch.randn_like(rotated[0]), torch.ones(()).expand_as(rotated[1])
    torch.autograd.backward(rotated, grads)
    for x, grad, key in ((q, grads[0], False), (k, grads[1], True)):
        probe = torch.randn_like(x)
        direct = (grad.double() * definition(probe, spec, positions, key=key)).sum()
        assert_close((x.grad.double() * probe.double()).sum(), direct, rtol=1e-5, atol=1e-5)


#: views of [B, 3 S] positions
VIEWS = {
    "one row": lambda rows: rows[0, :S],
    "rows": lambda rows: rows[:, :S],
    "every third": lambda rows: rows[:, ::3],
    "a batch of one": lambda rows: rows[:1, :S],
    "one number": lambda rows: rows[0, 0].expand(B, S),
    "not from the start": lambda rows: rows[:, 1 : S + 1],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16])
def test_positions_of_any_shape_stride_and_integer_type(dtype, view):
    spec = sample_spec()
    q, k = heads(spec, Q), heads(spec, K)
    positions = VIEWS[view](torch.randint(0, 200, (B, 3 * S), dtype=dtype))
    for x, found in zip((q, k), both(spec, q, k, positions), strict=True):
        near(found, definition(x, spec, positions.expand(B, S)))


@pytest.mark.parametrize("offset", [0, -2, 1 << 21])
@pytest.mark.parametrize(("order", "seq"), [("bhsd", 3), ("bshd", 2), ("bhsd", 1)])
def test_without_positions_tokens_are_counted_from_the_offset(offset, order, seq):
    spec, (place, seq_dim) = sample_spec(), ORDERS[order]
    q, k = heads(spec, Q, seq=seq), heads(spec, K, seq=seq)
    rotated = both(spec, place(q), place(k), offset=offset, seq_dim=seq_dim)
    for x, found in zip((q, k), rotated, strict=True):
        near(
            BACK[order](found),
            definition(x, spec, torch.arange(offset, offset + seq).expand(B, seq)),
        )


@pytest.mark.parametrize("name", ["dynamic", "dynamic_yarn", "longrope"])
def test_the_default_length_is_the_last_counted_position_plus_one(name):
    """The default length depends on the offset, although calls with different offsets have the same
    shapes.
    """
    spec = sample_spec(name)
    for offset in (0, 30):
        q, k = heads(spec, Q), heads(spec, K)
        positions = torch.arange(offset, offset + S).expand(B, S)
        for x, found in zip((q, k), both(spec, q, k, offset=offset), strict=True):
            near(found, definition(x, spec, positions, torch.tensor(offset + S)))


def exact_factors(spec, positions: list[int]) -> Tensor:
    """e^{i F p} with 60 digits, for positions where a float64 angle is no oracle."""
    with mpmath.workdps(60):
        radians = oracle(spec.scaling, spec.head_dim, spec.theta)[0]
        return torch.tensor(
            [[complex(mpmath.expj(r * p)) for r in radians] for p in positions],
            dtype=torch.complex128,
        )


@pytest.mark.parametrize("rule", RULES)
def test_far_positions_follow_the_published_formulas(rule):
    for seed, bits in enumerate(LIMITS):
        spec, positions = draw(rule, seed), far_positions(bits, 8, seed)
        found = rotated_units(spec, positions, "triton", F32)
        assert largest_error(found, expected(spec, positions)) <= LIMITS[bits], (spec, bits)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("name", "tables"),
    [("yarn", "full"), ("yarn", "two-level"), ("xpos", "full"), ("xpos", "none")],
)
def test_every_table_strategy_equals_the_definition(name, tables):
    """The kernel reads rows of the tables that were chosen, and computes phases without them."""
    spec = sample_spec(name, magnitude_on="q")
    rope = rw.Rope(spec, backend="triton", tables=tables)
    q, k = heads(spec, Q), heads(spec, K)
    given = sample_positions(spec, B, S, high=60)
    for where, positions in (
        ({}, torch.arange(S)),
        ({"offset": 40}, torch.arange(S) + 40),
        ({"positions": given}, given),
    ):
        for x, found, key in zip((q, k), rope(q, k, **where), (False, True), strict=True):
            near(found, definition(x, spec, positions, key=key))
    far = torch.tensor([2**40, 5, -3])
    if name == "yarn":
        for found, computed in zip(
            rope(q, k, far), rw.Rope(spec, backend="eager")(q, k, far), strict=True
        ):
            near(found, computed.double())


def test_a_table_strategy_keeps_no_more_bytes_than_it_states():
    spec = rw.RopeSpec(16)
    for tables in STRATEGIES:
        rw.caches.clear_caches()
        rope = rw.Rope(spec, backend="triton", tables=tables)
        rope.rotate(heads(spec, Q))
        assert TABLES.bytes <= rope.table_bytes(S)
        assert tables not in ("full", "none") or TABLES.bytes == rope.table_bytes(S)


@pytest.mark.parametrize("seq", [1, 6])
def test_far_positions_are_as_exact_as_near_ones(seq):
    """A call may mix rows at positions within the tables with rows beyond them; both are right."""
    spec = rw.RopeSpec(head_dim=10)
    far = [
        0,
        1,
        1023,
        1024,
        (1 << 20) - 1,
        1 << 20,
        10**7,
        1 << 40,
        (1 << 62) + 12345,
        -1,
        -(10**6),
        5,
    ]
    positions = torch.tensor(far).reshape(-1, seq)
    x = torch.zeros(len(positions), 2, seq, 10)
    x[..., :5] = 1.0  # (1, 0) of every pair is rotated to its cos and sin
    found = rotation.rotate(x, spec, positions, backend="triton").double()
    exact = exact_factors(spec, far).reshape(-1, 1, seq, 5)
    # an integer step of 2^-64 turns is off by at most half of itself: p * 2^-65 turns at position p
    drift = 2 * torch.pi * positions.abs().double()[:, None, :, None] * 2.0**-65
    error = torch.complex(found[..., :5], found[..., 5:]) - exact
    assert bool((error.abs() <= 2.5e-7 + 1.1 * drift).all())


def test_one_launch_rotates_query_and_key(monkeypatch):
    launched = []
    plain = triton_plan.RotationPlan.__call__
    monkeypatch.setattr(
        triton_plan.RotationPlan,
        "__call__",
        lambda self, *call: launched.append(self) or plain(self, *call),
    )
    spec = sample_spec("yarn")
    both(spec, heads(spec, Q), heads(spec, K))
    both(spec, heads(spec, Q), heads(spec, K))
    assert len(launched) == 2
    assert launched[0] is launched[1]


@pytest.mark.parametrize(
    ("table_dtype", "shape"),
    [(torch.float32, (S,)), (torch.float64, (B, S)), (torch.bfloat16, (1, S)), (F32, (B, 1, S))],
)
@pytest.mark.parametrize("order", ["bhsd", "bshd"])
def test_tables_of_the_caller_are_used(table_dtype, shape, order):
    spec, (place, seq_dim) = rw.RopeSpec(head_dim=12, rotary_dim=10, rotary_start=2), ORDERS[order]
    angles = torch.randn(*shape, 5, dtype=torch.float64)
    cos, sin = angles.cos().to(table_dtype), angles.sin().to(table_dtype)
    x = heads(spec, Q)
    request = TableRequest(cos, sin, seq_dim, "half", "half", start=2)
    out = torch.empty_like(place(x))
    BACKENDS["triton"].run((place(x),), (out,), request)
    wide = torch.complex(cos.double(), sin.double())
    wide = wide if wide.ndim == 4 else wide.unsqueeze(-3)  # one for all heads
    first, second = members(spec, "half")
    rotated = torch.complex(x.double()[..., first], x.double()[..., second]) * wide
    exact = x.double().clone()
    exact[..., first], exact[..., second] = rotated.real, rotated.imag
    near(BACK[order](out), exact)


def test_tables_may_be_strided():
    """cos is every second column of a table that has each entry twice; sin is contiguous, so the
    strides of the two differ.
    """
    spec = rw.RopeSpec(head_dim=10, layout="interleaved")
    q, positions = heads(spec, Q), sample_positions(spec, B, S)
    cos, sin = rw.Rope(spec).cos_sin_hf(positions)
    rotated = rotation.rotate_by(
        q, cos[..., ::2], sin[..., ::2].contiguous(), layout="interleaved", backend="triton"
    )
    near(rotated, definition(q, spec, positions))


def test_lazy_negative_views_are_rotated_with_their_sign():
    """The imaginary part of conjugated phases is a lazy negative view, and x may be one too."""
    x, phases = (
        heads(rw.RopeSpec(head_dim=10), Q),
        torch.polar(torch.ones(S, 5), torch.randn(S, 5)).conj(),
    )
    exact = torch.complex(*x.double().chunk(2, dim=-1)) * phases.to(torch.complex128)
    exact = torch.cat([exact.real, exact.imag], dim=-1)
    assert phases.imag.is_neg()
    near(rotation.rotate_by(x, phases.real, phases.imag, layout="half"), exact)
    near(
        rotation.rotate_by(
            torch._neg_view(x), phases.real, phases.imag.resolve_neg(), layout="half"
        ),
        -exact,
    )


def test_a_decode_step_by_tables_rotates_each_row_by_its_own_table():
    spec = rw.RopeSpec(head_dim=10)
    q, positions = heads(spec, Q, seq=1), sample_positions(spec, B, 1)
    cos, sin = rw.Rope(spec).cos_sin(positions)
    near(
        rotation.rotate_by(q, cos, sin, layout="half", backend="triton"),
        definition(q, spec, positions),
    )


@pytest.mark.parametrize("name", ["default", "xpos", "yarn"])
def test_transformers_float32_angles_are_taken_as_they_are(name):
    """`precision="hf"`: the kernel must use those float32 rows, not better ones."""
    spec = sample_spec(name, precision="hf", magnitude_on="q")
    q, k, positions = heads(spec, Q), heads(spec, K), 50 + sample_positions(spec, B, S, high=60)
    for found, wanted in zip(
        both(spec, q, k, positions),
        rotate_qk(q, k, spec, positions, backend="reference"),
        strict=True,
    ):
        assert_close(found, wanted, rtol=0, atol=1e-6)


def test_real_positions_equal_the_definition():
    spec = rw.RopeSpec(head_dim=12, axes=axes.normalised(3, 3))
    q, k, positions = heads(spec, Q), heads(spec, K), torch.rand(2, B, S)
    for x, found in zip((q, k), both(spec, q, k, positions), strict=True):
        near(found, definition(x, spec, positions))


CONFIGS = [
    RotationConfig(1, 2, 1),
    RotationConfig(1, 8, 1, q_and_k=True),
    RotationConfig(2, 4, 1, q_and_k=True, hints=True),
    RotationConfig(4, 2, 1, hints=True),
]


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("query_heads", [3, 8])
def test_how_work_is_divided_does_not_change_the_result(config, order, query_heads):
    spec, (place, seq_dim) = sample_spec("yarn", magnitude_on="q"), ORDERS[order]
    q, k, positions = heads(spec, query_heads), heads(spec, K), sample_positions(spec, B, S)
    xs = place(q), place(k)
    rotated = tuple(torch.empty_like(x) for x in xs)
    triton_launch.launch(
        xs, rotated, Request(spec, seq_dim - 4 if seq_dim >= 0 else seq_dim, positions), config
    )
    for x, found, key in zip((q, k), rotated, (False, True), strict=True):
        near(BACK[order](found), definition(x, spec, positions, key=key))


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
def test_more_rows_than_one_axis_of_a_grid_holds_are_rotated(order, monkeypatch):
    monkeypatch.setattr(triton_plan, "MOST_ROWS", 2)
    spec, (place, seq_dim) = sample_spec("linear", rotary_start=0, head_dim=11), ORDERS[order]
    q, positions = heads(spec, Q, batch=5, seq=2), sample_positions(spec, 5, 2)
    found = rotation.rotate(place(q), spec, positions, seq_dim=seq_dim, backend="triton")
    near(BACK[order](found), definition(q, spec, positions))


def test_a_tensor_of_more_than_two_to_the_31_elements_is_rotated():
    """Two tokens and two heads, 2^31 elements apart."""
    spec = rw.RopeSpec(head_dim=10)
    far = 1 << 31
    memory = torch.empty(2 * far + 64, dtype=torch.float16)
    x = memory.as_strided((1, 2, 2, 10), (0, far, far + 16, 1))
    x.copy_(torch.rand(1, 2, 2, 10))
    exact = definition(x.clone(), spec, torch.tensor([[7, 8]]))
    near(rotation.rotate(x, spec, offset=7, inplace=True, backend="triton"), exact)


def test_a_tensor_whose_last_axis_is_strided_is_rotated():
    """The last axis is not contiguous, in and out of place."""
    spec = sample_spec()
    wide, positions = torch.rand(B, Q, S, 2 * spec.head_dim), sample_positions(spec, B, S)
    x = wide[..., ::2]
    exact = definition(x, spec, positions)
    near(rotation.rotate(x, spec, positions, backend="triton"), exact)
    near(rotation.rotate(x, spec, positions, inplace=True, backend="triton"), exact)
    near(wide[..., ::2], exact)


def test_empty_tensors_are_accepted():
    spec = sample_spec()
    for shape in ((0, Q, S), (B, 0, S), (B, Q, 0)):
        q, k = torch.zeros(*shape, spec.head_dim), torch.zeros(shape[0], K, shape[2], spec.head_dim)
        assert [x.shape for x in both(spec, q, k)] == [q.shape, k.shape]
    q, k = torch.zeros(B, 0, S, spec.head_dim), heads(spec, K)
    positions = sample_positions(spec, B, S)
    near(both(spec, q, k, positions)[1], definition(k, spec, positions))


def test_why_not_names_what_the_kernel_cannot_rotate():
    spec = sample_spec()
    request = Request(spec, -2)
    refuses = BACKENDS["triton"].why_not
    assert refuses(heads(spec, 1), request) is None
    assert "float32" in refuses(heads(spec, 1).double(), request)
    assert "4 axes" in refuses(heads(spec, 1)[None], request)
    assert "4096" in refuses(torch.empty(1, 1, 5000), request)
    table = torch.ones(B, Q, S, 5)
    assert "head to head" in refuses(heads(spec, Q), TableRequest(table, table, -2, "half", "half"))


def test_a_plan_for_rotating_in_place_is_not_one_for_rotating_into_new_memory():
    """Shapes and strides are the same, but only into new memory are the dims that do not rotate
    copied.
    """
    spec = rw.RopeSpec(head_dim=8, rotary_dim=4)
    x, request = heads(spec, 1), Request(spec, -2)
    first, out = x.clone(), torch.full_like(x, 7.0)
    BACKENDS["triton"].run((first,), (first,), request)
    BACKENDS["triton"].run((x,), (out,), request)
    assert torch.equal(out[..., 4:], x[..., 4:])
    assert torch.equal(out, first)


def test_the_number_of_kept_launch_plans_is_bounded(monkeypatch):
    monkeypatch.setattr(triton_launch._RUNNERS, "most_entries", 3)
    spec = rw.RopeSpec(head_dim=4)
    for seq in range(1, 8):
        rotation.rotate(torch.rand(1, 1, seq, 4), spec, backend="triton")
        assert len(triton_launch._RUNNERS) <= 3


def test_given_frequencies_may_be_negative():
    spec = rw.RopeSpec(
        head_dim=10, scaling=frequencies.Given(radians=(-1.0, 0.5, -0.25, 3.5, -7.0))
    )
    x, positions = heads(spec, Q), sample_positions(spec, B, S)
    near(rotation.rotate(x, spec, positions, backend="triton"), definition(x, spec, positions))
