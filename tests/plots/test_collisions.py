"""No two texts of a figure overlap, whatever the config: their boxes are measured after the figure
is drawn.
"""

import itertools
from pathlib import Path

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from ropewalk.config.examples import EXAMPLES
from ropewalk.frequencies import Yarn
from ropewalk.spec import RopeSpec
from ropewalk_lab import plots
from ropewalk_lab.analysis import read_checkpoint
from ropewalk_lab.plots import distance, look, rotation
from ropewalk_lab.plots.motion import reading

NAMES = ("Llama-3.1-8B", "Gemma-3-27B", "DeepSeek-V3")


def view_of(name: str, language: str = "en") -> plots.View:
    facts = next(
        each for each in read_checkpoint(EXAMPLES[name]).layers.values() if each is not None
    )
    return plots.View(facts.spec, facts.trained, facts.served, plots.Look(language=language))


def labels_outside(axis) -> list[Text]:
    """Return the labels of ticks beyond the ends of an axis, which matplotlib makes but does not
    draw.
    """
    low, high = sorted(axis.get_view_interval())
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    return [
        label
        for tick in ticks
        if not low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]


def overlapping(figure) -> list[tuple[str, str]]:
    """Return the pairs of texts whose boxes overlap by more than 1.5 pixels in both directions."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    undrawn = {
        label
        for ax in figure.axes
        for axis in (ax.xaxis, ax.yaxis)
        for label in labels_outside(axis)
    }
    texts = [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in undrawn
    ]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in texts]
    inside = [(words, box) for words, box in boxes if box.width > 0 and figure.bbox.overlaps(box)]
    return [
        (first, second)
        for (first, a), (second, b) in itertools.combinations(inside, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > 1.5 and min(a.y1, b.y1) - max(a.y0, b.y0) > 1.5
    ]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("config", NAMES)
@pytest.mark.parametrize("name", plots.FIGURES)
def test_no_two_texts_overlap(monkeypatch, name, config):
    monkeypatch.setattr(rotation, "PRECISION_POINTS", 3)
    monkeypatch.setattr(distance, "TSNE_POSITIONS", 20)
    figure = plots.draw(name, view_of(config))
    assert overlapping(figure) == []
    if name != "clocks":
        texts = {text.get_text() for text in figure.findobj(Text)}
        assert any(words.startswith("head_dim ") and "trained " in words for words in texts)


def test_two_overlapping_texts_are_found():
    figure, (ax,) = look.blank(look.LIGHT)
    ax.text(0.5, 0.5, "one text")
    ax.text(0.52, 0.5, "another")
    assert ("one text", "another") in overlapping(figure)


def test_every_figure_has_a_caption_and_no_caption_is_left_over():
    # other tests take figures out and put them back, which changes the order
    assert set(plots.CAPTIONS) == set(plots.FIGURES)
    assert all(text.endswith(".") and len(text) < 150 for text in plots.CAPTIONS.values())
    gallery = " ".join(
        (Path(__file__).parents[2] / "docs" / "gallery.md").read_text(encoding="utf-8").split()
    )
    assert [name for name, text in plots.CAPTIONS.items() if text not in gallery] == []


def test_the_moving_picture_shows_both_rows_and_is_the_same_again():
    view = plots.View(RopeSpec(16, scaling=Yarn(factor=4.0, original_length=64)), 64, 256)
    first = reading(view)
    assert first[:6] == b"GIF89a"
    assert first == reading(view)
    assert first != reading(plots.View(RopeSpec(16, theta=50.0), 64, 256))
