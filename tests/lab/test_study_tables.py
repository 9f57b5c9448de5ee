"""Tables, figures and claims of studies from rows that were made up here, compared with cells
written by hand.
"""

from typing import Any

import pytest
import torch

from ropewalk.spec import RopeSpec
from ropewalk_lab.scores import Score
from ropewalk_lab.studies import (
    STUDIES,
    decay,
    encodings,
    extend,
    linear,
    matching,
    migrate,
    mlm_lengths,
    multimodal,
    precision,
    relative,
    study,
)
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED, claim_within, ours_by_name
from ropewalk_lab.studies.rows import digest, row


def seeds(metric: str, mean: float, **fields: Any) -> list[dict]:
    """The same value from three trainings, so that every difference is beyond the noise."""
    return [row(metric, [mean, mean], seed=seed, **fields) for seed in range(3)]


def test_bases_are_compared_at_the_shortest_and_at_the_longest_length():
    losses = {(100.0, 8): 2.0, (100.0, 16): 3.0, (1e4, 8): 1.0, (1e4, 16): 4.0}
    rows = [
        each
        for (theta, length), mean in losses.items()
        for each in seeds("loss", mean, base=theta, length=length)
    ]
    rows += [
        each for theta in (100.0, 1e4) for each in seeds("accuracy", 0.5, base=theta, length=8)
    ]
    found = STUDIES["base"].findings(rows, {})
    table, by_use = found.tables
    assert by_use.columns == ("base", "short, as trained", "long, twice that", "extrapolation, 2x")
    assert by_use.rows == [
        ("100", "+1.000", "+0.000", "+0.000"),
        ("10,000", "+0.000", "+1.000", "+1.000"),
    ]
    assert (table.title, table.columns) == ("Loss by base and context length", ("base", "8", "16"))
    assert table.rows == [
        ("100", "2.000 ± 0.000", "3.000 ± 0.000"),
        ("10,000", "1.000 ± 0.000", "4.000 ± 0.000"),
    ]
    assert [(claim.text, claim.verdict) for claim in found.claims] == [
        ("At 8, base 10,000 has a lower loss than base 100", HOLDS),
        ("At 16, base 10,000 has a lower loss than base 100", FAILS),
    ]
    assert found.ours["base-ablation"].cells["100"] == ("2.000 ± 0.000", "50.0% ± 0.0%")


def test_bases_are_also_compared_at_the_length_after_the_trained_one():
    losses = {(100.0, 8): 2.0, (100.0, 16): 3.0, (100.0, 64): 7.0}
    losses |= {(1e4, 8): 1.0, (1e4, 16): 3.5, (1e4, 64): 5.0}
    rows = [
        each
        for (theta, length), mean in losses.items()
        for each in seeds("loss", mean, base=theta, length=length)
    ]
    by_use = STUDIES["base"].findings(rows, {}).tables[1]
    assert by_use.columns == ("base", "short, as trained", "long, twice that", "extrapolation, 8x")
    assert by_use.rows == [
        ("100", "+1.000", "+0.000", "+2.000"),
        ("10,000", "+0.000", "+0.500", "+0.000"),
    ]


def test_kinds_of_frequencies_have_a_table_for_each_text_and_one_of_alpha():
    means = {("geometric", "prose"): 2.0, ("linear", "prose"): 3.0, ("learned", "prose"): 1.0}
    means |= {(name, "stdlib"): mean - 0.5 for (name, _), mean in means.items()}
    rows = [
        each
        for (name, text), mean in means.items()
        for length in (8, 16)
        for each in seeds("loss", mean, frequencies=name, text=text, length=length)
    ]
    rows.append(row("alpha", [-0.5, 0.0, 0.25], frequencies="learned", text="prose", seed=0))
    found = STUDIES["frequencies"].findings(rows, {})
    prose, code, alphas = found.tables
    assert prose.title == "Loss by kind of frequencies and context length, prose"
    assert code.title == "Loss by kind of frequencies and context length, code"
    assert [line[:2] for line in code.rows] == [
        ("geometric", "1.500 ± 0.000"),
        ("linear", "2.500 ± 0.000"),
        ("learned", "0.500 ± 0.000"),
    ]
    assert alphas.rows == [("prose", "0", "0.2500", "0.5000", "0.607 to 1.284")]
    verdicts = {claim.text: claim.verdict for claim in found.claims}
    assert verdicts["At 16, code, geometric has a lower loss than linear"] == HOLDS
    assert verdicts["At 8, prose, geometric has a lower loss than learned"] == FAILS
    assert list(found.figures) == ["frequencies-prose", "frequencies-stdlib"]
    assert found.ours == {}


def test_the_claim_of_decay_fails_if_attention_rises_at_one_of_two_steps():
    weights = {1: 0.5, 2: 0.3, 4: 0.1}
    rows = [
        each
        for far, mean in weights.items()
        for each in seeds("weight", mean, model="rope", distance=far)
    ]
    rows += [
        row("wavelength", value, seed=0, pair=pair)
        for pair, value in (("fastest", 6.283), ("slowest", 54_410.1))
    ]
    found = decay.findings(rows, {})
    assert found.tables[0].rows == [("rope", "0.5000", "0.3000", "0.1000")]
    assert [claim.verdict for claim in found.claims] == [HOLDS]
    assert found.ours["unaliased-length"].cells == {"fastest": ("6.28",), "slowest": ("54,410.10",)}
    (ax,) = found.figures["decay"]().axes
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_yscale()) == (
        "Attention by distance",
        "distance",
        "log",
    )
    rising = [*rows, *(each for each in seeds("weight", 0.4, model="alibi", distance=4))]
    rising = [each for each in rising if each.get("distance") != 4] + seeds(
        "weight", 0.4, model="rope", distance=4
    )
    assert [claim.verdict for claim in decay.findings(rising, {}).claims] == [FAILS]


def test_rope_beyond_its_length_stands_beside_the_stated_multiples_of_512():
    rows = [
        row("loss", mean, model="rope", seed=0, length=n)
        for n, mean in ((8, 1.0), (16, 1.5), (32, 2.0), (64, 3.0))
    ]
    rows += [row("loss", 1.25, model="none", seed=0, length=n) for n in (8, 16, 32, 64)]
    rows += [
        row("parameters", 20_000 * place, model=name, seed=0)
        for place, name in enumerate(("rope", "none"))
    ]
    rows += [
        row("seconds per step", mean, model=name, seed=0)
        for name, mean in (("rope", 0.3), ("none", 0.2))
    ]
    found = encodings.findings(rows, {})
    assert found.ours["beyond-512"].cells == {
        "512": ("8", "1.000"),
        "1024": ("16", "1.500"),
        "2048": ("32", "2.000"),
        "4096": ("64", "3.000"),
    }
    properties = {cells[0]: cells[-2:] for cells in found.tables[1].rows}
    assert properties == {"rope": ("0", "1.50"), "none": ("20,000", "1.00")}


def test_stated_figures_of_encodings_have_ours_of_the_length_that_they_are_about():
    """Beside the length generalisation stands the loss at twice the trained length, beside causal
    models that at the trained one, and beside ALiBi's extrapolation that at every length.
    """
    losses = {8: 1.0, 16: 1.5, 32: 2.0}
    rows = [row("loss", mean, model="rope", seed=0, length=n) for n, mean in losses.items()]
    rows += [row("accuracy", 0.25, model="rope", seed=0, length=n) for n in losses]
    rows.append(row("parameters", 0, model="rope", seed=0))
    ours = encodings.findings(rows, {}).ours
    for name, lengths in {
        "nope-length-generalisation": [16],
        "nope-causal": [8],
        "alibi-extrapolation": [8, 16, 32],
    }.items():
        assert ours[name].columns == tuple(f"loss at {n}" for n in lengths)
        assert ours[name].cells["rotary"] == tuple(f"{losses[n]:.3f}" for n in lengths)
    assert ours["glue"].columns == ("loss at 8", "accuracy of the next byte at 8")
    assert ours["glue"].cells["RoPE"] == ("1.000", "25.0%")


def test_an_extended_model_is_shown_on_long_and_on_short_text():
    def losses(method, tuned, factor, near, far):
        fields = {"method": method, "tuned": tuned, "factor": factor}
        return seeds("loss", near, length=8, **fields) + seeds(
            "loss", far, length=8 * factor, **fields
        )

    def cells(name, *means):
        return name, *(f"{mean:.3f} ± 0.000" for mean in means)

    rows = seeds("loss", 1.0, method="none", tuned=0, factor=1, length=8)
    for factor in (2, 4):
        rows += losses("none", 0, factor, 1.0, 1.0 + factor) + losses("yarn", 0, factor, 1.1, 1.5)
    # `linear` was measured at the larger factor only, so it has no row in the tables
    rows += losses("linear", 0, 4, 1.2, 9.0)
    rows += losses("yarn", 40, 4, 1.05, 1.25)
    found = extend.findings(rows, {})
    zero_shot, short, tuned = found.tables
    assert (zero_shot.title, zero_shot.columns) == ("Zero-shot", ("method", "2x = 16", "4x = 32"))
    assert zero_shot.rows == [cells("none", 3.0, 5.0), cells("yarn", 1.5, 1.5)]
    assert (short.title, short.columns) == ("Short text", ("method", "factor 2", "factor 4"))
    assert short.rows == [cells("none", 1.0, 1.0), cells("yarn", 1.1, 1.1)]
    assert (tuned.title, tuned.rows) == ("After 40 steps at 4x", [cells("yarn", 1.05, 1.25)])


def test_matching_shows_how_many_cases_were_held_out():
    settings = {"short": 24, "long": 56, "data": ""}
    rows = [row("wrong", [0.0, 1.0, 0.0, 0.0], cut=24, encoding="rope", seed=0)]
    rows += [row("wrong", [0.0] * 4, cut=56, encoding="rope", seed=0)]
    found = matching.findings(rows, {"settings": settings})
    table = found.tables[0]
    # a quarter of the cases has its evidence within 24 characters, and half of the guesses on the
    # others are right
    assert table.rows == [
        ("24", "learned", "-", "62.5%", "0"),
        ("24", "rope", "75.0% ± 25.0%", "62.5%", "4"),
        ("56", "rope", "100.0% ± 0.0%", "100.0%", "4"),
    ]
    (ax,) = found.figures["matching"]().axes
    drawn = {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in ax.get_lines()
    }
    assert drawn["rope"] == ([24, 56], [75.0, 100.0])
    assert drawn["best possible"] == ([24, 56], [62.5, 100.0])
    assert ax.get_ylabel() == "% right"


def test_no_more_words_are_drawn_than_fill_a_case():
    drawn = []

    class Draw:
        def choice(self, words):
            drawn.append("abc")
            return "abc"

        def randint(self, low, high):
            return low

    text = matching._case(Draw(), "x", 0, 16, 16)  # type: ignore[arg-type]
    assert (text, len(drawn)) == (" [x] bc abc abc ", 4)


def test_two_axes_are_judged_on_the_largest_images():
    wrong = {("rope_2d", 4): 0.5, ("rope_2d", 6): 0.0, ("rope", 4): 0.0, ("rope", 6): 0.75}
    rows = [
        each
        for (name, side), mean in wrong.items()
        for each in seeds("wrong", mean, model=name, side=side)
    ]
    found = multimodal.findings(rows, {"settings": {"side": 4}})
    assert found.tables[0].rows == [("rope_2d", "50.0%", "100.0%"), ("rope", "100.0%", "25.0%")]
    (claim,) = found.claims
    assert claim.text.startswith("On images of 6 x 6, larger than any in training")
    assert claim.verdict == HOLDS


def test_the_exact_method_is_judged_by_its_worst_position_and_no_error_is_drawn_at_0():
    rows = [
        row("error", 1e-3, way=way, position=at)
        for way in precision.COS_SIN_METHODS
        if way != "exact"
        for at in (5, 7)
    ]
    rows += [
        row("error", 0.0, way="exact", position=5),
        row("error", 1e-5, way="exact", position=7),
    ]
    found = precision.findings(rows, {})
    assert (found.claims[0].verdict, found.claims[0].evidence) == (FAILS, "largest 1.0e-05")
    (ax,) = found.figures["precision"]().axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in ax.get_lines()}
    assert drawn["exact"] == [1e-9, 1e-5]


def test_a_difference_that_touches_the_limit_with_its_margin_is_within_noise():
    """The difference is 0.75 ± 0.125; 0.75 less two errors is 0.5, which is not beyond the limit 0.5."""
    one, other = Score([[0.625, 0.875]]), Score([[0.0, 0.0]])
    assert claim_within("", one, other, 0.5).verdict == TIED
    assert claim_within("", one, other, 0.49).verdict == FAILS
    assert claim_within("", one, other, 1.0).verdict == HOLDS


def test_our_losses_stand_under_the_published_names():
    rows = [
        row("loss", 1.0, model="rope", length=8, seed=0),
        row("loss", 2.0, model="rope", length=16, seed=0),
    ]
    found = ours_by_name(rows, {"RoPE": "rope", "ALiBi": "alibi"}, "model", [8, 16])
    assert found.columns == ("loss at 8", "loss at 16")
    assert found.cells == {"RoPE": ("1.000", "2.000"), "ALiBi": ("-", "-")}


def test_a_relative_encoding_is_judged_by_the_largest_shift():
    """Logits of fire change hardly at one position, as those of a relative encoding do at any."""

    def judged(**far):
        rows = [
            row("moved", [0.0, value], model=name, shift=shift, seed=0)
            for name, last in far.items()
            for shift, value in ((1, 1e-6), (1000, last))
        ]
        found = relative.findings(rows, {})
        assert found.tables[0].columns[2:] == ("by 1", "by 1,000")
        (claim,) = found.claims
        assert claim.text.startswith("A shift of 1,000 changes logits by less than 0.001")
        return claim.verdict, claim.evidence

    assert judged(rope=1e-6, fire=0.5) == (HOLDS, "no exceptions")
    assert judged(rope=0.002, fire=0.5) == (FAILS, "except rope")
    assert judged(rope=1e-6, fire=1e-6) == (FAILS, "except fire")


def differences(claims) -> dict[str, str]:
    """The evidence of each claim without the standard errors, which are 0 here."""
    return {claim.text: claim.evidence.replace(" ± 0.000", "") for claim in claims}


def test_each_claim_about_encodings_compares_the_models_and_lengths_of_its_text():
    means = {
        "rope": {8: 1.0, 16: 2.0, 32: 3.0},
        "alibi": {8: 1.25, 16: 1.26, 32: 1.28},
        "sinusoidal": {8: 1.6, 16: 7.0, 32: 8.0},
        "none": {8: 2.1, 16: 5.0, 32: 6.0},
        encodings.WINDOW: {8: 1.7, 16: 1.02, 32: 1.04},
    }
    rows = [
        each
        for model, by_length in means.items()
        for length, mean in by_length.items()
        for each in seeds("loss", mean, model=model, length=length)
    ]
    assert differences(encodings.claims(rows, [8, 16, 32])) == {
        "At the trained length (8), the loss rises in the order rope, alibi, sinusoidal, none": (
            "rope minus alibi: -0.250; alibi minus sinusoidal: -0.350; "
            "sinusoidal minus none: -0.500"
        ),
        "ALiBi at 32 stays within 0.05 of its loss at 8": "difference +0.030, limit +0.05",
        "At 32, beyond the trained length, ALiBi has a lower loss than plain RoPE": (
            "alibi minus rope: -1.720"
        ),
        "RoPE with a sliding window of 8 is flat from 16 to 32": "difference +0.020, limit 0.05",
        "RoPE with a sliding window at 32 is no worse than RoPE at 8": (
            "difference +0.040, limit +0.05"
        ),
    }


def test_each_stage_of_the_longest_length_is_compared_with_both_neighbours():
    trained = {1: 128, 2: 384, 3: 64, 4: 32, 5: 384, 6: 128}
    own = {1: 2.0, 2: 1.5, 3: 2.2, 4: 2.6, 5: 1.4, 6: 1.9}
    rows = [
        each
        for stage, length in trained.items()
        for each in seeds("loss", own[stage], stage=stage, length=length)
        + seeds("loss", 9.0 - length / 128, stage=stage, length=32 if length > 32 else 64)
    ]
    rows += [
        each
        for length, mean in ((64, 2.1), (384, 1.7))
        for each in seeds("loss", mean, stage=6, length=length)
    ]
    found = differences(mlm_lengths.claims(rows, list(trained), trained))
    assert found == {
        "Stage 2 (length 384) ends below stage 1 (length 128)": "2 minus 1: -0.500",
        "Stage 2 (length 384) ends below stage 3 (length 64)": "2 minus 3: -0.700",
        "Stage 5 (length 384) ends below stage 4 (length 32)": "5 minus 4: -1.200",
        "Stage 5 (length 384) ends below stage 6 (length 128)": "5 minus 6: -0.500",
        "The final model has a lower loss for longer inputs": (
            "384 minus 128: -0.200; 128 minus 64: -0.200; 64 minus 32: -5.900"
        ),
    }


def test_a_migrated_model_is_compared_at_the_length_of_each_claim():
    means = {
        migrate.KEPT: (1.5, 3.0),
        migrate.MOVED: (1.2, 1.6),
        migrate.FRESH: (2.0, 2.5),
    }
    rows = [
        each
        for way, by_length in means.items()
        for length, mean in zip((8, 16), by_length, strict=True)
        for each in seeds("loss", mean, way=way, steps=60, length=length)
    ]
    lower = "After 60 steps a migrated model has a lower loss"
    moved, kept = migrate.MOVED, migrate.KEPT
    assert differences(migrate.claims(rows, [8, 16], 60)) == {
        f"{lower} than RoPE from scratch": f"{moved} minus {migrate.FRESH}: -0.800",
        f"{lower} than the unchanged model, trained as long": f"{moved} minus {kept}: -0.300",
        f"{lower} at 16 tokens, twice the trained length, than the unchanged model": (
            f"{moved} minus {kept}: -1.400"
        ),
    }


def test_linear_attention_stands_under_the_published_name_of_its_positions():
    rows = []
    for place, model in enumerate(("softmax, rope", "linear, rope", "linear, none")):
        rows += seeds("loss", 1.0 + place / 4, model=model, length=8)
        rows.append(row("milliseconds", 5.0, model=model, length=64))
        rows.append(row("remembered", 2**20, model=model, length=64))
    found = linear.findings(rows, {})
    assert found.ours["roformer-linear"].cells == {
        "Performer": ("1.500 ± 0.000",),
        "Performer with RoPE": ("1.250 ± 0.000",),
    }
    assert list(differences(found.claims).values()) == [
        "softmax, rope minus linear, rope: -0.250",
        "linear, rope minus linear, none: -0.250",
    ]


def test_extended_models_stand_beside_published_ones_at_their_factors():
    """Accuracy at 8 times the trained length, as published at 4,096 after 512; losses at 4 times."""
    offsets = {"none": 0.0, "linear": 0.1, "ntk": 0.2, "yarn": 0.3, "dynamic": 0.4, "longrope": 0.5}
    rows = seeds("loss", 1.0, method="none", tuned=0, factor=1, length=8)
    for method, offset in offsets.items():
        for factor in (2, 4, 8):
            fields = {"method": method, "tuned": 0, "factor": factor, "length": 8 * factor}
            rows += seeds("loss", factor + offset, **fields)
            rows += seeds("accuracy", (factor + offset) / 10, **fields)
            rows += seeds("loss", 0.5 + offset, **fields | {"length": 8})
            rows += seeds("loss", factor + offset - 1, **fields | {"tuned": 40})
    rows += seeds("loss", 0.6, method="dynamic_yarn", tuned=0, factor=2, length=8)
    rows += seeds("loss", 0.7, method="dynamic_yarn", tuned=0, factor=8, length=8)
    found = extend.findings(rows, {})
    names = {"none": "none", "PI": "linear", "NTK": "ntk", "YaRN": "yarn"}
    names |= {"dynamic NTK": "dynamic", "searched": "longrope"}
    each = lambda form: {name: (form(offsets[ours]),) for name, ours in names.items()}
    assert {name: ours.cells for name, ours in found.ours.items()} == {
        "ntk-zero-shot": each(lambda offset: f"{(8 + offset) / 10:.1%} ± 0.0%"),
        "yarn": each(lambda offset: f"{3 + offset:.3f} ± 0.000"),
        "longrope": each(lambda offset: f"{4 + offset:.3f} ± 0.000"),
        "interpolation": {
            "unchanged": ("1.000 ± 0.000", "4.000 ± 0.000"),
            "fine-tuned directly": ("-", "3.000 ± 0.000"),
            "interpolated and fine-tuned": ("-", "3.100 ± 0.000"),
        },
    }
    assert found.ours["ntk-zero-shot"].columns == ("accuracy at 64",)
    # on text of the trained length the largest factor stands for all
    short = [text for text in differences(found.claims).items() if "ynamic YaRN" in text[0]]
    assert short == [
        (
            "Dynamic YaRN does not change the loss on text of 8 tokens",
            "difference -0.300, limit 0.001",
        ),
        (
            "On text of 8 tokens, dynamic YaRN has a lower loss than YaRN with a factor of 8",
            "dynamic_yarn minus yarn: -0.100",
        ),
    ]


def test_the_digest_of_an_object_depends_on_its_repr():
    specs = [{"encoding": RopeSpec(head_dim=8, theta=theta)} for theta in (100.0, 100.0, 200.0)]
    first, again, other = map(digest, specs)
    assert first == again != other


@pytest.mark.parametrize("value", [{"a": 1, "b": 2}, {"b": 2, "a": 1}])
def test_the_digest_does_not_depend_on_the_order_of_settings(value):
    assert digest(value) == digest({"a": 1, "b": 2})


def test_the_peak_of_a_pass_on_a_gpu_is_in_mebibytes():
    rows = [
        row(metric, value, model=model, length=8)
        for model in ("softmax, rope", "linear, rope", "linear, none")
        for metric, value in (
            ("loss", [1.0, 1.5]),
            ("milliseconds", 2.0),
            ("remembered", 2.5 * 2**20),
            ("peak", 3 * 2**20),
        )
    ]
    titles = {table.title: table for table in linear.findings(rows, {}).tables}
    assert titles["Peak MiB"].columns == ("attention", "8")
    assert titles["Peak MiB"].rows == [(model, "3") for model in linear.MODELS]
    assert titles["MiB of the cache"].rows[0] == ("softmax, rope", "2.50")
    without = [each for each in rows if each["metric"] != "peak"]
    assert "Peak MiB" not in {table.title for table in linear.findings(without, {}).tables}


@pytest.mark.parametrize(
    ("device", "named"), [("cpu", "a machine, 12 cores"), ("cuda", "a machine")]
)
def test_the_facts_of_a_study_name_the_cores_of_a_cpu(monkeypatch, device, named):
    info = {"machine": "a machine", "python": "3.9", "versions": {"torch": "2.9"}, "date": "today"}
    monkeypatch.setattr(study, "machine", lambda _: info)
    monkeypatch.setattr(study, "cores", lambda: 12)
    facts = study._machine(torch.device(device))
    assert facts == {"device": named, "python": "3.9", "torch": "2.9", "date": "today"}


def test_without_four_times_the_trained_length_the_longest_is_the_far_one():
    rows = [
        each
        for model in ("rope", "alibi")
        for length in (8, 16, 24)
        for each in seeds("loss", length / 8, model=model, length=length)
    ]
    texts = {claim.text: claim for claim in encodings.claims(rows, [8, 16, 24])}
    assert texts["ALiBi at 24 stays within 0.05 of its loss at 8"].evidence == (
        "difference +2.000 ± 0.000, limit +0.05"
    )
    flat = texts["RoPE with a sliding window of 8 is flat from 16 to 24"]
    assert (flat.verdict, flat.evidence) == ("not measured", "no rows")
