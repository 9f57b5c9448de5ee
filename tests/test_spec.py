"""A spec is a value: frozen, hashable, equal by its fields, identified by one fingerprint, the same
after any copy.
"""

import copy
import dataclasses
import gc
import math
import pickle

import mpmath
import numpy as np
import pytest
import torch

from door import as_users_call
from frequency_oracle import omega
from ropewalk import RopeError, axes
from ropewalk import frequencies as fq
from ropewalk.frequencies import SCALINGS, Scaling
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec, spec_of
from ropewalk.table import cos_sin
from ropewalk.tensor_frequencies import formula, ladder
from tensor_forms import tensors


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own bytes


BASE = RopeSpec(12)
#: for every field, a value other than BASE's
OTHERS = {
    "head_dim": 14,
    "theta": 10_001.0,
    "scaling": fq.Linear(2.0),
    "layout": "interleaved",
    "layout_out": "interleaved",
    "rotary_dim": 8,
    "rotary_start": 2,
    "axes": axes.chunked([2, 2, 2]),
    "precision": "hf",
    "magnitude_on": "q",
    "extra_softmax_factor": 1.5,
}
SPECS = [
    BASE,
    *(RopeSpec(**{"head_dim": 12} | {field: value}) for field, value in OTHERS.items()),
    RopeSpec(12, axes=axes.MixedAxes(3, 6)),
    RopeSpec(12, axes=axes.normalised(3, 3)),
    RopeSpec(
        12, scaling=fq.Learnable(fq.Yarn(factor=4.0)), layout="interleaved", layout_out="half"
    ),
    RopeSpec(12, scaling=fq.LongRope((1.0,) * 5, (2.0,) * 5), rotary_dim=10, rotary_start=1),
]


def test_no_field_can_be_written():
    for field in dataclasses.fields(RopeSpec):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(BASE, field.name, OTHERS[field.name])
    with pytest.raises(dataclasses.FrozenInstanceError):
        BASE.scaling.factor = 2.0


def test_a_spec_holds_its_fields_and_its_fingerprint():
    """A spec that equals an earlier one also holds (`_live`) the earlier one, which `spec_of` returns
    for their fingerprint.
    """
    assert set(vars(BASE)) - {"_live"} == {*OTHERS, "_fingerprint"}


def test_specs_that_differ_in_one_field_are_unequal_and_have_other_fingerprints():
    assert set(OTHERS) == {field.name for field in dataclasses.fields(RopeSpec)}
    for i, one in enumerate(SPECS):
        for j, other in enumerate(SPECS):
            assert (one == other) == (one.fingerprint == other.fingerprint) == (i == j)
    assert len(set(SPECS)) == len(SPECS)


@pytest.mark.parametrize("name", SCALINGS)
def test_specs_whose_scalings_differ_in_one_field_have_other_fingerprints(name):
    """Otherwise a cache would give one spec the table of another."""
    other = {
        "factor": 3.0,
        "original_length": 77,
        "beta_fast": 33.0,
        "beta_slow": 1.5,
        "truncate": False,
        "attention_factor": 1.1,
        "mscale": 0.5,
        "mscale_all_dim": 0.5,
        "ntk_turns": (1.5, 0.5),
        "keep_turns": (17.0, 2.0),
        "ntk_weight": 0.5,
        "keep_weight": 0.5,
        "short_factor": (2.0,),
        "long_factor": (2.0,),
        "low_freq_factor": 1.5,
        "high_freq_factor": 5.0,
        "fraction": 0.5,
        "scale_base": 100.0,
        "center": 5,
        "radians": (2.0,),
        "magnitude": 2.0,
        "start": fq.XPos(),
        "inner": fq.Dynamic(),
        "pairs": 3,
        "soft": False,
        "alpha": (0.5,),
        "frames": 99,
        "repeat": 33,
        "share": 0.5,
    }
    plain = SCALINGS[name]()
    changed = [
        SCALINGS[name](**{field.name: other[field.name]}) for field in dataclasses.fields(plain)
    ]
    specs = [RopeSpec(2, scaling=scaling) for scaling in (plain, *changed)]
    assert len({spec.fingerprint for spec in specs}) == len(set(specs)) == len(specs)


@pytest.mark.parametrize(
    "again", [pickled, copy.copy, copy.deepcopy, lambda spec: spec.with_(), dataclasses.replace]
)
def test_a_copy_is_equal_in_every_way(again):
    for spec in SPECS:
        copied = again(spec)
        assert copied == spec
        assert hash(copied) == hash(spec)
        assert copied.fingerprint == spec.fingerprint
        assert repr(copied) == repr(spec)
        assert all(
            getattr(copied, f.name) == getattr(spec, f.name) for f in dataclasses.fields(spec)
        )


def test_numbers_that_are_equal_make_equal_specs():
    with as_users_call():
        loose = RopeSpec(
            8, theta=10_000, scaling=fq.Yarn(factor=4, original_length=100), extra_softmax_factor=1
        )
    strict = RopeSpec(8, theta=10_000.0, scaling=fq.Yarn(factor=4.0, original_length=100))
    assert loose == strict
    assert loose.fingerprint == strict.fingerprint
    assert type(loose.theta) is float


def test_a_graph_finds_its_spec_by_the_fingerprint():
    for spec in SPECS:
        assert spec_of(spec.fingerprint) == spec
        # a graph on disk finds its spec in another process, so no address is in the fingerprint
        assert f"{id(type(spec)):x}" not in spec.fingerprint


@pytest.mark.parametrize("scaling", [make() for make in SCALINGS.values()], ids=list(SCALINGS))
def test_a_fingerprint_is_enough_to_make_the_spec_where_it_was_never_seen(scaling, monkeypatch):
    """A graph that another process exported brings fingerprints alone."""
    for spec in (RopeSpec(2, scaling=scaling), *SPECS):
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("ropewalk.spec._LIVE", {})
            made = spec_of(spec.fingerprint)
            assert made == spec
            assert made is not spec
            assert all(
                type(getattr(made, f.name)) is type(getattr(spec, f.name))
                for f in dataclasses.fields(spec)
            )


NO_FINGERPRINTS = {
    "nothing": "",
    "a word": "RopeSpec",
    "cut short": "('RopeSpec',",
    "in part": "('RopeSpec', ('head_dim', 12))",
    "no spec": "('Yarn', ('factor', 4.0))",
    "code": "__import__('os')",
    "deep": "(" * 10_000,
    "an unknown scaling": BASE.fingerprint.replace("'Default'", "'Mine'"),
    "an unknown field": BASE.fingerprint.replace("'head_dim'", "'heads'"),
}


@pytest.mark.parametrize("key", NO_FINGERPRINTS.values(), ids=list(NO_FINGERPRINTS))
def test_a_text_that_is_no_fingerprint_is_refused(key):
    with pytest.raises(RopeError, match=r"fingerprint.*keep its RopeSpec"):
        spec_of(key)


def test_a_scaling_of_ones_own_is_not_taken_for_its_namesake():
    """A notebook may define a class of the same name again with another formula, so the fingerprint
    must depend on the class and not on its name alone.
    """

    def define(radians: float):
        @dataclasses.dataclass(frozen=True)
        class Linear(Scaling):
            factor: float = 1.0

            def _radians(self, dim, theta, length, ops):
                return [radians * self.factor] * (dim // 2)

        return Linear(2.0)

    specs = [RopeSpec(8, scaling=scaling) for scaling in (fq.Linear(2.0), define(1.0), define(3.0))]
    assert len({spec.fingerprint for spec in specs}) == 3
    for spec, radians in zip(specs, (0.5, 2.0, 6.0), strict=True):
        assert float(cos_sin(spec, torch.tensor([1]))[0][0, 0]) == pytest.approx(
            math.cos(radians), abs=1e-7
        )


def test_the_defaults_of_a_spec():
    spec = RopeSpec(10)
    assert (spec.theta, spec.scaling, spec.layout, spec.output_layout) == (
        10_000.0,
        fq.Default(),
        "half",
        "half",
    )
    assert (spec.rotated_dims, spec.rotary_start, spec.axes, spec.precision) == (
        10,
        0,
        None,
        "exact",
    )
    assert (spec.magnitude_on, spec.extra_softmax_factor, spec.pairs, spec.num_axes) == (
        "qk",
        1.0,
        5,
        1,
    )
    assert (spec.learned, spec.mixed, spec.fractional, spec.needs_length) == (
        False,
        False,
        False,
        False,
    )
    assert RopeSpec(10, layout="interleaved").output_layout == "interleaved"
    assert RopeSpec(10, layout="interleaved", layout_out="half").layout_out == "half"


def test_the_properties_of_a_spec():
    assert RopeSpec(12, axes=axes.MixedAxes(3, 6)).learned
    assert RopeSpec(12, scaling=fq.Learnable()).learned
    assert RopeSpec(12, axes=axes.MixedAxes(3, 6)).fractional
    assert RopeSpec(12, axes=axes.normalised(3, 3)).fractional
    assert not RopeSpec(12, axes=axes.axial(3, 3)).fractional
    assert not RopeSpec(12, axes=axes.axial(3, 3)).mixed
    assert RopeSpec(12, axes=axes.chunked([2, 2, 2])).num_axes == 3
    assert RopeSpec(12, axes=axes.chunked([2, 3, 1])).axis_of_pair == (0, 0, 1, 1, 1, 2)
    assert RopeSpec(12).axis_of_pair == (0,) * 6
    for scaling in SCALINGS.values():
        assert RopeSpec(2, scaling=scaling()).needs_length == scaling.needs_length


@pytest.mark.parametrize(
    ("fields", "start", "width"),
    [
        ({"head_dim": 8}, 0, 8),
        ({"head_dim": 8, "rotary_dim": 4}, 0, 4),
        ({"head_dim": 8, "rotary_start": 4}, 4, 4),
        ({"head_dim": 8, "rotary_start": 2, "rotary_dim": 4}, 2, 4),
        ({"head_dim": 8, "rotary_start": 6}, 6, 2),
        ({"head_dim": 7, "rotary_dim": 6}, 0, 6),
        ({"head_dim": 7, "rotary_start": 1}, 1, 6),
        ({"head_dim": 8, "rotary_start": 3, "rotary_dim": 2}, 3, 2),
        ({"head_dim": 2}, 0, 2),
    ],
)
def test_the_rotated_slice_sets_start_width_and_frequencies(fields, start, width):
    spec = RopeSpec(**fields)
    assert (spec.rotary_start, spec.rotated_dims, spec.pairs) == (start, width, width // 2)
    # the exponent divides by the slice, not by the head
    assert tensors(spec).radians.tolist() == pytest.approx(
        [float(w) for w in omega(width, 10_000.0)], rel=1e-14
    )


def test_a_slice_outside_the_head_is_refused_with_the_field_to_change():
    for fields, field in [
        ({"head_dim": 7}, "head_dim"),
        ({"head_dim": 8, "rotary_start": 3}, "rotary_start"),
        ({"head_dim": 8, "rotary_dim": 5}, "rotary_dim"),
        ({"head_dim": 8, "rotary_start": 4, "rotary_dim": 6}, "rotary_dim"),
        ({"head_dim": 8, "rotary_start": 7}, "rotary_start"),
        ({"head_dim": 7, "rotary_start": 6}, "rotary_start"),
    ]:
        with pytest.raises(ValueError, match=f"^{field}: "):
            RopeSpec(**fields)


def test_with_gives_the_spec_that_has_the_changed_field_from_the_start():
    assert RopeSpec(8).with_(layout="interleaved") == RopeSpec(8, layout="interleaved")
    assert RopeSpec(8).with_(head_dim=16) == RopeSpec(16)
    assert RopeSpec(8).with_(rotary_start=2) == RopeSpec(8, rotary_start=2)
    assert RopeSpec(8).with_(theta=5.0, precision="hf") == RopeSpec(8, theta=5.0, precision="hf")
    assert RopeSpec(8, rotary_dim=4).with_(head_dim=16) == RopeSpec(16, rotary_dim=4)
    split = RopeSpec(8, layout="interleaved", layout_out="half")
    assert split.with_(theta=5.0) == RopeSpec(8, 5.0, layout="interleaved", layout_out="half")
    assert split.with_(layout_out="interleaved") == RopeSpec(8, layout="interleaved")


def test_the_frequency_of_a_pair_is_on_its_axis_and_0_on_the_others():
    spec = RopeSpec(8, axes=axes.chunked([1, 2, 1]))
    radians = tensors(spec).radians
    assert radians.shape == (4, 3)
    for pair, (axis, exact) in enumerate(zip((0, 1, 1, 2), omega(8, 10_000.0), strict=True)):
        assert float(radians[pair, axis]) == pytest.approx(float(exact), rel=1e-14)
        assert int((radians[pair] != 0).sum()) == 1


def test_axes_with_ladders_of_their_own_start_again_from_the_fastest():
    series = [float(w) for w in omega(4, 100.0)]
    spec = RopeSpec(8, 100.0, axes=axes.AxisMap((1, 0, 0, 1), 2, ladder="per_axis"))
    assert ladder(spec).radians.tolist() == pytest.approx(
        [series[0], series[0], series[1], series[1]]
    )
    grown = ladder(
        RopeSpec(8, 100.0, fq.XPos(), axes=axes.AxisMap((1, 0, 0, 1), 2, ladder="per_axis"))
    ).growth
    once = formula(fq.XPos(), 4, 100.0).growth
    assert torch.equal(grown, once[[0, 0, 1, 1]])


def test_each_row_has_the_frequencies_of_its_length_under_an_axis_map():
    spec = RopeSpec(8, scaling=fq.Dynamic(4.0, 100), axes=axes.axial(2, 2))
    lengths = torch.tensor([50, 1000, 101])
    radians = tensors(spec, lengths).radians
    assert radians.shape == (3, 4, 2)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(radians[row], tensors(spec, length).radians)


def test_precision_decides_the_rounding_of_frequencies():
    exact, hf, hf_frequencies = (
        tensors(RopeSpec(128, precision=p)).radians for p in ("exact", "hf", "hf_frequencies")
    )
    assert exact.dtype == hf.dtype == hf_frequencies.dtype == torch.float64
    assert torch.equal(hf, hf_frequencies)
    assert torch.equal(hf, hf.float().double())
    assert not torch.equal(exact, exact.float().double())
    ulps = [
        abs(mpmath.mpf(x) - w) / 2.0 ** (math.frexp(x)[1] - 24)
        for x, w in zip(exact.tolist(), omega(128, 1e4), strict=True)
    ]
    assert max(ulps) < 1e-6


def test_softmax_factor_has_the_magnitude_only_with_magnitude_on_scale():
    yarn = fq.Yarn(factor=4.0)
    magnitude = 0.1 * math.log(4) + 1
    assert RopeSpec(8, scaling=yarn).softmax_factor == 1.0
    assert RopeSpec(8, scaling=yarn, magnitude_on="q").softmax_factor == 1.0
    assert RopeSpec(8, scaling=yarn, magnitude_on="scale").softmax_factor == pytest.approx(
        magnitude**2, rel=1e-15
    )
    assert RopeSpec(8, extra_softmax_factor=1.3).softmax_factor == 1.3
    both = RopeSpec(8, scaling=yarn, magnitude_on="scale", extra_softmax_factor=1.3)
    assert both.softmax_factor == pytest.approx(1.3 * magnitude**2, rel=1e-15)
    for scaling in (
        fq.LongRope((2.0,) * 4, (3.0,) * 4, 100, attention_factor=1.5),
        fq.Given((1.0,) * 4, 1.5),
    ):
        assert RopeSpec(8, scaling=scaling, magnitude_on="scale").softmax_factor == 2.25
    # the score of q and k is the same for every `magnitude_on`
    position = torch.tensor([7])
    for on in ("qk", "q", "scale"):
        spec = RopeSpec(8, scaling=yarn, magnitude_on=on)
        size = [
            torch.hypot(*cos_sin(spec, position, dtype=torch.float64, key=key))[0, 0]
            for key in (False, True)
        ]
        assert float(size[0] * size[1]) * spec.softmax_factor == pytest.approx(
            magnitude**2, rel=1e-14
        )


def test_a_theta_below_one_is_accepted_without_a_scaling():
    """Frequencies then grow from pair to pair; only scalings that count turns need theta > 1."""
    radians = tensors(RopeSpec(8, theta=0.5)).radians
    assert radians.tolist() == pytest.approx([0.5 ** (-i / 4) for i in range(4)])


def test_a_slice_to_the_end_of_the_head_reaches_the_end_of_a_new_head_dim():
    assert RopeSpec(16, rotary_start=4).with_(head_dim=20).rotated_dims == 16
    assert RopeSpec(16, rotary_start=4, rotary_dim=8).with_(head_dim=20).rotated_dims == 8


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.fingerprint)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_replacing_the_layout_gives_the_spec_with_that_layout(spec, layout):
    """`layout_out` follows a new layout, unless the spec had another `layout_out` than its layout."""
    changed = dataclasses.replace(spec, layout=layout)
    assert (changed.layout, changed == spec) == (layout, layout == spec.layout)
    assert changed.output_layout == (
        layout if spec.output_layout == spec.layout else spec.output_layout
    )
    assert (
        dataclasses.replace(changed, layout=spec.layout) == spec
        or spec.output_layout != spec.layout
    )


def test_a_replaced_head_dim_rotates_whole_if_the_old_head_did():
    assert dataclasses.replace(RopeSpec(8), head_dim=12) == RopeSpec(12)
    assert dataclasses.replace(RopeSpec(8, rotary_dim=8), head_dim=12) == RopeSpec(12)
    assert dataclasses.replace(RopeSpec(8, rotary_dim=4), head_dim=12) == RopeSpec(12, rotary_dim=4)
    assert dataclasses.replace(RopeSpec(8), rotary_start=2) == RopeSpec(
        8, rotary_dim=6, rotary_start=2
    )


def test_a_replaced_layout_rotates_by_hand_computed_pairs():
    """One radian a token for the first pair: at position 1 the first pair of (1, 0, ...) becomes
    (cos 1, sin 1).
    """
    x = torch.zeros(1, 1, 2, 4)
    x[..., 0] = 1.0
    cos, sin = math.cos(1.0), math.sin(1.0)
    for layout, expected in (("half", [cos, 0, sin, 0]), ("interleaved", [cos, sin, 0, 0])):
        spec = dataclasses.replace(RopeSpec(4), layout=layout)
        torch.testing.assert_close(Rope(spec).rotate(x)[0, 0, 1], torch.tensor(expected))


def own_scaling(step, count=None):
    """A new class of scaling, as a notebook makes one each time its cell runs: every pair rotates
    by `step` a token.
    """

    @dataclasses.dataclass(frozen=True)
    class Own(Scaling):
        """Every pair has one frequency."""

        name = "own"

        def _radians(self, dim, theta, length, ops):
            return [step] * (dim // 2 if count is None else count)

    return Own()


def test_a_class_that_is_defined_again_has_its_own_tables():
    """Python may give a new class the address of one that was deleted."""
    positions = torch.tensor([7])
    gc.collect()
    gc.freeze()  # the 30 collections below skip the objects of earlier tests
    for i in range(30):
        step = 0.1 + 0.01 * i
        cos, _ = cos_sin(RopeSpec(4, scaling=own_scaling(step)), positions)
        assert abs(float(cos[0, 0]) - math.cos(7 * step)) < 1e-6, i
        gc.collect()


@pytest.mark.parametrize("count", [0, 1, 3, 8])
def test_a_scaling_with_another_number_of_frequencies_is_refused(count):
    with pytest.raises(
        RopeError,
        match=r"scaling own: must give one frequency for each of the 2 pairs; .*got \d",
    ):
        Rope(RopeSpec(4, scaling=own_scaling(0.5, count))).rotate(torch.ones(1, 1, 3, 4))


@pytest.mark.parametrize("make", [torch.tensor, np.array])
def test_a_field_that_is_no_plain_value_is_refused(make):
    """The repr of an array is rounded, so specs with different arrays would share tables."""

    @dataclasses.dataclass(frozen=True)
    class Table(Scaling):
        """Frequencies from a field."""

        name = "table"
        steps: object = None

    for value in (make([0.5, 0.25]), (1, make([0.5])), [(make([0.5]),)]):
        with pytest.raises(RopeError, match="must have fields that are numbers, texts or tuples"):
            RopeSpec(4, scaling=Table(value))
