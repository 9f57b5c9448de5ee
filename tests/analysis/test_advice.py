"""Advice as data: every check has a spec it applies to and one it does not, and names a figure that
exists.
"""

import math
import string
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from ropewalk import axes
from ropewalk.frequencies import (
    Clipped,
    Default,
    Dynamic,
    DynamicYarn,
    Given,
    Learnable,
    Linear,
    Llama3,
    XPos,
    Yarn,
)
from ropewalk_lab import analysis, plots

#: check -> facts it applies to, facts it does not apply to
CASES = {
    "in_range": [({}, 512, 512), ({}, 512, 1024)],
    "unseen_angles": [({}, 512, 1024), ({}, 512, 512)],
    "stretched_too_little": [
        ({"scaling": Llama3(8.0, original_length=512)}, 512, 8192),
        ({"scaling": Yarn(factor=2.0, original_length=512)}, 512, 1024),
    ],
    "trained_unknown": [({"scaling": Linear(2.0)}, 512, 512), ({"scaling": Linear(2.0)}, 256, 512)],
    "linear_blurs": [({"scaling": Linear(2.0)}, 512, 1024), ({"scaling": Linear(1.0)}, 512, 512)],
    "always_on": [
        ({"scaling": Yarn(factor=2.0, original_length=512)}, 512, 1024),
        ({"scaling": DynamicYarn(original_length=512)}, 512, 1024),
    ],
    "beta_too_fast": [
        ({"scaling": Yarn(factor=2.0, original_length=128)}, 128, 256),
        ({"scaling": Yarn(factor=2.0, original_length=128, beta_fast=20.0)}, 128, 256),
    ],
    "follows_the_length": [
        ({"scaling": DynamicYarn(original_length=512)}, 512, 1024),
        ({"scaling": Linear(2.0)}, 512, 1024),
    ],
    "float32_angles": [({}, 131_072, 131_072), ({}, 4096, 4096)],
    "large_table": [({}, 1 << 20, 1 << 20), ({}, 4096, 4096)],
    "all_repeat": [({"theta": 10.0}, 512, 512), ({}, 512, 512)],
    "random_keys_win": [({"theta": 4400.0}, 1024, 1024), ({"theta": 4300.0}, 1024, 1024)],
    "axes": [({"axes": axes.chunked([16, 24, 24])}, 512, 512), ({}, 512, 512)],
    "causal_only": [({"scaling": XPos()}, 512, 512), ({}, 512, 512)],
}


def named(case):
    changes, trained, served = case
    return {
        each.name: each
        for each in analysis.advise(analysis.Facts(rw.RopeSpec(128, **changes), trained, served))
    }


@pytest.mark.parametrize("name", CASES)
def test_each_check_applies_to_its_first_case_and_not_to_its_second(name):
    applies, does_not = CASES[name]
    assert name in named(applies)
    assert name not in named(does_not)


SCALED = [
    Linear(4.0),
    Yarn(factor=4.0, original_length=512),
    Yarn(factor=4.0, original_length=64),
    Llama3(8.0, original_length=512),
]


@pytest.mark.parametrize("scaling", [Default(), *SCALED, Dynamic(4.0, original_length=512)])
@pytest.mark.parametrize("theta", [10.0, 4400.0, 10_000.0])
@pytest.mark.parametrize("served", [512, 1024, 2048, 131_072])
def test_a_checkpoint_is_never_told_to_change_its_theta_or_to_replace_its_scaling(
    scaling, theta, served
):
    """A spec read from a checkpoint has precision hf_frequencies; its weights were trained with its
    theta and scaling.
    """
    spec = rw.RopeSpec(128, theta=theta, scaling=scaling, precision="hf_frequencies")
    for each in analysis.advise(analysis.Facts(spec, 512, served)):
        assert "theta" not in each.advice
        if not isinstance(scaling, Default):
            assert not any(
                word in each.advice
                for word in ("instead", "DynamicYarn", "Yarn(", "use factor", "beta_fast")
            )


#: check -> facts at its bound, of the two cases the nearest that differ in one number
NEAR = {
    "in_range": [({}, 512, 512), ({}, 512, 513)],
    # with theta 10 the slowest of 64 pairs turns once in 60.6 tokens
    "unseen_angles": [({"theta": 10.0}, 60, 120), ({"theta": 10.0}, 61, 122)],
    "stretched_too_little": [
        ({"scaling": Linear(2.0)}, 512, 1025),
        ({"scaling": Linear(2.0)}, 512, 1024),
    ],
    "always_on": [
        ({"scaling": Yarn(factor=2.0, original_length=512)}, 512, 513),
        ({"scaling": Yarn(factor=2.0, original_length=512)}, 512, 512),
    ],
    # 128 / (2 pi) is 20.37, whatever the lengths of the facts are
    "beta_too_fast": [
        ({"scaling": Yarn(factor=2.0, original_length=128, beta_fast=20.4)}, 512, 1024),
        ({"scaling": Yarn(factor=2.0, original_length=128, beta_fast=20.3)}, 64, 80),
    ],
    "all_repeat": [({"theta": 10.0}, 61, 61), ({"theta": 10.0}, 60, 60)],
}


@pytest.mark.parametrize("name", NEAR)
def test_a_check_applies_from_its_bound_on(name):
    applies, does_not = NEAR[name]
    assert name in named(applies)
    assert name not in named(does_not)


def test_trained_unknown_applies_only_to_scalings_without_an_original_length():
    assert "trained_unknown" not in named(
        ({"scaling": Yarn(factor=2.0, original_length=512)}, 1024, 1024)
    )
    assert "trained_unknown" in named(({"scaling": Clipped(Linear(2.0))}, 512, 512))


@pytest.mark.parametrize(("trained", "unknown"), [(None, True), (4096, False)])
def test_trained_unknown_does_not_apply_if_the_caller_gives_the_trained_length(trained, unknown):
    config = {"rope_theta": 1e4, "head_dim": 8, "max_position_embeddings": 4096}
    config["rope_scaling"] = {"rope_type": "linear", "factor": 2.0}
    (facts,) = analysis.read_checkpoint(config, trained=trained).layers.values()
    assert ("trained_unknown" in {each.name for each in analysis.advise(facts)}) is unknown


@pytest.mark.parametrize(
    ("scaling", "offered"),
    [
        (Yarn(factor=2.0, original_length=512), True),
        (Clipped(Linear(2.0), pairs=1), True),
        (DynamicYarn(original_length=512), False),
        (Given((1.0,) * 64), False),
    ],
)
def test_a_factor_is_offered_only_to_a_scaling_that_has_one(scaling, offered):
    check = next(check for check in analysis.CHECKS if check.name == "stretched_too_little")
    assert (
        "use factor 16"
        in check.numbers(analysis.Facts(rw.RopeSpec(128, scaling=scaling), 512, 8192))["or_factor"]
    ) is offered


@pytest.mark.parametrize("name", ["linear_blurs", "always_on", "beta_too_fast", "causal_only"])
@pytest.mark.parametrize(
    "wrap", [Learnable, lambda scaling: Clipped(scaling, pairs=1)], ids=["learnable", "clipped"]
)
def test_checks_apply_to_the_scaling_inside_clipped_and_learnable(name, wrap):
    changes, trained, served = CASES[name][0]
    assert name in named(({**changes, "scaling": wrap(changes["scaling"])}, trained, served))


def test_every_check_has_its_case_and_a_figure():
    assert list(CASES) == [check.name for check in analysis.CHECKS]
    assert {each.figure for each in (*analysis.CHECKS, *analysis.GUIDE)} <= set(plots.FIGURES)


@pytest.mark.parametrize("name", CASES)
def test_advice_is_a_sentence_with_its_numbers_filled_in(name):
    advice = named(CASES[name][0])[name]
    assert advice.advice[0] in string.ascii_uppercase
    assert advice.advice.endswith(".")
    assert "{" not in advice.advice + advice.because
    assert advice.because


def test_the_numbers_of_advice_are_those_of_the_spec():
    # of Llama 2's 64 pairs, 46 complete a turn within 4,096 tokens: 92 critical dimensions
    advice = named(({}, 4096, 16_384))["unseen_angles"]
    assert "Yarn(factor=4, original_length=4096)" in advice.advice
    assert advice.because.startswith("18 of 64 pairs")
    # 2^20 x 64 pairs x 2 x 4 bytes
    assert "512 MiB" in named(({}, 1 << 20, 1 << 20))["large_table"].because


@pytest.mark.parametrize(("served", "factor"), [(4096, 1), (4097, 2), (8192, 2), (10_000, 3)])
def test_the_factor_is_rounded_up(served, factor):
    assert analysis.Facts(rw.RopeSpec(8), 4096, served).factor == factor


def test_a_dynamic_scaling_follows_the_whole_text_even_if_a_window_bounds_the_distances():
    """A dynamic scaling reads the served length, 4096, although no distance exceeds 64."""
    dynamic = rw.RopeSpec(8, scaling=Dynamic(2.0, original_length=64))
    found = analysis.Facts(dynamic, 64, 4096, window=64).coverage.scaled
    base = 10_000 * (2 * 4096 / 64 - 1) ** (8 / 6)
    assert found == pytest.approx([base ** (-i / 4) * 64 / (2 * math.pi) for i in range(4)])


def test_tables_of_more_than_64_mebibytes_are_large():
    """cos and sin of 64 pairs in float32 take 512 bytes a token: 131,072 tokens are 64 MiB."""
    assert "large_table" not in named(({}, 131_072, 131_072))
    assert "large_table" in named(({}, 131_073, 131_073))


def test_the_rounding_of_bfloat16_below_one():
    values = torch.linspace(0.5, 1.0, 100_001, dtype=torch.float64)
    assert (values.bfloat16().double() - values).abs().max().item() == pytest.approx(
        analysis.BFLOAT16_ROUNDING, rel=1e-3
    )


def test_a_window_bounds_the_distances_and_not_the_positions():
    plain, windowed = (
        analysis.Facts(rw.RopeSpec(128), 4096, 131_072, window) for window in (None, 1024)
    )
    assert plain.new_angles == 18
    assert windowed.new_angles == 0
    assert (windowed.trained_distance, windowed.served_distance) == (1024, 1024)
    assert windowed.errors == plain.errors
    assert {each.name for each in analysis.advise(windowed)} == {"in_range", "float32_angles"}


@pytest.mark.parametrize(("width", "is_off"), [(1, False), (2, True)])
def test_an_error_is_the_largest_at_the_last_width_positions(width, is_off):
    """Of 259 positions the last, 258, is a bfloat16 number; 257, which only a width of 2 includes,
    becomes 256, one radian off in the first pair.
    """
    facts = analysis.Facts(rw.RopeSpec(8), 259, 259, methods=("bfloat16 positions",), width=width)
    assert (facts.errors["bfloat16 positions"] > 0.3) is is_off


@pytest.mark.parametrize("values", [(0, 5), (5, 0), (5, 5, 0)])
def test_lengths_must_be_positive(values):
    with pytest.raises(rw.RopeError, match=r"trained|served|window"):
        analysis.Facts(rw.RopeSpec(8, scaling=Default()), *values)


def test_the_page_about_inspect_shows_every_entry_of_the_guide():
    page = (
        (Path(__file__).parents[2] / "docs" / "inspect.md")
        .read_text(encoding="utf-8")
        .replace("`", "")
    )
    rows = [f"| {use.use} | {use.choose} | {use.because} |" for use in analysis.GUIDE]
    assert [row for row in rows if row not in page] == []
