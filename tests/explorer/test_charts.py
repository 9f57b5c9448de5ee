"""What the charts hold: their numbers against the definitions, hands at the angle they should have,
words in both languages.
"""

import ast
import math
import re
from pathlib import Path
from xml.etree import ElementTree

import mpmath
import numpy as np
import pytest

from ropewalk import RopeSpec
from ropewalk.frequencies import SCALINGS, Linear, Proportional, XPos, Yarn
from ropewalk_lab import explorer
from ropewalk_lab.explorer import charts, drawings
from ropewalk_lab.explorer.words import CHINESE, about, translator
from ropewalk_lab.plots.words import CHINESE as FIGURES_CHINESE
from tensor_forms import tensors

SPEC = RopeSpec(10, theta=100.0, scaling=Linear(4.0))
ENGLISH, MANDARIN = translator("en"), translator("zh")
RADIANS = [100.0 ** (-i / 5) for i in range(5)]
SVG = "{http://www.w3.org/2000/svg}"
FILES = sorted(Path(explorer.__path__[0]).glob("*.py"))


def line(chart, label):
    return {row["x"]: row["y"] for row in chart["data"]["values"] if row["of"] == label}


def test_the_spectrum_is_the_wavelengths():
    chart = charts.spectrum([SPEC], 64, 256, ENGLISH)
    for i, omega in enumerate(RADIANS):
        assert line(chart, "plain")[i] == pytest.approx(2 * math.pi / omega)
        assert line(chart, "linear")[i] == pytest.approx(4 * 2 * math.pi / omega)
    assert set(line(chart, "trained length").values()) == {64}


def test_coverage_counts_turns():
    chart = charts.coverage([SPEC], 64, 256, ENGLISH)
    for i, omega in enumerate(RADIANS):
        turns = omega * 64 / (2 * math.pi)
        assert line(chart, "in training")[i] == pytest.approx(turns)
        assert line(chart, "served unscaled")[i] == pytest.approx(4 * turns)
        assert line(chart, "served with linear")[i] == pytest.approx(turns)


def test_decay_and_similarity_are_the_sums_of_phasors():
    decay, similar = (
        line(chart([SPEC], 64, 256, ENGLISH), "linear")
        for chart in (charts.decay, charts.similarity)
    )
    assert max(decay) == max(similar) == 256
    for m in (1, 7, 256):
        rotated = [complex(math.cos(m * w / 4), math.sin(m * w / 4)) for w in RADIANS]
        assert decay[m] == pytest.approx(sum(abs(sum(rotated[: j + 1])) for j in range(5)) / 5)
        assert similar[m] == pytest.approx(sum(z.real for z in rotated) / 5)


def test_the_map_compares_every_two_positions():
    rows = charts.similarity_map(SPEC, 256, ENGLISH)["data"]["values"]
    assert len(rows) == charts.MAP_POSITIONS**2
    for row in rows[::101]:
        wanted = sum(math.cos((row["q"] - row["k"]) * w / 4) for w in RADIANS) / 5
        assert row["s"] == pytest.approx(wanted, abs=1e-4)


def test_precision_shows_ours_below_the_others():
    chart = charts.precision([RopeSpec(10)], 64, 256, ENGLISH)
    far = 2**40
    assert line(chart, "ropewalk, exact")[far] < 1e-6
    assert line(chart, "float32 angle")[far] > 0.1
    assert set(line(chart, "rounding to bfloat16").values()) == {2.0**-9}


def test_a_pair_that_does_not_rotate_leaves_the_logarithmic_charts():
    spec = RopeSpec(10, theta=100.0, scaling=Proportional(fraction=0.6))
    assert sorted(line(charts.spectrum([spec], 64, 256, ENGLISH), "proportional")) == [0, 1, 2]
    assert sorted(line(charts.coverage([spec], 64, 256, ENGLISH), "served with proportional")) == [
        0,
        1,
        2,
    ]


@pytest.mark.sampled
@pytest.mark.parametrize("name", list(SCALINGS))
@pytest.mark.parametrize("view", [*charts.CHARTS, "map"])
def test_every_scaling_has_every_chart(name, view):
    given = {
        "longrope": {"short_factor": (1.0,) * 5, "long_factor": (2.0,) * 5},
        "given": {"radians": (0.5, 0.4, 0.3, 0.2, 0.1)},
        "learned": {"alpha": (0.1,) * 5},
    }
    spec = RopeSpec(10, scaling=SCALINGS[name](**given.get(name, {})))
    for chart in charts.charts_of(view, [spec], 64, 256, ENGLISH):
        values = chart["data"]["values"]
        assert values
        assert all(
            math.isfinite(number)
            for row in values
            for number in row.values()
            if not isinstance(number, str)
        )


def test_two_specs_are_lines_of_one_chart():
    other = SPEC.with_(scaling=Yarn(factor=4.0, original_length=64))
    wave = line(charts.spectrum([SPEC, other], 64, 256, ENGLISH), "yarn")
    assert wave[4] == pytest.approx(4 * 2 * math.pi / RADIANS[4])
    chart = charts.coverage([SPEC, other], 64, 256, ENGLISH)
    assert list(chart["encoding"]["color"]["scale"]["domain"]) == [
        "in training",
        "served unscaled",
        "served with linear",
        "served with yarn",
        "one turn",
    ]
    # another base has another unscaled ladder, and the same scaling twice gets numbers
    chart = charts.coverage([SPEC, SPEC.with_(theta=1e6)], 64, 256, ENGLISH)
    assert line(chart, "in training (2)")[1] == pytest.approx(1e6**-0.2 * 64 / (2 * math.pi))
    assert line(chart, "served with linear (2)")[1] == pytest.approx(1e6**-0.2 * 64 / (2 * math.pi))


def test_two_maps_share_their_colours():
    left, right = charts.charts_of("map", [SPEC, RopeSpec(10, theta=1e6)], 64, 256, ENGLISH)
    both = [row["s"] for chart in (left, right) for row in chart["data"]["values"]]
    assert left["encoding"]["color"]["scale"]["domain"] == [min(both), max(both)]
    assert right["encoding"]["color"]["scale"]["domain"] == [min(both), max(both)]


def hands(text):
    """Degrees of each clock's hand, counter-clockwise, and its words."""
    faces = ElementTree.fromstring(text).findall(f"{SVG}g")
    rotated = [
        float(re.match(r"rotate\((.+)\)", face.find(f"{SVG}g").get("transform"))[1])
        for face in faces
    ]
    return [
        (-degrees % 360, [word.text for word in face.findall(f"{SVG}text")])
        for degrees, face in zip(rotated, faces, strict=True)
    ]


@pytest.mark.parametrize("position", [0, 9, 10**9 + 7])
def test_hands_show_the_exact_angle(position):
    found = hands(drawings.clocks(SPEC, position, 2**31, ENGLISH))
    assert len(found) == 5
    with mpmath.workdps(40):
        for i, (degrees, words) in enumerate(found):
            # the frequencies are float64 numbers; the angle of such a number is exact
            step = mpmath.mpf(float(tensors(SPEC).radians[i]))
            assert abs(float(mpmath.sin(mpmath.radians(degrees) - position * step))) < 1e-5
            assert words[0] == f"pair {i}"


def test_animated_clocks_take_their_wavelength():
    text = drawings.clocks(
        RopeSpec(4, theta=100.0, scaling=Proportional(fraction=0.5)), 0, 64, ENGLISH, animated=True
    )
    spins = ElementTree.fromstring(text).findall(f".//{SVG}animateTransform")
    assert [float(spin.get("dur")[:-1]) for spin in spins] == [
        pytest.approx(2 * math.pi / drawings.TOKENS_PER_SECOND, rel=1e-3)
    ]
    assert float(spins[0].get("to")) - float(spins[0].get("from")) == -360
    assert "does not rotate" in text


@pytest.mark.parametrize(
    "scaling", [Yarn(factor=8.0, original_length=64), XPos(), Linear(4.0)], ids=lambda s: s.name
)
def test_the_vector_is_where_the_scaling_rotates_it(scaling):
    spec, position, pair = RopeSpec(10, theta=100.0, scaling=scaling), 23, 2
    found = drawings.rotated(spec, pair, np.arange(position + 1), 512)[-1]
    magnitude = {
        "yarn": 0.1 * math.log(8) + 1,
        "xpos": ((4 + 4) / 14) ** (23 / 512),
        "linear": 1.0,
    }[scaling.name]
    assert abs(found) == pytest.approx(magnitude)
    angle = position * float(tensors(spec).radians[pair])
    assert math.sin(math.atan2(found.imag, found.real) - angle) == pytest.approx(0, abs=1e-9)
    parts = (
        ElementTree.fromstring(drawings.plane(spec, pair, position, 512, ENGLISH))
        .find(f"{SVG}g")
        .findall(f"{SVG}line")
    )
    tip = complex(float(parts[-1].get("x2")), -float(parts[-1].get("y2"))) / float(
        parts[-2].get("x2")
    )
    assert tip == pytest.approx(found, abs=1e-3)


def texts_said() -> set[str]:
    """Every literal handed to `translate`, and those it is handed from a table."""
    found = set()
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and ast.unparse(node.func) == "translate"
                and isinstance(node.args[0], ast.Constant)
            ):
                found.add(node.args[0].value)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                "TITLES",
                "CAPTIONS",
                "STEP_TITLES",
                "METHODS",
            ):
                found |= {value.value for value in node.value.values}
            if (
                isinstance(node, ast.Assign)
                and ast.unparse(node.targets[0]) == "shown"
                and isinstance(node.value, ast.List)
            ):
                found |= {row.elts[place].value for row in node.value.elts for place in (0, 2)}
    return found


def test_every_text_has_its_chinese_and_no_chinese_is_left_over():
    said = texts_said()
    assert len(said) > 30
    assert said - set(CHINESE) == set()
    source = "".join(path.read_text(encoding="utf-8") for path in FILES)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # a long text is several literals
    abouts = {about(scaling, "en") for scaling in SCALINGS.values()}
    assert [
        text for text in CHINESE.keys() - FIGURES_CHINESE.keys() - abouts if text not in source
    ] == []


def test_every_scaling_speaks_chinese():
    for scaling in SCALINGS.values():
        assert re.search("[\u4e00-\u9fff]", about(scaling, "zh")), scaling


def test_translations_keep_their_names():
    for english, chinese in CHINESE.items():
        assert set(re.findall(r"\{\w+\}", english)) == set(re.findall(r"\{\w+\}", chinese)), english


@pytest.mark.parametrize("view", [*charts.CHARTS, "map"])
def test_charts_speak_chinese(view):
    for chart in charts.charts_of(view, [SPEC], 64, 256, MANDARIN):
        assert re.search("[\u4e00-\u9fff]", chart["title"])
