"""No invalid field gets in: each is refused by RopeError, and the error names the field."""

import itertools
import math
import time

import pytest
import torch

from door import as_users_call, assert_refused
from ropewalk import axes
from ropewalk import frequencies as fq
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS
from ropewalk.rotation import rotate, unrotate
from ropewalk.spec import RopeSpec
from ropewalk.table import cos_sin
from tensor_forms import tensors

NAN, INF = float("nan"), float("inf")
#: values that no field for a number accepts
NOT_NUMBERS = (NAN, INF, -INF, "4", "", None, True, False, [4.0], {}, 4j, 10**400)
NOT_INTEGERS = (*NOT_NUMBERS, 4.0, 2**63)
POSITIVE = (*NOT_NUMBERS, 0, -0.0, -1)
#: the numbers after those of POSITIVE are refused because a product with some length or period would
#: not fit in a float32
BOUNDED = (*POSITIVE, 0.999e-18, 1.001e18, 5e-324, 1e-308, 1.7e308)
AT_LEAST_ONE = (*POSITIVE, 0.999, 1.001e30, 1e300)
#: the numbers after those of POSITIVE are refused because their square, or its inverse, would not fit
#: in a float32
MAGNITUDE = (*POSITIVE, 0.999e-18, 1.001e18, 1e-300, 1e300)
LENGTH = (*NOT_INTEGERS, 0, -1)
SHARE = (*NOT_NUMBERS, -0.001, 1.001)
#: without None, which these fields accept: it means "not given"
OPTIONAL_MAGNITUDE = tuple(x for x in MAGNITUDE if x is not None)
OPTIONAL_WEIGHT = (*(x for x in NOT_NUMBERS if x is not None), -0.001, 1.001e17)
PAIR = (
    None,
    4.0,
    "ab",
    (),
    (1.0,),
    (2.0, 1.0, 0.5),
    (1.0, 2.0),
    (NAN, 1.0),
    (2.0, 0),
    (2.0, "1"),
    (-1.0, -2.0),
    {},
    (1, 1e-308),
)
NUMBERS = (None, 4.0, "ab", (), [], (NAN,), (1.0, INF), (1.0, "x"), (True,), (None,), {1.0}, {})
POSITIVES = (*NUMBERS, (0.0,), (1.0, -1.0), (1e-308,), (1.0, 1e300))
NOT_INNER = (None, "default", 1.0, fq.Default, fq.Learnable())

FACTOR = {"factor": AT_LEAST_ONE}
BANDED = {
    "original_length": LENGTH,
    "beta_fast": BOUNDED,
    "beta_slow": BOUNDED,
    "truncate": (None, 0, 1, "true", 1.0),
    "attention_factor": OPTIONAL_MAGNITUDE,
    "mscale": OPTIONAL_WEIGHT,
    "mscale_all_dim": OPTIONAL_WEIGHT,
}
BAD_FIELDS = {
    "default": {},
    "linear": FACTOR,
    "ntk": FACTOR,
    "ntk_by_parts": FACTOR
    | {
        "original_length": LENGTH,
        "ntk_turns": PAIR,
        "keep_turns": PAIR,
        "ntk_weight": SHARE,
        "keep_weight": SHARE,
    },
    "dynamic": {"factor": (*AT_LEAST_ONE, 2**20 + 1), "original_length": LENGTH},
    "yarn": FACTOR | BANDED,
    "dynamic_yarn": BANDED,
    "longrope": {
        "short_factor": POSITIVES,
        "long_factor": POSITIVES,
        "original_length": (*LENGTH, 1),
        "factor": POSITIVE,
        "attention_factor": OPTIONAL_MAGNITUDE,
    },
    "llama3": FACTOR
    | {"low_freq_factor": BOUNDED, "high_freq_factor": BOUNDED, "original_length": LENGTH},
    "proportional": FACTOR | {"fraction": SHARE},
    "linear_frequencies": {},
    "riflex": {
        "frames": (*NOT_INTEGERS, 0),
        "repeat": (*NOT_INTEGERS, 0),
        "share": (*POSITIVE, 1.5),
    },
    "xpos": {"scale_base": BOUNDED, "center": NOT_INTEGERS},
    "given": {"radians": NUMBERS, "magnitude": MAGNITUDE},
    "learnable": {
        "start": (
            None,
            "default",
            1.0,
            fq.Default,
            fq.Dynamic(),
            fq.LongRope(),
            fq.DynamicYarn(),
            fq.Learnable(),
        )
    },
    "clipped": {
        "inner": NOT_INNER,
        "pairs": (*NOT_INTEGERS, -1),
        "soft": (None, 0, 1, "true", 1.0),
    },
    "learned": {"inner": NOT_INNER, "alpha": (*NUMBERS, (0.0, 50.001), (-50.001,))},
}


def test_every_field_of_every_scaling_is_in_the_table():
    assert {name: set(bad) for name, bad in BAD_FIELDS.items()} == {
        name: set(scaling().as_dict()) - {"rope_type"} for name, scaling in SCALINGS.items()
    }


@pytest.mark.parametrize(
    ("name", "field"), [(name, field) for name, bad in BAD_FIELDS.items() for field in bad]
)
def test_a_bad_field_is_refused_by_name(name, field):
    for value in BAD_FIELDS[name][field]:
        assert_refused(field, lambda: SCALINGS[name](**{field: value}))  # noqa: B023 - called at once


@pytest.mark.parametrize("name", SCALINGS)
def test_the_smallest_allowed_values_are_allowed(name):
    smallest = {
        "factor": 1,
        "original_length": 1,
        "beta_fast": 1,
        "beta_slow": 1e-18,
        "truncate": False,
        "attention_factor": 1e-18,
        "mscale": 0,
        "mscale_all_dim": 0,
        "ntk_turns": (2, 2),
        "keep_turns": [3, 3],
        "ntk_weight": 0,
        "keep_weight": 1,
        "low_freq_factor": 1e-18,
        "high_freq_factor": 1e-18,
        "fraction": 0,
        "scale_base": 1e-18,
        "center": -(2**62),
        "magnitude": 1e-18,
        "short_factor": (1e-18,),
        "long_factor": [1e-18],
        "radians": (-1,),
        "start": fq.XPos(),
        "inner": fq.Dynamic(),
        "pairs": 0,
        "soft": False,
        "alpha": [-50],
        "frames": 1,
        "repeat": 1,
        "share": 1e-300,
    }
    if name == "longrope":
        smallest |= {"original_length": 2, "factor": 1e-300}
    with as_users_call():
        made = SCALINGS[name](**{field: smallest[field] for field in BAD_FIELDS[name]})
    for field in BAD_FIELDS[name]:
        value = smallest[field]
        assert getattr(made, field) == (tuple(value) if isinstance(value, list) else value)
        assert type(getattr(made, field)) is not list
    hash(made)


BOUNDS = {
    "yarn": [
        {"beta_fast": fast, "beta_slow": slow}
        for fast, slow in ((1e18, 1e18), (1e18, 1e-18), (1e-18, 1e-18))
    ],
    "ntk_by_parts": [
        {"ntk_turns": turns, "keep_turns": turns}
        for turns in ((1e18, 1e18), (1e18, 1e-18), (1e-18, 1e-18))
    ],
    "llama3": [
        {"low_freq_factor": low, "high_freq_factor": high}
        for low, high in ((1e18, 1e18), (1e-18, 1e18), (1e-18, 1e-18))
    ],
    "longrope": [
        {"short_factor": (x,) * 5, "long_factor": (y,) * 5}
        for x, y in ((1e-18, 1e18), (1e18, 1e-18))
    ],
}


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("precision", ["exact", "hf_frequencies", "hf"])
def test_the_bounds_of_a_field_give_finite_tables(name, precision):
    for fields, theta, trained in itertools.product(BOUNDS[name], (1.001, 1e4, 1e12), (2, 2**40)):
        scaling = SCALINGS[name](**fields, original_length=trained, factor=4.0)
        for length in (3, 2 * trained):
            cos, sin = cos_sin(
                RopeSpec(10, theta, scaling, precision=precision), torch.arange(3), length=length
            )
            assert bool(torch.isfinite(cos).all() and torch.isfinite(sin).all())


@pytest.mark.parametrize("precision", ["exact", "hf_frequencies", "hf"])
def test_the_smallest_theta_gives_finite_tables(precision):
    for theta in (1e-308, 5e-324, 0.999e-30):
        assert_refused("theta", lambda: RopeSpec(64, theta))  # noqa: B023 - called at once
    cos, sin = cos_sin(RopeSpec(64, 1e-30, precision=precision), torch.arange(3))
    assert bool(torch.isfinite(cos).all() and torch.isfinite(sin).all())


def test_the_two_ends_of_a_ramp_in_the_wrong_order_are_refused():
    """The first end must not be below the second."""
    for scaling in (fq.Yarn, fq.DynamicYarn):
        assert "beta_slow = 32" in str(
            assert_refused("beta_fast", lambda: scaling(beta_fast=1.0, beta_slow=32.0))  # noqa: B023
        )
        assert scaling(beta_fast=3.0, beta_slow=3.0).beta_fast == 3.0
    refused = assert_refused("high_freq_factor", lambda: fq.Llama3(8.0, 4.0, 1.0))
    assert "low_freq_factor = 4" in str(refused)
    assert_refused("ntk_turns", lambda: fq.NtkByParts(ntk_turns=(0.75, 1.25)))
    assert_refused("keep_turns", lambda: fq.NtkByParts(keep_turns=(2.0, 16.0)))


def test_lists_must_have_one_entry_a_pair():
    for field in ("short_factor", "long_factor"):
        lists = {"short_factor": (1.0,) * 4, "long_factor": (1.0,) * 4, field: (1.0,) * 3}
        assert "each of the 4 pairs" in str(
            assert_refused(field, lambda: RopeSpec(8, scaling=fq.LongRope(**lists)))  # noqa: B023
        )
    assert "each of the 4 pairs" in str(
        assert_refused("radians", lambda: RopeSpec(8, scaling=fq.Given((1.0,) * 5)))
    )
    assert "each of the 4 pairs" in str(
        assert_refused("alpha", lambda: RopeSpec(8, scaling=fq.Learned(alpha=(1.0,) * 3)))
    )
    assert RopeSpec(8, scaling=fq.Given((1.0,) * 4)).pairs == 4


@pytest.mark.parametrize("scaling", [fq.Yarn(factor=2.0), fq.DynamicYarn(), fq.NtkByParts(2.0)])
def test_scalings_that_count_turns_refuse_theta_up_to_one(scaling):
    for theta in (1.0, 0.5):
        assert_refused("theta", lambda: RopeSpec(8, theta, scaling))  # noqa: B023
        assert_refused("theta", lambda: scaling.check(8, theta))  # noqa: B023
    assert math.isfinite(tensors(RopeSpec(8, 1.001, scaling), 100).radians.sum())
    learned = fq.Learnable(fq.Yarn(factor=2.0))
    assert_refused("theta", lambda: RopeSpec(8, 1.0, learned))


BAD_SPECS = {
    "head_dim": (*NOT_INTEGERS, 0, 1, -8, 3, 7, 65538, 2**40, 8.0),
    "theta": POSITIVE,
    "scaling": (None, "yarn", fq.Yarn, 1.0, {"rope_type": "yarn"}),
    "layout": (None, "neox", "Half", 1, True, ""),
    "layout_out": ("neox", 1, True, ""),
    "rotary_dim": (*(x for x in NOT_INTEGERS if x is not None), 0, 1, -2, 3, 10, 2**40),
    "rotary_start": (*NOT_INTEGERS, -1, 1, 7, 8, 2**40),
    "axes": ("chunked", 1, (0, 1), axes.axial, axes.chunked([1, 2]), axes.MixedAxes(2, 6)),
    "precision": (None, "fp32", "HF", 64, True),
    "magnitude_on": (None, "k", "both", 1),
    "extra_softmax_factor": MAGNITUDE,
}


@pytest.mark.parametrize("field", BAD_SPECS)
def test_a_bad_field_of_a_spec_is_refused_by_name(field):
    for value in BAD_SPECS[field]:
        assert_refused(field, lambda: RopeSpec(**({"head_dim": 8} | {field: value})))  # noqa: B023
    assert RopeSpec(8, layout="half").head_dim == 8


def test_a_refused_choice_lists_the_known_ones():
    for field, known in (
        ("layout", "half, interleaved"),
        ("precision", "exact, hf_frequencies, hf"),
        ("magnitude_on", "qk, q, scale"),
    ):
        assert f"must be one of {known};" in str(
            assert_refused(field, lambda: RopeSpec(8, **{field: "none"}))  # noqa: B023
        )


def test_every_field_of_a_spec_is_in_the_table():
    assert set(BAD_SPECS) == set(RopeSpec.__dataclass_fields__)


def test_mixed_axes_refuse_a_scaling():
    assert_refused(
        "scaling", lambda: RopeSpec(8, scaling=fq.Linear(2.0), axes=axes.MixedAxes(2, 4))
    )
    assert RopeSpec(8, axes=axes.MixedAxes(2, 4)).mixed


def test_a_huge_head_dim_is_refused_without_computing_its_frequencies():
    began = time.process_time()
    assert_refused("head_dim", lambda: RopeSpec(2**40))
    assert_refused("rotary_dim", lambda: RopeSpec(64, rotary_dim=2**40))
    assert time.process_time() - began < 2
    assert RopeSpec(65536).pairs == 32768
    assert_refused("head_dim", lambda: RopeSpec(65537, rotary_dim=2))


EXTREMES = (1e-30, 1e-5, 0.5, 1.0, 1.0000001, 2.0, 1e4, 1e30)


@pytest.mark.parametrize("name", [name for name, bad in BAD_FIELDS.items() if bad])
def test_extreme_fields_are_refused_or_give_finite_tables(name, full):
    """Another library computed NaN, infinite or zero frequencies for 205 of 900 hostile configs."""
    kept = 0
    for theta in EXTREMES if full else EXTREMES[::3]:
        for field, extreme in itertools.product(BAD_FIELDS[name], EXTREMES):
            lists = {
                "short_factor": (2.0,) * 4,
                "long_factor": (3.0,) * 4,
                "radians": (0.5,) * 4,
                "alpha": (0.5,) * 4,
            }
            fields = {k: v for k, v in lists.items() if k in BAD_FIELDS[name]}
            fields[field] = (extreme,) * 4 if field in lists else extreme
            try:
                with as_users_call():
                    spec = RopeSpec(8, theta, SCALINGS[name](**fields))
            except RopeError:
                continue
            kept += 1
            found = tensors(spec, 5000)
            assert bool(torch.isfinite(found.radians).all())
            assert math.isfinite(float(found.magnitude))
            assert all(
                bool(torch.isfinite(x).all())
                for x in cos_sin(spec, torch.tensor([0, 1, 5000]), length=5000)
            )
    assert kept >= (8 if full else 3) or name in ("learnable", "clipped")


@pytest.mark.parametrize("magnitude_on", ["qk", "q", "scale"])
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(
    ("make", "factor"),
    [
        (lambda size, s: fq.Ntk(factor=s), 1e30),
        (lambda size, s: fq.NtkByParts(factor=s), 1e30),
        (lambda size, s: fq.Dynamic(factor=s, original_length=3000), 2.0**20),
        (lambda size, s: fq.Yarn(factor=s, attention_factor=size), 1e30),
        (
            lambda size, s: fq.Yarn(
                factor=s, mscale=1e17 if size > 1 else 0.1, mscale_all_dim=0.1 if size > 1 else 1e17
            ),
            1e30,
        ),
        (lambda size, s: fq.DynamicYarn(attention_factor=size), 1.0),
        (lambda size, s: fq.LongRope((1.0, 1.0), (1.0, 1.0), attention_factor=size), 1.0),
        (lambda size, s: fq.Given((1.0, 0.5), size), 1.0),
    ],
)
@pytest.mark.parametrize("precision", ["exact", "hf"])
def test_the_largest_and_smallest_magnitudes_and_factors_rotate_and_unrotate(
    make, factor, largest, magnitude_on, precision
):
    """Four dimensions: there NTK raises its factor to the largest power, the second."""
    scaling = make(1e18 if largest else 1e-18, factor)
    spec = RopeSpec(4, 10.0, scaling, precision=precision, magnitude_on=magnitude_on)
    x = torch.randn(1, 1, 5, 4)
    for length in (3000, 3001, 10**6):
        radians = tensors(spec, length).radians
        assert bool((torch.isfinite(radians) & (radians >= 0) & (radians <= 1)).all())
        rotated = rotate(x, spec, length=length)
        assert bool(torch.isfinite(rotated).all())
        torch.testing.assert_close(unrotate(rotated, spec, length=length), x)
    if magnitude_on != "scale" or not isinstance(tensors(spec, 1).magnitude, torch.Tensor):
        assert 0 < spec.softmax_factor < math.inf
