"""Encodings that rotate, against complex numbers and score formulas written out pair by pair."""

import cmath
import math
from itertools import product

import pytest
import torch

from door import assert_refused
from ropewalk import axes
from ropewalk.encodings import Sizes, make_encoding
from ropewalk.encodings.base import distances
from ropewalk.encodings.rotary import Rotary, RotaryAlibi, RotaryRelativeBias
from ropewalk.spec import RopeSpec

HEADS = 3


def complex_rotation(x, angles):
    """Rotate one vector by hand: pair i is (x_i, x_{i + half})."""
    half = len(angles)
    rotated_x = [
        complex(x[i], x[half + i]) * cmath.exp(1j * angle) for i, angle in enumerate(angles)
    ]
    return [z.real for z in rotated_x] + [z.imag for z in rotated_x]


def ladder(theta, pairs):
    return [theta ** (-i / pairs) for i in range(pairs)]


#: encoding -> head size -> the number of pairs of each axis; what does not divide evenly goes to
#: the first axis
AXES = {
    "rope_2d": {8: (2, 2), 10: (3, 2)},
    "rope_3d": {12: (2, 2, 2), 14: (3, 2, 2), 16: (4, 2, 2), 26: (5, 4, 4)},
}


@pytest.mark.parametrize(
    ("name", "head_dim"), [(name, size) for name, sizes in AXES.items() for size in sizes]
)
def test_images_and_videos_rotate_each_axis_on_a_ladder_of_its_own(name, head_dim):
    """Every axis has base 100, as the axial encodings of vision transformers; the first pair of
    each turns a radian a step.
    """
    sections = AXES[name][head_dim]
    encoding = make_encoding(name, num_heads=1, head_dim=head_dim)
    places = list(product(range(3), repeat=len(sections)))
    torch.manual_seed(0)
    x = torch.randn(1, 1, len(places), head_dim, dtype=torch.float64)
    found = encoding.rotate(x, torch.tensor(places).T[:, None], key=False)
    for token, place in enumerate(places):
        angles = [
            at * frequency
            for at, pairs in zip(place, sections, strict=True)
            for frequency in ladder(100.0, pairs)
        ]
        expected = complex_rotation(x[0, 0, token].tolist(), angles)
        assert found[0, 0, token].tolist() == pytest.approx(expected, abs=1e-6)


def test_plain_rope_rotates_by_base_10000():
    x = torch.randn(1, 1, 1, 10, dtype=torch.float64)
    for key in (False, True):
        found = make_encoding("rope", num_heads=1, head_dim=10).rotate(
            x, torch.tensor([7]), key=key
        )
        expected = complex_rotation(
            x.flatten().tolist(), [7 * frequency for frequency in ladder(10_000.0, 5)]
        )
        assert found.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_learnable_frequencies_start_as_plain_ones_and_follow_their_exponents():
    encoding = make_encoding("rope_learnable", num_heads=1, head_dim=6).double()
    x = torch.randn(1, 1, 1, 6, dtype=torch.float64)
    for exponents in ([0.0, 0.0, 0.0], [0.3, -0.2, 0.1]):
        (parameter,) = encoding.parameters()
        with torch.no_grad():
            parameter.copy_(torch.tensor(exponents))
        angles = [5 * f * math.exp(a) for f, a in zip(ladder(10_000.0, 3), exponents, strict=True)]
        found = encoding.rotate(x, torch.tensor([5]), key=False)
        assert found.flatten().tolist() == pytest.approx(
            complex_rotation(x.flatten().tolist(), angles), abs=1e-6
        )


def test_rope_with_alibi_subtracts_the_slope_times_the_distance():
    encoding = make_encoding("rope_alibi", num_heads=4, head_dim=6)
    bias = encoding.bias(torch.zeros(1), torch.tensor([9]), torch.tensor([9, 7, 4]))
    for head, slope in enumerate((2**-2, 2**-4, 2**-6, 2**-8)):
        assert bias[head, 0].tolist() == pytest.approx([0.0, -2 * slope, -5 * slope])


def test_rope_with_a_learned_bias_adds_the_entry_of_the_distance():
    encoding = make_encoding("rope_bias", num_heads=HEADS, head_dim=6, length=5)
    (table,) = encoding.parameters()
    bias = encoding.bias(torch.zeros(1), torch.tensor([4]), torch.tensor([4, 3, 0]))
    # entry 4 of nine is distance 0
    for column, distance in enumerate((0, 1, 4)):
        assert torch.equal(bias[:, 0, column], table[:, 4 + distance])


def test_xpos_scores_are_those_of_rope_times_a_decay_of_the_distance():
    """zeta_i = (2i + 0.4 d) / (1.4 d), to the power of the distance over 512."""
    head_dim = 8
    encoding = make_encoding("xpos", num_heads=1, head_dim=head_dim)
    torch.manual_seed(1)
    q, k = torch.randn(2, head_dim, dtype=torch.float64)
    for query, key in ((9, 9), (300, 20), (40, 3)):
        rotated = [
            encoding.rotate(x.view(1, 1, 1, -1), torch.tensor([at]), key=is_key).flatten()
            for x, at, is_key in ((q, query, False), (k, key, True))
        ]
        expected = 0.0
        for i, frequency in enumerate(ladder(10_000.0, head_dim // 2)):
            a, b = (complex(x[i], x[head_dim // 2 + i]) for x in (q, k))
            zeta = (2 * i + 0.4 * head_dim) / (1.4 * head_dim)
            rotated_x = a * b.conjugate() * cmath.exp(1j * (query - key) * frequency)
            expected += zeta ** ((query - key) / 512) * rotated_x.real
        assert (rotated[0] @ rotated[1]).item() == pytest.approx(expected, rel=1e-5)


def test_nezha_adds_the_vectors_of_the_distances_to_the_values():
    head_dim, weights = 6, torch.rand(1, 2, 1, 3, dtype=torch.float64)
    encoding = make_encoding("nezha", num_heads=2, head_dim=head_dim)
    found = encoding.value_bias(weights, torch.tensor([5]), torch.tensor([5, 3, 9]))
    vectors = []
    for distance in (0, -2, 4):  # key minus query
        angles = [(distance + 64) * frequency for frequency in ladder(10_000.0, head_dim // 2)]
        vectors.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    expected = weights @ torch.tensor(vectors, dtype=torch.float64)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("name", "only"),
    [
        ("rope", True),
        ("xpos", True),
        ("rope_2d", True),
        ("rope_alibi", False),
        ("rope_bias", False),
        ("pope", False),
    ],
)
def test_only_rotates_is_false_for_encodings_with_a_bias_or_another_rotate(name, only):
    assert make_encoding(name, num_heads=2, head_dim=8).only_rotates is only


@pytest.mark.parametrize("method", ["embed", "rotate", "bias", "value_bias"])
def test_a_subclass_that_changes_one_method_does_more_than_rotate(method):
    changed = type("Changed", (Rotary,), {method: lambda self, *arguments, **options: None})
    assert not changed(Sizes(2, 8, 16, 32)).only_rotates


@pytest.mark.parametrize(("name", "head_dim"), [("rope_2d", 2), ("rope_3d", 4)])
def test_a_head_with_fewer_pairs_than_axes_leaves_out_the_last_axes(name, head_dim):
    encoding = make_encoding(name, num_heads=1, head_dim=head_dim)
    axes = 2 if name == "rope_2d" else 3
    x = torch.randn(1, 1, 1, head_dim, dtype=torch.float64)
    last = torch.zeros(axes, 1, 1, dtype=torch.int64)
    last[-1] = 5
    torch.testing.assert_close(encoding.rotate(x, last, key=False), x)


@pytest.mark.parametrize("kind", [RotaryAlibi, RotaryRelativeBias])
def test_a_rotation_with_a_bias_refuses_several_axes(kind):
    assert_refused("spec", lambda: kind(Sizes(2, 16, 32, 64), RopeSpec(16, axes=axes.axial(4, 4))))


def test_distances_of_unsigned_positions_do_not_wrap():
    alibi, at = make_encoding("alibi", num_heads=2, head_dim=16), torch.arange(4)
    q = torch.zeros(1, 2, 4, 16)
    assert torch.equal(alibi.bias(q, at.to(torch.uint8), at.to(torch.uint8)), alibi.bias(q, at, at))
    assert distances(at.to(torch.uint8), at.to(torch.uint8)).tolist() == [
        [i - j for j in range(4)] for i in range(4)
    ]
