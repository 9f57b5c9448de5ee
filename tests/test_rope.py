"""Rope, the module: it has no state, so nothing that a training script does to modules changes it."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import ropewalk as rw
from helpers import HEAD_DIM, definition, factors, sample_positions, sample_spec
from ropewalk import axes, frequencies
from ropewalk.rope import LEGACY_STATE

B, H, S = 2, 3, 7
every_scaling = pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
FIXED = [name for name, scaling in rw.frequencies.SCALINGS.items() if not scaling.learned]


def x_of(dtype=torch.float32, **about):
    return torch.randn(B, H, S, HEAD_DIM, dtype=dtype, **about)


class Layer(nn.Module):
    """A projection and a rotation: the least that has weights to cast and shard."""

    def __init__(self, spec):
        super().__init__()
        self.linear, self.rope = nn.Linear(HEAD_DIM, HEAD_DIM), rw.Rope(spec)

    def forward(self, x):
        return self.rope(self.linear(x), offset=30_000)


@pytest.mark.parametrize("name", FIXED)
def test_a_rope_has_no_state_and_a_call_changes_no_attribute(name):
    rope = rw.Rope(sample_spec(name))
    assert rope.state_dict() == {}
    assert not list(rope.parameters())
    assert not list(rope.buffers())
    assert repr(rope.spec) in repr(rope)
    before = {key: id(value) for key, value in vars(rope).items()}
    rope(x_of(), x_of(), offset=5)
    assert {key: id(value) for key, value in vars(rope).items()} == before


def through_a_file(module):
    """Return the module after torch.save and torch.load, by way of memory."""
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


#: what training scripts do to a module that must not change a bit of what it computes
TREATMENTS = {
    "half": lambda m: m.half(),
    "bfloat16 and back": lambda m: m.bfloat16().float(),
    "to bf16": lambda m: m.to(torch.bfloat16),
    "double": lambda m: m.double(),
    "to meta and to_empty": lambda m: m.to("meta").to_empty(device="cpu"),
    "deepcopy": copy.deepcopy,
    "pickle": through_a_file,
    "eval": lambda m: m.eval(),
    "share_memory": lambda m: m.share_memory(),
    "apply": lambda m: m.apply(lambda module: [p.data.fill_(7) for p in module.parameters(False)]),
}


@pytest.mark.sampled
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", FIXED)
def test_casts_copies_and_moves_of_the_module_change_no_bit_of_a_rotation(name, treatment):
    spec = sample_spec(name)
    x = x_of()
    where = {"positions": torch.randint(0, 60 if name == "xpos" else 10**7, (B, S))}
    expected = rw.Rope(spec)(x, **where)
    assert torch.equal(TREATMENTS[treatment](rw.Rope(spec))(x, **where), expected)


def test_a_rope_built_on_meta_rotates_by_the_definition():
    with torch.device("meta"):
        layer = Layer(sample_spec("yarn"))
    assert layer.linear.weight.is_meta
    layer.to_empty(device="cpu")
    x = x_of()
    assert_close(
        layer.rope(x), definition(x, layer.rope.spec, torch.arange(S)).float(), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@every_scaling
def test_autocast_changes_no_rotation_and_no_table(name, dtype):
    rope, x = rw.Rope(sample_spec(name)), x_of()
    where = {"positions": torch.arange(S) + (50 if name == "xpos" else 65_536)}
    expected, tables = rope(x, x.to(dtype), **where), rope.cos_sin(where["positions"])
    with torch.autocast("cpu", dtype=dtype):
        for found, wanted in zip(rope(x, x.to(dtype), **where), expected, strict=True):
            assert torch.equal(found, wanted)
        for found, wanted in zip(rope.cos_sin(where["positions"]), tables, strict=True):
            assert torch.equal(found, wanted)


@every_scaling
def test_first_called_under_inference_mode_then_trained(name):
    """Tables that a call under inference mode cached can be saved for a later backward."""
    rope = rw.Rope(sample_spec(name, theta=12_345.0))
    with torch.inference_mode():
        seen = rope(x_of(), x_of())[0]
        rope(x_of(), positions=torch.arange(S))
    assert seen.is_inference()
    x = x_of().requires_grad_()
    for where in ({}, {"positions": torch.arange(S)}):
        rope(x, x, **where)[0].pow(2).sum().backward()
    assert x.grad is not None


def test_tables_belong_to_the_caller():
    """Writing to a returned table changes no later call."""
    rope, x = rw.Rope(sample_spec()), x_of()
    expected, positions = rope(x), torch.arange(S)
    for tables in (rope.cos_sin, rope.cos_sin_hf):
        first = [table.clone() for table in tables(positions)]
        for table in tables(positions):
            table.zero_()
        for table, wanted in zip(tables(positions), first, strict=True):
            assert torch.equal(table, wanted)
    assert torch.equal(rope(x), expected)


@pytest.mark.parametrize("axis", ["one", "chunked", "axial"])
@every_scaling
def test_tables_equal_the_definition(name, axis):
    rope = rw.Rope(sample_spec(name, axis))
    positions = sample_positions(rope.spec, B, S, high=50)
    length = torch.tensor([9, 60]) if rope.spec.needs_length else None
    for dtype, tolerance in ((torch.float32, 2e-7), (torch.float64, 1e-12), (torch.bfloat16, 2e-2)):
        for key in (False, True):
            z = factors(rope.spec, positions, length, key)
            for table, exact in zip(
                rope.cos_sin(positions, dtype, length, key=key), (z.real, z.imag), strict=True
            ):
                assert table.dtype == dtype
                assert_close(
                    table.double(), torch.from_numpy(exact), rtol=tolerance, atol=tolerance
                )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_cos_sin_hf_repeats_each_entry_as_transformers_does(layout):
    rope = rw.Rope(sample_spec("yarn", layout=layout))
    positions = torch.arange(S)[None]
    cos, sin = rope.cos_sin_hf(positions)
    z = factors(rope.spec, positions)
    for table, exact in ((cos, z.real), (sin, z.imag)):
        once = torch.from_numpy(exact)
        twice = once.repeat(1, 1, 2) if layout == "half" else once.repeat_interleave(2, -1)
        assert_close(table.double(), twice, rtol=0, atol=1e-6)
    q = torch.randn(1, H, S, 10)
    found, _ = rw.apply_rotary_pos_emb(q, q, cos, sin, layout=layout)
    assert_close(
        found,
        rw.Rope(rw.RopeSpec(10, scaling=rope.spec.scaling, layout=layout))(q),
        rtol=0,
        atol=1e-6,
    )


@pytest.mark.parametrize("legacy", LEGACY_STATE)
def test_frequencies_in_a_state_dict_are_ignored_and_other_unknown_names_refused(legacy):
    layer = Layer(sample_spec())
    weights = {**layer.state_dict(), f"rope.{legacy}": torch.randn(5)}
    layer.load_state_dict(weights, strict=True)
    with pytest.raises(RuntimeError, match=r"rope\.something"):
        layer.load_state_dict({**weights, "rope.something": torch.randn(5)})


def test_learned_frequencies_begin_with_those_of_the_start_scaling():
    spec = sample_spec("learnable")
    rope = rw.Rope(spec)
    assert list(rope.state_dict()) == ["log_scale"]
    assert rope.log_scale.shape == (spec.pairs,)
    x = x_of(torch.float64)
    positions = torch.randint(0, 1000, (B, S))
    plain = spec.with_(scaling=spec.scaling.start)
    assert_close(rope(x, positions=positions), definition(x, plain, positions), rtol=0, atol=1e-12)


def test_learned_frequencies_are_the_initial_ones_times_exp_of_log_scale():
    """omega_i exp(alpha_i), written out."""
    rope = rw.Rope(rw.RopeSpec(10, scaling=frequencies.Learnable()))
    alpha = torch.randn(5)
    rope.load_state_dict({"log_scale": alpha})
    omega = 10_000.0 ** (-torch.arange(5, dtype=torch.float64) / 5) * alpha.double().exp()
    fixed = rw.RopeSpec(10, scaling=frequencies.Given(radians=tuple(omega.tolist())))
    q, k = torch.randn(2, B, H, S, 10, dtype=torch.float64)
    for found, x in zip(rope(q, k, offset=3), (q, k), strict=True):
        assert_close(found, definition(x, fixed, torch.arange(S) + 3), rtol=0, atol=1e-12)
    assert_close(rope.unrotate(rope.rotate(q, key=True), key=True), q)
    kept = q.clone()
    for heads in (slice(None), 0):  # [B, H, S, D] and [B, S, D], counted from 0
        assert_close(
            rope.rotate(q[:, heads]),
            definition(kept, fixed, torch.arange(S))[:, heads],
            rtol=0,
            atol=1e-12,
        )
    own = q.clone().requires_grad_(False)
    with torch.no_grad():
        assert rope(own, inplace=True) is own
    assert_close(own, definition(q, fixed, torch.arange(S)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("start", ["default", "xpos", "yarn"])
@pytest.mark.parametrize("axis", ["one", "chunked"])
def test_gradient_of_learned_frequencies(start, axis):
    """Equal to finite differences of the definition."""
    spec = sample_spec(
        "learnable", axis, scaling=frequencies.Learnable(start=sample_spec(start).scaling)
    )
    rope = rw.Rope(spec).double()
    x, positions = (
        torch.randn(1, 1, 3, spec.head_dim, dtype=torch.float64),
        sample_positions(spec, 1, 3, high=20),
    )
    weights = torch.randn(1, 1, 3, spec.head_dim, dtype=torch.float64)
    (rope(x, positions=positions) * weights).sum().backward()
    for pair in range(spec.pairs):
        step = 1e-6
        sums = []
        for sign in (1, -1):
            with torch.no_grad():
                moved = rw.Rope(spec).double()
                moved.log_scale[pair] = sign * step
                sums.append((moved(x, positions=positions) * weights).sum())
        slope = (sums[0] - sums[1]) / (2 * step)
        assert_close(rope.log_scale.grad[pair], slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("key", [False, True], ids=["query", "key"])
@pytest.mark.parametrize("magnitude_on", ["qk", "q"])
@pytest.mark.parametrize("start", ["yarn", "xpos"])
@pytest.mark.parametrize("axis", ["one", "chunked", "round_robin"])
def test_untrained_learned_frequencies_rotate_as_their_start_scaling(
    start, axis, magnitude_on, key
):
    """Before training they rotate, rotate back and write tables as the scaling they start from."""
    plain = sample_spec(
        start, axis, magnitude_on=magnitude_on, layout="interleaved", layout_out="half"
    )
    rope = rw.Rope(plain.with_(scaling=frequencies.Learnable(start=plain.scaling))).requires_grad_(
        False
    )
    x, positions = (
        torch.randn(B, H, S, plain.head_dim, dtype=torch.float64),
        sample_positions(plain, B, S, high=50),
    )
    rotated = definition(x, plain, positions, key=key)
    assert_close(rope.rotate(x, positions, key=key), rotated, rtol=0, atol=1e-12)
    assert_close(rope.unrotate(rotated, positions, key=key), x, rtol=0, atol=1e-12)
    z = factors(plain, positions, key=key)
    for table, exact in zip(
        rope.cos_sin(positions, torch.float64, key=key), (z.real, z.imag), strict=True
    ):
        assert_close(table, torch.from_numpy(exact), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "axis_map", [None, axes.MixedAxes(num_heads=H, pairs=4)], ids=["learnable", "mixed"]
)
def test_learned_frequencies_are_initialised_by_reset_parameters_after_to_empty(axis_map):
    spec = rw.RopeSpec(
        8, axes=axis_map, scaling=frequencies.Default() if axis_map else frequencies.Learnable()
    )
    rope = rw.Rope(spec)
    with torch.device("meta"):
        other = rw.Rope(spec)
    other.to_empty(device="cpu")
    for parameter in other.parameters():
        parameter.data.fill_(float("nan"))
    other.reset_parameters()
    for (name, found), (_, expected) in zip(
        other.named_parameters(), rope.named_parameters(), strict=True
    ):
        assert torch.equal(found, expected), name


def test_mixed_axes_rotate_every_head_by_both_coordinates():
    rope = rw.Rope(rw.RopeSpec(8, axes=axes.MixedAxes(num_heads=H, pairs=4)))
    x, points = torch.randn(B, H, S, 8, dtype=torch.float64), torch.rand(2, B, S)
    mixed = rope.mixed.detach().double()
    angle = torch.einsum("abs,hpa->bhsp", points.double(), mixed)
    z = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones_like(angle), angle)
    assert_close(rope(x, positions=points), torch.cat((z.real, z.imag), -1), rtol=0, atol=1e-7)
    assert_close(rope.unrotate(rope(x, positions=points), points), x)
    rope(x, positions=points).sum().backward()
    assert rope.mixed.grad.abs().max() > 0


def test_real_coordinates_rotate_by_the_definition():
    rope = rw.Rope(rw.RopeSpec(10, axes=axes.normalised(3, 2), scaling=frequencies.Default()))
    x = torch.randn(B, H, S, 10, dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        points = (2 * torch.rand(2, B, S) - 1).to(dtype)
        assert_close(
            rope(x, positions=points), definition(x, rope.spec, points), rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("call", ["rotate", "unrotate"])
def test_every_method_of_rope_uses_its_backend(call):
    rope, x = rw.Rope(rw.RopeSpec(10), backend="triton"), torch.randn(1, 1, 7, 10)
    with pytest.raises(rw.RopeError, match="triton"):
        getattr(rope, call)(x)
    with pytest.raises(rw.RopeError, match="triton"):
        rope.rerotate(x, torch.arange(7), torch.arange(7))
    with pytest.raises(rw.RopeError, match="triton"):
        rope(x)


def test_learnable_xpos_starts_as_xpos_for_queries_and_keys():
    plain, trained = (
        rw.Rope(rw.RopeSpec(10, scaling=s))
        for s in (rw.frequencies.XPos(), rw.frequencies.Learnable(rw.frequencies.XPos()))
    )
    q, k = torch.randn(1, 2, 7, 10), torch.randn(1, 1, 7, 10)
    for ours, expected in zip(trained(q, k, offset=300), plain(q, k, offset=300), strict=True):
        torch.testing.assert_close(ours.detach(), expected)
