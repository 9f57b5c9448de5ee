"""The story under streamlit's test runner: every step in both languages, quickly; its remedies, its
exports, the hosted form.
"""

import io
import re
import time
from itertools import pairwise
from pathlib import Path

import pytest
from PIL import Image

from ropewalk import RopeSpec, axes
from ropewalk.frequencies import Dynamic, Ntk, Yarn
from ropewalk_lab.analysis import Facts
from ropewalk_lab.explorer import charts, controls, engines, export, panels, story_charts
from ropewalk_lab.explorer.state import fitted, spec_of
from ropewalk_lab.explorer.widgets import slider_positions
from ropewalk_lab.explorer.words import translator
from ropewalk_lab.plots.look import Look
from ropewalk_lab.plots.motion import dials_of
from ropewalk_lab.plots.numerals import short

testing = pytest.importorskip(
    "streamlit.testing.v1", reason="needs streamlit: pip install 'ropewalk[explorer]'"
)
PAGE = Path(controls.__file__).with_name("page.py")
SPACE = Path(__file__).parents[2] / "examples" / "space"
HAN = re.compile("[\u4e00-\u9fff]")
ENGLISH = translator("en")


def opened(path=PAGE, **link):
    app = testing.AppTest.from_file(str(path), default_timeout=60)
    for name, text in link.items():
        app.query_params[name.replace("__", ".")] = text
    app.run()
    assert [error.value for error in app.exception] == []
    return app


def test_the_first_page_asks_and_yarn_answers():
    app = opened()
    assert "trained on 4,096 tokens and now reads 16,384" in app.subheader[0].value
    assert app.warning[0].value.startswith("18 of 64 pairs")
    next(group for group in app.get("button_group") if group.key == "a.scaling").set_value(
        "yarn"
    ).run()
    assert app.success[0].value == "yarn: no pair reaches an angle that training did not show."
    values = app.session_state["values"]
    assert (values["a.yarn.factor"], values["a.yarn.original_length"]) == (4.0, 4096)
    app.select_slider(key="served").set_value(65_536).run()
    assert app.session_state["values"]["a.yarn.factor"] == 16.0


@pytest.mark.parametrize("language", controls.LANGUAGES)
def test_every_step_answers_at_once(language):
    app, quickest = opened(language=language, a__scaling="llama3", a__llama3__factor="4"), {}
    for step in controls.STEPS:
        times = []
        for _ in range(2):  # the first drawing of a chart imports what draws it
            start = time.process_time()
            app.run()
            times.append(time.process_time() - start)
        quickest[step] = min(times)
        assert not app.error
        assert bool(HAN.search(app.subheader[0].value)) == (language == "zh")
        assert app.session_state["values"]["step"] == step
        if step != controls.STEPS[-1]:
            app.button(key="next").click().run()
    assert max(quickest.values()) < 2, quickest  # about 0.1 s where nothing else runs
    app.button(key="play").click().run()
    assert app.session_state["values"]["view"] == "ladder"
    assert app.radio(key="view").value == "ladder"


@pytest.mark.parametrize("scaling", ["given", "longrope", "learnable", "xpos"])
def test_a_scaling_from_a_link_is_shown_among_the_remedies(scaling):
    app = opened(step="remedies", a__scaling=scaling, a__head_dim="16", a__given__radians="0.5")
    group = next(group for group in app.get("button_group") if group.key == "a.scaling")
    assert scaling in group.options


def test_the_pairs_of_the_dials_leave_the_trained_angles_unless_scaled():
    plain = dials_of(RopeSpec(128), 4096, 16_384)
    assert [dial.leaves_at for dial in plain if dial.trained_turns >= 1] == [1.0] * 3
    assert [dial.leaves_at for dial in plain if dial.trained_turns < 1] == [pytest.approx(0.25)] * 5
    scaled = dials_of(RopeSpec(128, scaling=Yarn(factor=4.0, original_length=4096)), 4096, 16_384)
    assert {dial.leaves_at for dial in scaled} == {1.0}


def test_engines_are_told_in_both_languages():
    facts = Facts(RopeSpec(128, scaling=Dynamic(factor=4.0, original_length=4096)), 4096, 16_384)
    rows = engines.rows_of(engines.config_of(facts))
    words = {row.engine: row.words(ENGLISH) for row in rows}
    assert "63 pairs differ, from pair 1 on" in words["SGLang, 4,096"]
    assert all(HAN.search(row.words(translator("zh"))) for row in rows)
    vision = Facts(RopeSpec(128, axes=axes.chunked([16, 24, 24])), 4096, 4096)
    words = {row.engine: row.words(ENGLISH) for row in engines.rows_of(engines.config_of(vision))}
    assert words["mlx-lm"].endswith("for image and video tokens only")
    app = opened(step="engines", a__scaling="ntk")
    assert "No config can name ntk" in app.info[0].value


def test_the_wave_holds_the_position_and_whole_turns():
    for spec, pair, position in (
        (RopeSpec(8), 0, 900),
        (RopeSpec(8, scaling=Ntk(4.0)), 3, 15),
        (RopeSpec(4), 1, 0),
    ):
        rows = story_charts.wave(spec, pair, position, 1024, ENGLISH)["data"]["values"]
        xs = [row["x"] for row in rows if row["of"] == "cos"]
        assert min(xs) <= position <= max(xs)
        assert 0 <= min(xs) < max(xs) <= 1024


@pytest.mark.sampled
@pytest.mark.parametrize("form", export.FORMATS)
@pytest.mark.parametrize("view", ["story", "map", "precision"])
def test_the_picture_is_saved_in_every_format(form, view):
    if form == "gif" and view != "story":
        pytest.skip("the moving picture is the same in every view")
    values = controls.defaults() | {"view": view, "a.head_dim": 16}
    data = export.picture(values, [spec_of(values)], form)
    if form == "svg":
        assert b"<svg" in data[:600]
        return
    picture = Image.open(io.BytesIO(data))
    assert picture.format == form.upper()
    if form == "gif":
        assert picture.n_frames >= 30


def test_the_story_saves_the_spec_that_it_shows(monkeypatch):
    saved = []
    monkeypatch.setattr(panels, "export", lambda values, specs, translate: saved.append(specs))
    opened(step="angles", compare="1", a__head_dim="64", b__head_dim="16", pair="30")
    assert saved == [[RopeSpec(64)]]


def test_saved_maps_share_their_colours():
    specs = [RopeSpec(10, theta=100.0), RopeSpec(10, theta=1e6)]
    maps = charts.charts_of("map", specs, 64, 256, ENGLISH)
    everything = [row["s"] for chart in maps for row in chart["data"]["values"]]
    figure = export.figure_of(maps, Look())
    colours = [image.get_clim() for ax in figure.axes[:2] for image in ax.images]
    assert colours == [(min(everything), max(everything))] * 2


def test_a_pair_that_stands_still_is_slowed_without_end():
    app = opened(step="remedies", a__scaling="given", a__head_dim="4", a__given__radians="0,0.005")
    slowed = {metric.label: metric.value for metric in app.metric}
    assert slowed["Fastest pair, slowed by"] == "∞"
    assert (
        slowed["Slowest pair, slowed by"] == "2x"
    )  # the second of two pairs turns by 0.01 unscaled


def test_a_scaling_is_fitted_where_it_has_the_fields():
    values = controls.defaults() | {"trained": 1000, "served": 3000, "a.scaling": "yarn"}
    assert fitted(values, "a") == {"a.yarn.factor": 3.0, "a.yarn.original_length": 1000}
    assert fitted(values | {"a.scaling": "xpos"}, "a") == {}
    assert fitted(values | {"served": 500}, "a")["a.yarn.factor"] == 1.0


def test_the_position_slider_is_logarithmic_and_holds_every_value_it_had():
    stops = slider_positions(1_000_000, 77)
    assert stops[:17] == list(range(17))
    assert stops[-1] == 1_000_000
    assert 77 in stops
    assert max(b / a for a, b in pairwise(stops[40:])) < 1.1
    assert slider_positions(7, 3) == list(range(8))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (6.283, "6.3"),
        (20_473_564, "20.5M"),
        (999.96, "1k"),
        (99.97, "100"),
        (0, "0"),
        (float("inf"), "∞"),
        (2**40, "1.1T"),
        (512, "512"),
    ],
)
def test_numbers_are_short(number, text):
    assert short(number) == text


def test_the_hosted_form_is_one_file_and_its_requirements():
    assert (SPACE / "requirements.txt").read_text(encoding="utf-8").split() == [
        "ropewalk[explorer,hf]"
    ]
    assert opened(SPACE / "app.py").subheader[0].value.startswith("A model was trained")
