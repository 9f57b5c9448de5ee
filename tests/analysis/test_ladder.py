"""The ladder in numbers, against the published figures, 50-digit arithmetic and values worked out
by hand.
"""

import math

import mpmath
import numpy as np
import pytest

import ropewalk as rw
from frequency_oracle import _ramp, oracle
from helpers import ROTARY_DIM, sample_spec
from ropewalk import frequencies
from ropewalk.axes import MixedAxes
from ropewalk_lab import analysis

PLAIN = rw.RopeSpec(128)
LENGTH = 20


def test_the_published_figures_of_the_plain_ladder():
    found = analysis.radians(PLAIN)
    assert found.shape == (64,)
    assert found.max() == 1.0
    assert found.min() == pytest.approx(0.000115, abs=5e-7)
    assert found.mean() == pytest.approx(0.116562, abs=5e-7)
    assert found[:5] == pytest.approx([1, 0.865964, 0.749894, 0.649382, 0.562341], abs=5e-7)


def test_the_fastest_pair_repeats_after_6_tokens_and_the_slowest_after_54410():
    found = analysis.aliasing(analysis.radians(PLAIN), 4096)
    assert found.shortest == pytest.approx(2 * math.pi, rel=1e-15)
    assert found.longest == pytest.approx(
        float(2 * mpmath.pi * mpmath.mpf(10_000) ** (mpmath.mpf(126) / 128)), rel=1e-14
    )
    assert round(found.longest) == 54_410
    assert (found.repeating, found.pairs) == (46, 64)


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_radians_are_those_of_the_scaling_at_the_length(name):
    spec = sample_spec(name, precision="hf_frequencies")
    expected = oracle(spec.scaling, ROTARY_DIM, spec.theta, LENGTH)[0]
    assert analysis.radians(spec, LENGTH) == pytest.approx([float(x) for x in expected], rel=1e-13)


def test_turns_and_wavelengths_are_those_worked_out_by_hand():
    steps = [math.pi / 2, -math.pi / 5, 0.0]
    assert analysis.wavelengths(steps) == pytest.approx([4, 10, math.inf])
    assert analysis.turns(steps, 20) == pytest.approx([5, 2, 0])
    assert analysis.critical_dimension(steps, 9) == 2
    assert analysis.critical_dimension(steps, 11) == 4
    # a turn that ends exactly at the length counts
    assert analysis.critical_dimension([math.pi / 2], 4) == 2
    assert analysis.aliasing([math.pi / 2], 4).repeating == 1
    found = analysis.aliasing(steps, 9)
    assert (found.shortest, found.longest, found.repeating, found.pairs) == (
        pytest.approx(4),
        pytest.approx(10),
        1,
        3,
    )


def test_no_pair_with_frequency_0_repeats():
    found = analysis.aliasing([0.0, 0.0], 100)
    assert (found.shortest, found.longest, found.repeating) == (math.inf, math.inf, 0)


@pytest.mark.parametrize(
    ("dim", "theta", "length"),
    [(128, 10_000.0, 4096), (128, 10_000.0, 2048), (64, 500_000.0, 8192), (32, 100.0, 128)],
)
def test_the_critical_dimension_is_the_published_formula(dim, theta, length):
    formula = 2 * math.ceil(dim / 2 * math.log(length / (2 * math.pi), theta))
    assert analysis.critical_dimension(
        analysis.radians(rw.RopeSpec(dim, theta=theta)), length
    ) == min(formula, dim)


def test_llama_2_has_92_critical_dimensions():
    assert analysis.critical_dimension(analysis.radians(PLAIN), 4096) == 92


def test_coverage_counts_turns_before_and_after_scaling():
    spec = rw.RopeSpec(32, scaling=frequencies.Yarn(factor=4.0, original_length=128, beta_fast=8.0))
    found = analysis.coverage(spec, 128, 512)
    plain, scaled = (
        np.array(oracle(s, 32, 10_000.0)[0], dtype=float)
        for s in (frequencies.Default(), spec.scaling)
    )
    assert found.trained == pytest.approx(plain * 128 / (2 * np.pi), rel=1e-12)
    assert found.unscaled == pytest.approx(plain * 512 / (2 * np.pi), rel=1e-12)
    assert found.scaled == pytest.approx(scaled * 512 / (2 * np.pi), rel=1e-12)
    # 6 of 16 pairs complete a turn in 128 tokens at base 10,000; at 512 tokens the other 10 see new
    # angles, unless they are slowed by 4
    assert sum(found.new_angles(found.unscaled)) == 10
    assert sum(found.new_angles(found.scaled)) == 0


def test_new_angles_are_those_worked_out_by_hand():
    """A pair that completed a turn has seen all angles, and one that does not rotate has no others."""
    trained = np.array([2.0, 0.5, 0.5, 0.0])
    found = analysis.Coverage(trained, trained, trained)
    assert found.new_angles([9.0, 0.75, 0.5, 0.0]) == [False, True, False, False]


def test_coverage_reads_the_length_of_the_text_where_it_is_longer_than_the_distances():
    spec = rw.RopeSpec(32, scaling=frequencies.Linear(2.0))
    same = analysis.coverage(spec, 64, 64, length=4096)
    assert same.scaled == pytest.approx(same.trained / 2)
    dynamic = rw.RopeSpec(32, scaling=frequencies.Dynamic(2.0, original_length=64))
    grown = analysis.coverage(dynamic, 64, 64, length=128).scaled
    assert grown[-1] == pytest.approx(analysis.turns(analysis.radians(dynamic, 128), 64)[-1])
    assert grown[-1] < analysis.coverage(dynamic, 64, 64).scaled[-1]


def test_yarn_bands_follow_its_ramp():
    scaling = frequencies.Yarn(factor=4.0, original_length=4096)
    gamma = _ramp(128, 10_000, 4096, 32, 1, True)
    expected = ["kept" if g == 0 else "interpolated" if g == 1 else "blended" for g in gamma]
    assert analysis.bands(PLAIN.with_(scaling=scaling)) == expected
    assert set(expected) == {"kept", "blended", "interpolated"}


def test_llama3_bands_follow_its_wavelengths():
    spec = rw.RopeSpec(128, theta=500_000.0, scaling=frequencies.Llama3(8.0, original_length=8192))
    waves = [2 * math.pi * 500_000 ** (2 * i / 128) for i in range(64)]
    expected = ["kept" if w < 2048 else "interpolated" if w > 8192 else "blended" for w in waves]
    assert analysis.bands(spec) == expected


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        (frequencies.Default(), ["kept"] * 4),
        (frequencies.XPos(), ["kept"] * 4),
        (frequencies.Linear(2.0), ["interpolated"] * 4),
        (frequencies.Ntk(2.0), ["kept", "blended", "blended", "interpolated"]),
        # 2 * 64/8 - 1 = 15 at this length: the factor itself says nothing
        (
            frequencies.Dynamic(2.0, original_length=8),
            ["kept", "blended", "blended", "interpolated"],
        ),
        (frequencies.Proportional(1.0, fraction=0.5), ["kept", "kept", "still", "still"]),
        (frequencies.Given((-1.0, 0.2, 0.001, 0.0)), ["kept", "faster", "interpolated", "still"]),
        (frequencies.Given((0.0, 0.0, 0.0, 0.0)), ["still"] * 4),
        (frequencies.Given((2.0, 0.3, 0.03, 0.002)), ["faster"] * 4),
        (
            frequencies.DynamicYarn(original_length=8, beta_fast=1.2, beta_slow=0.01),
            ["kept", "blended", "blended", "interpolated"],
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_bands_are_those_worked_out_by_hand(scaling, expected):
    assert analysis.bands(rw.RopeSpec(8, theta=10_000.0, scaling=scaling), 64) == expected


def test_stretch_is_scaled_over_unscaled_frequency():
    assert analysis.stretch(PLAIN.with_(scaling=frequencies.Linear(4.0))) == pytest.approx(
        np.full(64, 0.25), rel=1e-15
    )


def test_radians_refuses_a_spec_whose_frequencies_are_learned():
    with pytest.raises(rw.RopeError, match="MixedAxes"):
        analysis.radians(rw.RopeSpec(8, axes=MixedAxes(2, 4)))


def test_bands_of_a_clipped_scaling_are_those_of_its_factor():
    """Yarn divides its slow pairs by 4; pairs=1 clips none of them, pairs=3 halves the last but one
    and stops the last.
    """
    yarn = frequencies.Yarn(factor=4.0, original_length=4096)
    plain = analysis.bands(PLAIN.with_(scaling=yarn))
    assert analysis.bands(PLAIN.with_(scaling=frequencies.Clipped(yarn, pairs=1))) == plain
    assert analysis.bands(PLAIN.with_(scaling=frequencies.Clipped(yarn, pairs=3))) == [
        *plain[:-2],
        "interpolated",
        "still",
    ]


def test_a_ratio_that_is_rounded_up_is_still_interpolated():
    """A frequency divided by 3 is rounded, so its ratio to the frequency may be an ulp above 1 / 3."""
    spec = rw.RopeSpec(64, scaling=frequencies.Linear(factor=3.0))
    assert max(analysis.stretch(spec)) > 1 / 3
    assert set(analysis.bands(spec)) == {"interpolated"}


def test_a_pair_that_made_one_whole_turn_in_training_has_seen_every_angle():
    found = analysis.Coverage((1.0, 0.5, 0.5), (2.0, 1.0, 0.5), (2.0, 1.0, 0.5))
    assert found.new_angles((2.0, 1.0, 0.5)) == [False, True, False]
