"""Errors of cos and sin by position, against 50-digit arithmetic and each engine's own steps in
NumPy.
"""

import mpmath
import numpy as np
import pytest
import torch

import ropewalk as rw
from door import assert_refused
from frequency_oracle import cos_sin, oracle, rotations
from helpers import sample_spec
from ropewalk import RopeSpec
from ropewalk import analysis as plain_analysis
from ropewalk.analysis.exactness import bfloat16
from ropewalk_lab import analysis

SPEC = rw.RopeSpec(10, theta=100.0)
FLOAT32 = (1 / np.float32(100) ** (np.arange(0, 10, 2, dtype=np.float32) / np.float32(10))).astype(
    np.float32
)


@pytest.mark.parametrize("position", [0, 1, -3, 131_071, 2**40 + 3, 2**61 - 1])
def test_true_angles_are_reduced_exactly(position):
    steps = analysis.radians(SPEC)
    for step, angle in zip(steps, analysis.true_angles(steps, [position])[0], strict=True):
        assert 0 <= angle < 6.2832
        cos, sin = cos_sin(step, position)
        assert np.cos(angle) == pytest.approx(float(cos), abs=2e-15)
        assert np.sin(angle) == pytest.approx(float(sin), abs=2e-15)


@pytest.mark.parametrize("method", analysis.COS_SIN_METHODS)
@pytest.mark.parametrize("position", [100, 131_071, 10_000_000])
def test_errors_by_definition_are_those_that_torch_makes(method, position):
    """Errors computed without torch (`plain_analysis`) are those computed with it. The reference has
    a checkpoint's float32 frequencies, so only the rounding after them counts.

    The float32 frequencies of the two differ by up to two units in the last place.
    """
    spec = RopeSpec(64, precision="hf_frequencies")
    (ours,) = plain_analysis.error_curves(spec, [position], [method], width=64)[method]
    (torchs,) = analysis.error_curves(spec, [position], [method], width=64)[method]
    if method == "exact":
        assert ours <= 8 * torchs
        assert torchs <= 8 * ours
    else:
        assert ours == pytest.approx(torchs, rel=0.5)


def test_all_digits_of_a_frequency_give_the_angles_of_the_formula():
    exact, positions = SPEC.ladder_frequencies(), [1, 2**31 + 1, 2**40 + 3]
    angles = analysis.true_angles(exact.digits, positions)
    wanted = rotations(oracle(SPEC.scaling, 10, 100.0)[0], positions)
    np.testing.assert_allclose(np.exp(1j * angles), wanted, rtol=0, atol=2e-15)


@pytest.mark.parametrize("position", [1_000, 131_071, 2**40])
def test_exact_is_off_by_one_float32_rounding_at_any_position(position):
    (error,) = analysis.error_curves(SPEC, [position], ["exact"])["exact"]
    # half a unit of float32 below 1, and half of 2^-64 turns a step
    assert 2e-8 < error < 2**-25 + 1e-9 + position * np.pi * 2.0**-64


@pytest.mark.parametrize("kind", [np.float64, np.uint64, np.int32])
def test_positions_may_be_an_array_of_whole_numbers_of_any_type(kind):
    """As np.geomspace gives them; angles of real positions in float64 would be off by 1e-4 at 2^40."""
    position = 2**31 - 1 if kind is np.int32 else 2**40
    (error,) = analysis.error_curves(SPEC, np.array([position], dtype=kind), ["exact"])["exact"]
    assert error < 2**-25 + 1e-9 + position * np.pi * 2.0**-64


@pytest.mark.parametrize("position", [1_000, 131_071, 10_000_000])
def test_the_error_of_hf_is_that_of_float32_angles(position):
    angles = np.float32(position) * FLOAT32
    true = [cos_sin(step, position) for step in analysis.radians(SPEC)]
    off = max(
        abs(float(function(np.float64(a))) - float(t[i]))
        for a, t in zip(angles, true, strict=True)
        for i, function in enumerate((np.cos, np.sin))
    )
    (error,) = analysis.error_curves(SPEC, [position], ["hf"], width=1)["hf"]
    assert error == pytest.approx(off, rel=1e-2, abs=2e-7)


@pytest.mark.parametrize("module", [plain_analysis, analysis])
def test_a_float32_angle_is_the_product_of_a_float32_frequency(module):
    """Neither 0.1 nor 0.7 is a float32: the engines round the frequency, and then the product."""
    steps, positions = (0.1, 0.7), range(1_000_001, 1_000_065)
    spec = RopeSpec(4, scaling=rw.frequencies.Given(steps))
    found = module.error_curves(spec, positions, ["hf"], width=1)["hf"]
    for position, error in zip(positions, found, strict=True):
        off = 0.0
        for step in steps:
            angle = float(np.float32(position) * np.float32(step))
            true = mpmath.mpf(step) * position
            off = max(
                off,
                abs(np.cos(angle) - float(mpmath.cos(true))),
                abs(np.sin(angle) - float(mpmath.sin(true))),
            )
        assert error == pytest.approx(off, abs=2e-7)


def test_a_checkpoints_own_frequencies_are_the_reference_of_its_spec():
    spec = SPEC.with_(precision="hf_frequencies")
    found = analysis.error_curves(spec, [10_000_000], ["exact", "hf_frequencies", "hf"])
    assert found["hf_frequencies"][0] < 4e-8
    assert found["exact"][0] > 1e-3
    assert found["hf"][0] > 1e-3


def test_position_257_in_bfloat16_has_the_error_of_position_256():
    # 257 has no bfloat16 of its own: it becomes 256
    (error,) = analysis.error_curves(SPEC, [257], ["bfloat16 positions"], width=1)[
        "bfloat16 positions"
    ]
    steps = [mpmath.mpf(float(s)) for s in analysis.radians(SPEC)]
    off = max(max(abs(f(256 * s) - f(257 * s)) for f in (mpmath.cos, mpmath.sin)) for s in steps)
    assert error == pytest.approx(float(off), abs=1e-4)


@pytest.mark.parametrize(("way", "bits"), [("float16 table", 11), ("bfloat16 table", 8)])
def test_a_table_in_half_precision_is_off_by_its_last_bit(way, bits):
    (error,) = analysis.error_curves(SPEC, [100], [way], width=64)[way]
    assert 0.7 * 2.0 ** -(bits + 1) < error <= 2.0 ** -(bits + 1) + 1e-5


def test_an_error_is_the_largest_in_a_window_of_positions():
    one_by_one = [
        analysis.error_curves(SPEC, [p], ["hf"], width=1)["hf"][0] for p in range(96, 101)
    ]
    assert analysis.error_curves(SPEC, [100], ["hf"], width=5)["hf"][0] == max(one_by_one)


@pytest.mark.parametrize("package", [plain_analysis, analysis])
def test_the_window_of_an_error_ends_at_the_given_position(package):
    # 256 and 258 are bfloat16 numbers, 257 and 259 are rounded to a neighbour
    def rounded(width):
        name = "bfloat16 positions"
        curve = package.error_curves(SPEC, range(256, 260), [name], width=width)[name]
        return [error > 0.1 for error in curve]

    assert rounded(1) == [False, True, False, True]
    assert rounded(2) == [False, True, True, True]


#: these list a value for each pair of one ladder, and an axial map has two
LISTED = ("longrope", "given", "learned")


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        *((n, "one") for n in rw.frequencies.SCALINGS),
        *((n, "axial") for n in rw.frequencies.SCALINGS if n not in LISTED),
    ],
)
def test_every_scaling_and_axis_map_has_curves_without_its_magnitude(name, axis):
    found = analysis.error_curves(sample_spec(name, axis), [0, 500], length=600)
    assert list(found) == list(analysis.COS_SIN_METHODS)
    assert found["exact"].max() < 4e-8


def test_an_unknown_method_is_refused_and_used_by_names_every_method():
    assert list(analysis.USED_BY) == list(analysis.COS_SIN_METHODS)
    with pytest.raises(rw.RopeError, match="methods"):
        analysis.error_curves(SPEC, [1], ["float8"])


@pytest.mark.parametrize(
    "chosen", [rw.axes.MixedAxes(2, 6), rw.axes.GoldenAxes(2, 6), rw.axes.by_head([1, 1], 6)]
)
def test_curves_need_axes_that_are_the_same_in_all_heads(chosen):
    assert_refused("axes", lambda: analysis.error_curves(rw.RopeSpec(12, axes=chosen), [5]))


def test_curves_need_positions_from_0_on():
    assert_refused("positions", lambda: analysis.error_curves(SPEC, [5, -1]))
    assert analysis.error_curves(SPEC, [0], ["exact"])["exact"] == [0]


@pytest.mark.parametrize("value", [257.0, 259.0, 1.00390625, -257.0, 0.1, 3.0e38])
def test_bfloat16_rounds_ties_to_even(value):
    expected = torch.tensor(value, dtype=torch.float32).to(torch.bfloat16).item()
    assert bfloat16(value) == expected


@pytest.mark.parametrize("module", [plain_analysis, analysis])
def test_an_error_is_the_largest_of_cos_and_sin_at_the_last_five_positions(module):
    """With frequencies of one radian in 2^-k the float32 angle is exact, and cos and sin are off by
    their rounding alone; bfloat16 rounds positions beyond 256.
    """
    spec = RopeSpec(4, theta=10_000.0)
    positions = [3, 1000, 4003]
    curves = module.error_curves(spec, positions, ["bfloat16 positions", "bfloat16 table"])
    radians = np.float32([1.0, 0.01])
    for name, found in curves.items():
        for place, end in enumerate(positions):
            errors = []
            for position in range(max(0, end - 4), end + 1):
                for exact, step in zip((1.0, 0.01), radians, strict=True):
                    kept = float(position)
                    if name == "bfloat16 positions":
                        kept = bfloat16(kept)
                    angle = np.float32(np.float32(kept) * step)
                    cos, sin = float(np.cos(angle)), float(np.sin(angle))
                    if name == "bfloat16 table":
                        cos, sin = bfloat16(cos), bfloat16(sin)
                    errors += [
                        abs(cos - float(mpmath.cos(position * mpmath.mpf(exact)))),
                        abs(sin - float(mpmath.sin(position * mpmath.mpf(exact)))),
                    ]
            assert found[place] == pytest.approx(max(errors), rel=1e-3, abs=1e-7), (name, end)


@pytest.mark.parametrize("module", [plain_analysis, analysis])
def test_both_cos_and_sin_count(module):
    """In the first two cases the cosine has the largest error, in the last one the sine."""
    half = RopeSpec(2, scaling=rw.frequencies.Given((float(np.float32(np.pi)),)))
    (cosine,) = module.error_curves(half, [257], ["bfloat16 positions"], width=1)[
        "bfloat16 positions"
    ]
    # 257 becomes 256: from -1 to 1 in the cosine, and hardly anything in the sine
    assert cosine == pytest.approx(2.0, abs=1e-3)
    quarter = RopeSpec(2, scaling=rw.frequencies.Given((float(np.float32(np.pi / 2)),)))
    found = module.error_curves(quarter, [258, 259], ["bfloat16 positions"], width=1)
    # 258 is itself; 259 becomes 260: cos 0 -> 1 and sin -1 -> 0
    assert list(found["bfloat16 positions"]) == pytest.approx([0, 1], abs=1e-3)
    (alone,) = module.error_curves(
        RopeSpec(2, scaling=rw.frequencies.Given((1e-3,))), [257], ["bfloat16 positions"], width=1
    )["bfloat16 positions"]
    # small angles: the sine moves by a thousandth, the cosine by a quarter of that
    assert alone == pytest.approx(np.sin(0.257) - np.sin(0.256), rel=1e-3)


@pytest.mark.parametrize("position", [2**10, 2**20, 2**30])
def test_bfloat16_positions_change_nothing_where_a_position_is_kept(position):
    """A power of two is a bfloat16 number, so "bfloat16 positions" has the errors of float32 angles."""
    for module in (plain_analysis, analysis):
        curves = module.error_curves(
            RopeSpec(128, precision="hf"), [position], ["hf", "bfloat16 positions"], width=1
        )
        assert list(curves["hf"]) == list(curves["bfloat16 positions"])
