"""Bugs of public projects, planted into a plain rope one by one: each is found and named."""

import pytest

from conformance.plain import Plain
from ropewalk_conformance import load, run
from ropewalk_conformance.runner import DIFFERS, SAME

#: the bug of `Plain`, the mistake that the report must name, the group that shows it
PUBLIC = [
    (1, "partial_ignored", "partial"),
    (2, "theta_default", "spelling"),
    (3, "extension_without_effect", "extension"),
    (4, "scaling_ignored", "yarn"),
    (5, "proportional_taken_as_partial", "proportional"),
    (6, "indexer_layout", "indexer"),
    (7, "draft_without_scaling", "drafts"),
    (8, "draft_positions_without_axes", "drafts"),
    (9, "video_start_scaled", "video-positions"),
    (10, "documents_mixed", "packed-attention"),
    (11, "documents_mixed_in_ring", "ring-attention"),
    (12, "table_downcast_float16", "downcast"),
    (13, "first_rows_positions", "batches"),
    (13.5, "rows_after_first_empty", "batches"),
    (14, "softmax_scale_without_mscale", "softmax-scale"),
    (15, "quantised_scale_missing", "quantised"),
    (16, "permutation_missing", "permutation"),
    (16.5, "permutation_twice", "permutation"),
    (17, "longrope_mixed", "longrope"),
    (18, "cache_not_rotated", "cache-move"),
    (19, "position_ids_too_few", "drafts"),
    (20, "table_cached_without_theta", "cached-tables"),
]


#: groups that are run beside the group that shows a bug; with --full all groups are run
BESIDE = ["cached-tables", "extension", "default", "yarn"]


def test_the_plain_rope_is_right():
    report = run(Plain())
    assert report.passed
    assert report.findings == []
    assert {each.status for each in report.results} == {SAME}


@pytest.mark.parametrize(("bug", "mistake", "group"), PUBLIC)
@pytest.mark.slow
def test_a_public_bug_is_named(bug, mistake, group, full):
    report = run(Plain(bug), groups=None if full else [*dict.fromkeys([*BESIDE, group])])
    assert not report.passed
    assert report.findings[0].mistake == mistake
    assert group in {each.group for each in report.findings[0].results}
    assert mistake in str(report)


@pytest.mark.parametrize("name", ["inv_freq", "cos_sin", "rotate"])
@pytest.mark.parametrize("bug", [2, 4, 20])
def test_one_function_is_enough_to_name_a_mistake(bug, name):
    report = run(**{name: getattr(Plain(bug), name)}, groups=[*BESIDE, "spelling"])
    assert report.findings[0].mistake == {number: mistake for number, mistake, _ in PUBLIC}[bug]


def test_the_planted_bugs_are_numbered_from_1_to_20():
    assert {int(bug) for bug, _, _ in PUBLIC} == set(range(1, 21))


def test_numbers_of_no_known_mistake_are_not_given_a_name():
    class Odd(Plain):
        def inv_freq(self, config, part=None, length=None):
            frequencies, size = super().inv_freq(config, part, length)
            return frequencies * 1.0123, size

    report = run(inv_freq=Odd().inv_freq, groups="default yarn")
    assert report.findings == []
    cases = len(load("default")["cases"]) + len(load("yarn")["cases"])
    assert len(report.unexplained) == len(report.of(DIFFERS)) == cases
    assert "pair" in report.unexplained[0].words
