"""Figures of methods for long contexts show the numbers of the methods."""

import pytest
import torch

from ropewalk.attention.remap import ReRope, SelfExtend
from ropewalk.frequencies import Clipped, Given, Yarn
from ropewalk.spec import RopeSpec
from ropewalk.temperatures import LogN
from ropewalk_lab.plots import look as looks
from ropewalk_lab.plots.further import LossBand, loss_by_position
from ropewalk_lab.plots.look import Look
from ropewalk_lab.plots.methods import (
    bars,
    directions,
    distance_lines,
    score_maps,
    temperature_lines,
)
from ropewalk_lab.plots.view import View

YARN = Yarn(factor=4.0, original_length=512)


@pytest.mark.parametrize("look", [Look(), Look(language="zh")], ids=["en", "zh"])
def test_lines_show_the_remapped_distances_and_temperatures(look):
    ax = distance_lines({"a": ReRope(3), "b": SelfExtend(2, 4)}, 7, trained=6, look=look).axes[0]
    plain, first, second, _ = ax.get_lines()
    assert [*plain.get_ydata()] == [*range(8)]
    assert [*first.get_ydata()] == [0, 1, 2, 3, 3, 3, 3, 3]
    assert [*second.get_ydata()] == [0, 1, 2, 3, 4, 4, 5, 5]
    (line,) = temperature_lines({"log-n": LogN(4)}, 8, look=look).axes[0].get_lines()
    assert [line.get_ydata()[0], line.get_ydata()[-1]] == pytest.approx([1, 1.5])
    assert all((ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()))


@pytest.mark.parametrize("title", ["Any {words} of the caller", "distance"])
def test_a_title_is_translated_only_if_it_has_a_translation(monkeypatch, title):
    monkeypatch.setattr(looks, "chinese_font", lambda: "Some Font")
    chinese = Look(language="zh")
    titles = {"distance": "距离"}
    assert bars({"a": 1.0}, title=title, x="x", look=chinese).axes[0].get_title(
        loc="left"
    ) == titles.get(title, title)
    assert bars({"a": 1.0}, title=title, x="x").axes[0].get_title(loc="left") == title
    ax = directions(torch.randn(2, 3, 2), title=title, look=chinese).axes[0]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("每列的弧度", "每行的弧度")
    ax = score_maps({"RoPE": torch.randn(2, 3)}, label="score", look=chinese).axes[0]
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("RoPE", "键", "查询")


def test_ticks_of_the_loss_by_position_are_the_ends_of_the_bands():
    bands = [
        LossBand(0, 512, 1.0),
        LossBand(512, 1024, 1.0),
        LossBand(1024, 1500, 1.0),
        LossBand(1500, 4096, 1.0),
    ]
    ax = loss_by_position({"none": bands}, 1500, "a model").axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "512", "1k", "1,500", "4k"]


def test_the_subtitle_names_the_factor_of_the_innermost_scaling():
    parts = [
        View(RopeSpec(8, scaling=scaling)).parameters.split(" · ")[2]
        for scaling in (YARN, Clipped(YARN), Given((1.0,) * 4))
    ]
    assert parts == ["yarn 4", "clipped yarn 4", "given"]
    assert len(View(RopeSpec(8)).parameters.split(" · ")) == 3
