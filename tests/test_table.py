"""cos and sin are exact at any integer position, whatever way they are computed and whatever was
computed before.
"""

import math
from fractions import Fraction

import mpmath
import pytest
import torch

from frequency_oracle import cos_sin as exact_cos_sin
from frequency_oracle import oracle, xpos_log_decay
from ropewalk import axes
from ropewalk import frequencies as fq
from ropewalk.spec import RopeSpec
from ropewalk.strategies import TWO_LEVEL_REACH
from ropewalk.table import TABLES, cos_sin, first_rows, magnitude_on, tables
from ropewalk.tensor_frequencies import ladder
from ropewalk.tensor_phase import cos_sin_of_phase, phase_steps

CPU = torch.device("cpu")
PLAIN = RopeSpec(10)
NEAR = [
    0,
    1,
    2,
    1023,
    1024,
    1025,
    4097,
    65_537,
    131_071,
    999_999,
    2**20 - 1,
    2**20,
    2**20 + 1,
    9_999_999,
    10_000_000,
]
FAR = [2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 + 3, 10**10 + 7, 2**36 - 1, 2**36]


def errors(spec: RopeSpec, positions: list[int], dtype=torch.float32) -> float:
    """The largest distance from exact arithmetic with the published formula, or with the rounded
    frequencies of the precision.
    """
    tables_ = cos_sin(spec, torch.tensor(positions), dtype=dtype)
    assert all(
        table.dtype == dtype and table.shape == (len(positions), spec.pairs) for table in tables_
    )
    exact = spec.precision == "exact"
    radians = (
        oracle(spec.scaling, spec.head_dim, spec.theta)[0]
        if exact
        else ladder(spec).radians.tolist()
    )
    worst = mpmath.mpf(0)
    for row, position in enumerate(positions):
        for pair, omega in enumerate(radians):
            for table, exact in zip(tables_, exact_cos_sin(omega, position), strict=True):
                worst = max(worst, abs(mpmath.mpf(float(table[row, pair])) - exact))
    return float(worst)


SPECS = [
    pytest.param(PLAIN, id="plain"),
    pytest.param(RopeSpec(12, 500_000.0, fq.Llama3(8.0)), id="llama3"),
    pytest.param(RopeSpec(10, scaling=fq.Given((3.0, -1.0, 0.0, -1e-4, 2e-9))), id="either sign"),
    pytest.param(RopeSpec(10, precision="hf_frequencies"), id="float32 frequencies"),
    pytest.param(RopeSpec(10, axes=axes.AxisMap((0,) * 5, 1)), id="axis map of one"),
]


@pytest.mark.parametrize("spec", SPECS)
class TestExactness:
    def test_float32_cos_and_sin_are_off_by_one_rounding_up_to_ten_million(self, spec):
        assert errors(spec, NEAR) <= 2**-25 + 1e-8

    def test_float64_cos_and_sin_are_exact_to_1e_11_up_to_ten_million(self, spec):
        assert errors(spec, NEAR, torch.float64) <= 1e-11  # promised: 6e-9

    def test_float64_cos_and_sin_of_the_two_level_table_are_exact_to_3e_13(self, spec):
        assert errors(spec, [p for p in NEAR if p < TWO_LEVEL_REACH], torch.float64) <= 3e-13

    def test_16_bit_cos_and_sin_are_off_by_one_rounding(self, spec):
        assert errors(spec, NEAR, torch.bfloat16) <= 2**-9
        assert errors(spec, NEAR, torch.float16) <= 2**-12 + 1e-8

    def test_float32_cos_and_sin_are_exact_at_far_positions(self, spec):
        assert errors(spec, FAR) <= 5e-8  # promised: 2e-7
        assert errors(spec, [2**40 - 1, 2**40, 2**40 + 1]) <= 5e-7

    def test_float32_cos_and_sin_are_exact_at_negative_positions(self, spec):
        assert errors(spec, [-p for p in NEAR]) <= 2**-25 + 1e-8
        assert errors(spec, [-p for p in FAR]) <= 5e-8
        assert errors(spec, [-(2**40), 1 - 2**40]) <= 5e-7

    def test_neighbouring_positions_have_other_cos_and_sin_up_to_2_to_the_40(self, spec):
        """From 2^24 on float32 does not hold every integer."""
        for far in (2**24, 2**31, 2**36, 2**40 - 1):
            here, there = torch.cat(cos_sin(spec, torch.tensor([far, far + 1])), dim=-1)
            assert not torch.equal(here, there)


@pytest.mark.parametrize("edge", [-1, 0, TWO_LEVEL_REACH - 1, TWO_LEVEL_REACH, TWO_LEVEL_REACH + 1])
def test_positions_at_both_ends_of_the_two_level_table_are_exact(edge):
    """A position just outside the table must not be read from the table, even if the call has no
    other position.
    """
    assert errors(PLAIN, [edge]) <= 2**-25 + 1e-8
    assert errors(PLAIN, [5, edge]) <= 2**-25 + 1e-8


def exact_steps(radians: float) -> int:
    with mpmath.workdps(60):
        steps = int(mpmath.nint(mpmath.mpf(radians) / (2 * mpmath.pi) * 2**64))
    return (steps + 2**63) % 2**64 - 2**63


def test_phase_steps_are_the_nearest_64_bit_fraction_of_a_turn():
    generator = torch.Generator().manual_seed(0)
    random = 10 ** (torch.rand(200, generator=generator, dtype=torch.float64) * 20 - 12)
    chosen = torch.tensor(
        [0.0, 1.0, 0.1, 1e-4, 1e-12, 1e-19, 1e-300, math.pi, 2 * math.pi, 100.0, 1e4, 1e6, 1e9],
        dtype=torch.float64,
    )
    for radians in (random, -random, chosen, -chosen):
        assert phase_steps(radians).dtype == torch.int64
        assert phase_steps(radians).tolist() == [exact_steps(r) for r in radians.tolist()]


def test_phase_steps_of_frequencies_from_1e14_to_1e20_are_right_to_107_bits():
    random = 10 ** (
        torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 6 + 14
    )
    for radians in (random, -random):
        # 107 bits of 1e20 radians are 6e-13 turns
        wrong = [
            (a - exact_steps(r)) % 2**64
            for a, r in zip(phase_steps(radians).tolist(), radians.tolist(), strict=True)
        ]
        assert max(min(each, 2**64 - each) for each in wrong) < 2e-12 * 2**64


def test_phase_steps_keep_the_shape_and_accept_float32():
    radians = torch.rand(3, 5)
    assert torch.equal(phase_steps(radians), phase_steps(radians.double().flatten()).view(3, 5))


def test_cos_and_sin_of_a_phase_are_exact_where_it_wraps():
    """The reference is position * step modulo 2^64 in Python's integers."""
    steps = phase_steps(torch.tensor([1.0, 0.1, -0.3], dtype=torch.float64))
    positions = torch.tensor([[5], [2**40 + 9], [-(2**52) - 3]])
    cos, sin = cos_sin_of_phase(steps, positions)
    for i, j in ((i, j) for i in range(3) for j in range(3)):
        turn = Fraction(int(positions[i, 0]) * int(steps[j]), 2**64) % 1
        angle = 2 * mpmath.pi * turn.numerator / turn.denominator
        assert abs(float(cos[i, j]) - mpmath.cos(angle)) < 4e-16 * math.pi
        assert abs(float(sin[i, j]) - mpmath.sin(angle)) < 4e-16 * math.pi


def test_the_two_level_table_gives_the_cos_and_sin_of_the_exact_phase():
    spec = RopeSpec(64)
    positions = torch.cat(
        [
            torch.arange(3000),
            torch.randint(TWO_LEVEL_REACH, (2000,)),
            torch.tensor([TWO_LEVEL_REACH - 1]),
        ]
    )
    phase = cos_sin_of_phase(tables(spec, CPU).steps, positions.unsqueeze(-1))
    for ours, by_phase in zip(cos_sin(spec, positions, dtype=torch.float64), phase, strict=True):
        assert float((ours - by_phase).abs().max()) < 2e-15
    for ours, by_phase in zip(cos_sin(spec, positions), phase, strict=True):
        # the two float64 values may round to neighbouring float32 numbers
        assert (
            float(
                ((ours - by_phase.float()).abs() / by_phase.float().abs().clamp(min=2**-30)).max()
            )
            <= 2**-23
        )


def test_the_squares_of_cos_and_sin_add_up_to_one():
    cos, sin = cos_sin(RopeSpec(128), torch.arange(500))
    assert float((cos**2 + sin**2 - 1).abs().max()) <= 1.2e-7


@pytest.mark.parametrize("precision", ["exact", "hf_frequencies", "hf"])
def test_cos_and_sin_of_a_position_do_not_depend_on_other_positions_or_the_dtype(precision):
    # torch's own float32 cosine may differ in the last bit with its vector's neighbours: give "hf"
    # whole vectors
    spec = RopeSpec(
        64 if precision == "hf" else 10, scaling=fq.Yarn(factor=4.0), precision=precision
    )
    positions = torch.arange(1100)
    cos, sin = cos_sin(spec, positions)
    order = torch.randperm(1100)
    for again, picked in (
        (positions[order], order),
        (positions[::7], positions[::7]),
        (positions[1099:], positions[1099:]),
        (positions.to(torch.int32), positions),
        (positions[:128].to(torch.int8), positions[:128]),
        (positions[:256].to(torch.uint8), positions[:256]),
        (positions.to(torch.int16), positions),
    ):
        assert all(
            torch.equal(new, old[picked])
            for new, old in zip(cos_sin(spec, again), (cos, sin), strict=True)
        )
    TABLES.clear()
    # a position outside the two-level table is computed in another way; in the same call, this must
    # not change the rows of positions inside it
    for mate in (2**20, -1, 2**40):
        mixed = cos_sin(spec, torch.tensor([1099, mate, 3]))
        assert all(
            torch.equal(new[::2], old[[1099, 3]])
            for new, old in zip(mixed, (cos, sin), strict=True)
        )
    rows = cos_sin(spec, positions.view(2, 550))
    assert all(
        torch.equal(new.flatten(0, 1), old) for new, old in zip(rows, (cos, sin), strict=True)
    )


def test_kept_first_rows_equal_computed_ones():
    for spec in (
        PLAIN,
        RopeSpec(10, scaling=fq.XPos()),
        RopeSpec(10, scaling=fq.Yarn(factor=4.0), magnitude_on="q"),
    ):
        for count in (700, 3, 256, 257, 0, 1):
            for key in (False, True):
                kept = first_rows(spec, CPU, count, key)
                assert all(len(table) == count for table in kept)
                fresh = cos_sin(spec, torch.arange(count), key=key)
                assert all(torch.equal(a, b) for a, b in zip(kept, fresh, strict=True))


def test_first_rows_are_none_beyond_their_most_and_for_specs_without_rows():
    most = (2 << 20) // (8 * 5)
    assert first_rows(PLAIN, CPU, most) is not None
    assert first_rows(PLAIN, CPU, most + 1) is None
    for spec in (
        RopeSpec(10, scaling=fq.Dynamic(2.0)),
        RopeSpec(8, axes=axes.axial(2, 2)),
        RopeSpec(8, axes=axes.normalised(4)),
    ):
        assert first_rows(spec, CPU, 4) is None


def test_no_positions_give_no_rows():
    for shape in ((0,), (3, 0), (0, 5)):
        cos, sin = cos_sin(PLAIN, torch.zeros(shape, dtype=torch.int64))
        assert cos.shape == sin.shape == (*shape, 5)


@pytest.mark.parametrize("exponent", [1, 0, -1])
def test_cos_and_sin_are_multiplied_by_the_magnitude_to_magnitude_power(exponent):
    scaling, positions = fq.Yarn(factor=4.0), torch.tensor([0, 7, 123_456])
    bare = cos_sin(
        RopeSpec(10, scaling=scaling, magnitude_on="scale"), positions, dtype=torch.float64
    )
    magnitude = 0.1 * math.log(4.0) + 1
    for on, on_query, on_key in (("qk", 1, 1), ("q", 2, 0), ("scale", 0, 0)):
        spec = RopeSpec(10, scaling=scaling, magnitude_on=on)
        for key, power in ((False, on_query), (True, on_key)):
            found = cos_sin(spec, positions, dtype=torch.float64, magnitude_power=exponent, key=key)
            for ours, plain in zip(found, bare, strict=True):
                torch.testing.assert_close(
                    ours, plain * magnitude ** (power * exponent), rtol=1e-15, atol=0
                )
            assert magnitude_on(spec, 3.0, key) == 3.0**power


@pytest.mark.parametrize("magnitude", [0.5, 1.0, 2.0, 3.0])
def test_cos_and_sin_are_multiplied_by_the_magnitude(magnitude):
    spec = RopeSpec(4, scaling=fq.Given((1.0, 0.5), magnitude))
    cos, sin = cos_sin(spec, torch.tensor([3]), dtype=torch.float64)
    assert cos[0].tolist() == pytest.approx(
        [magnitude * math.cos(3.0), magnitude * math.cos(1.5)], rel=1e-14
    )
    assert sin[0].tolist() == pytest.approx(
        [magnitude * math.sin(3.0), magnitude * math.sin(1.5)], rel=1e-14
    )


def test_a_length_changes_nothing_for_a_scaling_that_does_not_depend_on_it():
    positions = torch.arange(1100)
    for spec in (PLAIN, RopeSpec(10, scaling=fq.Yarn(factor=4.0)), RopeSpec(10, scaling=fq.XPos())):
        plain = cos_sin(spec, positions, dtype=torch.float64)
        for length in (5, torch.tensor(5000)):
            with_length = cos_sin(spec, positions, length=length, dtype=torch.float64)
            assert all(torch.equal(a, b) for a, b in zip(with_length, plain, strict=True))


@pytest.mark.parametrize("exponent", [1, 0, -1])
def test_xpos_grows_queries_and_shrinks_keys(exponent):
    spec, positions = RopeSpec(10, scaling=fq.XPos(100.0, 40)), [0, 39, 40, 41, 500]
    decay, radians = xpos_log_decay(10, 100.0), oracle(spec.scaling, 10, 1e4)[0]
    for key in (False, True):
        for table, function in zip(
            cos_sin(
                spec,
                torch.tensor(positions),
                dtype=torch.float64,
                magnitude_power=exponent,
                key=key,
            ),
            (mpmath.cos, mpmath.sin),
            strict=True,
        ):
            for row, p in enumerate(positions):
                for pair in range(5):
                    exact = function(p * radians[pair]) * mpmath.exp(
                        (p - 40) * decay[pair] * exponent * (-1 if key else 1)
                    )
                    assert abs(float(table[row, pair]) - exact) <= 1e-12 * (1 + abs(exact))


def test_tables_are_those_of_queries_by_default():
    spec, positions = RopeSpec(10, scaling=fq.XPos(50.0)), torch.tensor([3, 40])
    as_said, query, key = (
        cos_sin(spec, positions),
        cos_sin(spec, positions, magnitude_power=1, key=False),
        cos_sin(spec, positions, key=True),
    )
    assert torch.equal(as_said[0], query[0])
    assert not torch.equal(query[0], key[0])
    rows, query_rows = first_rows(spec, CPU, 41), first_rows(spec, CPU, 41, key=False)
    assert torch.equal(rows[0], query_rows[0])
    assert torch.equal(rows[0][positions], query[0])


@pytest.mark.parametrize(
    "scaling",
    [
        fq.Dynamic(4.0, 100),
        fq.DynamicYarn(100),
        fq.LongRope((1.0,) * 5, (1.0, 2.0, 3.0, 4.0, 5.0), 100, 8.0),
    ],
)
def test_every_row_follows_its_own_length(scaling):
    spec, positions = (
        RopeSpec(10, scaling=scaling),
        torch.tensor([[0, 50, 99], [1, 777, 3], [100, 100, 0]]),
    )
    lengths = torch.tensor([100, 778, 101])
    tables_ = cos_sin(spec, positions, length=lengths, dtype=torch.float64)
    for row, length in enumerate(lengths.tolist()):
        radians, magnitude = oracle(scaling, 10, 10_000.0, length)
        for column, p in enumerate(positions[row].tolist()):
            for pair in range(5):
                for table, function in zip(tables_, (mpmath.cos, mpmath.sin), strict=True):
                    assert (
                        abs(
                            float(table[row, column, pair])
                            - magnitude * function(p * radians[pair])
                        )
                        < 1e-12
                    )
        alone = cos_sin(spec, positions[row], length=length, dtype=torch.float64)
        assert all(torch.equal(a, b[row]) for a, b in zip(alone, tables_, strict=True))
    without = cos_sin(spec, positions, dtype=torch.float64)
    within = cos_sin(spec, positions, length=1, dtype=torch.float64)
    torch.testing.assert_close(without, within, rtol=0, atol=2e-15)


def test_each_pair_rotates_by_the_position_on_its_own_axis():
    spec = RopeSpec(10, axes=axes.AxisMap((0, 2, 1, 1, 0), 3))
    positions = torch.tensor([[[0, 5]], [[7, -9]], [[2**30, 11]]])  # [axes, B = 1, S = 2]
    radians = oracle(spec.scaling, 10, spec.theta)[0]
    cos, sin = cos_sin(spec, positions, dtype=torch.float64)
    assert cos.shape == (1, 2, 5)
    for token in range(2):
        for pair, axis in enumerate((0, 2, 1, 1, 0)):
            exact = exact_cos_sin(radians[pair], positions[axis, 0, token])
            assert abs(float(cos[0, token, pair]) - exact[0]) < 1e-9
            assert abs(float(sin[0, token, pair]) - exact[1]) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_coordinates_have_exact_angles(dtype):
    spec = RopeSpec(8, 100.0, axes=axes.normalised(2, 2))
    positions = torch.tensor([[[-1.0, 0.3, 0.99]], [[0.5, -0.25, 1e-3]]], dtype=dtype)
    radians = ladder(spec).radians.tolist()
    cos, sin = cos_sin(spec, positions, dtype=torch.float64)
    for token in range(3):
        for pair, axis in enumerate((0, 0, 1, 1)):
            angle = mpmath.mpf(float(positions[axis, 0, token])) * mpmath.mpf(radians[pair])
            assert abs(float(cos[0, token, pair]) - mpmath.cos(angle)) < 1e-15
            assert abs(float(sin[0, token, pair]) - mpmath.sin(angle)) < 1e-15
