"""Every row of mistakes.toml: the numbers that it predicts differ from the right ones and from those
of every other row.
"""

import pytest

from ropewalk_conformance import definition, groups, load
from ropewalk_conformance.functions import KINDS
from ropewalk_conformance.mistakes import EntryDifference, explain, mistakes

#: groups of vectors that are tried with cos_sin and rotate, unless a mistake names its own
FEW = ["default", "yarn", "layouts", "partial", "mrope", "batches", "drafts", "beyond-the-table"]
FEW += ["indexer", "far", "longrope"]
#: rows that predict no wrong numbers, but right numbers with a larger error
TESTED_ELSEWHERE = {"angle_float32"}
ROWS = [row for row in mistakes() if row.name not in TESTED_ELSEWHERE]


def planted(mistake, function):
    """Return a function's results on the vectors with a mistake planted: the wrong ones, and those
    that the mistake leaves right.
    """
    kind, wrong, right = KINDS[function], [], []
    few = function in ("cos_sin", "rotate")
    for name in mistake.groups or (FEW if few else groups()):
        group = load(name)
        cases = group["cases"] if function in group["functions"] else []
        for case in [*cases[:2], *cases[2:][-2:]] if few else cases:
            numbers = kind.predicted(case, mistake.change)
            if numbers:
                each = EntryDifference(name, case, kind, [numbers], group["tolerance"], "float32")
                (right if each.is_right() else wrong).append(each)
    return wrong, right


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("mistake", ROWS, ids=lambda mistake: mistake.name)
def test_a_mistake_is_told_apart_from_the_others(mistake):
    for function, kind in KINDS.items():
        if not mistake.change.keys() <= kind.depends_on:
            continue
        wrong, right = planted(mistake, function)
        if wrong:
            found, left = explain(wrong, right)
            assert found[0][0].name == mistake.name
            assert left == []
            return
    pytest.fail("no vector shows this mistake")


def test_a_row_has_words_and_a_fix():
    assert len(mistakes()) >= 100
    assert len({row.name for row in mistakes()}) == len(mistakes())
    for row in mistakes():
        assert row.words.endswith(".")
        assert row.fix.endswith((".", "?"))
        assert set(row.groups) <= set(groups())


def test_two_mistakes_at_once_are_both_named():
    names = {"ramp_inverted", "magnitude_missing"}
    change = {"ramp": "inverted", "magnitude": "none"}
    group, kind = load("yarn"), KINDS["cos_sin"]
    case = group["cases"][0]
    numbers = kind.predicted(case, change)
    each = EntryDifference("yarn", case, kind, [numbers], group["tolerance"], "float32")
    found, left = explain([each], [])
    assert (set(found[0][0].name.split(" + ")), left) == (names, [])


@pytest.mark.parametrize(
    ("kind", "x", "rounded"),
    [("bfloat16", 257.0, 256.0), ("bfloat16", 3.0, 3.0), ("float16", 2049.0, 2048.0)],
)
def test_numbers_are_rounded_to_a_type(kind, x, rounded):
    assert definition.ROUND[kind](x) == rounded


@pytest.mark.parametrize(
    ("name", "function"), [("packed-attention", "attention"), ("cache-move", "move")]
)
def test_a_rope_of_another_call_shows_in_attention_and_in_moved_keys(name, function):
    group, kind = load(name), KINDS[function]
    case = group["cases"][0]
    other = {**case["rope"], "theta": 77.0}
    stale = kind.predicted({**case, "rope": other}, {})
    earlier = {"earlier": [case["rope"], other]}
    each = EntryDifference(name, case, kind, [stale], group["tolerance"], "float32", **earlier)
    assert not each.is_right()
    assert each.is_stale()
    # the case has no call before it, and no other part
    assert kind.predicted(case, {"rope": "before"}) == kind.predicted(case, {"part": "other"}) == []
    assert kind.predicted(case, {"rope": {**other, "head_dim": 2 * other["head_dim"]}}) == []
