"""What articles about RoPE state in passing, checked by arithmetic: printed values, growth and
decay of sums, norms, and rotations of grids as Kronecker products.
"""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from ropewalk import axes
from ropewalk.encodings import make_encoding
from ropewalk_lab import analysis

PAIRS = 64
GEOMETRIC = 10_000.0 ** (-np.arange(PAIRS) / PAIRS)


def test_the_printed_values_of_the_qwen3_walk_through():
    """0, 0.1094, 0.1844 and 0.1783 are the mean of sin at the positions 0, 1, 4 and 8, for heads of
    128 and base 10,000.
    """
    printed = [0, 0.1094, 0.1844, 0.1783]
    positions = [0, 1, 4, 8]
    by_hand = [sum(math.sin(m * 10_000 ** (-i / 64)) for i in range(64)) / 64 for m in positions]
    assert [round(value, 4) for value in by_hand] == printed
    # the tables of transformers repeat every pair, so the mean is the same
    rope = rw.Rope(rw.from_hf({"model_type": "qwen3", "head_dim": 128, "rope_theta": 1e4}))
    _, sin = rope.cos_sin_hf(torch.tensor([positions]), torch.float32)
    assert sin.shape == (1, 4, 128)
    assert [round(value, 4) for value in sin[0].mean(-1).tolist()] == printed
    # with 1,000,000, the base of the published Qwen3, the walk-through would print other values
    real = rw.Rope(rw.from_hf({"model_type": "qwen3", "head_dim": 128, "rope_theta": 1e6}))
    means = real.cos_sin_hf(torch.tensor([positions]), torch.float32)[1][0].mean(-1).tolist()
    assert [round(value, 4) for value in means] == [0, 0.0752, 0.1206, 0.1214]


def test_partial_sums_grow_like_the_square_root():
    """Over far distances the phases are as good as random: the root mean square of |S_j| is
    sqrt(j). Near 0 it is not: there |S_j| = j.
    """
    distances = np.random.default_rng(0).integers(10**6, 10**12, 20_000).astype(float)
    sums = np.asarray(analysis.partial_sums(GEOMETRIC, distances))
    expected = np.sqrt(np.arange(1, PAIRS + 1))
    assert np.sqrt((sums**2).mean(axis=0)) == pytest.approx(expected, rel=0.02)
    exponent, _ = np.polyfit(np.log(np.arange(1, PAIRS + 1)), np.log(sums.mean(axis=0)), 1)
    assert exponent == pytest.approx(0.5, abs=0.02)
    at_zero = np.asarray(analysis.partial_sums(GEOMETRIC, [0.0]))[0]
    assert at_zero == pytest.approx(np.arange(1, PAIRS + 1))


i = np.arange(PAIRS)
MONOTONE = {
    "geometric": GEOMETRIC,
    "linear frequencies": 1 / (1 + 2 * i),
    "power": (1.0 + i) ** -1.5,
    "gauss": np.exp(-((i / 24) ** 2)),
    "cosine": np.cos(i / PAIRS * np.pi / 2),
    "straight line": 1 - i / PAIRS,
    "sigmoid": 1 / (1 + np.exp((i - 20) / 6)),
}


@pytest.mark.parametrize("name", MONOTONE)
def test_any_smooth_monotone_series_of_frequencies_decays(name):
    """The mean of |S_j| falls from one band of distances to the next, whatever the series."""
    radians = MONOTONE[name]
    assert (np.diff(radians) < 0).all()
    curve = np.asarray(analysis.decay(radians, np.arange(257)))
    bands = [curve[low:high].mean() for low, high in ((0, 1), (1, 4), (4, 16), (16, 64), (64, 257))]
    assert bands == sorted(bands, reverse=True)
    assert bands[-1] < bands[0] / 2


def test_equal_frequencies_do_not_decay():
    curve = np.asarray(analysis.decay(np.full(PAIRS, 0.3), np.arange(257)))
    assert curve == pytest.approx(np.full(257, (PAIRS + 1) / 2))


@pytest.mark.parametrize("width", [8, 128, 768])
def test_the_norm_of_a_sinusoidal_encoding_is_the_root_of_half_the_width(width):
    """Every pair has sin^2 + cos^2 = 1, so the norm is sqrt(d / 2) at every position."""
    sizes = {"num_heads": 2, "head_dim": width // 2, "model_dim": width}
    encoding = make_encoding("sinusoidal", length=64, **sizes)
    positions = torch.tensor([[0, 1, 17, 1_000_000]])
    vectors = encoding.embed(torch.zeros(1, 4, width, dtype=torch.float64), positions)
    assert vectors[0].norm(dim=-1).tolist() == pytest.approx([math.sqrt(width / 2)] * 4)


def plane(angle):
    return np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def test_axial_is_the_direct_sum_of_the_rotations_of_its_axes():
    """R_(h, w) = R_h (+) R_w: the first half of the pairs rotates by the row, the second by the
    column.
    """
    spec = rw.RopeSpec(16, axes=axes.axial(4, 4), layout="interleaved")
    one_axis = rw.Rope(rw.RopeSpec(8, layout="interleaved"))
    rows, columns = torch.tensor([0, 2, 5, 9]), torch.tensor([7, 0, 3, 100])
    x = torch.randn(1, 1, 4, 16, dtype=torch.float64)
    found = rw.Rope(spec)(x, positions=torch.stack((rows, columns))[:, None])
    expected = torch.cat(
        [one_axis(x[..., :8], positions=rows), one_axis(x[..., 8:], positions=columns)], dim=-1
    )
    assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_kronecker_product_depends_on_both_offsets_alone():
    """(R_h x R_w x R_t)^T (R_h' x R_w' x R_t') is the product of the differences' rotations."""
    rates = (1.0, 0.3, 0.05)

    def rotation(place):
        first, second, third = (plane(m * rate) for m, rate in zip(place, rates, strict=True))
        return np.kron(np.kron(first, second), third)

    one, other = (3, 8, 40), (5, 1, 44)
    difference = tuple(b - a for a, b in zip(one, other, strict=True))
    assert rotation(one).T @ rotation(other) == pytest.approx(rotation(difference))
    assert rotation(one) @ rotation(one).T == pytest.approx(np.eye(8))


def test_a_kronecker_product_is_a_rope_with_mixed_axes_not_an_axial_one():
    """R(a) x R(b) rotates one plane by a + b and another by a - b: in that basis every pair has a
    frequency on both axes, as in MixedAxes.
    """
    alpha, beta = 0.7, 0.2
    # z1 z2 and z1 conj(z2) of x in R^2 x R^2, as real coordinates
    basis = np.array([[1, 0, 0, -1], [0, 1, 1, 0], [1, 0, 0, 1], [0, -1, 1, 0]]) / math.sqrt(2)
    assert basis @ basis.T == pytest.approx(np.eye(4))
    rope = rw.Rope(rw.RopeSpec(4, axes=axes.MixedAxes(num_heads=1, pairs=2), layout="interleaved"))
    with torch.no_grad():
        rope.mixed.copy_(torch.tensor([[[alpha, beta], [alpha, -beta]]]))
    x = np.random.default_rng(0).normal(size=4)
    for row, column in ((0, 0), (3, 8), (11, 2)):
        product = np.kron(plane(alpha * row), plane(beta * column)) @ x
        at = torch.tensor([[[row]], [[column]]], dtype=torch.float64)
        rotated = rope(torch.from_numpy(basis @ x).view(1, 1, 1, 4), positions=at)
        assert basis.T @ rotated.detach().numpy().ravel() == pytest.approx(product, abs=1e-6)
        direct_sum = np.block(
            [[plane(alpha * row), np.zeros((2, 2))], [np.zeros((2, 2)), plane(beta * column)]]
        )
        angles = lambda matrix: sorted(np.angle(np.linalg.eigvals(matrix)).round(9).tolist())
        kronecker = np.kron(plane(alpha * row), plane(beta * column))
        assert (angles(kronecker) == angles(direct_sum)) == (row == column == 0)


def test_audio_frames_within_one_unit_of_time_share_a_position():
    """A frame begins every 10 ms; numbered by time in units of 40 ms, four frames share a
    position.
    """
    hop, unit, frames = 0.010, 0.040, 12
    positions = (torch.arange(frames) * round(hop * 1000)) // round(unit * 1000)
    assert positions.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    rope, q = rw.Rope(rw.RopeSpec(8)), torch.randn(1, 1, frames, 8, dtype=torch.float64)
    by_time, by_frame = rope(q, positions=positions), rope(q)
    assert_close(by_time[:, :, 4], rope(q[:, :, 4:5], positions=torch.tensor([1]))[:, :, 0])
    assert not torch.allclose(by_time, by_frame)
