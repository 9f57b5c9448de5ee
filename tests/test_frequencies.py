"""Every scaling is its published formula: against 50-digit arithmetic, hand-computed values and its
own laws.
"""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from door import as_users_call
from frequency_oracle import ORACLE, oracle, xpos_log_decay, yarn_magnitude
from ropewalk import frequencies as fq
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS, Scaling
from ropewalk.frequencies.formulas import mscale
from ropewalk.frequencies.scaling import setting
from ropewalk.tensor_frequencies import TorchNumbers, formula

DIM, THETA = 10, 10_000.0
SHORT, LONG = (1.0, 1.1, 1.3, 1.7, 2.5), (1.0, 2.0, 5.0, 20.0, 64.0)

#: name -> one or more scalings of that class, in at least one of which every field has an effect
SAMPLES: dict[str, list[Scaling]] = {
    "default": [fq.Default()],
    "linear": [fq.Linear(1.0), fq.Linear(4.0), fq.Linear(2.5)],
    "ntk": [fq.Ntk(1.0), fq.Ntk(4.0), fq.Ntk(2.5)],
    "ntk_by_parts": [
        fq.NtkByParts(4.0),
        fq.NtkByParts(8.0, 500, (3.0, 0.5), (40.0, 5.0)),
        fq.NtkByParts(8.0, 20_000, (3.0, 0.5), (900.0, 2.0), 0.7, 0.4),
    ],
    "dynamic": [fq.Dynamic(1.0, 100), fq.Dynamic(2.5, 100), fq.Dynamic(8.0, 37)],
    "yarn": [
        fq.Yarn(factor=4.0),
        fq.Yarn(500, 20.0, 2.0, factor=8.0),
        fq.Yarn(500, 20.0, 2.0, False, factor=8.0),
        fq.Yarn(500, 20.0, 2.0, False, 1.3, factor=8.0),
        fq.Yarn(500, mscale=0.7, mscale_all_dim=1.9, factor=8.0),
        fq.Yarn(500, mscale=0.7, mscale_all_dim=0.0, factor=8.0),
        fq.Yarn(500, mscale_all_dim=0.7, factor=8.0),
        fq.Yarn(500, mscale=0.7, factor=8.0),
        fq.Yarn(500, 4.0, 4.0, False, factor=8.0),
        fq.Yarn(3, 32.0, 1.0, True, factor=8.0),
        fq.Yarn(factor=1.0),
    ],
    "dynamic_yarn": [
        fq.DynamicYarn(100),
        fq.DynamicYarn(100, 20.0, 2.0, False),
        fq.DynamicYarn(100, attention_factor=1.2),
        fq.DynamicYarn(100, mscale=0.7, mscale_all_dim=1.9),
    ],
    "longrope": [
        fq.LongRope(SHORT, LONG, 100, 32.0),
        fq.LongRope(SHORT, LONG, 100, 0.5),
        fq.LongRope(SHORT, LONG, 100, 32.0, 1.25),
    ],
    "llama3": [
        fq.Llama3(8.0),
        fq.Llama3(32.0, 1.0, 4.0, 300),
        fq.Llama3(3.0, 0.5, 40.0, 700),
    ],
    "proportional": [
        fq.Proportional(),
        fq.Proportional(2.0, 0.5),
        fq.Proportional(1.0, 0.79),
        fq.Proportional(1.0, 0.0),
    ],
    "linear_frequencies": [fq.LinearFrequencies()],
    "riflex": [fq.Riflex(), fq.Riflex(66, 48), fq.Riflex(700, 3000, 0.5), fq.Riflex(1, 1, 1.0)],
    "xpos": [fq.XPos(), fq.XPos(100.0, -7)],
    "given": [fq.Given((1.0, -0.5, 0.0, 3.0, 1e-9)), fq.Given((1.0, 0.5, 0.0, 3.0, 1e-9), 1.5)],
    "learnable": [fq.Learnable(), fq.Learnable(fq.Linear(4.0)), fq.Learnable(fq.Yarn(factor=4.0))],
    "clipped": [
        fq.Clipped(),
        fq.Clipped(pairs=3),
        fq.Clipped(pairs=2, soft=False),
        fq.Clipped(pairs=0),
        fq.Clipped(fq.Linear(2.0), 1),
        fq.Clipped(fq.Dynamic(2.5, 100), 4),
        fq.Clipped(fq.Yarn(500, factor=8.0), 4),
    ],
    "learned": [
        fq.Learned(alpha=(0.5, -0.5, 0.0, 1e-9, -3.0)),
        fq.Learned(fq.DynamicYarn(100), (0.1, 0.2, 0.3, 0.4, 0.5)),
        fq.Learned(fq.Clipped(fq.Yarn(factor=4.0), 3), (0.1, 0.2, 0.3, 0.4, 0.5)),
    ],
}
CASES = [
    pytest.param(s, id=f"{name}-{i}")
    for name, samples in SAMPLES.items()
    for i, s in enumerate(samples)
]


def assert_is(found: fq.Frequencies, radians, magnitude, tolerance=1e-14):
    assert found.radians.dtype == torch.float64
    for ours, exact in zip(found.radians.tolist(), radians, strict=True):
        assert abs(ours - exact) <= tolerance * abs(exact)
    assert abs(float(found.magnitude) - magnitude) <= tolerance * magnitude


def test_every_scaling_has_a_formula_and_samples_in_these_tests():
    assert set(SCALINGS) == set(ORACLE) == set(SAMPLES)
    for name, scaling in SCALINGS.items():
        assert scaling.name == name
        assert all(type(sample) is scaling for sample in SAMPLES[name])


@pytest.mark.parametrize("theta", [THETA, 500_000.0, 37.5])
@pytest.mark.parametrize("scaling", CASES)
def test_frequencies_in_float64_follow_the_published_formula(scaling, theta):
    for length in (None, 1, 99, 100, 101, 150, 4096, 1_000_000):
        assert_is(formula(scaling, DIM, theta, length), *oracle(scaling, DIM, theta, length))


@pytest.mark.parametrize(
    "scaling", [s for s in CASES if s.values[0].name not in ("longrope", "given", "learned")]
)
@pytest.mark.parametrize("dim", [2, 4, 128])
def test_any_head_dim_follows_the_formula(scaling, dim):
    """With a single pair, NTK must not divide by dim - 2 = 0."""
    for length in (None, 50, 333):
        assert_is(formula(scaling, dim, THETA, length), *oracle(scaling, dim, THETA, length))


@pytest.mark.parametrize("scaling", CASES)
def test_only_scalings_that_say_so_read_the_length(scaling):
    near, far = (formula(scaling, DIM, THETA, length) for length in (10, 1_000_000))
    same = torch.equal(near.radians, far.radians) and float(near.magnitude) == float(far.magnitude)
    assert same == (not scaling.needs_length)


@pytest.mark.parametrize("scaling", [s for s in CASES if s.values[0].needs_length])
def test_a_row_has_the_frequencies_of_its_own_length_whatever_the_other_rows(scaling):
    lengths = torch.tensor([5, 5000, 100, 101, 0])
    together = formula(scaling, DIM, THETA, lengths)
    assert together.radians.shape == (5, DIM // 2)
    for row, length in enumerate(lengths.tolist()):
        alone = formula(scaling, DIM, THETA, length)
        assert torch.equal(together.radians[row], alone.radians)
        of_row = (
            together.magnitude[row]
            if isinstance(together.magnitude, torch.Tensor)
            else together.magnitude
        )
        assert float(of_row) == float(alone.magnitude)


@pytest.mark.parametrize("scaling", [s for s in CASES if s.values[0].needs_length])
def test_frequencies_are_on_the_device_of_the_lengths(scaling):
    """No number moves between the CPU and the device of the lengths: the meta device, which stands
    for a GPU here, has no numbers to read and refuses CPU tensors.
    """
    found = formula(scaling, DIM, THETA, torch.tensor([5, 5000], device="meta"))
    assert found.radians.device.type == "meta"
    assert found.radians.shape == (2, DIM // 2)


def test_the_plain_frequencies_of_128_dimensions_have_the_published_figures():
    radians = formula(fq.Default(), 128, 10_000.0).radians
    assert radians.shape == (64,)
    assert radians.max() == 1.0
    assert round(float(radians.min()), 6) == 0.000115
    assert round(float(radians.mean()), 6) == 0.116562
    assert [round(x, 6) for x in radians[:5].tolist()] == [
        1.0,
        0.865964,
        0.749894,
        0.649382,
        0.562341,
    ]
    slowest = 2 * math.pi / float(radians[-1])
    assert abs(slowest - 54_410) < 1
    assert slowest == pytest.approx(2 * math.pi * 10_000 ** (126 / 128), rel=1e-14)


def test_values_computed_by_hand():
    tenths = lambda scaling, length=None: formula(scaling, 4, 100.0, length).radians.tolist()
    assert tenths(fq.Default()) == pytest.approx([1, 0.1])
    assert tenths(fq.Linear(4.0)) == pytest.approx([0.25, 0.025])
    # base 100 * 4^(4/2) = 1600, its root 40
    assert tenths(fq.Ntk(4.0)) == pytest.approx([1, 0.025])
    assert tenths(fq.Dynamic(3.0, 100), 100) == pytest.approx([1, 0.1])
    assert tenths(fq.Dynamic(3.0, 100), 300) == pytest.approx([1, 0.1 / 7])  # 3 * 300/100 - 2 = 7
    assert tenths(fq.LongRope((2.0, 4.0), (8.0, 16.0), 100), 100) == pytest.approx([0.5, 0.025])
    assert tenths(fq.LongRope((2.0, 4.0), (8.0, 16.0), 100), 101) == pytest.approx([0.125, 0.00625])
    assert tenths(fq.Proportional(2.0, 0.5)) == pytest.approx([0.5, 0])
    assert formula(fq.LinearFrequencies(), 8, 5.0).radians.tolist() == pytest.approx(
        [1, 1 / 3, 1 / 5, 1 / 7]
    )


def test_ntk_slows_the_slowest_pair_by_the_factor_and_leaves_the_fastest():
    plain, ntk = (formula(s, 64, THETA).radians for s in (fq.Default(), fq.Ntk(8.0)))
    assert ntk[0] == plain[0]
    assert float(plain[-1] / ntk[-1]) == pytest.approx(8.0, rel=1e-13)
    assert bool((ntk[1:-1] < plain[1:-1]).all() and (ntk[1:-1] > plain[1:-1] / 8).all())


@pytest.mark.parametrize("length", [0, 1, 50, 99, 100])
def test_dynamic_ntk_is_untouched_up_to_the_trained_length(length):
    """An unclamped base, theta * (8 * 1/100 - 7)^..., would be negative and its powers NaN."""
    found = formula(fq.Dynamic(8.0, 100), DIM, THETA, length).radians
    assert torch.equal(found, formula(fq.Default(), DIM, THETA).radians)
    assert float(formula(fq.Dynamic(8.0, 100), DIM, THETA, 101).radians[..., -1]) < float(
        found[..., -1]
    )


def test_the_longrope_switch_is_after_the_trained_length():
    scaling = fq.LongRope(SHORT, LONG, 4096)
    at = lambda length: formula(scaling, DIM, THETA, length).radians
    assert torch.equal(at(4096), at(1))
    assert torch.equal(at(4096), at(None))
    assert torch.equal(at(4097), at(10**7))
    assert not torch.equal(at(4096), at(4097))


def test_longrope_keeps_its_magnitude_on_both_sides_of_the_switch():
    for length in (None, 10, 4096, 4097):
        found = formula(fq.LongRope(SHORT, LONG, 4096, 32.0), DIM, THETA, length)
        assert found.magnitude == pytest.approx(
            math.sqrt(1 + math.log(32) / math.log(4096)), rel=1e-15
        )
    assert formula(fq.LongRope(SHORT, LONG, 4096, 1.0), DIM, THETA).magnitude == 1.0


YARN = {"original_length": 500, "beta_fast": 20.0, "beta_slow": 2.0, "factor": 8.0}


@pytest.mark.parametrize(
    "change",
    [
        {"truncate": False},
        {"beta_fast": 40.0},
        {"beta_slow": 0.5},
        {"original_length": 5000},
        {"factor": 4.0},
    ],
)
def test_changing_a_field_of_yarn_changes_its_frequencies(change):
    plain, changed = (
        formula(fq.Yarn(**fields), 64, THETA).radians for fields in (YARN, YARN | change)
    )
    assert not torch.equal(plain, changed)


def test_the_magnitude_of_yarn():
    magnitude = lambda **fields: formula(fq.Yarn(**YARN | fields), 64, THETA).magnitude
    assert magnitude() == 0.1 * math.log(8) + 1.0
    assert magnitude(attention_factor=1.7, mscale=0.5, mscale_all_dim=2.0) == 1.7
    half, double = (0.1 * weight * math.log(8) + 1.0 for weight in (0.5, 2.0))
    assert magnitude(mscale=0.5, mscale_all_dim=2.0) == half / double
    assert (
        magnitude(mscale=0.5)
        == magnitude(mscale_all_dim=0.5)
        == magnitude(mscale=0.0, mscale_all_dim=0.5)
        == magnitude()
    )
    assert magnitude(factor=1.0) == magnitude(factor=1.0, mscale=0.5, mscale_all_dim=2.0) == 1.0


@pytest.mark.parametrize(
    "name", ["linear", "dynamic", "yarn", "llama3", "proportional", "ntk", "ntk_by_parts"]
)
def test_a_scaling_made_without_arguments_changes_no_frequency(name):
    torch.testing.assert_close(
        formula(SCALINGS[name](), 16, THETA).radians, formula(fq.Default(), 16, THETA).radians
    )


def test_a_ramp_of_yarn_without_width_is_a_thousandth_wide():
    """transformers' rule where beta_fast equals beta_slow: a pair half way through the ramp gets the
    mean of its plain and its interpolated frequency.
    """
    dim, theta, trained, factor = 16, 1e4, 4096, 8.0
    # the ramp begins 0.0005 of a pair before pair 3, so that pair 3 is in its middle
    beta = trained / (2 * math.pi) * theta ** (-2 * (3 - 0.0005) / dim)
    scaling = fq.Yarn(
        factor=factor, original_length=trained, beta_fast=beta, beta_slow=beta, truncate=False
    )
    radians = formula(scaling, dim, theta).radians
    plain = [theta ** (-2 * i / dim) for i in range(8)]
    expected = [*plain[:3], (plain[3] + plain[3] / factor) / 2, *(x / factor for x in plain[4:])]
    assert radians.tolist() == pytest.approx(expected, rel=1e-9)


def test_fast_pairs_of_yarn_stay_and_slow_ones_interpolate():
    plain, yarn = (formula(s, 64, THETA).radians for s in (fq.Default(), fq.Yarn(**YARN)))
    turns = 500 * plain / (2 * math.pi)
    assert torch.equal(yarn[turns > 25], plain[turns > 25])
    torch.testing.assert_close(yarn[turns < 1], plain[turns < 1] / 8, rtol=1e-15, atol=0)
    between = (turns < 15) & (turns > 3)
    assert bool(((yarn < plain) & (yarn > plain / 8))[between].all())
    assert int(between.sum()) > 2


def test_mscale_of_tensors_is_that_of_numbers():
    factors = [0.0, 0.5, 1.0, 1.0001, 4.0, 1e6]
    for weight in (1.0, 0.7):
        of_tensor = mscale(torch.tensor(factors, dtype=torch.float64), weight)
        for ours, factor in zip(of_tensor.tolist(), factors, strict=True):
            assert abs(ours - yarn_magnitude(factor, weight)) < 1e-15
            assert abs(mscale(factor, weight) - yarn_magnitude(factor, weight)) < 1e-15


def test_dynamic_yarn_equals_yarn_with_length_over_original_length_as_factor():
    for length, factor in ((50, 1.0), (100, 1.0), (101, 1.01), (800, 8.0)):
        moving = formula(fq.DynamicYarn(100), DIM, THETA, length)
        still = formula(fq.Yarn(100, factor=factor), DIM, THETA)
        torch.testing.assert_close(moving.radians, still.radians, rtol=1e-15, atol=0)
        assert float(moving.magnitude) == pytest.approx(float(still.magnitude), rel=1e-15)


def test_ntk_by_parts_has_three_bands():
    plain, linear, ntk, parts = (
        formula(s, 128, THETA).radians
        for s in (fq.Default(), fq.Linear(8.0), fq.Ntk(8.0), fq.NtkByParts(8.0, 2048))
    )
    turns = 2048 * plain / (2 * math.pi)
    torch.testing.assert_close(parts[turns > 20], plain[turns > 20], rtol=1e-15, atol=0)
    torch.testing.assert_close(parts[turns < 0.5], linear[turns < 0.5], rtol=1e-15, atol=0)
    no_keep = formula(fq.NtkByParts(8.0, 2048, keep_weight=0.0), 128, THETA).radians
    torch.testing.assert_close(no_keep[turns > 2], ntk[turns > 2], rtol=1e-15, atol=0)
    no_ntk = formula(fq.NtkByParts(8.0, 2048, keep_weight=0.0, ntk_weight=0.0), 128, THETA).radians
    torch.testing.assert_close(no_ntk, linear, rtol=1e-15, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_llama3_with_equal_ends_has_no_middle_band(dtype):
    """Llama-4-Scout's config: the blend divides by high - low = 0."""
    found = formula(fq.Llama3(8.0, 2.0, 2.0, 8192), 128, 500_000.0, dtype=dtype).radians
    plain = formula(fq.Default(), 128, 500_000.0, dtype=dtype).radians
    slow = 2 * math.pi / plain > 8192 / 2
    assert 0 < int(slow.sum()) < 64
    assert torch.equal(found, torch.where(slow, plain / 8, plain))


def test_llama3_bands_end_at_the_wavelengths_of_its_two_frequency_factors():
    scaling = fq.Llama3(8.0, 1.0, 4.0, 8192)
    found, plain = (formula(s, 128, 500_000.0).radians for s in (scaling, fq.Default()))
    wavelengths = 2 * math.pi / plain
    assert torch.equal(found[wavelengths < 2048], plain[wavelengths < 2048])
    torch.testing.assert_close(
        found[wavelengths > 8192], plain[wavelengths > 8192] / 8, rtol=1e-15, atol=0
    )
    middle = (wavelengths > 2048) & (wavelengths < 8192)
    # between the bands the part of the plain frequency goes from 1 to 0 with 8192 / wavelength,
    # which goes from 4 to 1
    part = (8192 / wavelengths - 1) / (4 - 1)
    want = part * plain + (1 - part) * plain / 8
    torch.testing.assert_close(found[middle], want[middle], rtol=1e-14, atol=0)


def test_proportional_keeps_the_spacing_of_the_whole_head_and_partial_does_not():
    whole = formula(fq.Default(), 16, THETA).radians
    proportional = formula(fq.Proportional(1.0, 0.25), 16, THETA).radians
    partial = formula(fq.Default(), 4, THETA).radians
    assert torch.equal(proportional, torch.where(torch.arange(8) < 2, whole, 0.0))
    assert not torch.equal(proportional[:2], partial)


def test_the_growth_of_xpos_is_log_zeta_over_scale_base():
    for scaling in (fq.XPos(), fq.XPos(100.0, -7)):
        found = formula(scaling, DIM, THETA)
        assert found.center == scaling.center
        for ours, exact in zip(
            found.growth.tolist(), xpos_log_decay(DIM, scaling.scale_base), strict=True
        ):
            assert abs(ours - exact) < 1e-16
    # hand: d = 4, i = 0: zeta = 1.6 / 5.6
    assert float(formula(fq.XPos(512.0), 4, THETA).growth[0]) == pytest.approx(
        math.log(2 / 7) / 512, rel=1e-14
    )


@pytest.mark.parametrize("scaling", [s for s in CASES if s.values[0].name != "xpos"])
def test_only_xpos_grows(scaling):
    found = formula(scaling, DIM, THETA)
    assert (found.growth, found.center) == (None, 0)


def test_learnable_has_the_frequencies_magnitude_and_growth_of_its_start():
    for start in (fq.Default(), fq.Linear(4.0), fq.Yarn(factor=4.0), fq.XPos(100.0, 5)):
        ours, theirs = (formula(s, DIM, THETA) for s in (fq.Learnable(start), start))
        assert torch.equal(ours.radians, theirs.radians)
        assert (ours.magnitude, ours.center) == (theirs.magnitude, theirs.center)
        assert (ours.growth is None) == (theirs.growth is None)
        assert ours.growth is None or torch.equal(ours.growth, theirs.growth)
    assert fq.Learnable() == fq.Learnable(fq.Default())
    assert [name for name, scaling in SCALINGS.items() if scaling.learned] == ["learnable"]


def test_frequencies_may_be_given_as_a_list_or_a_tensor():
    """Any frequencies can be given, one number for each pair."""
    mine = torch.tensor([2.0, 0.25, 1e-3], dtype=torch.float64)
    with as_users_call():
        from_tensor, from_list = fq.Given(mine, 1.5), fq.Given([2, 0.25, 1e-3], 1.5)
    assert torch.equal(formula(from_tensor, 6, THETA).radians, mine)
    assert formula(from_tensor, 6, THETA).magnitude == 1.5
    assert from_list == from_tensor == fq.Given((2.0, 0.25, 1e-3), 1.5)


def test_the_defaults_are_the_published_ones():
    assert fq.Yarn(factor=2.0).as_dict() == {
        "rope_type": "yarn",
        "original_length": 2048,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
        "attention_factor": None,
        "mscale": None,
        "mscale_all_dim": None,
        "factor": 2.0,
    }
    assert fq.NtkByParts().as_dict() == {
        "rope_type": "ntk_by_parts",
        "factor": 1.0,
        "original_length": 2048,
        "ntk_turns": (1.25, 0.75),
        "keep_turns": (16.0, 2.0),
        "ntk_weight": 1.0,
        "keep_weight": 1.0,
    }
    assert fq.Llama3(8.0) == fq.Llama3(8.0, 1.0, 4.0, 8192)
    assert fq.LongRope() == fq.LongRope((1.0,), (1.0,), 4096, 1.0, None)
    assert fq.Dynamic() == fq.Dynamic(1.0, 2048)
    assert fq.XPos() == fq.XPos(512.0, 0)
    assert fq.Proportional() == fq.Proportional(1.0, 1.0)
    assert fq.Given() == fq.Given((1.0,), 1.0)
    assert {name for name, scaling in SCALINGS.items() if scaling.needs_length} == {
        "dynamic",
        "dynamic_yarn",
        "longrope",
    }


def test_by_default_the_magnitude_is_1_and_does_not_grow_with_the_position():
    found = fq.Frequencies((1.0, 1.0))
    assert (found.magnitude, found.growth, found.center) == (1.0, None, 0)


def test_a_scaling_without_a_formula_says_what_to_write():
    with pytest.raises(TypeError, match="Scaling must define _radians"):
        formula(Scaling(), 4, THETA)


def test_a_scaling_of_ones_own_needs_one_method():
    class Halving(Scaling):
        name = "halving"

        def _radians(self, dim, theta, length, ops):
            return 0.5 ** ops.multiples(1, dim // 2)

    found = formula(Halving(), 8, THETA)
    assert_is(found, [1, 0.5, 0.25, 0.125], 1)


def test_llama3_with_equal_ends_is_finite_even_where_a_wavelength_meets_them():
    ends = 8192 / (2 * math.pi)  # the first pair's wavelength is 2 pi, so it lies on the edge
    scaling = fq.Llama3(factor=8.0, low_freq_factor=ends, high_freq_factor=ends)
    assert 8192 / ends == 2 * math.pi
    assert torch.isfinite(formula(scaling, 4, 10_000.0).radians).all()


def test_a_vector_of_constants_has_the_requested_dtype_on_any_device():
    ops = TorchNumbers(torch.float64, torch.device("meta"))
    assert ops.vector((1.0, 0.1)).dtype == torch.float64


@pytest.mark.parametrize("length", [None, 100])
def test_frequencies_computed_under_a_meta_default_device_are_on_the_cpu(length):
    with torch.device("meta"):
        found = formula(fq.Dynamic(factor=2.0, original_length=16), 8, 10_000.0, length).radians
    assert found.device.type == "cpu"


@dataclass(frozen=True)
class WithInteger(Scaling):
    steps: int = setting(3)


def test_an_integer_setting_without_a_lower_bound_may_be_negative():
    assert WithInteger(-7).steps == -7
    with pytest.raises(RopeError, match="steps"):
        WithInteger(2.5)


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint16])
@pytest.mark.parametrize("scaling", [fq.Dynamic(2.5, 100), fq.DynamicYarn(100)])
def test_a_length_may_be_an_integer_of_numpy(scaling, kind):
    assert torch.equal(
        formula(scaling, DIM, THETA, kind(900)).radians,
        formula(scaling, DIM, THETA, 900).radians,
    )


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.01, 1.5, 2.0, 32.0])
def test_the_magnitude_of_longrope_is_above_one_for_factors_above_one(factor):
    """sqrt(1 + log s / log L), as LongRoPE states it; for a factor s up to 1 the magnitude is 1."""
    longrope = fq.LongRope((1.0, 1.0), (2.0, 2.0), original_length=64, factor=factor)
    expected = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(64))
    found = formula(longrope, 4, 10_000.0, None).magnitude
    assert float(found) == pytest.approx(expected, abs=1e-12)
