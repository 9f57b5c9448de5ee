"""Figures of methods for long contexts show the numbers of the methods."""

import pytest

from ropewalk.attention.remap import ReRope, SelfExtend
from ropewalk.attention.temperature import LogN
from ropewalk.plots.look import Look
from ropewalk.plots.methods import distance_lines, temperature_lines


@pytest.mark.parametrize("look", [Look(), Look(language="zh")], ids=["en", "zh"])
def test_lines_are_those_of_the_methods(look):
    ax = distance_lines({"a": ReRope(3), "b": SelfExtend(2, 4)}, 7, trained=6, look=look).axes[0]
    plain, first, second, _ = ax.get_lines()
    assert [*plain.get_ydata()] == [*range(8)]
    assert [*first.get_ydata()] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert [*second.get_ydata()] == [0, 1, 2, 3, 4, 4, 5, 5]
    (line,) = temperature_lines({"log-n": LogN(4)}, 8, look=look).axes[0].get_lines()
    assert [line.get_ydata()[0], line.get_ydata()[-1]] == pytest.approx([1, 1.5])
    assert all((ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()))
