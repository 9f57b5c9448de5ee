"""Triplets: read, split and swapped so that neither a leak nor a constant answer wins."""

import json

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk_lab.matching import Triplet, TripletBatches, read_triplets, split_triplets
from ropewalk_lab.objectives import pairs, triplets
from ropewalk_lab.stateless_random import bits

MANY = [Triplet(f"case {i % 20}", f"like {i}", f"unlike {i}", "B") for i in range(60)]


def test_lines_are_read_with_and_without_labels(tmp_path):
    path = tmp_path / "input.txt"
    lines = [{"A": "甲", "B": "b", "C": "c"}, {"A": "a", "B": "b", "C": "c", "label": "C"}]
    path.write_text(
        "\ufeff" + "\n".join(json.dumps(line, ensure_ascii=False) for line in lines),
        encoding="utf-8",
    )
    assert read_triplets(path) == [Triplet("甲", "b", "c", "B"), Triplet("a", "b", "c", "C")]
    assert read_triplets(path, unlabelled="C")[0].label == "C"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1 must be JSON"),
        ('{"A": 1}', "strings in the fields A, B, C"),
        ('{"A":"","B":"","C":"","label":"D"}', "B, C"),
        ("", "at least"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    (tmp_path / "x").write_text(line)
    with pytest.raises(RopeError, match=said):
        read_triplets(tmp_path / "x")


def test_no_text_a_is_in_both_splits():
    train, valid = split_triplets(MANY)
    assert train
    assert valid
    assert sorted(t.b for t in train + valid) == sorted(t.b for t in MANY)
    assert not {t.a for t in train} & {t.a for t in valid}


def test_the_constant_answer_is_right_half_of_the_time():
    targets = TripletBatches(MANY).batch(np.arange(600), 40).targets
    assert 0.42 < targets.float().mean() < 0.58
    assert TripletBatches(MANY, shuffle=False).batch(np.arange(60), 40).targets.sum() == 0


def test_the_last_random_bit_of_a_sample_says_whether_it_is_swapped():
    """This rule is fixed, so that a seed gives the same samples in every version of the package."""
    index = np.arange(60)
    swapped = bits(7, index, stream=1, count=1)[:, 0] & np.uint64(1)
    assert TripletBatches(MANY, seed=7).batch(index, 40).targets.tolist() == swapped.tolist()


@pytest.mark.parametrize("form", TripletBatches.FORMS)
def test_the_target_of_a_triplet_points_at_the_text_closer_to_a(form):
    batch = TripletBatches(MANY, form).batch(np.arange(60), 40)
    texts = [bytes(row[pad].tolist()) for row, pad in zip(batch.inputs, batch.padding, strict=True)]
    per = 2 if form == "pairs" else 3
    assert len(texts) == per * 60 == per * batch.count
    for number, target in enumerate(batch.targets.tolist()):
        near, far = (
            texts[per * number : per * (number + 1)][-2:]
            if target == 0
            else texts[per * number : per * (number + 1)][:-3:-1]
        )
        assert b"unlike" in far
        assert b"unlike" not in near


def test_every_triplet_once_before_any_comes_again():
    seen = TripletBatches(MANY, "triplets").batch(np.arange(60), 40).inputs.view(60, 3, -1)
    found = {bytes(row.tolist()).rstrip(b"\0") for three in seen for row in three[1:]}
    assert found == {t.encode() for m in MANY for t in (m.b, m.c)}


def test_two_long_texts_each_get_half_of_the_row():
    long = [Triplet("a" * 99, "b" * 99, "c" * 99, "B")]
    batch = TripletBatches(long, shuffle=False).batch(np.array([0]), 20)
    assert [bytes(row.tolist()) for row in batch.inputs] == [
        b"a" * 9 + b"\0" + letter * 10 for letter in (b"b", b"c")
    ]


class Counts(nn.Module):
    """A model that scores a pair, or maps a text to a vector, by whether the letter u is in it."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, tokens, padding, types=None):
        says_un = (tokens == ord("u")).any(1).float()
        return -says_un * 5 if self.form == "pairs" else torch.stack((1 - says_un, says_un), dim=1)


@pytest.mark.parametrize(("form", "objective"), [("pairs", pairs), ("triplets", triplets)])
def test_losses_of_pairs_and_triplets_of_right_and_of_wrong_choices(form, objective):
    batch = TripletBatches(MANY, form).batch(np.arange(30), 40)
    right = objective(Counts(form), batch)
    wrong = objective(
        Counts(form),
        type(batch)(batch.inputs, 1 - batch.targets, batch.count, padding=batch.padding),
    )
    expected = {"pairs": 30 * np.log1p(np.exp(-5)), "triplets": 0.0}[form]
    assert right.item() == pytest.approx(expected, abs=1e-4)
    assert wrong.item() == pytest.approx(
        {"pairs": 30 * np.log1p(np.exp(5)), "triplets": 30 * 1.2}[form], rel=1e-5
    )


def test_triplets_in_their_order_have_another_fingerprint():
    triplets = [Triplet("a", "b", "c", "B"), Triplet("d", "e", "f", "C")]
    assert (
        TripletBatches(triplets).fingerprint != TripletBatches(triplets, shuffle=False).fingerprint
    )


FIRST = [Triplet("a", "b", "c", "B"), Triplet("d", "e", "f", "C")]
OTHERS = {
    "form": TripletBatches(FIRST, "triplets"),
    "seed": TripletBatches(FIRST, seed=1),
    "order": TripletBatches(FIRST, shuffle=False),
    "order of lines": TripletBatches(FIRST[::-1]),
    "label": TripletBatches([Triplet("a", "b", "c", "C"), FIRST[1]]),
    "no label": TripletBatches([Triplet("a", "b", "c", None), FIRST[1]]),
    "text": TripletBatches([Triplet("a", "b", "x", "B"), FIRST[1]]),
    "ends of texts": TripletBatches([Triplet("ab", "", "c", "B"), FIRST[1]]),
}


@pytest.mark.parametrize("change", OTHERS)
def test_other_samples_have_another_fingerprint(change):
    assert OTHERS[change].fingerprint != TripletBatches(FIRST).fingerprint
    assert OTHERS[change].fingerprint == OTHERS[change].fingerprint


def test_about_a_tenth_of_the_triplets_is_held_out():
    train, valid = split_triplets([Triplet(f"case {i}", "", "", "B") for i in range(2000)])
    assert 150 < len(valid) < 250
    assert len(train) == 2000 - len(valid)


def test_another_seed_gives_another_order():
    starts = [
        TripletBatches(MANY, "triplets", seed=seed).batch(np.arange(60), 40).inputs.tolist()
        for seed in (0, 0, 1)
    ]
    assert starts[0] == starts[1]
    # the order of the texts A, whatever is swapped
    assert [row[:12] for row in starts[0][::3]] != [row[:12] for row in starts[2][::3]]


def test_rows_of_two_texts_say_which_text_is_which_and_rows_of_one_do_not():
    pair = TripletBatches(FIRST, shuffle=False).batch(np.arange(2), 8)
    assert pair.inputs.shape == (4, 8)
    assert {tuple(row) for row in pair.types.tolist()} == {
        (0, 0, 1, 0, 0, 0, 0, 0)
    }  # a, the separator, b
    assert pair.padding.sum(1).tolist() == [3] * 4
    assert TripletBatches(FIRST, "triplets").batch(np.arange(2), 8).types is None


def test_a_triplet_without_a_label_is_not_counted():
    known = [Triplet("a", "b", "c", "B"), Triplet("d", "e", "f", None), Triplet("g", "h", "i", "C")]
    batch = TripletBatches(known, shuffle=False).batch(np.arange(3), 8)
    assert (batch.targets.tolist(), batch.count) == ([0, -100, 1], 2)
