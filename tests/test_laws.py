"""The laws of rotary encodings, for every scaling, layout, axis map, backend and dtype."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import ropewalk as rw
from helpers import (
    AXES,
    DTYPES,
    HEAD_DIM,
    TOLERANCE,
    definition,
    factors,
    sample_positions,
    sample_scaling,
    sample_spec,
    widest,
)
from ropewalk import frequencies, rotation

fuzzed = settings(max_examples=5, deadline=None, derandomize=True, database=None)
LAYOUTS = [
    ("half", "half"),
    ("interleaved", "interleaved"),
    ("interleaved", "half"),
    ("half", "interleaved"),
]
#: all scalings but xPos, whose magnitude depends on the position
PURE = [name for name in rw.frequencies.SCALINGS if name != "xpos"]
B, H, S = 2, 3, 7

every_scaling = pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
every_backend = pytest.mark.parametrize("backend", rw.kernels.BACKENDS)
every_layout = pytest.mark.parametrize(("layout", "layout_out"), LAYOUTS)


def exactly(x, y, tolerance=1e-12):
    assert_close(x, y, rtol=0, atol=tolerance)


def length_of(spec):
    """Return a length beyond the trained one for a length-dependent scaling, else None."""
    return 20 if spec.needs_length else None


def test_every_scaling_has_a_sample_of_its_class():
    for name, scaling in rw.frequencies.SCALINGS.items():
        assert type(sample_scaling(name)) is scaling


@pytest.mark.sampled(by=["backend"])
@every_backend
@every_layout
@every_scaling
def test_a_rotation_equals_the_definition_in_complex_numbers(name, layout, layout_out, backend):
    for axis in AXES:
        spec = sample_spec(name, axis, layout=layout, layout_out=layout_out)
        positions = sample_positions(spec, B, S, high=60 if name == "xpos" else 1000)
        narrow_enough = DTYPES[: DTYPES.index(widest(backend, spec)[0]) + 1]
        for dtype, key in zip(narrow_enough, (False, True, False, True), strict=False):
            x = (2 * torch.rand(B, H, S, spec.head_dim) - 1).to(dtype)
            exact = definition(x, spec, positions, length_of(spec), key)
            found = rotation.rotate(
                x, spec, positions, length=length_of(spec), key=key, backend=backend
            )
            assert found.dtype == dtype
            exactly(found.double(), exact, TOLERANCE[dtype] * max(1.0, float(exact.abs().max())))


@every_backend
@every_scaling
@given(start=st.integers(0, 2**40), step=st.integers(1, 50))
@fuzzed
def test_the_norm_of_a_rotated_pair_is_its_norm_times_the_magnitude(name, backend, start, step):
    spec = sample_spec(name)
    dtype, tolerance = widest(backend, spec)
    x = torch.randn(1, H, S, HEAD_DIM, dtype=dtype)
    positions = start + step * torch.arange(S)
    if name == "xpos":
        positions = positions % 100  # zeta^(m / 64) overflows far away
    size = torch.from_numpy(abs(factors(spec, positions, length_of(spec))))  # [S, pairs]
    rotated = rotation.rotate(x, spec, positions, length=length_of(spec), backend=backend)

    def pair_norms(y):
        return y[..., 2:12].double().unflatten(-1, (2, 5)).norm(dim=-2)

    exactly(pair_norms(rotated), pair_norms(x) * size, tolerance)
    assert torch.equal(rotated[..., :2], x[..., :2])
    assert torch.equal(rotated[..., 12:], x[..., 12:])


@every_scaling
@given(m=st.integers(-(2**40), 2**40), n=st.integers(-(2**40), 2**40))
@fuzzed
def test_rotations_by_two_positions_add_up(name, m, n):
    """R_m R_n = R_{m+n} for the rotation alone, whatever the magnitude, at any distance."""
    spec = sample_spec(name, magnitude_on="scale")
    # the growths of xPos at two positions multiply to that at their sum if its center is 0
    if name == "xpos":
        spec, m, n = spec.with_(scaling=frequencies.XPos(scale_base=64.0)), m % 100, n % 100
    x = torch.randn(1, 1, 1, HEAD_DIM, dtype=torch.float64)
    rotate_it = lambda y, p: rotation.rotate(y, spec, torch.tensor([p]), length=length_of(spec))
    # angles are multiples of 2^-64 of a turn, so rounding grows with the position: 2 pi 2^40 2^-64
    # < 1e-6
    exactly(rotate_it(rotate_it(x, m), n), rotate_it(x, m + n), 3e-6)


@every_layout
@every_backend
@given(shift=st.integers(0, 2**40))
@fuzzed
def test_scores_depend_on_distance_alone(backend, layout, layout_out, shift):
    spec = sample_spec(layout=layout, layout_out=layout_out)
    dtype, tolerance = widest(backend, spec)
    q, k = torch.randn(2, 1, H, S, HEAD_DIM, dtype=dtype)
    rotate_it = lambda x, by: rotation.rotate(
        x, spec, torch.arange(S) + by, backend=backend
    ).double()
    scores = lambda by: rotate_it(q, by) @ rotate_it(k, by).mT
    exactly(scores(0), scores(shift), 3e-5)
    exactly(scores(0), scores(shift % 2**20), max(tolerance, 1e-10))


@pytest.mark.sampled
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", PURE)
def test_scores_depend_on_distance_alone_on_every_axis(name, axis):
    spec = sample_spec(name, axis)
    q, k = torch.randn(2, B, H, S, spec.head_dim, dtype=torch.float64)
    positions, other = sample_positions(spec, B, S), sample_positions(spec, B, S)
    shift = torch.randint(0, 10**6, (spec.num_axes, 1, 1) if spec.num_axes > 1 else (1, 1))
    rotate_it = lambda x, p: rotation.rotate(x, spec, p, length=length_of(spec))
    near, far = (
        rotate_it(q, positions) @ rotate_it(k, other).mT,
        rotate_it(q, positions + shift) @ rotate_it(k, other + shift).mT,
    )
    exactly(near, far, 1e-10)


@pytest.mark.sampled(by=["backend"])
@every_backend
@every_layout
@every_scaling
def test_unrotate_is_the_inverse(name, layout, layout_out, backend):
    for axis in AXES:
        spec = sample_spec(name, axis, layout=layout, layout_out=layout_out)
        dtype, tolerance = widest(backend, spec)
        x, positions = (
            torch.randn(B, H, S, spec.head_dim, dtype=dtype),
            sample_positions(spec, B, S, high=100),
        )
        where = {"length": length_of(spec), "key": True, "backend": backend}
        exactly(
            rotation.unrotate(
                rotation.rotate(x, spec, positions, **where), spec, positions, **where
            ),
            x,
            tolerance,
        )


@every_backend
@every_scaling
@given(scale=st.floats(-4, 4), start=st.integers(0, 2**50))
@fuzzed
def test_rotation_is_linear_in_x(name, backend, scale, start):
    spec = sample_spec(name)
    dtype, tolerance = widest(backend, spec)
    x, y = torch.randn(2, 1, H, S, HEAD_DIM, dtype=dtype)
    if name == "xpos":
        start %= 100
    rotate_it = lambda z: rotation.rotate(
        z, spec, offset=start, length=length_of(spec), backend=backend
    )
    exactly(rotate_it(scale * x + y), scale * rotate_it(x) + rotate_it(y), tolerance)


@pytest.mark.sampled
@every_layout
@every_scaling
def test_backward_is_the_transpose(name, layout, layout_out):
    """<Rx, y> = <x, R^T y>, and R^T rotates back and multiplies by the same magnitude m: it is the
    inverse times m^2.
    """
    spec = sample_spec(name, layout=layout, layout_out=layout_out)
    x = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64, requires_grad=True)
    y = torch.randn(B, H, S, HEAD_DIM, dtype=torch.float64)
    positions = sample_positions(spec, B, S)
    rotated = rotation.rotate(x, spec, positions, length=length_of(spec))
    (transposed,) = torch.autograd.grad(rotated, x, y)
    exactly((rotated * y).sum(), (x * transposed).sum())
    z = torch.from_numpy(abs(factors(spec, positions, length_of(spec))) ** 2)[:, None]
    inverse = rotation.unrotate(y, spec, positions, length=length_of(spec))
    grown = torch.cat((z, z), -1) if layout == "half" else z.repeat_interleave(2, -1)
    exactly(transposed[..., 2:12], inverse[..., 2:12] * grown)


@every_backend
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_turns_computed_by_hand_are_counter_clockwise(layout, backend):
    """The three pairs rotate by a quarter turn, by an eighth of a turn backwards and by half a turn."""
    radians = (math.pi / 2, -math.pi / 4, math.pi)
    spec = rw.RopeSpec(6, scaling=frequencies.Given(radians=radians), layout=layout)
    half = [1.0, 2.0, 3.0, 10.0, 20.0, 30.0]  # pairs (1, 10), (2, 20), (3, 30)
    root = math.sqrt(0.5)
    rotated = [-10.0, (2 + 20) * root, -3.0, 1.0, (20 - 2) * root, -30.0]
    dtype, tolerance = widest(backend, spec)
    x, expected = torch.tensor([[half]], dtype=dtype), torch.tensor([[rotated]], dtype=dtype)
    if layout == "interleaved":
        order = torch.tensor([0, 3, 1, 4, 2, 5])
        x, expected = x[..., order], expected[..., order]
    exactly(rotation.rotate(x, spec, torch.tensor([1]), backend=backend), expected, tolerance)
    four_quarters = rotation.rotate(x, spec, torch.tensor([4]), backend=backend)
    exactly(four_quarters[..., 0], x[..., 0], tolerance)


@every_scaling
def test_position_zero_is_the_identity(name):
    """f(q, 0) = q, the initial condition of RoFormer's functional equation."""
    spec = sample_spec(name, magnitude_on="scale")
    if name == "xpos":
        spec = spec.with_(scaling=frequencies.XPos(center=0))  # where its growth starts
    x = torch.randn(1, H, 1, HEAD_DIM, dtype=torch.float64)
    assert torch.equal(
        rotation.rotate(x, spec, torch.zeros(1, dtype=torch.int64), length=length_of(spec)), x
    )


def test_scores_in_the_plane_are_those_of_complex_numbers():
    """<f(q, m), f(k, n)> = Re[q conj(k) e^{i (m - n) theta}]: a function of q, k and m - n alone."""
    theta = 0.3
    spec = rw.RopeSpec(2, scaling=frequencies.Given(radians=(theta,)))
    q, k = complex(1.5, -0.5), complex(-0.25, 2.0)
    as_x = lambda z: torch.tensor([[z.real, z.imag]], dtype=torch.float64)
    for m, n in ((0, 0), (3, 1), (1, 3), (5, 5), (12, 10)):
        f = lambda z, p: rotation.rotate(as_x(z), spec, torch.tensor([p]))
        expected = (
            q * k.conjugate() * complex(math.cos((m - n) * theta), math.sin((m - n) * theta))
        ).real
        exactly((f(q, m) * f(k, n)).sum(), torch.tensor(expected, dtype=torch.float64))


def test_xpos_scores_decay_with_distance():
    """A query on a key behind it: every pair shrinks as zeta^((m - n) / scale_base), exactly."""
    spec = rw.RopeSpec(10, scaling=frequencies.XPos(scale_base=16.0))
    distances = torch.arange(0, 200, 8)
    ones = torch.ones(1, 1, len(distances), 10, dtype=torch.float64)
    q = rotation.rotate(ones, spec, distances + 7)
    k = rotation.rotate(ones, spec, torch.full_like(distances, 7), key=True)
    zeta = (torch.arange(0, 10, 2, dtype=torch.float64) + 4.0) / 14.0
    omega = 10_000.0 ** (-torch.arange(0, 10, 2, dtype=torch.float64) / 10)
    shrink = zeta ** (distances[:, None] / 16.0)
    exactly((q * k).sum(-1)[0, 0], (2 * shrink * (distances[:, None] * omega).cos()).sum(-1))
    size = (q.unflatten(-1, (2, 5)).norm(dim=-2) * k.unflatten(-1, (2, 5)).norm(dim=-2))[0, 0]
    assert bool((size.diff(dim=0) < 0).all())


def test_scores_with_rope_are_relative_and_scores_with_added_sinusoids_are_not():
    """RoPE's scores stay the same after a shift of all positions. Sinusoids that are added to q and
    k also multiply the content, so those scores change.
    """
    q, k = torch.randn(2, 1, 1, S, 10, dtype=torch.float64)
    spec = rw.RopeSpec(10)
    omega = 10_000.0 ** (-torch.arange(0, 10, 2, dtype=torch.float64) / 10)

    def rotary(shift):
        positions = torch.arange(S) + shift
        return rotation.rotate(q, spec, positions) @ rotation.rotate(k, spec, positions).mT

    def waves(shift):
        angles = (torch.arange(S) + shift)[:, None] * omega
        return torch.cat((angles.sin(), angles.cos()), -1)

    def additive(shift):
        return (q + waves(shift)) @ (k + waves(shift)).mT

    exactly(rotary(0), rotary(100))
    assert float((additive(0) - additive(100)).abs().max()) > 0.5
    # products of sinusoids alone are relative; those of content plus sinusoids are not
    exactly(waves(0) @ waves(0).mT, waves(100) @ waves(100).mT)
    exactly(rotation.rotate(q, spec).norm(dim=-1), q.norm(dim=-1))
    assert float(((q + waves(0)).norm(dim=-1) - q.norm(dim=-1)).abs().max()) > 0.1


def test_plain_attention_ignores_the_order_of_words_and_attention_with_rope_does_not():
    """ "cat chases mouse" and "mouse chases cat" mean the same to plain attention, and not with
    RoPE.
    """
    words = torch.randn(3, 10, dtype=torch.float64)
    wq, wk, wv = torch.randn(3, 10, 10, dtype=torch.float64)
    swapped = torch.tensor([2, 1, 0])
    rope = rw.Rope(rw.RopeSpec(10))

    def attend(x, rotate_it):
        q, k = rotate_it(x @ wq), rotate_it(x @ wk)
        return (q @ k.mT / math.sqrt(10)).softmax(-1) @ (x @ wv)

    plain = attend(words, lambda x: x)
    exactly(attend(words[swapped], lambda x: x), plain[swapped])
    rotated = attend(words, rope)
    assert float((attend(words[swapped], rope) - rotated[swapped]).abs().max()) > 1e-2
