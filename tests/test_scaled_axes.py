"""A scaling on some axes alone: RIFLEx on the time of a video, NTK on the sides of an image."""

import math
from decimal import Decimal

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk import axes
from ropewalk.frequencies import Default, Dynamic, Given, Learnable, Ntk, Riflex, XPos, Yarn
from ropewalk.tensor_frequencies import formula
from tensor_forms import tensors


def test_riflex_of_hunyuan_video():
    """theta 256, 16 dims of time, videos repeat after 48 latent frames: the fourth pair, of
    wavelength 50.
    """
    scaling, plain = Riflex(frames=66, repeat=48), formula(Default(), 16, 256.0).radians
    assert scaling.pair(16, 256.0) == 3
    assert round(2 * math.pi / plain[3].item()) == 50
    found = formula(scaling, 16, 256.0).radians
    assert plain[3] == 0.125
    assert_close(found[3].item(), 0.085680, rtol=0, atol=5e-7)
    found[3] = plain[3]
    assert torch.equal(found, plain)


@pytest.mark.parametrize("scaled", [(0,), (1, 2), (0, 2), ()])
@pytest.mark.parametrize(
    "scaling", [Riflex(30, 20), Ntk(3.0), Yarn(factor=4.0, original_length=16)]
)
def test_only_the_named_axes_are_scaled(scaled, scaling):
    sections = (3, 2, 4)
    spec = rw.RopeSpec(18, theta=256.0, axes=axes.axial(*sections, scaled=scaled), scaling=scaling)
    expected = [
        formula(scaling if axis in scaled else Default(), 2 * count, 256.0).radians
        for axis, count in enumerate(sections)
    ]
    found = tensors(spec)
    assert_close(found.radians.sum(-1), torch.cat(expected))
    assert found.magnitude == (formula(scaling, 2, 256.0).magnitude if scaled else 1.0)
    assert spec.with_(magnitude_on="scale").softmax_factor == float(found.magnitude) ** 2
    positions = torch.randint(0, 90, (3, 1, 6))
    cos, _ = rw.Rope(spec).cos_sin(positions, torch.float64)
    angles = positions[list(spec.axis_of_pair)].movedim(0, -1) * torch.cat(expected)
    assert_close(cos, angles.cos() * found.magnitude, rtol=0, atol=1e-12)


def test_axes_without_the_scaling_have_unscaled_frequencies():
    spec = rw.RopeSpec(
        32, axes=axes.axial(8, 8, scaled=[0]), scaling=Given(tuple(0.1 * i for i in range(8)))
    )
    digits = spec.ladder_frequencies().digits
    assert digits[:8] == tuple(Decimal(0.1 * i) for i in range(8))
    assert digits[8:] == Default().frequencies(16, 10_000.0).digits


def test_a_spec_with_scaled_axes_survives_its_fingerprint():
    from ropewalk.spec import _rebuilt

    spec = rw.RopeSpec(18, axes=axes.axial(3, 2, 4, scaled=[0]), scaling=Riflex(30, 20))
    assert _rebuilt(spec.fingerprint) == spec
    assert spec.fingerprint != spec.with_(axes=axes.axial(3, 2, 4)).fingerprint


def test_the_axis_order_of_ernie_gives_time_the_slowest_pairs():
    order = axes.ernie([24, 24, 16]).axis_of_pair
    assert order[:48] == (1, 2) * 24
    assert order[48:] == (0,) * 16


def test_eva_rotates_by_stretched_coordinates():
    spec = rw.RopeSpec(8, axes=axes.normalised(2, 2), layout="interleaved")
    x, at = torch.randn(1, 1, 12, 8, dtype=torch.float64), rw.positions.stretched_grid(4, 3, 16)
    found = rw.Rope(spec)(x, positions=at)
    for token in range(12):
        row, column = divmod(token, 3)
        for pair, angle in enumerate(
            c * 10_000 ** (-4 * i / 8) for c in (row / 4 * 16, column / 3 * 16) for i in (0, 1)
        ):
            a, b = x[0, 0, token, 2 * pair : 2 * pair + 2].tolist()
            expected = [
                a * math.cos(angle) - b * math.sin(angle),
                a * math.sin(angle) + b * math.cos(angle),
            ]
            assert found[0, 0, token, 2 * pair : 2 * pair + 2].tolist() == pytest.approx(
                expected, abs=1e-12
            )


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: axes.AxisMap((0, 1), 2, scaled=(0,)), "scaled"),
        (lambda: axes.axial(2, 2, scaled=[2]), "scaled"),
        (lambda: axes.axial(2, 2, scaled=[0.0]), "scaled"),
        (
            lambda: rw.RopeSpec(8, axes=axes.axial(2, 2, scaled=[0]), scaling=Dynamic(factor=2.0)),
            "scaling",
        ),
        (lambda: rw.RopeSpec(8, axes=axes.axial(2, 2, scaled=[0]), scaling=XPos()), "scaling"),
        (lambda: rw.RopeSpec(8, axes=axes.axial(2, 2, scaled=[0]), scaling=Learnable()), "scaling"),
    ],
)
def test_an_error_names_the_bad_field(make, field):
    assert_refused(field, make)
