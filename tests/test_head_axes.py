"""Frequencies per head: MHRoPE and golden gate against complex numbers in float64, exact far away,
through every entry point.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk import axes, rotation
from ropewalk.frequencies import Learnable, Linear, XPos, Yarn, geometric
from tensor_forms import tensors

PAIRS, HEADS, SEQ = 5, 4, 7
MH = axes.by_head([1, 1, 1], PAIRS, num_heads=HEADS)
GOLDEN = axes.GoldenAxes(HEADS, PAIRS, num_axes=3)
SPECS = {
    "by_head": rw.RopeSpec(
        13, rotary_dim=10, rotary_start=1, axes=MH, scaling=Yarn(factor=4.0, original_length=64)
    ),
    "by_head, interleaved": rw.RopeSpec(10, axes=MH, layout="interleaved", layout_out="half"),
    "golden": rw.RopeSpec(10, axes=GOLDEN, scaling=geometric(PAIRS, 0.2, 20.0, zeros=1)),
    "one axis": rw.RopeSpec(10, axes=axes.HeadAxes((0, -1, 0, 0), PAIRS, 1)),
}
each = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)


def by_definition(x, spec, positions, sign=1):
    """Return x [B, H, S, D] times A e^{i F p}, with the matrix F [key heads, pairs, axes]; H / key
    heads consecutive heads of x share a row of F.
    """
    found = tensors(spec)
    groups = x.shape[1] // found.radians.shape[0]
    positions = positions if spec.num_axes > 1 else positions[None]
    angle = torch.einsum("hpa,abs->bhsp", found.radians, positions.double()).repeat_interleave(
        groups, dim=1
    )
    z = found.magnitude**sign * torch.polar(torch.ones_like(angle), sign * angle)
    start, pairs = spec.rotary_start, spec.pairs
    middle = x[..., start : start + 2 * pairs].double()
    first, last = (
        (spec.layout, spec.output_layout) if sign > 0 else (spec.output_layout, spec.layout)
    )
    pair = middle.unflatten(-1, (2, pairs) if first == "half" else (pairs, 2)).unbind(
        -2 if first == "half" else -1
    )
    rotated_x = torch.complex(*pair) * z
    joined = torch.stack(
        [rotated_x.real, rotated_x.imag], dim=-2 if last == "half" else -1
    ).flatten(-2)
    return torch.cat(
        [x[..., :start].double(), joined, x[..., start + 2 * pairs :].double()], dim=-1
    )


def sample(spec, dtype=torch.float64, batch=2, heads=HEADS):
    shape = (spec.num_axes, batch, SEQ) if spec.num_axes > 1 else (batch, SEQ)
    return torch.randn(batch, heads, SEQ, spec.head_dim, dtype=dtype), torch.randint(
        -50, 900, shape
    )


@each
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_rotations_are_the_definition_for_grouped_queries_too(spec, dtype, bound):
    (q, positions), (k, _) = sample(spec, dtype, heads=3 * HEADS), sample(spec, dtype)
    rope = rw.Rope(spec)
    for _ in range(2):  # the second call could take the fast path
        rotated_x = rope(q, k, positions)
        for x, y in zip((q, k), rotated_x, strict=True):
            assert_close(y.double(), by_definition(x, spec, positions), rtol=0, atol=bound)
    assert_close(rope.unrotate(rotated_x[0], positions), q, rtol=0, atol=bound)
    assert_close(rotation.rotate(k, spec, positions), rotated_x[1], rtol=0, atol=0)
    tokens_first = rope(q.transpose(1, 2), k.transpose(1, 2), positions, seq_dim=-3)
    assert_close(tokens_first[0].transpose(1, 2), rotated_x[0], rtol=0, atol=bound)


@each
def test_rotation_in_place_gives_the_same_bits_and_refuses_one_tensor_twice(spec):
    (q, positions), rope = sample(spec), rw.Rope(spec)
    expected, kept = rope.rotate(q, positions), q.clone()
    assert rope.rotate(kept, positions, inplace=True) is kept
    assert torch.equal(kept, expected)
    assert_refused("inplace", lambda: rope(q, q, positions, inplace=True))


@each
def test_gradients_and_rerotated_keys_follow_the_definition(spec):
    x, positions = sample(spec)
    rope, weight = rw.Rope(spec), torch.randn_like(x)
    x.requires_grad_()
    gradient = torch.autograd.grad((rope.rotate(x, positions) * weight).sum(), x)[0]
    # the transpose of a rotation with magnitude A is A^2 times its inverse
    scale = tensors(spec).magnitude ** 2
    inverse = by_definition(weight, spec, positions, sign=-1)
    rotating = slice(spec.rotary_start, spec.rotary_start + 2 * spec.pairs)
    inverse[..., rotating] *= scale
    assert_close(gradient, inverse, rtol=0, atol=1e-11)
    moved = rope.rerotate(rope.rotate(x.detach(), positions), positions, positions + 1000)
    assert_close(moved, rope.rotate(x.detach(), positions + 1000), rtol=0, atol=1e-10)


@pytest.mark.parametrize("batch", [1, HEADS, 3])
@pytest.mark.parametrize("rows", [True, False])
def test_keys_move_between_specs_with_and_without_frequencies_per_head(batch, rows):
    """Even with as many rows as heads, and with positions that are the same in every row."""
    by_head, plain = (
        rw.RopeSpec(10, axes=axes.HeadAxes((0, -1, 0, 0), PAIRS, 1)),
        rw.RopeSpec(10, theta=500.0),
    )
    x = torch.randn(batch, HEADS, SEQ, 10, dtype=torch.float64)
    here, there = (torch.randint(0, 900, (batch, SEQ) if rows else (SEQ,)) for _ in range(2))
    angle = there.double().expand(batch, SEQ)[:, None, :, None] * 500.0 ** -(
        torch.arange(PAIRS).double() / PAIRS
    )
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angle), angle)
    by_plain = torch.cat([pairs.real, pairs.imag], dim=-1)
    found = rotation.rerotate(
        by_definition(x, by_head, here.expand(batch, SEQ)), by_head, here, there, to=plain
    )
    assert_close(found, by_plain, rtol=0, atol=1e-11)
    found = rotation.rerotate(by_plain, plain, there, here, to=by_head)
    assert_close(found, by_definition(x, by_head, here.expand(batch, SEQ)), rtol=0, atol=1e-11)


def test_phases_stay_exact_far_away():
    """At 2^40 a float64 angle is off by 1e-4. With exact phases, two far tokens have the same score
    as two near ones at the same distance.
    """
    for spec in (
        SPECS["by_head, interleaved"],
        rw.RopeSpec(10, axes=axes.GoldenAxes(HEADS, PAIRS, 3, fractional=False)),
    ):
        q, near = sample(spec)
        k, rope = torch.randn_like(q), rw.Rope(spec)
        far = near + 2**40
        scores = [rotated @ other.mT for rotated, other in (rope(q, k, near), rope(q, k, far))]
        assert_close(scores[1], scores[0], rtol=0, atol=1e-8)


def test_real_coordinates_and_float32_angles_give_the_definition():
    spec = SPECS["golden"]
    x, positions = (
        torch.randn(2, HEADS, SEQ, 10, dtype=torch.float64),
        torch.rand(3, 2, SEQ, dtype=torch.float64) * 50,
    )
    assert_close(
        rw.Rope(spec).rotate(x, positions), by_definition(x, spec, positions), rtol=0, atol=1e-11
    )
    rounded = SPECS["by_head"].with_(precision="hf")
    x, positions = sample(rounded)
    # an angle of 900 radians is off by up to 3e-5 in float32
    assert_close(
        rw.Rope(rounded).rotate(x, positions),
        by_definition(x, rounded, positions),
        rtol=0,
        atol=1e-3,
    )


def test_text_under_axes_by_head_is_plain_rope_in_heads_that_rotate():
    spec, x = SPECS["by_head, interleaved"], torch.randn(2, HEADS, SEQ, 10, dtype=torch.float64)
    plain = rw.Rope(spec.with_(axes=None))(x, offset=9)
    ours = rw.Rope(spec)(x, offset=9)
    assert_close(ours[:, :3], plain[:, :3], rtol=0, atol=1e-12)
    # the fourth head does not rotate: only its layout becomes "half"
    still = torch.cat([x[:, 3, :, 0::2], x[:, 3, :, 1::2]], dim=-1)
    assert_close(ours[:, 3], still, rtol=0, atol=0)


def test_by_head_gives_as_many_heads_to_each_axis_as_its_section_says():
    assert axes.by_head([2, 3, 3], 4).axis_of_head == (0, 0, 1, 1, 1, 2, 2, 2)
    assert axes.by_head([1, 2], 4, num_heads=5).axis_of_head == (0, 1, 1, -1, -1)
    found = tensors(rw.RopeSpec(8, axes=axes.by_head([2, 3, 3], 4))).radians
    ladder = tensors(rw.RopeSpec(8)).radians
    assert_close(found[4, :, 1], ladder)  # a head has the whole ladder
    assert found[4, :, [0, 2]].abs().max() == 0


def test_golden_directions_have_the_published_values_and_are_spread_evenly():
    found = torch.tensor(axes.GoldenAxes(1, 2, num_axes=2).directions(), dtype=torch.float64)
    expected = torch.tensor([[0.968979, 0.247143], [0.022601, -0.999745]], dtype=torch.float64)
    assert_close(found[0], expected, rtol=0, atol=1e-6)
    many = torch.tensor(axes.GoldenAxes(8, 32).directions(), dtype=torch.float64)
    many = many.flatten(0, 1)
    assert_close(many.norm(dim=-1), torch.ones(256, dtype=torch.float64))
    angles = torch.atan2(many[:, 1], many[:, 0]).sort().values
    assert angles.diff().max() < 8 * 2 * math.pi / 256  # no gap of 8 times the mean of 256


def test_golden_frequencies_grow_geometrically_along_the_directions():
    spec = SPECS["golden"]
    found = tensors(spec).radians
    directions = torch.tensor(GOLDEN.directions(), dtype=torch.float64)
    speeds = torch.tensor([0.0, *(0.2 * 100 ** (i / 3) for i in range(4))], dtype=torch.float64)
    assert_close(found, directions * speeds[:, None])


def test_attention_with_axes_by_head_depends_on_distances_alone():
    spec = rw.RopeSpec(10, axes=axes.by_head([1, 1], PAIRS))
    layer = rw.Attention(24, 4, 2, 10, encoding=spec, causal=False).double()
    x, at = torch.randn(1, 6, 24, dtype=torch.float64), rw.positions.grid(2, 3)
    moved = layer(x, at + torch.tensor([40, 7])[:, None, None]).out
    assert_close(layer(x, at).out, moved, rtol=0, atol=1e-12)  # only distances matter, on each axis
    assert not torch.allclose(layer(x, at.flip(0)).out, moved)


def test_tables_have_an_axis_of_heads_and_the_strategy_full_is_refused():
    rope, positions = rw.Rope(SPECS["golden"]), torch.rand(3, 2, SEQ)
    cos, _ = rope.cos_sin(positions)
    assert cos.shape == (2, HEADS, SEQ, PAIRS)
    assert rope.table_bytes(100) == 8 * HEADS * PAIRS * 3
    assert_refused("tables", lambda: rw.Rope(SPECS["one axis"], tables="full"))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (
            lambda: rw.Rope(SPECS["golden"])(
                torch.ones(1, 3, 2, 10), positions=torch.zeros(3, 1, 2)
            ),
            "x",
        ),
        (
            lambda: rw.Rope(SPECS["golden"])(torch.ones(1, 2, 10), positions=torch.zeros(3, 1, 2)),
            "x",
        ),
        (lambda: rw.RopeSpec(10, axes=MH, scaling=Learnable()), "scaling"),
        (lambda: rw.RopeSpec(10, axes=MH, scaling=XPos()), "scaling"),
        (lambda: rw.RopeSpec(10, axes=MH, scaling=rw.frequencies.Dynamic(factor=2.0)), "scaling"),
        (lambda: rw.RopeSpec(12, axes=MH, scaling=Linear(factor=2.0)), "axes"),
        (lambda: axes.by_head([2, 2], 4, num_heads=3), "num_heads"),
        (lambda: axes.HeadAxes((0, 2), 4, 2), "axis_of_head"),
        (lambda: axes.HeadAxes((0, -2), 4, 2), "axis_of_head"),
        (lambda: axes.HeadAxes((), 4, 2), "axis_of_head"),
        (lambda: axes.GoldenAxes(0, 4), "num_heads"),
    ],
)
def test_an_error_names_the_bad_field(call, field):
    assert_refused(field, call)


def test_a_spec_survives_its_fingerprint():
    from ropewalk.spec import _rebuilt

    for spec in SPECS.values():
        assert _rebuilt(spec.fingerprint) == spec


def test_fused_kernel_and_analysis_refuse_frequencies_per_head():
    from ropewalk.analysis.ladder import radians
    from ropewalk.kernels.norm_rotation import qk_norm_rope

    x, spec = torch.ones(2, HEADS, 10), SPECS["golden"]
    assert_refused(
        "spec",
        lambda: qk_norm_rope(x, x, spec=spec, positions=torch.zeros(3, 2, dtype=torch.int64)),
    )
    assert_refused("axes", lambda: radians(spec))


def test_keys_of_query_groups_move_with_the_axis_of_their_key_head():
    """Six heads share two key heads of different axes: three consecutive ones each."""
    spec = rw.RopeSpec(8, axes=rw.axes.by_head([1, 1], pairs=4))
    x = torch.randn(1, 6, 5, 8, dtype=torch.float64)
    before, after = (torch.randint(0, 50, (2, 1, 5)) for _ in range(2))
    moved = rotation.rerotate(rotation.rotate(x, spec, before), spec, before, after)
    torch.testing.assert_close(moved, rotation.rotate(x, spec, after))
    for head in range(6):
        plain = rw.RopeSpec(8)
        alone = rotation.rotate(x[:, head : head + 1], plain, after[head // 3])
        torch.testing.assert_close(moved[:, head : head + 1], alone)
