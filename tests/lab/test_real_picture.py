"""The picture of `real_extend`, from rows made here: steps at the means of the rows, labels that do
not overlap.
"""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from ropewalk_lab.plots.further import LossBand, loss_by_position
from ropewalk_lab.plots.look import Look
from ropewalk_lab.studies.real_extend import findings
from ropewalk_lab.studies.real_picture import picture
from ropewalk_lab.studies.rows import row, write_rows

FACTS = {
    "study": "real_extend",
    "model": "smollm2",
    "trained": 8192,
    "text": ["moby-dick", "sotu"],
    "seeds": 1,
    "preset": "gpu",
}
BANDS = {"0-4k": 0, "4k-8k": 1, "8k-16k": 2, "16k-32k": 3}
MEANS = {
    "none": [3.1, 3.0, 6.2, 7.7],
    "linear": [4.9, 5.0, 5.2, 5.36],
    "ntk": [3.2, 3.1, 3.4, 3.79],
    "dynamic": [3.1, 3.1, 3.5, 4.19],
    "yarn": [3.2, 3.1, 3.3, 3.75],
    "dynamic_yarn": [3.2, 3.1, 3.3, 3.75],
    "llama3": [3.1, 3.0, 3.5, 4.12],
    "by_parts": [3.2, 3.1, 3.3, 3.76],
}
SPREAD = np.array([-0.4, 0.1, 0.3])


def rows(factor: float = 4, added: float = 0) -> list[dict]:
    fields = {"factor": factor, "trained": 8192}
    made = [
        row("loss", means[place] + added + SPREAD, band=band, method=method, **fields)
        for method, means in MEANS.items()
        for band, place in BANDS.items()
    ]
    return [
        *made,
        *(
            row("loss", means[0] + SPREAD, band="within", method=method, **fields)
            for method, means in MEANS.items()
        ),
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_picture_draws_the_mean_and_error_of_each_band(language):
    figure = picture([*rows(2), *rows(4)], FACTS, Look(language=language))
    (ax,) = figure.axes
    steps = [patch for patch in ax.patches if hasattr(patch, "get_data")]
    drawn = {tuple(np.round(step.get_data().values, 6)) for step in steps}
    assert drawn == {tuple(np.round(means, 6)) for means in MEANS.values()}
    assert steps[0].get_data().edges.tolist() == [0, 4096, 8192, 16384, 32768]
    # the lines of the errors: one standard error of the mean over windows to each side
    (first, *_) = (line for line in ax.collections if len(line.get_segments()) == 4)
    below, above = first.get_segments()[0][:, 1]
    assert (above - below) / 2 == pytest.approx(SPREAD.std(ddof=1) / np.sqrt(3))
    assert "8,192" in ax.get_title(loc="left")
    assert "32,768" in ax.get_title(loc="left")
    words = [text.get_text() for text in ax.texts]
    assert any("moby-dick, sotu" in text and "3" in text for text in words)


@pytest.mark.parametrize("fewer", [False, True])
def test_the_largest_factor_with_most_methods_is_drawn(fewer):
    larger = [each for each in rows(8, added=1) if not fewer or each["method"] != "yarn"]
    (ax,) = picture([*rows(2), *larger], FACTS).axes
    drawn = {round(p.get_data().values[0], 6) for p in ax.patches if hasattr(p, "get_data")}
    assert drawn == {round(means[0] + (not fewer), 6) for means in MEANS.values()}


def test_the_best_method_is_in_colour_even_if_no_scaling_is_better():
    bands = {name: [LossBand(0, 8, loss)] for name, loss in (("none", 1), ("ntk", 3), ("yarn", 2))}
    (ax,) = loss_by_position(bands, 8, "a model").axes
    bold = {text.get_text().split()[0] for text in ax.texts if text.get_weight() == "bold"}
    assert bold == {"no", "yarn"}


def test_labels_do_not_overlap():
    figure = picture(rows(), FACTS)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 1 + len(MEANS)
    for place, first in enumerate(boxes):
        assert not any(first.overlaps(second) for second in boxes[place + 1 :])
    edge = figure.bbox
    assert all(box.x1 <= edge.x1 and box.y1 <= edge.y1 for box in boxes)
    # labels stand beside the ends of their lines in the order of these; only near neighbours move
    # them away from there
    written = [
        text.xyann if text.xycoords == "axes fraction" else text.xy for text in figure.axes[0].texts
    ]
    heights = dict(
        zip(
            [text.get_text().split("  ")[0] for text in figure.axes[0].texts],
            (y for _, y in written),
            strict=True,
        )
    )
    assert heights["no scaling"] == pytest.approx(7.7)
    assert heights["linear"] == pytest.approx(5.36)
    assert heights["dynamic"] > heights["llama3"] > heights["ntk"] > heights["by_parts"]


def test_the_study_real_extend_draws_the_picture():
    drawn = findings(rows(), FACTS).figures["real_extend"]()
    assert "SmolLM2-135M" in drawn.axes[0].get_title(loc="left")


@pytest.fixture
def pictures(monkeypatch):
    """The script that draws the pictures of the pages."""
    place = Path(__file__).parents[2] / "docs" / "pictures.py"
    monkeypatch.syspath_prepend(place.parent)  # it imports the file beside it
    spec = importlib.util.spec_from_file_location("pictures_of_docs", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_command_draws_the_picture_for_the_readme_in_both_languages_and_colours(
    pictures, tmp_path
):
    run = tmp_path / "run"
    run.mkdir()
    write_rows(run / "rows.jsonl", [*rows(), *rows(8)])
    (run / "study.json").write_text(json.dumps(FACTS))
    pictures.draw_further(run, tmp_path)
    endings = ("", "-dark", "-zh", "-zh-dark")
    assert {path.stem for path in tmp_path.glob("*.png")} == {f"further{each}" for each in endings}
    assert all(path.stat().st_size < 100_000 for path in tmp_path.glob("*.png"))


def test_pass_keys_are_drawn_at_their_depth_in_the_text(pictures):
    (ax,) = pictures.keys_by_place({"yarn": [1.0, 0.0, 1.0], "ntk": [0.0, 0.0, 1.0]}, Look()).axes
    marks = [
        (line.get_marker(), list(line.get_xdata()), set(line.get_ydata())) for line in ax.lines
    ]
    assert marks == [("o", [0, 1], {0}), ("x", [0.5], {0}), ("o", [1], {1}), ("x", [0, 0.5], {1})]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["yarn: 2 of 3", "ntk: 1 of 3"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first line is on top


def test_the_model_as_it_is_may_be_the_only_line():
    figure = picture([each for each in rows() if each["method"] == "none"], FACTS)
    (ax,) = figure.axes
    (step,) = (patch for patch in ax.patches if hasattr(patch, "get_data"))
    assert np.allclose(step.get_data().values, MEANS["none"])
    assert [text.get_text() for text in ax.texts if "no scaling" in text.get_text()] == [
        "no scaling  7.70"
    ]
