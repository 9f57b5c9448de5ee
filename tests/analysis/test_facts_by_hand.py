"""The numbers of a spec and the advice about it, computed here by hand from short series of
frequencies.
"""

import math
from decimal import Decimal, getcontext

import pytest

import ropewalk as rw
from ropewalk import analysis
from ropewalk.analysis import BANDS, CHECKS, GUIDE, USED_BY, Facts, advise
from ropewalk.frequencies import Clipped, Dynamic, Given, Linear, LongRope, Ntk, XPos, Yarn
from ropewalk.spec import PRECISIONS

TURN = 2 * math.pi
PLAIN = rw.RopeSpec(head_dim=8, theta=10_000.0)  # radians 1, 0.1, 0.01, 0.001


def turns(length, *radians):
    return pytest.approx([value * length / TURN for value in radians])


def test_a_pair_that_turned_once_or_not_further_than_before_has_no_new_angles():
    """Two formulas for the same angle may differ in the last place; such a difference is no new angle."""
    seen = analysis.Coverage([0.3, 0.3, 0.3, 1.0, 0.999], [], [])
    reached = [0.3 * (1 + 1e-12), 0.3, 0.3001, 9.0, 9.0]
    assert seen.new_angles(reached) == [False, False, True, False, True]


def test_a_scaling_that_follows_the_length_is_taken_at_the_served_one_unless_another_is_given():
    spec = rw.RopeSpec(8, theta=10_000.0, scaling=Dynamic(factor=1.0, original_length=100))
    base = lambda stretch: 10_000.0 * stretch ** (8 / 6)
    for length, stretch in ((None, 4), (100, 1), (800, 8)):
        found = analysis.coverage(spec, 100, 400, length)
        assert found.trained == turns(100, 1, 0.1, 0.01, 0.001)
        assert found.unscaled == turns(400, 1, 0.1, 0.01, 0.001)
        assert found.scaled == turns(400, *(base(stretch) ** (-i / 4) for i in range(4)))


@pytest.mark.parametrize(
    ("spec", "length", "expected"),
    [
        (rw.RopeSpec(6, scaling=Linear(4.0)), None, ["interpolated"] * 3),
        (PLAIN, None, ["kept"] * 4),
        (
            rw.RopeSpec(8, scaling=LongRope((1.0, 0.99, 2.0, 4.0), (1.0,) * 4, 32, 4.0)),
            None,
            ["kept", "faster", "blended", "interpolated"],
        ),
        # dynamic NTK has no fixed factor: the pair that it slows most counts as interpolated
        (
            rw.RopeSpec(8, scaling=Dynamic(factor=2.0, original_length=100)),
            400,
            ["kept", "blended", "blended", "interpolated"],
        ),
        (
            rw.RopeSpec(8, scaling=Clipped(Yarn(factor=4.0, original_length=512))),
            None,
            None,
        ),
    ],
)
def test_a_band_says_what_the_scaling_does_to_a_pair(spec, length, expected):
    found = analysis.bands(spec, length)
    assert set(found) <= set(BANDS)
    if expected is not None:
        assert found == expected
    ratios = analysis.stretch(spec, length)
    factor = 4.0 if length is None else 1 / min(ratios)
    for band, ratio in zip(found, ratios, strict=True):
        wanted = (
            "still"
            if ratio == 0
            else "faster"
            if ratio > 1 + 1e-9
            else "kept"
            if ratio >= 1 - 1e-9
            else "interpolated"
            if ratio <= (1 + 1e-9) / factor
            else "blended"
        )
        assert band == wanted


def by_search(radians, length):
    """Return the first distance with a negative sum of cosines, trying one distance after another."""
    for distance in range(1, length + 1):
        if math.fsum(math.cos(distance * value) for value in radians) < 0:
            return distance
    return None


SERIES = {
    "one": (1.0,),
    "two": (1.0, 0.1),
    "slow": (0.02, 0.005),
    "four": (1.0, 0.1, 0.01, 0.001),
    "negative": (-0.3, 0.2),
    "zero sum": (math.pi / 2,),
    "never": (0.0,),
    "fast": (3.0, 2.0, 0.5),
}


@pytest.mark.parametrize("name", SERIES)
def test_the_first_negative_sum_is_found_without_leaving_out_a_distance(name):
    radians = SERIES[name]
    first = by_search(radians, 5000)
    assert analysis.first_negative(radians, 5000) == first
    if first is not None:  # the search includes its last distance, and stops there
        assert analysis.first_negative(radians, first) == first
        if first > 1:
            assert analysis.first_negative(radians, first - 1) is None


def test_a_sum_of_exactly_zero_is_not_negative():
    assert analysis.first_negative((math.pi / 2 * (1 - 1e-16),), 1) is None
    assert analysis.cosine_sum((0.0, math.pi), 1) == 0
    assert analysis.first_negative((0.0, math.pi), 1) is None


def test_facts_of_a_window_are_about_the_distances_within_it():
    facts = Facts(PLAIN, 100, 250, window=40)
    assert (facts.trained_distance, facts.served_distance, facts.factor) == (40, 40, 3)
    assert facts.aliasing == analysis.Aliasing(TURN, pytest.approx(TURN * 1000), 1, 4)
    assert facts.coverage.unscaled == turns(40, 1, 0.1, 0.01, 0.001)
    assert facts.new_angles == 0
    assert facts.all_rows_bytes == 250 * 4 * 2 * 4  # positions, pairs, cos and sin, float32
    without = Facts(PLAIN, 100, 250)
    assert (without.trained_distance, without.served_distance) == (100, 250)
    assert without.aliasing.repeating == 2  # these pairs turn once in 6.3 and in 62.8 tokens
    assert without.new_angles == 2
    assert Facts(PLAIN, 100, 200).factor == 2
    assert Facts(PLAIN, 100, 201).factor == 3


def test_errors_are_of_the_last_eight_positions_below_the_served_length(monkeypatch):
    from ropewalk.analysis import facts as module

    asked = []
    monkeypatch.setattr(
        module, "error_curves", lambda *given, **named: asked.append((given, named)) or {"hf": [1]}
    )
    assert Facts(PLAIN, 100, 250).errors == {"hf": 1}
    assert asked == [((PLAIN, [249], PRECISIONS), {"length": 250, "width": 8})]


def test_a_search_of_the_cosine_sum_ends_at_131072(monkeypatch):
    from ropewalk.analysis import ladder

    asked = []
    monkeypatch.setattr(ladder, "first_negative", lambda radians, length: asked.append(length))
    for served, window in ((200_000, None), (1000, None), (200_000, 500)):
        _ = Facts(PLAIN, 100, served, window).first_negative
    assert asked == [131_072, 1000, 500]


#: check -> the figure of the lab that shows it
FIGURES = {
    "in_range": "coverage",
    "unseen_angles": "beyond",
    "stretched_too_little": "coverage",
    "trained_unknown": "coverage",
    "linear_blurs": "scalings",
    "always_on": "scalings",
    "beta_too_fast": "coverage",
    "follows_the_length": "scalings",
    "float32_angles": "precision",
    "large_table": "precision",
    "all_repeat": "spectrum",
    "random_keys_win": "base_bound",
    "axes": "angles",
    "causal_only": "decay",
}
USES = {
    "short text": ("Default(), theta 10,000", "coverage"),
    "long documents, new model": ("Default(), trained at the length to be served", "beyond"),
    "long documents, trained model, no fine-tuning": ("DynamicYarn(original_length)", "scalings"),
    "long documents, trained model, fine-tuning": ("Yarn(factor, original_length)", "scalings"),
    "code and retrieval": (
        'Default(), theta 10,000, precision "exact" or the checkpoint\'s "hf_frequencies"',
        "precision",
    ),
    "images and other grids": ("axes.axial: rows and columns on axes of their own", "angles"),
    "any length, with attention limited to a window": (
        "plain RoPE with a sliding window of the trained length",
        "similarity",
    ),
    "a norm of q and k": ("LayerNorm before the rotation", "inner_products"),
}


def test_each_check_and_each_use_names_the_figure_that_shows_it():
    assert {check.name: check.figure for check in CHECKS} == FIGURES
    assert {use.use: (use.choose, use.figure) for use in GUIDE} == USES


def advice(*given, **named):
    return {each.name: each for each in advise(Facts(*given, **named))}


def test_a_plain_spec_beyond_its_length_is_told_how_many_pairs_are_new():
    found = advice(PLAIN, 100, 250)
    assert found["unseen_angles"].advice.startswith("Use Yarn(factor=3, original_length=100),")
    assert found["unseen_angles"].because.startswith(
        "2 of 4 pairs reach angles beyond token 100 that did not occur"
    )
    assert "in_range" not in found
    assert advice(PLAIN, 100, 100)["in_range"].because.startswith("every distance below 100 ")
    assert "unseen_angles" not in advice(PLAIN, 100, 101, window=50)


def test_yarn_that_is_always_on_is_told_how_many_pairs_it_slows():
    spec = PLAIN.with_(scaling=Yarn(factor=4.0, original_length=100))
    found = advice(spec, 100, 400)
    bands = analysis.bands(spec, 400)
    slowed = sum(band != "kept" for band in bands)
    assert slowed > bands.count("interpolated") > 0
    assert found["always_on"].because == (
        f"{slowed} of 4 pairs are slowed at every length, also below token 100"
    )
    # 100 / 2 pi = 15.9 turns of the fastest pair, fewer than YaRN's 32
    assert found["beta_too_fast"].advice == "Lower beta_fast below 16."
    gentle = PLAIN.with_(scaling=Yarn(factor=4.0, original_length=100, beta_fast=15.9))
    assert "beta_too_fast" not in advice(gentle, 100, 400)
    assert "always_on" not in advice(spec, 400, 400)


@pytest.mark.parametrize("precision", ["exact", "hf", "hf_frequencies"])
def test_float32_angles_are_replaced_by_exact_ones_with_the_frequencies_of_the_weights(precision):
    wide = rw.RopeSpec(8, theta=10_000.0, precision=precision)
    found = advice(wide, 2**24, 2**24)["float32_angles"]
    policy = "exact" if precision == "exact" else "hf_frequencies"
    assert found.advice.endswith(f'use precision "{policy}".')
    assert f"near token {2**24:,}, more than bfloat16's rounding of 2.0e-03" in found.because
    assert "float32_angles" not in advice(wide, 512, 512)


def test_a_table_of_more_than_64_mib_is_said_to_be_large():
    """Four pairs take 32 bytes a position: 64 MiB are 2^21 positions."""
    assert "large_table" not in advice(PLAIN, 2**21, 2**21)
    facts = Facts(PLAIN, 2**22, 2**22)
    (found,) = (each for each in advise(facts) if each.name == "large_table")
    assert found.because == f"cos and sin of {2**22:,} positions take 128 MiB"
    stored = facts.memory["auto"] / 2**20
    assert found.advice == (
        "Do not store a table of all positions; ropewalk stores "
        f"{stored:.1f} MiB and computes the rest."
    )
    assert stored < 16


def test_further_advice_names_its_numbers():
    blurred = advice(PLAIN.with_(scaling=Linear(2.0)), 100, 200)["linear_blurs"]
    assert "all 4 pairs are slowed, even the 2 that completed a turn" in blurred.because
    assert "linear_blurs" not in advice(PLAIN.with_(scaling=Linear(1.0)), 100, 200)
    too_little = advice(PLAIN.with_(scaling=Ntk(1.5)), 100, 400)["stretched_too_little"]
    assert "serve fewer tokens, or use factor 4." in too_little.advice
    assert too_little.because.startswith("with ntk, ")
    assert (
        "dynamic"
        in advice(PLAIN.with_(scaling=Dynamic(factor=2.0, original_length=100)), 100, 200)[
            "follows_the_length"
        ].because
    )
    assert "follows_the_length" not in advice(PLAIN, 100, 200)
    repeats = advice(rw.RopeSpec(4, theta=4.0), 100, 100)["all_repeat"]
    assert "all 2 pairs repeat within 100 tokens, the slowest after 13" in repeats.because
    assert "all_repeat" not in advice(rw.RopeSpec(4, theta=4.0), 100, 100, window=100)
    negative = advice(PLAIN, 2000, 2000)["random_keys_win"]
    first = by_search((1, 0.1, 0.01, 0.001), 2000)
    assert negative.because.startswith(f"from distance {first:,} on,")
    assert "causal_only" in advice(PLAIN.with_(scaling=XPos()), 100, 100)
    assert "causal_only" not in advice(PLAIN, 100, 100)
    axes = advice(rw.RopeSpec(8, axes=rw.axes.axial(2, 2)), 100, 100)["axes"]
    assert axes.because == "the pairs use 2 axes"
    unknown = advice(PLAIN.with_(scaling=Linear(2.0)), 100, 100)["trained_unknown"]
    assert "a config with linear scaling has no trained length, so 100 is used" in unknown.because
    given = Facts(PLAIN.with_(scaling=Linear(2.0)), 100, 100, trained_given=True)
    assert "trained_unknown" not in {each.name for each in advise(given)}


def test_libraries_are_named_by_how_they_compute_angles():
    """SGLang and torchtune keep float32 tables; transformers, vLLM and flash-attn cast theirs."""
    assert set(USED_BY) == set(analysis.COS_SIN_METHODS)
    for name in ("SGLang", "torchtune", "MiniMind"):
        assert [method for method, used in USED_BY.items() if name in used] == ["hf"]
    for name in ("transformers", "vLLM", "flash-attn"):
        methods = [method for method, used in USED_BY.items() if name in used]
        assert methods == ["float16 table", "bfloat16 table"]
    assert USED_BY["float16 table"].endswith("in float16")
    assert USED_BY["bfloat16 table"].endswith("in bfloat16")
    assert "rotary-embedding-torch" in USED_BY["bfloat16 positions"]
    assert "40 digits" in USED_BY["exact"]
    assert "float32 frequencies of a checkpoint" in USED_BY["hf_frequencies"]


def test_numbers_are_rounded_to_bfloat16_with_ties_to_even():
    """bfloat16 has 8 significant bits: 1 + 2^-8 is half way between 1 and 1 + 2^-7 and goes down to
    the even 1; 1 + 3 / 2^8 goes up to the even 1 + 2^-6.
    """
    from ropewalk.analysis.exactness import bfloat16

    for given, rounded in (
        (1 + 2**-8, 1.0),
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
    ):
        assert bfloat16(given) == rounded
        assert bfloat16(-given) == -rounded


def test_two_pi_has_its_digits():
    from ropewalk.analysis.exactness import _BITS, _TWO_PI

    getcontext().prec = 80
    digits = Decimal("6.2831853071795864769252867665590057683943387987502116419498891846156")
    assert abs(Decimal(_TWO_PI) / Decimal(2**_BITS) - digits) < Decimal(10) ** -56


def test_given_frequencies_have_their_sizes_in_turns_and_wavelengths():
    radians = analysis.radians(rw.RopeSpec(6, scaling=Given((0.5, -0.25, 0.0))))
    assert radians == (0.5, -0.25, 0.0)
    assert analysis.wavelengths(radians) == pytest.approx((2 * TURN, 4 * TURN, math.inf))
    assert analysis.turns(radians, TURN) == pytest.approx((0.5, 0.25, 0.0))
    assert analysis.critical_dimension((1.0, 0.5), TURN) == 2
