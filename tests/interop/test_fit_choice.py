"""How `fit` chooses among measured methods, keeps their rows, and puts them into words: cases
worked out by hand.
"""

import json
import math

import numpy as np
import pytest

from ropewalk_lab.fit.decide import Decision, MethodChoice, choose, decide, scores_of
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.summary import sentences, short_length, table
from ropewalk_lab.scores import Score

NOISE = np.array([0.3, -0.1, 0.2, -0.4])


def scores(far_loss, missed_far, near_loss):
    """Scores over four windows with the same noise, so that every difference of losses counts, and
    ten pass keys.
    """
    keys = np.array([1.0] * missed_far + [0.0] * (10 - missed_far))
    values = {
        "far_loss": far_loss + NOISE,
        "far_keys": keys,
        "near_loss": near_loss + NOISE,
        "near_keys": np.zeros(10),
    }
    return {name: Score(each) for name, each in values.items()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # `one` is behind by exp(0.1) - 1 = 11 % of perplexity beyond the trained length, `other` by
        # 22 % within it; one pass key is noise
        (scores(3.6, 0, 3.5), scores(3.5, 1, 3.7)),
        # `one` is behind by 22 % of perplexity, `other` by half of the pass keys
        (scores(3.7, 0, 3.5), scores(3.5, 5, 3.5)),
        # `one` is behind by half of the pass keys, `other` by 65 % of perplexity
        (scores(3.5, 5, 3.5), scores(4.0, 0, 3.5)),
    ],
)
def test_the_choice_is_nowhere_far_behind_the_best(one, other):
    for found in (choose({"one": one, "other": other}), choose({"other": other, "one": one})):
        assert found.method == "one"


def test_of_equal_largest_shortfalls_the_smaller_sum_decides():
    best_far, best_near = scores(3.5, 9, 4.0), scores(4.0, 9, 3.5)
    both, one = scores(3.6, 0, 3.6), scores(3.6, 0, 3.55)
    assert choose({"both": both, "far": best_far, "near": best_near, "one": one}).method == "one"
    behind_twice, behind_once = scores(3.6, 0, 3.6), scores(3.5, 0, 3.6)
    assert choose({"twice": behind_twice, "near": best_near, "once": behind_once}).method == "once"


def missed(count):
    """Return the score of ten pass keys of which `count` were missed.

    Noise may explain the difference of 0 and 2 misses, and that of 2 and 4, but not that of 0 and 4.
    """
    return Score(np.array([1.0] * count + [0.0] * (10 - count)))


def test_methods_that_beat_each_other_in_a_circle_are_not_equal():
    a = {"far_loss": missed(4), "far_keys": missed(0), "near_keys": missed(2)}
    b = {"far_loss": missed(2), "far_keys": missed(4), "near_keys": missed(0)}
    c = {"far_loss": missed(0), "far_keys": missed(2), "near_keys": missed(4)}
    found = choose({"a": a, "b": b, "c": c})
    # each is behind in one measure: a by exp(0.4) - 1 = 49 %, b and c by 40 %, of which c finds
    # more far keys
    assert (found.method, found.equal, found.beats) == ("c", (), ("a",))


def test_the_reason_has_the_value_and_the_difference_of_each_measure():
    found = choose({"one": scores(3.5, 5, 3.5), "other": scores(4.0, 0, 3.5)})
    loss, keys, near, _ = found.reason.split("; ")
    assert (
        loss == "loss in the last band 3.500 ± 0.158 (better than other, the next: -0.500 ± 0.000)"
    )
    assert (
        keys
        == "pass keys beyond the trained length 50% ± 17% (worse than other, the best: -50% ± 17%)"
    )
    assert (
        near
        == "loss within the trained length 3.500 ± 0.158 (no difference to other: +0.000 ± 0.000)"
    )
    two_windows = {
        name: {"far_loss": Score(np.array([far, far + 1]))}
        for name, far in (("one", 3.0), ("other", 3.5))
    }
    assert (
        choose(two_windows).reason
        == "loss in the last band 3.500 ± 0.500 (better than other, the next: -0.500 ± 0.000)"
    )
    assert choose({"none": scores(3.5, 5, 3.5)}).reason.startswith(
        "loss in the last band 3.500 ± 0.158; pass keys"
    )


def text_row(method, window, *bands):
    return {"metric": "text", "method": method, "window": window, "length": 40, "bands": bands}


def test_the_last_band_counts_of_methods_that_read_most_windows():
    rows = [
        text_row("a", 0, 1.0, 2.0, 3.0),
        *(text_row("b", window, 4.0, 5.0, 6.0 + window) for window in (1, 2)),
    ]
    found = scores_of(rows, 10, 40)
    assert found.keys() == {"b"}
    assert found["b"]["far_loss"].values.tolist() == [[7.0, 8.0]]


def one_window(**losses):
    return {name: {"far_loss": Score(np.array([loss]))} for name, loss in losses.items()}


def test_one_window_tells_methods_apart_only_by_a_material_difference_and_has_no_error_bar():
    found = choose(one_window(yarn=2.5, none=3.5, ntk=2.51))
    assert (found.method, found.equal, found.beats) == ("yarn", ("ntk",), ("none",))
    assert found.reason == "loss in the last band 2.500 (no difference to ntk: -0.010)"
    assert choose(one_window(yarn=3.49, none=3.5)).method == "none"


def test_a_loss_far_above_another_is_no_overflow():
    found = choose({"a": scores(3.5, 5, 3.5), "b": scores(3000.0, 0, 3.5)})
    assert found.method == "a"


def test_rows_of_one_setting_are_found_again_by_the_same_id():
    # printf '{"seed": 0, "to": 64}' | sha256sum | cut -c 1-12
    assert (
        Ledger(None, {"seed": 0, "to": 64}).id
        == Ledger(None, {"to": 64, "seed": 0}).id
        == "c424107b8d5d"
    )
    assert Ledger(None, {"seed": 1, "to": 64}).id != "c424107b8d5d"


@pytest.mark.parametrize(
    ("tokens", "text"), [(32768, "32k"), (1024, "1k"), (1025, "1,025"), (2000, "2,000"), (0, "0")]
)
def test_lengths_are_written_as_people_write_them(tokens, text):
    assert short_length(tokens) == text


FACTS = {
    "trained": 1024,
    "to": 4096,
    "bands": [(0, 512), (512, 1024), (1024, 2048), (2048, 4096)],
    "windows": 2,
    "passkeys": 8,
}
BANDS = [[4.0, 3.0, 5.0, 7.0], [4.2, 3.2, 5.2, 7.4]]


def text_rows(method, sums, counts, memory=None):
    """Rows of two windows: bands, the sums of the losses of key tokens and their number; 1.5 and
    2.5 seconds.
    """
    rows = []
    for window, (bands, total, count) in enumerate(zip(BANDS, sums, counts, strict=True)):
        row = {"metric": "text", "method": method, "window": window}
        rows.append(
            {
                **row,
                "length": 4096,
                "bands": bands,
                "key_sum": total,
                "key_count": count,
                "seconds": 1.5 + window,
                "memory": memory,
            }
        )
        rows.append({**row, "length": 1024, "loss": 3.0 + 0.4 * window})
    return rows


def keys(method, found):
    return [
        {"metric": "passkey", "method": method, "length": length, "depth": depth, "found": each}
        for length, values in found.items()
        for depth, each in enumerate(values)
    ]


def test_the_table_has_the_values_that_were_worked_out_by_hand():
    rows = [
        *text_rows("none", [6.0, 2.0], [2, 2]),
        *keys("none", {972: [1, 0], 1024: [1, 0], 1459: [0, 0], 3891: [1, 0]}),
        *text_rows("yarn", [40.0, 0.0], [4, 0], memory=3 * 10**9),
        *text_rows("ntk", [0.0, 0.0], [0, 0]),
        {"metric": "text", "method": "half done", "window": 0, "length": 1024, "loss": 2.5},
        {"metric": "factors", "method": "longrope", "values": [1.0]},
    ]
    columns, cells = table(
        rows, {**FACTS, "methods": ["none", "yarn", "ntk", "half done", "longrope"]}
    )
    losses = ["4.100 ± 0.100", "3.100 ± 0.100", "5.100 ± 0.100", "7.200 ± 0.200"]
    assert columns == [
        "method",
        "0-512",
        "512-1k",
        "1k-2k",
        "2k-4k",
        "LongPPL",
        "loss at 1k",
        "keys to 1k",
        "keys to 4k",
        "s",
        "GB",
    ]
    assert cells == [
        ["none", *losses, f"{math.exp(2):.2f}", "3.200 ± 0.200", "50%", "25%", "2.00", "-"],
        ["yarn", *losses, "2.2e+04", "3.200 ± 0.200", "-", "-", "2.00", "3.00"],
        ["ntk", *losses, "-", "3.200 ± 0.200", "-", "-", "2.00", "-"],
        ["half done", *["-"] * 5, "2.500", "-", "-", "-", "-"],
    ]


def said(rows, skipped):
    choice = MethodChoice("yarn", "it is", (), ())
    return sentences(Decision(choice, choice, choice), FACTS, skipped, rows)


def test_the_sentences_say_how_far_the_last_band_is_above_the_trained_length():
    rows = [
        *text_rows("yarn", [0, 0], [0, 0]),
        {"metric": "passkey", "method": "yarn", "length": 4096, "depth": 0, "found": 1},
    ]
    # 7.0 - 3.0 and 7.4 - 3.2: 4.1 with a standard error of 0.1
    gap = (
        "Its loss in the last band is 4.100 ± 0.100 above that in the band up to the trained "
        "length; training at the new length lowers it."
    )
    first = ["Recommended for 4k: yarn.", "Why: it is."]
    assert said(rows, {"dca": "no heads"}) == [*first, gap, "Not measured: dca (no heads)."]
    of_one_window = [row for row in rows if row.get("window", 0) == 0]
    assert said(of_one_window, {}) == first
    same = [
        {**row, "bands": [4.0, 3.0, 5.0, 3.0 + (-1) ** row["window"]]} if "bands" in row else row
        for row in rows
    ]
    assert said(same, {}) == first


def test_one_window_is_reported_to_have_no_error_bar():
    choice = MethodChoice("none", "it is", (), ())
    said_of = lambda **facts: sentences(
        Decision(choice, choice, choice), {**FACTS, **facts}, {}, []
    )
    line = (
        "One window has no error bar: losses count as different beyond 0.02 nats; measure two "
        "windows or more to know."
    )
    assert line in said_of(windows=1, passkeys=0)
    assert line in said_of(windows=1, passkeys=8)
    assert line not in said_of(windows=2, passkeys=0)


def test_a_method_without_a_config_is_recommended_for_a_material_gain_only():
    """DCA is better beyond the noise everywhere; 0.02 nats or one key in ten are material."""
    by_parts = scores(3.6, 5, 3.55)
    for dca, recommended in (
        (scores(3.59, 5, 3.54), "by_parts"),  # 0.01 nats
        (scores(3.603, 5, 3.54), "by_parts"),  # worse in the last band, better within
        (scores(3.57, 5, 3.55), "dca"),  # 0.03 nats
        (scores(3.6, 0, 3.55), "dca"),  # half of the pass keys
        (scores(3.57, 5, 3.6), "by_parts"),  # 0.05 nats worse within
    ):
        found = decide(
            {"none": scores(7.0, 9, 3.9), "by_parts": by_parts, "dca": dca}, ["by_parts"]
        )
        assert found.recommended.method == recommended, dca
        assert found.in_config.method == "by_parts"


def test_the_sentences_name_the_other_method_its_gain_and_what_serving_it_takes():
    rows = {"none": scores(7.0, 9, 3.9), "by_parts": scores(3.6, 5, 3.5)}
    found = decide({**rows, "dca": scores(3.59, 5, 3.5)}, ["by_parts"])
    text = " ".join(sentences(found, FACTS, {}, []))
    assert "Recommended for 4k: by_parts." in text
    lead = "dca measured best, but not by enough to recommend a method that no config expresses"
    assert f"{lead}: loss in the last band -0.010" in text
    assert "ropewalk.extend(model, 'dca', factor=4)" in text
    found = decide({**rows, "dca": scores(3.5, 5, 3.5)}, ["by_parts"])
    text = " ".join(sentences(found, FACTS, {}, []))
    assert "Recommended for 4k: dca." in text
    assert "The best method that a config can express: by_parts" in text
    assert "dca against by_parts: loss in the last band -0.100 ± 0.000 (material" in text
    assert "ropewalk.extend(model, 'dca', factor=4)" in text


def test_the_best_method_that_a_config_can_express_is_the_recommended_one_if_it_can_be():
    """With DCA measured, which beats the method `none`, linear is recommended; without DCA no measure
    tells linear from `none`.
    """
    none, linear, dca = ({"far_keys": missed(count)} for count in (4, 2, 0))
    found = decide({"none": none, "linear": linear, "dca": dca}, ["linear"])
    assert (found.recommended.method, found.in_config.method) == ("linear", "linear")
    assert choose({"none": none, "linear": linear}).method == "none"


def test_the_equal_methods_are_those_of_the_choice_and_a_beaten_method_is_none():
    """0 and 2 misses are equal within the noise, and so are 2 and 4; 0 and 4 are not."""
    few, some, many = ({"far_keys": missed(count)} for count in (0, 2, 4))
    found = choose({"few": few, "config": some, "many": many}, ["config"])
    assert (found.method, found.equal, found.beats) == ("config", ("few", "many"), ())
    # b is not told from a by any measure, but c beats it
    a = {"far_keys": missed(0), "near_keys": missed(2)}
    b = {"far_keys": missed(2), "near_keys": missed(4)}
    c = {"far_keys": missed(1), "near_keys": missed(0)}
    found = choose({"a": a, "none": b, "c": c})
    assert (found.method, found.equal, found.beats) == ("a", ("none", "c"), ())


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_method_with_a_loss_that_is_not_finite_has_no_score_and_says_so_in_the_table(loss):
    rows = [text_row(name, window, 1.0, 2.0) for name in ("none", "yarn") for window in (0, 1)]
    rows[3]["bands"] = (1.0, loss)
    assert scores_of(rows, 10, 40).keys() == {"none"}
    rows = [{**row, "seconds": 1.0, "memory": None} for row in rows]
    _, cells = table(
        rows, {"trained": 10, "to": 40, "bands": [(0, 10), (10, 40)], "methods": ["none", "yarn"]}
    )
    assert cells[1][1:3] == ["1.000 ± 0.000", "not finite"]


def test_the_memory_is_that_of_the_rows_that_have_one():
    rows = text_rows("yarn", [0.0, 0.0], [0, 0])
    rows[0]["memory"] = 5 * 10**9
    assert table(rows, {**FACTS, "methods": ["yarn"]})[1][0][-1] == "5.00"
    rows[0]["memory"], rows[2]["memory"] = None, 5 * 10**9
    assert table(rows, {**FACTS, "methods": ["yarn"]})[1][0][-1] == "5.00"


def test_a_last_row_without_its_end_of_line_is_kept_apart_from_the_next(tmp_path):
    path, setting = tmp_path / "rows.jsonl", {"seed": 0}
    Ledger(path, setting).add({"window": 0})
    path.write_text(path.read_text().rstrip("\n"))
    Ledger(path, setting).add({"window": 1})
    assert [json.loads(line)["window"] for line in path.read_text().splitlines()] == [0, 1]
