"""Rotations follow the published formulas, evaluated with 60 digits, up to position 2^40.

`interpreted_triton.py` and `compiled.py` test the same.
"""

import math

import numpy as np
import pytest
import torch

import ropewalk as rw
from far_positions import LIMITS, RULES, draw, expected, largest_error, near, rotated_units
from frequency_oracle import oracle, rotations
from helpers import backend_or_skip
from ropewalk import axes
from ropewalk import frequencies as fq
from ropewalk.table import cos_sin
from ropewalk.tensor_frequencies import ladder

every_rule = pytest.mark.parametrize("rule", RULES)


@every_rule
@pytest.mark.parametrize("bits", LIMITS)
def test_cos_and_sin_follow_the_formula(rule, bits):
    for seed in range(6):
        spec, positions = draw(rule, seed), near(bits, 12, seed)
        wanted = expected(spec, positions)
        for dtype in (torch.float32, torch.float64):
            cos, sin = rw.Rope(spec).cos_sin(torch.tensor(positions), dtype)
            assert (
                largest_error(cos.double().numpy() + 1j * sin.double().numpy(), wanted)
                <= LIMITS[bits]
            ), spec


@pytest.mark.sampled(by=["backend"])
@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backend", rw.kernels.BACKENDS)
def test_every_backend_follows_the_formula(rule, backend, dtype):
    for seed, bits in enumerate(LIMITS):
        spec, positions = draw(rule, seed), near(bits, 8, seed)
        run_by = backend_or_skip(backend, torch.empty(1, 1, 1, spec.head_dim, dtype=dtype), spec)
        found = rotated_units(spec, positions, run_by, dtype)
        assert largest_error(found, expected(spec, positions)) <= LIMITS[bits], (spec, bits)


#: the scalings that are not in RULES and whose frequencies have 40 digits
ALSO_EXACT = {
    "ntk_by_parts": fq.NtkByParts(4.7, 3000, ntk_weight=0.7, keep_weight=0.9),
    "proportional": fq.Proportional(1.7, 0.6),
    "linear_frequencies": fq.LinearFrequencies(),
    "riflex": fq.Riflex(frames=70, repeat=40, share=0.7),
    "xpos": fq.XPos(),
    "given": fq.Given(tuple(math.pi ** -(0.3 * i) for i in range(32))),
    "clipped": fq.Clipped(fq.Yarn(3000, factor=4.7), 17),
    "learned": fq.Learned(fq.Clipped(pairs=5, soft=False), tuple(0.3 - 0.1 * i for i in range(32))),
}


def test_every_scaling_with_fixed_frequencies_is_in_rules_or_also_exact():
    fixed = {
        name
        for name, scaling in rw.frequencies.SCALINGS.items()
        if not (scaling.needs_length or scaling.learned)
    }
    assert fixed == {*RULES, *ALSO_EXACT}


def error(spec, positions, wanted) -> float:
    """The largest error of cos and sin, without magnitude and growth."""
    cos, sin = cos_sin(spec, torch.as_tensor(positions), magnitude_power=0, dtype=torch.float64)
    return largest_error(cos.numpy() + 1j * sin.numpy(), wanted)


@pytest.mark.parametrize("name", ALSO_EXACT)
def test_the_scalings_in_also_exact_follow_their_formula(name):
    spec, positions = rw.RopeSpec(64, 77_777.7, ALSO_EXACT[name]), near(40, 12)
    assert error(spec, positions, expected(spec, positions)) <= 3e-7


@every_rule
def test_each_axis_follows_the_formula(rule):
    """An axial map gives each axis a ladder of its own."""
    scaling, positions = draw(rule, 0).scaling, near(40, 8)
    spec = rw.RopeSpec(64, scaling=scaling, axes=axes.axial(16, 16))
    wanted = rotations(oracle(scaling, 32, spec.theta)[0], positions)
    both_axes = torch.tensor(positions).expand(2, 1, -1)
    assert error(spec, both_axes, np.concatenate([wanted, wanted], axis=-1)) <= 3e-7


@every_rule
def test_radians_are_the_40_digit_frequencies_rounded_to_float64(rule):
    for seed in range(8):
        spec = draw(rule, seed)
        plain, exact = ladder(spec), spec.ladder_frequencies()
        assert exact.radians == tuple(map(float, exact.digits))
        assert list(exact.radians) == pytest.approx(plain.radians.tolist(), rel=1e-14)
        assert exact.magnitude == plain.magnitude
        rounded = spec.with_(precision="hf").ladder_frequencies()
        assert rounded.digits == exact.digits
        assert rounded.radians == tuple(float(np.float32(value)) for value in exact.radians)


@pytest.mark.parametrize(
    "scaling", [fq.Ntk(1e30), fq.NtkByParts(1e30), fq.Yarn(factor=1e30), fq.Llama3(1e30)]
)
@pytest.mark.parametrize("theta", [1e-30, 1e-9, 1.5, 1e250, 1.7e308])
def test_parameters_beyond_the_range_of_float64_give_finite_frequencies(scaling, theta):
    if theta <= 1 and scaling.name not in ("ntk", "llama3"):
        return  # these scalings refuse theta <= 1
    spec = rw.RopeSpec(128, theta, scaling)
    expected = [float(value) for value in oracle(scaling, 128, theta)[0]]
    assert list(spec.ladder_frequencies().radians) == pytest.approx(expected, rel=1e-15, abs=1e-300)


def test_a_scaling_that_overrides_a_formula_may_give_an_array():
    class Halved(fq.Linear):
        name = "halved"

        def _radians(self, dim, theta, length, ops):
            return 0.5 ** np.arange(dim // 2)

    found = rw.RopeSpec(8, scaling=Halved(2.0))
    assert found.ladder_frequencies().radians == (1.0, 0.5, 0.25, 0.125)
    assert ladder(found).radians.tolist() == [1.0, 0.5, 0.25, 0.125]
