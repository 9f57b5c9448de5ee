"""Studies on pretrained models: what a tiny random Llama gives, measured by hand, and tables from
rows that were made up.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ropewalk_lab.studies import real, real_extend, real_kv, real_passkey, real_precision, real_tune
from ropewalk_lab.studies.findings import HOLDS
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
