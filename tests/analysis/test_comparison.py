"""The comparison table is measured: each number against a formula worked out apart from it, and the
page against the table.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.encodings import ENCODINGS, Encoding
from ropewalk.encodings.base import distances
from ropewalk.encodings.bias import Alibi
from ropewalk.errors import RopeError
from ropewalk_lab.comparison import as_markdown, compare

HEADS, HEAD_DIM, LENGTH = 3, 10, 24
PAGE = Path(__file__).resolve().parents[2] / "docs" / "encodings.md"
START, END = "<!-- comparison: start -->\n", "<!-- comparison: end -->"


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in compare(ENCODINGS, HEADS, HEAD_DIM, LENGTH)}


def test_every_encoding_has_a_row_in_order(rows):
    assert list(rows) == list(ENCODINGS)


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_measured_columns_equal_the_class_attributes(rows, name):
    row, kind = rows[name], ENCODINGS[name]
    declared = (kind.relative, kind.causal_only, kind.linear, kind.bounded)
    assert (row.relative, row.causal_only, row.linear, row.bounded) == declared
    both = {"rope_alibi": "qk + scores", "rope_bias": "qk + scores"}
    assert row.entry == both.get(name, kind.entry)


def test_the_table_shows_what_is_measured_and_not_a_false_class_attribute(monkeypatch):
    class Boastful(Alibi):
        relative, linear, bounded, entry = False, True, True, "input"

    monkeypatch.setitem(ENCODINGS, "boastful", Boastful)
    (row,) = compare(["boastful"], HEADS, HEAD_DIM, LENGTH)
    assert (row.relative, row.linear, row.bounded, row.entry) == (True, False, False, "scores")


def test_parameter_counts_are_those_worked_out_by_hand(rows):
    by_hand = {
        "learned": LENGTH * HEADS * HEAD_DIM,
        "rope_learnable": HEAD_DIM // 2,
        "pope": HEADS * HEAD_DIM,
        "rope_bias": HEADS * (2 * LENGTH - 1),
        "relative_bias": HEADS * (2 * LENGTH - 1),
        "t5": 32 * HEADS,
        "t5_causal": 32 * HEADS,
        "kerple_log": 2 * HEADS,
        "kerple_power": 2 * HEADS,
        "fire": 32 + 32 + 32 * HEADS + HEADS + 2,
    }
    assert {name: row.parameters for name, row in rows.items() if row.parameters} == by_hand


def test_costs_are_those_worked_out_by_hand(rows):
    pairs_of_tokens = LENGTH**2
    assert rows["rope"].tensor_bytes == HEADS * LENGTH * HEAD_DIM * 4
    assert rows["alibi"].tensor_bytes == HEADS * pairs_of_tokens * 8  # float64 until the last step
    # NEZHA's vectors are multiplied with queries, and added to the values by their weights
    assert rows["nezha"].flops == 2 * (2 * HEADS * pairs_of_tokens * HEAD_DIM)
    assert rows["fire"].flops == 2 * pairs_of_tokens * 32 * (1 + HEADS)
    assert rows["none"].tensor_bytes == rows["none"].flops == rows["rope"].flops == 0


@pytest.mark.parametrize("name", [name for name in ENCODINGS if name != "none"])
def test_only_the_scores_entry_grows_with_the_square_of_the_length(rows, name):
    assert round(rows[name].order) == (2 if "scores" in rows[name].entry else 1)


def beyond(values):
    """Return how far any of n curves [4 * LENGTH, n] leaves the range of its first LENGTH points,
    divided by the widest of these ranges.
    """
    seen, new = values[:LENGTH], values[LENGTH:]
    low, high = seen.min(axis=0), seen.max(axis=0)
    return (
        max((new.max(axis=0) - high).max(), (low - new.min(axis=0)).max(), 0.0) / (high - low).max()
    )


def test_excess_of_fixed_curves_by_formula(rows):
    distance = np.arange(4 * LENGTH, dtype=float)[:, None]
    angles = distance * 10_000.0 ** (-np.arange(HEAD_DIM // 2) / (HEAD_DIM // 2))
    rotating = np.concatenate([np.cos(angles), np.sin(angles), -np.sin(angles)], axis=1)
    zeta = (2 * np.arange(HEAD_DIM // 2) + 0.4 * HEAD_DIM) / (1.4 * HEAD_DIM)
    decay = np.tile(zeta, 3) ** (distance / 512)
    softplus = math.log(2)
    curves = {
        "rope": rotating,
        "rope_learnable": rotating,
        "xpos": rotating * decay,
        "alibi": -distance,
        "kerple_power": -distance,
        "kerple_log": -np.log1p(softplus * distance),
    }
    for name, values in curves.items():
        assert rows[name].excess == pytest.approx(beyond(values), rel=1e-5), name


def test_excess_is_0_for_clipped_distances_and_above_0_for_untrained_t5_buckets(rows):
    assert rows["none"].excess == rows["relative_bias"].excess == 0
    assert rows["t5"].excess > 0  # trained on 24 tokens, T5 has not met the buckets of 24 ... 128
    (long,) = compare(["t5"], 2, 4, 128)
    assert long.excess == 0
    assert rows["learned"].excess is rows["learned"].spread is None


def test_the_spread_is_that_worked_out_by_hand(rows):
    assert rows["none"].spread == pytest.approx(4, abs=1e-12)
    in_use = []
    for length in (4 * LENGTH, LENGTH):
        counts = []
        for slope in (2.0**-4, 2.0**-8, 2.0**-2):  # ALiBi's for three heads
            weights = np.exp(-slope * np.arange(length))
            weights /= weights.sum()
            counts.append(np.exp(-(weights * np.log(weights)).sum()))
        in_use.append(np.mean(counts))
    assert rows["alibi"].spread == pytest.approx(in_use[0] / in_use[1], rel=1e-6)


def test_measuring_leaves_the_random_numbers_alone_and_repeats_itself():
    before = torch.random.get_rng_state()
    first = compare(["nezha", "learned"], 2, 4, 8)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(7)
    assert compare(["nezha", "learned"], 2, 4, 8) == first


def test_the_table_shows_drift_where_an_encoding_is_not_relative(rows):
    lines = as_markdown(rows.values()).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    shown = {line.split("|")[1].strip(" `"): line.split("|")[3].strip() for line in lines[2:]}
    assert shown["rope"] == "yes"
    assert shown["sinusoidal"] == f"no, {rows['sinusoidal'].drift:.2g}"


def test_the_page_shows_the_table_as_measured_now():
    text = PAGE.read_text(encoding="utf-8")
    shown = text[text.index(START) + len(START) : text.index(END)]
    assert shown.strip() == as_markdown(compare()).strip(), "run: python docs/tables.py"


def test_unknown_names_and_lengths_are_refused():
    with pytest.raises(RopeError, match="rope_alibi"):
        compare(["rotary"])
    with pytest.raises(RopeError, match="length"):
        compare(["rope"], length=2)


def test_excess_of_scores_that_are_all_equal_within_the_length(monkeypatch):
    """Within 16 tokens this bias is 0, so its range there is 0 and the excess is infinite."""

    class Horizon(Encoding):
        entry, linear = "scores", False

        def bias(self, q, q_positions, k_positions):
            return -torch.relu(distances(q_positions, k_positions).abs() - 16.0)

    monkeypatch.setitem(ENCODINGS, "horizon", Horizon)
    assert [
        compare(["horizon"], num_heads=2, head_dim=8, length=n)[0].excess == math.inf
        for n in (16, 24)
    ] == [True, False]
