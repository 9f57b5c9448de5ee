"""The last line of `ropewalk bench`: who is the fastest, and how far from a copy."""

import pytest

from ropewalk_cli.commands.bench import verdict


def row(contender: str, us: float, shape: str = "a", **more) -> dict:
    return {"shape": shape, "order": "bhsd", "dtype": "float32", "pass": "forward"} | {
        "contender": contender,
        "us": us,
        "copy_us": 10.0,
        **more,
    }


def test_without_lost_cases_the_verdict_is_the_ratio_to_a_copy():
    rows = [row("ropewalk", 12.0), row("peer", 30.0), row("ropewalk, eager", 11.0)]
    assert verdict(rows) == (
        "Verdict: ropewalk is the fastest in 1 of 1 cases, in the median 1.20 times as long as a copy."
    )


def test_the_verdict_names_the_winner_of_lost_cases():
    rows = [row("ropewalk", 12.0), row("peer", 30.0)]
    rows += [row("ropewalk", 40.0, "b"), row("peer", 20.0, "b"), row("other", 35.0, "b")]
    assert verdict(rows) == (
        "Verdict: ropewalk is the fastest in 1 of 2 cases, in the median 2.60 times as long as a copy; "
        "elsewhere peer is ahead most often (1)."
    )


@pytest.mark.parametrize("rows", [[], [row("peer", 1.0)], [row("ropewalk", 1.0)]])
def test_without_a_comparison_there_is_no_verdict(rows):
    assert verdict(rows) == ""
