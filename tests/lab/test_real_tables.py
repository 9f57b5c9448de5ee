"""Studies on pretrained models: what a tiny random Llama gives, measured by hand, and tables from
rows that were made up.
"""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk_lab.scores import Score
from ropewalk_lab.studies import real, real_extend, real_kv, real_passkey, real_precision, real_tune
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.real import make_meter, open_real, real_windows, source_note
from ropewalk_lab.studies.rows import row, select

CPU = torch.device("cpu")
FACTS: dict[str, Any] = {
    "model": "smollm2",
    "trained": 8192,
    "text": ["moby-dick", "sotu"],
    "seeds": 1,
}


def band_losses(
    model: torch.nn.Module, windows: torch.Tensor, bands: list[tuple[int, int]]
) -> dict[str, list[float]]:
    """The mean loss of the tokens at the positions of each band, for each window."""
    with torch.no_grad():
        logits = model(windows).logits.double()
    # losses of tokens 1, 2, ...
    losses = -F.log_softmax(logits[:, :-1], -1).gather(-1, windows[:, 1:, None])[..., 0]
    return {
        f"{low}-{high}": losses[:, max(low, 1) - 1 : high - 1].mean(1).tolist()
        for low, high in bands
    }


BANDS = [(0, 32), (32, 64), (64, 128)]


def test_an_unscaled_model_has_the_losses_of_its_bands(tmp_path):
    settings = {"model": "tiny", "text": ["python"], "methods": ["none"], "windows": 2, "search": 0}
    rows = real_extend.measure(Workspace(tmp_path, CPU), factor=2, **settings)
    model, encode = open_real("tiny", CPU)
    expected = band_losses(model, real_windows(["python"], encode, 128, 2), BANDS)
    found = {
        each["band"]: each["values"] for each in select(rows, "loss") if each["band"] != "within"
    }
    assert found.keys() == expected.keys()
    for band, losses in expected.items():
        assert found[band] == pytest.approx(losses, rel=1e-4)


def test_a_training_at_a_rate_near_0_leaves_the_losses_as_they_were(tmp_path, monkeypatch):
    """Windows are taken from the first 3,000,000 characters of a text; the text to train on is the
    next 9,000,000.
    """
    asked = []

    def text(name, *part):
        asked.append((name, *part))
        return real.real_text("python")

    monkeypatch.setattr(real_tune, "real_text", text)
    settings = {
        "model": "tiny",
        "text": ["python"],
        "factor": 2.0,
        "windows": 2,
        "depths": 0,
        "search": 0,
    }
    training = {
        "objective": real_tune.CE,
        "seed": 0,
        "steps": 1,
        "rate": 1e-30,
        "train_text": "sotu",
        "codes": 1,
    }
    rows = real_tune.measure(Workspace(tmp_path, CPU), method="none", **training, **settings)
    assert asked == [("sotu", 3_000_000, 9_000_000)]
    model, encode = open_real("tiny", CPU)
    expected = band_losses(model, real_windows(["python"], encode, 128, 2), BANDS)
    for each in select(rows, "loss"):
        assert each["values"] == pytest.approx(expected[each["band"]], rel=1e-4)


@pytest.mark.parametrize("windows", [0, 3])
def test_without_a_search_there_is_no_spare_window(tmp_path, windows):
    model, encode = open_real("tiny", CPU)
    meter = make_meter(
        Workspace(tmp_path, CPU),
        model,
        encode,
        ["python"],
        name="tiny",
        trained=64,
        factor=2.0,
        windows=windows,
    )
    assert (len(meter.samples.windows), meter.samples.spare) == (windows, None)


def test_the_note_of_a_table_names_model_texts_and_seeds():
    assert (
        source_note(FACTS)
        == "Model smollm2, trained to 8,192 tokens; text moby-dick, sotu; 1 seed."
    )


def extend_rows(
    factor: float, losses: dict[str, tuple[tuple[float, float], ...]], ppl: float
) -> list[dict]:
    """Return rows of `real_extend`; `losses` has (mean, standard error) by method and band, and
    each loss row has two windows with these.
    """
    fields = {"factor": factor, "trained": 8192}
    rows = [
        row("loss", [mean - error, mean + error], band=band, method=name, **fields)
        for name, bands in losses.items()
        for band, (mean, error) in zip(("0-4k", "4k-8k", "8k-16k", "16k-32k"), bands, strict=True)
    ]
    return rows + [
        row("long_ppl", ppl + place, method=name, keys=9, **fields)
        for place, name in enumerate(losses)
    ]


def test_the_table_of_each_factor_shows_its_own_long_ppl():
    losses = {"none": ((3.0, 0.1),) * 4, "yarn": ((2.0, 0.1),) * 4}
    rows = extend_rows(4, losses, 10.0) + extend_rows(2, losses, 20.0)
    four, two = real_extend.findings(rows, FACTS).tables
    assert four.columns == ("method", "0-4k", "4k-8k", "8k-16k", "16k-32k", "LongPPL")
    assert [cells[-1] for cells in four.rows] == ["10.00", "11.00"]
    assert [cells[-1] for cells in two.rows] == ["20.00", "21.00"]
    assert four.rows[0] == ("none", *["3.000 ± 0.100"] * 4, "10.00")


#: within and beyond the trained length of SmolLM2, 8,192
KEY_LENGTHS = (2_000, 4_000, 7_800, 12_000, 16_000, 24_000, 31_000)


def key_rows(found: dict[str, tuple[int, ...]], depths: int = 10) -> list[dict]:
    """Return rows in which a method finds the keys at the first `count` depths of a length; `found`
    has these counts.
    """
    return [
        row(
            "found",
            float(place < count),
            method=name,
            length=length,
            depth=place / depths,
            factor=4.0,
            trained=8192,
        )
        for name, counts in found.items()
        for length, count in zip(KEY_LENGTHS, counts, strict=False)
        for place in range(depths)
    ]


def test_a_method_that_was_not_asked_at_a_length_has_a_dash_there():
    found = {"none": (9, 10, 10, 0, 0, 0, 0), "yarn": (0, 0, 1)}
    (table,) = real_passkey.findings(key_rows(found), FACTS).tables
    assert table.rows[1] == ("yarn", "0% ± 0%", "0% ± 0%", "10% ± 10%", *["-"] * 4)


def test_a_text_of_the_trained_length_is_within_it():
    """Ten pass keys each: at 8,192 tokens yarn misses most, beyond them the model as it is."""
    found = {
        "none": {8192: 10, 8193: 1},
        "yarn": {8192: 2, 8193: 9},
        "dynamic_yarn": {8192: 9, 8193: 9},
    }
    rows = [
        row("found", float(place < count), method=name, length=length, depth=place, trained=8192)
        for name, counts in found.items()
        for length, count in counts.items()
        for place in range(10)
    ]
    evidence = {claim.text: claim.evidence for claim in real_passkey.claims(rows, 8192)}
    where = {text: numbers.split(" ±")[0] for text, numbers in evidence.items()}
    assert where == {
        "Beyond the trained length, yarn misses fewer pass keys than none": "yarn minus none: -0.800",
        "Within the trained length, none misses fewer pass keys than yarn": "none minus yarn: -0.800",
        "Within the trained length, dynamic_yarn misses fewer pass keys than yarn": (
            "dynamic_yarn minus yarn: -0.700"
        ),
    }


@pytest.mark.parametrize(
    ("mean", "verdict"),
    # the error is 0.01, and the limit 0.05
    [(0.02, HOLDS), (0.03, HOLDS), (0.04, TIED), (0.06, TIED), (0.069, TIED), (0.08, FAILS)],
)
def test_a_value_is_judged_with_a_margin_of_two_errors(mean, verdict):
    value = Score(np.array([[mean - 0.01, mean + 0.01]]))
    assert value.error == pytest.approx(0.01)
    assert real_tune._verdict(value, 0.05) == verdict


def test_the_heat_map_has_a_panel_for_each_method():
    rows = key_rows({"none": (1, 0), "yarn": (0, 2)}, depths=2)
    figure = real_passkey.findings(rows, FACTS).figures["real_passkey"]()
    panels = {ax.get_title(loc="left"): ax.get_images()[0].get_array() for ax in figure.axes}
    assert panels.keys() == {"none", "yarn"}
    assert np.asarray(panels["none"]).tolist() == [[1, 0], [0, 0]]  # depths down, lengths across
    assert np.asarray(panels["yarn"]).tolist() == [[0, 1], [0, 1]]


def test_the_claim_about_kl_states_the_error_over_paired_windows():
    fields = {"dtype": "float16", "length": 48, "offset": 0, "trained": 64}
    ours, more = np.arange(1, 10), np.array([2, 4, 2, 4, 2, 4, 2, 4, 3])
    rows = [row("kl", 1e-4 * ours, rotation="ropewalk", **fields)]
    rows += [row("kl", 1e-4 * (ours + more), rotation="transformers", **fields)]
    found = real_precision.findings(rows, FACTS)
    (claim,) = found.claims
    # the differences have a mean of -3 and a deviation of 1, which is divided by the root of nine
    # windows
    assert claim.evidence == "ropewalk minus transformers: -3.0e-04 ± 3e-05"
    assert claim.verdict == HOLDS
    assert found.tables[0].rows[0] == ("float16", "48", "ropewalk", "5.00e-04 ± 9.1e-05")
    (ax,) = found.figures["real_precision"]().axes
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == (
        "KL to the float32 model",
        "first position",
    )


def test_an_offset_that_one_rotation_lacks_is_left_out_of_its_line():
    measured = (("ropewalk", 0, 1e-4), ("ropewalk", 9, 2e-4), ("transformers", 9, 3e-4))
    rows = [
        row("kl", [kl, kl], dtype="float16", length=48, trained=64, rotation=name, offset=offset)
        for name, offset, kl in measured
    ]
    found = real_precision.findings(rows, FACTS)
    assert found.tables[0].rows[1][3] == "-"
    (ax,) = found.figures["real_precision"]().axes
    points = [line.get_xydata().tolist() for line in ax.lines if len(line.get_xdata())]
    assert [[9.0, pytest.approx(3e-4)]] in points


class Recorded(real_kv.Continuation):
    """Keys are the positions at which tokens were read, values the tokens; a loss is what it saw."""

    def __init__(self) -> None:
        """No model is needed."""

    def cached(self, tokens, first=0):
        places = torch.arange(first, first + len(tokens))
        layer = SimpleNamespace(keys=places[None, None], values=tokens[None, None])
        return SimpleNamespace(layers=[layer])

    def move(self, cache, before, after):
        (layer,) = cache.layers
        assert layer.keys[0, 0].tolist() == before.tolist()
        layer.keys = after[None, None]
        return cache

    def loss(self, tokens, cache, first):
        (layer,) = cache.layers
        seen = layer.keys[0, 0].tolist(), layer.values[0, 0].tolist()
        return *seen, tokens.tolist(), first  # type: ignore[return-value]


def test_each_way_to_continue_has_its_keys_at_its_positions():
    """A window of the tokens 0 ... 9, whose last two are measured; the first is never dropped."""
    whole, kept, coming = [0, 1, 2, 3, 4, 5, 6], [0, 4, 5, 6], [7, 8, 9]
    assert Recorded().losses(torch.arange(10), count=2, sinks=1, shift=100) == {
        "read again": (whole, whole, coming, 7),
        "shift": ([each + 100 for each in whole], whole, coming, 107),
        "read again, without the dropped tokens": ([0, 1, 2, 3], kept, coming, 4),
        "evict, gap kept": (kept, kept, coming, 7),
        "evict, gap closed": ([0, 1, 2, 3], kept, coming, 4),
        "reuse, re-rotated": (whole, whole, coming, 7),
        "reuse, as cached": ([0, 1, 2, 3, 0, 1, 2], whole, coming, 7),
    }


def test_each_way_to_continue_is_compared_with_reading_the_same_tokens_again():
    means = {
        "read again": 1.0,
        "shift": 1.001,
        "read again, without the dropped tokens": 2.0,
        "evict, gap kept": 2.5,
        "evict, gap closed": 2.0625,
        "reuse, re-rotated": 1.25,
        "reuse, as cached": 4.0,
    }
    rows = [
        row("loss", [mean, mean, mean], way=way, trained=64, length=48)
        for way, mean in means.items()
    ]
    found = real_kv.findings(rows, FACTS)
    compared = {way: (reference, gap) for way, _, reference, gap in found.tables[0].rows}
    assert compared == {
        "read again": ("the reference", "-"),
        "shift": ("read again", "+0.0010 ± 0.0000"),
        "read again, without the dropped tokens": ("the reference", "-"),
        "evict, gap kept": ("read again, without the dropped tokens", "+0.5000 ± 0.0000"),
        "evict, gap closed": ("read again, without the dropped tokens", "+0.0625 ± 0.0000"),
        "reuse, re-rotated": ("read again", "+0.2500 ± 0.0000"),
        "reuse, as cached": ("read again", "+3.0000 ± 0.0000"),
    }
    assert {claim.text: claim.verdict for claim in found.claims} == {
        "shift: within 0.01 nats of 'read again'": HOLDS,
        "evict, gap closed: within 0.1 nats of 'read again, without the dropped tokens'": HOLDS,
        "reuse, re-rotated: within 0.1 nats of 'read again'": FAILS,
        "reuse, as cached: within 0.1 nats of 'read again'": FAILS,
    }


def test_the_bars_of_a_continued_cache_have_a_title_and_a_unit():
    rows = [
        row("loss", [2.0, 2.2], way=way, trained=64, length=48) for way in ("read again", "shift")
    ]
    (ax,) = real_kv.findings(rows, FACTS).figures["real_kv"]().axes
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == (
        "Loss of the next tokens",
        "nats per token",
    )
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([2.1, 2.1])


class Windows:
    """A meter that has measured two long windows, in the wrong order, and two short ones."""

    samples = SimpleNamespace(to=128, trained=64, bands=[(0, 64), (64, 128)])

    def __init__(self, sums, counts):
        self.texts = [
            {"metric": "text", "length": 128, "window": place, "bands": [place, place + 0.5]}
            | {"loss": 9.0, "key_sum": sums[place], "key_count": counts[place], "seconds": place}
            for place in (1, 0)
        ]
        self.texts += [
            {"metric": "text", "length": 64, "window": place, "loss": 3.0 + place}
            for place in (1, 0)
        ]
        self.texts.append({"metric": "passkey", "length": 128})

    def rows_of(self, methods):
        assert list(methods) == ["yarn"]
        return self.texts


@pytest.mark.parametrize(
    ("sums", "counts", "ppl"),
    [
        # e^((6 + 2) / (3 + 1)): the mean over key tokens, not over windows
        ((6.0, 2.0), (3, 1), math.exp(2)),
        ((800.0, 800.0), (1, 1), 1e9),
        ((0.0, 0.0), (0, 0), None),
    ],
)
def test_the_rows_of_an_extended_model_are_in_the_order_of_the_windows(sums, counts, ppl):
    rows = real_extend._rows(Windows(sums, counts), "yarn", None, 2.0)  # type: ignore[arg-type]
    fields = {"method": "yarn", "factor": 2.0, "trained": 64}
    found = {each.get("band", each["metric"]): each for each in rows}
    assert all(fields.items() <= each.items() for each in rows)
    values = {name: found[name]["values"] for name in ("0-64", "64-128", "within", "seconds")}
    assert values == {
        "0-64": [0.0, 1.0],
        "64-128": [0.5, 1.5],
        "within": [3.0, 4.0],
        "seconds": [0.0, 1.0],
    }
    if ppl is None:
        assert "long_ppl" not in found
    else:
        assert found["long_ppl"]["values"] == pytest.approx([ppl], rel=1e-5)
        assert found["long_ppl"]["keys"] == sum(counts)


def test_a_search_of_no_rounds_names_the_smallest_number_of_rounds(tmp_path):
    settings = {"model": "tiny", "text": ["python"], "methods": ["longrope"], "windows": 1}
    with pytest.raises(RopeError) as error:
        real_extend.measure(Workspace(tmp_path, CPU), factor=2, search=0, **settings)
    assert (error.value.field, error.value.rule, error.value.value) == (
        "search",
        "must be at least 1 to measure longrope, whose factors are searched",
        0,
    )
