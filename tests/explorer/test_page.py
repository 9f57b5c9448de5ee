"""The page under streamlit's own test runner: every control, every view, both languages, bad input,
links, presets, report.
"""

import base64
import json
import re
import sys
from pathlib import Path

import pytest

import explorer as benchmark
from ropewalk.config.examples import EXAMPLES
from ropewalk.frequencies import SCALINGS
from ropewalk_lab.explorer import controls, panels
from ropewalk_lab.explorer.program import program
from ropewalk_lab.explorer.state import layers_of

testing = pytest.importorskip(
    "streamlit.testing.v1", reason="needs streamlit: pip install 'ropewalk[explorer]'"
)
PAGE = Path(controls.__file__).with_name("page.py")
# the view of a model has its own tests
VIEWS = [view for view in controls.VIEWS if view not in ("story", "report", "model")]
HAN = re.compile("[\u4e00-\u9fff]")


@pytest.fixture
def page(monkeypatch):
    monkeypatch.delenv("ROPEWALK_REPORT", raising=False)

    def opened(**link):
        app = testing.AppTest.from_file(str(PAGE), default_timeout=60)
        for name, text in ({"view": "clocks"} | link).items():
            app.query_params[name.replace("__", ".")] = text
        return alive(app.run())

    return opened


def alive(app):
    assert [error.value for error in app.exception] == []
    return app


def link(app) -> dict[str, str]:
    """What the address says beside the first view of free play."""
    found = {
        name: text if isinstance(text, str) else text[0] for name, text in app.query_params.items()
    }
    return {name: text for name, text in found.items() if (name, text) != ("view", "clocks")}


def change(widget) -> None:
    """Give a widget another value than it has."""
    kind = type(widget).__name__
    if kind == "Selectbox":
        widget.select_index((widget.index + 1) % len(widget.options))
    elif kind == "SelectSlider":
        stops = [float(option.replace(",", "")) for option in widget.options]
        place = min(range(len(stops)), key=lambda i: abs(stops[i] - widget.value))
        widget.set_value(type(widget.value)(stops[(place + 1) % len(stops)]))
    elif kind == "Checkbox":
        widget.set_value(not widget.value)
    elif kind == "NumberInput":
        widget.set_value(1.5)
    elif kind == "TextInput":
        widget.set_value("3,2")
    elif kind == "Slider":
        widget.set_value(widget.value + 1)
    else:
        widget.set_value(
            {"en": "zh", "zh": "en"}.get(widget.value) or VIEWS[VIEWS.index(widget.value) + 1]
        )


def keyed(app) -> dict:
    """Every widget that holds a value of the page, by name."""
    kinds = (
        app.selectbox,
        app.select_slider,
        app.slider,
        app.checkbox,
        app.number_input,
        app.text_input,
        app.radio,
    )
    return {
        widget.key: widget for kind in kinds for widget in kind if widget.key in controls.controls()
    }


def test_the_first_page_is_whole(page):
    app = page()
    assert not app.error
    assert [metric.value for metric in app.metric] == ["64", "46/64", "18/64", "1"]
    assert link(app) == {}


def test_every_control_but_those_of_scalings_changes_the_link(page):
    app = page(view="plane", compare="1", b__scaling="default")
    names = list(keyed(app))
    assert {
        "position",
        "pair",
        "trained",
        "a.head_dim",
        "b.theta",
        "b.precision",
        "a.rotary_dim",
        "language",
    } <= set(names)
    for name in names:
        before = link(app)
        change(keyed(app)[name])
        alive(app.run())
        assert not app.error, (name, app.error[0].value)
        assert link(app) != before, name
        assert name in link(app) or name in before


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("scaling", list(SCALINGS))
def test_every_field_of_a_scaling_has_a_control_that_works(page, scaling):
    app = page(view="code", a__scaling=scaling)
    fields = [f"a.{scaling}.{field}" for field in controls.scaling_controls(SCALINGS[scaling])]
    assert set(fields) <= set(keyed(app))
    for name in fields:
        before, printed = link(app), app.code[0].value if app.code else None
        change(keyed(app)[name])
        alive(app.run())
        if app.error:
            # two fields may exclude each other; the message names one, and the page goes on
            assert re.match(r"` [\w\[\]]+: must ", app.error[0].value)
            continue
        assert link(app) != before, name
        assert app.code[0].value != printed, name


@pytest.mark.sampled
@pytest.mark.parametrize("language", controls.LANGUAGES)
@pytest.mark.parametrize("view", VIEWS)
def test_every_view_in_every_language(page, view, language):
    app = page(view=view, language=language, compare="1", a__scaling="xpos")
    assert not app.error
    words = [
        app.subheader[0].value,
        app.checkbox(key="compare").label,
        *(caption.value for caption in app.caption),
    ]
    assert all(bool(HAN.search(word)) == (language == "zh") for word in words)
    assert len(app.metric) == (0 if view == "code" else 8)


def test_precision_tells_the_memory_of_a_full_table(page):
    app = page(view="precision", served="1000", a__head_dim="48")
    # cos and sin, 1024 positions (1000 rounded up to a power of two) x 24 pairs, 4 bytes each, and
    # the 8-byte steps of the phases
    assert any(
        re.search(rf"^\| full \| {2 * 1024 * 24 * 4 + 24 * 8:,} \|$", text.value, re.MULTILINE)
        for text in app.markdown
    )


def test_a_scaling_added_later_has_its_controls(page, monkeypatch):
    before = set(controls.controls())
    monkeypatch.setitem(SCALINGS, "mine", SCALINGS["linear"])
    assert set(controls.controls()) - before == {"a.mine.factor", "b.mine.factor"}


def test_a_link_restores_the_page(page):
    first = page(view="code")
    for name, value in {"a.scaling": "yarn", "compare": True}.items():
        keyed(first)[name].set_value(value).run()
    for name in (
        "a.yarn.factor",
        "a.yarn.mscale",
        "served",
        "position",
        "b.yarn.truncate",
        "language",
    ):
        change(keyed(first)[name])
        alive(first.run())
    second = page(**link(first))
    assert (
        second.code[0].value
        == first.code[0].value
        == program(second.session_state["values"]).rstrip()
    )
    assert link(second) == link(first)
    assert {name: widget.value for name, widget in keyed(second).items()} == {
        name: widget.value for name, widget in keyed(first).items()
    }


def test_a_bad_link_says_so_and_opens_the_first_page(page):
    app = page(a__theta="many")
    assert app.error[0].value == "` a.theta: must be a number; got 'many' `"
    assert app.session_state["values"] == controls.defaults()


def test_values_that_exclude_each_other_say_so_and_can_be_changed_back(page):
    app = page(a__scaling="yarn", a__yarn__beta_slow="64")
    assert "beta_fast: must be at least beta_slow = 64" in app.error[0].value
    alive(app.select_slider(key="a.yarn.beta_slow").set_value(1.0).run())
    assert not app.error
    assert len(app.metric) == 4


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{not json", "must be JSON"),
        (b'{"model_type": "llama", "rope_theta": Infinity}', "must be finite"),
        (b" " * (1 << 20) + b"{}", "must be at most 1048576 bytes"),
        (
            json.dumps(
                {"model_type": "llama", "head_dim": 4096, "max_position_embeddings": 64}
            ).encode(),
            "head_dim",
        ),
        (b'{"<script>alert(1)</script>": 1}', "rope_parameters"),
    ],
)
def test_a_bad_config_is_told_and_the_page_goes_on(page, data, says):
    app = page(a__theta="500")
    alive(
        app.file_uploader(key="upload").set_value(("config.json", data, "application/json")).run()
    )
    assert says in app.error[0].value
    assert app.select_slider(key="a.theta").value == 500.0
    alive(app.select_slider(key="a.theta").set_value(1000.0).run())
    assert link(app) == {"a.theta": "1000"}


def test_a_good_config_after_a_bad_one_clears_the_message(page):
    app = page()
    alive(
        app.file_uploader(key="upload").set_value(("config.json", b"[]", "application/json")).run()
    )
    assert app.error
    good = json.dumps(EXAMPLES["gpt-oss-20b"]).encode()
    alive(
        app.file_uploader(key="upload").set_value(("config.json", good, "application/json")).run()
    )
    assert not app.error
    assert link(app) == controls.to_link(controls.defaults() | layers_of(good)["full_attention"])


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_preset_fills_the_page(page, name):
    app = page(view="ladder")
    alive(app.selectbox(key="preset").set_value(name).run())
    loaded = next(iter(layers_of(EXAMPLES[name]).values()))
    assert link(app) == controls.to_link(controls.defaults() | {"view": "ladder"} | loaded)
    said = "Changed from the preset."
    assert said not in [caption.value for caption in app.caption]
    change(app.select_slider(key="a.head_dim"))
    alive(app.run())
    assert said in [caption.value for caption in app.caption]
    assert not app.error


def test_layer_types_of_one_config_are_chosen_apart(page):
    app = page()
    alive(app.selectbox(key="preset").set_value("Gemma-3-27B").run())
    assert app.select_slider(key="a.theta").value == 1e6
    alive(app.selectbox(key="layer").set_value("sliding_attention").run())
    assert app.select_slider(key="a.theta").value == 1e4
    assert app.selectbox(key="a.scaling").value == "default"


def test_controls_that_were_away_come_back_as_they_were(page):
    app = page(a__scaling="yarn")
    alive(app.select_slider(key="a.yarn.beta_fast").set_value(48.0).run())
    alive(app.selectbox(key="a.scaling").set_value("default").run())
    alive(app.selectbox(key="a.scaling").set_value("yarn").run())
    assert app.select_slider(key="a.yarn.beta_fast").value == 48.0


@pytest.mark.parametrize("side", controls.SIDES)
def test_choosing_a_scaling_fits_it_to_the_lengths(page, side):
    app = page(compare="1", trained="2048", served="16384", b__scaling="default")
    alive(app.selectbox(key=f"{side}.scaling").set_value("yarn").run())
    assert app.select_slider(key=f"{side}.yarn.factor").value == 8.0
    assert app.select_slider(key=f"{side}.yarn.original_length").value == 2048
    alive(app.selectbox(key=f"{side}.scaling").set_value("linear").run())
    assert app.select_slider(key=f"{side}.linear.factor").value == 8.0


def test_the_link_beside_the_code_restores_the_view_one_came_from(page):
    app = page(view="map", a__theta="500")
    alive(app.radio(key="view").set_value("code").run())
    assert app.code[1].value.endswith("?view=map&a.theta=500")


def test_a_position_beyond_the_target_comes_back_into_it(page):
    app = page(position="10000")
    alive(app.select_slider(key="served").set_value(512).run())
    assert app.select_slider(key="position").value == 511


def test_reset_keeps_the_language(page):
    app = page(language="zh", a__theta="500", compare="1", position="9")
    alive(app.button(key="reset").click().run())
    assert link(app) == {"language": "zh"}


def test_the_report_is_shown_in_an_origin_of_its_own(page, monkeypatch, tmp_path):
    app = page(view="report")
    assert app.radio(key="view").value == "clocks"
    path = tmp_path / "report.html"
    path.write_text("<h1>Studies</h1><script>parent.document.title</script>", encoding="utf-8")
    monkeypatch.setenv("ROPEWALK_REPORT", str(path))
    frame = testing.AppTest.from_file(str(PAGE), default_timeout=60)
    frame.query_params["view"] = "clocks"
    alive(frame.run())
    alive(frame.radio(key="view").set_value("report").run())
    source = frame.get("iframe")[0].proto.src
    kind, data = source.split(",")
    assert kind == "data:text/html;charset=utf-8;base64"
    assert base64.b64decode(data) == path.read_bytes()


def test_a_report_that_cannot_be_shown_says_why(page, monkeypatch, tmp_path):
    path = tmp_path / "report.md"
    path.write_text("# Studies\n\nall of them", encoding="utf-8")
    monkeypatch.setenv("ROPEWALK_REPORT", str(path))
    app = testing.AppTest.from_file(str(PAGE), default_timeout=60)
    app.query_params["view"] = "report"
    assert any("all of them" in text.value for text in alive(app.run()).markdown)
    monkeypatch.setattr(panels, "MAX_REPORT", 5)
    assert "larger than 5 bytes" in alive(app.run()).error[0].value
    path.unlink()
    assert "No such file" in alive(app.run()).error[0].value


def test_the_benchmark_moves_a_slider_and_tells_how_long_it_took(monkeypatch):
    monkeypatch.setattr(controls, "VIEWS", ("clocks", "report"))
    monkeypatch.setattr(controls, "STEPS", ())
    monkeypatch.setattr(benchmark, "THETAS", (2e4,))
    main = sys.modules["__main__"]
    (row,) = benchmark.measure()
    assert sys.modules["__main__"] is main
    assert row["pass"] == "slider, clocks"
    assert row["ms"] > 0


def test_a_count_of_pairs_is_offered_up_to_all_pairs(page):
    app = page(a__scaling="clipped", a__head_dim="64")
    assert app.select_slider(key="a.clipped.pairs").options == [str(count) for count in range(33)]
    # a count from a link stays on offer
    app = page(a__scaling="clipped", a__head_dim="16", a__clipped__pairs="20")
    assert app.select_slider(key="a.clipped.pairs").options == [*map(str, range(9)), "20"]
