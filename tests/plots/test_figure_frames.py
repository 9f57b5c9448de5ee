"""Around the numbers of a figure: its title, scales, limits, legend, colours, reference lines and
notes, written out here for every figure.
"""

import math
import re
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.text import Text
from PIL import Image

import ropewalk as rw
from ropewalk.attention.remap import ReRope
from ropewalk.frequencies import Dynamic, Ntk, Yarn
from ropewalk.temperatures import LogN
from ropewalk_lab import plots
from ropewalk_lab.plots import distance, look, methods, motion, rotation
from ropewalk_lab.plots.further import LossBand, loss_by_position
from ropewalk_lab.plots.words import CHINESE

PAIRS, TRAINED, SERVED = 8, 32, 128
VIEW = plots.View(rw.RopeSpec(2 * PAIRS, theta=100.0), TRAINED, SERVED)
#: Okabe and Ito's blue, vermilion, green, purple, orange and sky blue
SIX = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"]
ALL = (0, PAIRS - 1)


def panel(x=None, y=None, scales="linear linear", legend=None, title=""):
    """Return what a panel must show: the limits (None: any) and scales of its axes, its legend and
    its title.
    """
    return SimpleNamespace(x=x, y=y, scales=tuple(scales.split()), legend=legend, title=title)


def positions(*numbers):
    return [f"position {number}" for number in numbers]


MAP = (-0.5, 127.5)
WAVES = ["6.3", "11.2", "19.9"]  # 2 pi, times 100^(1/8), times 100^(2/8)
FRAMES = {
    "rotation": [
        panel(
            (-1.25, 1.25), (-1.25, 1.25), legend=positions(*range(6)), title="One vector, rotated"
        )
    ],
    "clocks": [panel((-1.8, 7.8), (1.05 - 5.45, 1.05))],
    "spectrum": [
        panel(ALL, scales="linear log", title="Frequency and wavelength of every pair"),
        panel(ALL, scales="linear log", legend=["default", "trained length"]),
    ],
    "angles": [
        panel(ALL, title="The angle of every pair"),
        panel(ALL, legend=positions(0, 1, 4, 8)),
    ],
    "periodicity": [
        panel(
            (0, 48),
            (-1.1, 1.15),
            legend=[f"pair {i}: a turn in {wave}" for i, wave in enumerate(WAVES)],
            title="Each pair repeats after its own wavelength",
        )
    ],
    "beyond": [
        panel(
            (0, 128),
            (-1.1, 1.25),
            legend=["pair 2", "pair 4", "pair 5", "pair 7"],
            title="Beyond the trained length slow pairs reach new angles",
        ),
        panel((24, 40), (-1.1, 1.25), legend=["dimension 0", "dimension 1"]),
    ],
    "coverage": [
        panel(
            ALL,
            scales="linear log",
            legend=["in training", "served unscaled", "after yarn", "one turn"],
            title="Turns of every pair",
        )
    ],
    "scalings": [
        panel(
            ALL,
            (0, None),
            legend=["linear", "ntk", "yarn", "llama3"],
            title="Which pairs a scaling slows",
        )
    ],
    "decay": [
        panel(title="Decay of scores with distance"),
        panel(None, (0.1, None), scales="linear log", legend=["Abel bound", "|⟨q, k⟩|"]),
    ],
    "similarity": [panel((0, 512), title="Similarity against distance")],
    "similarity_map": [panel(MAP, MAP, title="Similarity of every two positions")],
    "inner_products": [panel(MAP, MAP, title="Inner products of one q and one k, rotated")],
    "tsne": [panel(title="Encodings on a plane (t-SNE)")],
    "base_bound": [
        panel(
            (1, 128),
            scales="log linear",
            legend=[f"theta {base}" for base in ("1,000", "10,000", "100,000", "1,000,000")],
            title="The sum of cosines for several bases",
        )
    ],
    "variants": [
        panel(title="Variants: norm and trajectory"),
        panel(legend=["default", "yarn", "xpos", "added encoding"]),
    ],
    "precision": [
        panel(
            (900, 1.1 * 2**40),
            (8e-9, 5),
            scales="log log",
            legend=[
                *("bfloat16 positions", "bfloat16 table", "float16 table"),
                *("hf", "hf_frequencies", "exact"),
            ],
            title="Error of the angle against position",
        )
    ],
}
#: figures whose x and y are the same quantity, and those with a colour bar
ROUND = {"rotation": 0, "variants": 1, "similarity_map": 0, "inner_products": 0}
BARS = {"similarity_map": "similarity", "inner_products": "inner product", "tsne": "position"}

every_figure = pytest.mark.parametrize("name", plots.FIGURES)


@pytest.fixture(scope="module")
def drawn():
    kept = {}

    def of(name):
        if name not in kept:
            kept[name] = plots.draw(name, VIEW)
        return kept[name]

    return of


def near(found, wanted):
    return all(w is None or f == pytest.approx(w) for f, w in zip(found, wanted, strict=True))


@every_figure
def test_every_panel_has_its_title_scales_limits_and_legend(drawn, name):
    figure = drawn(name)
    assert len(figure.axes) == len(FRAMES[name]) + (name in BARS)
    for ax, wanted in zip(figure.axes, FRAMES[name], strict=False):
        assert ax.get_title(loc="left") == wanted.title
        assert (ax.get_xscale(), ax.get_yscale()) == wanted.scales
        assert near(ax.get_xlim(), wanted.x or (None, None))
        assert near(ax.get_ylim(), wanted.y or (None, None))
        low, high = ax.get_ylim()
        assert low < high
        found = ax.get_legend()
        assert (None if found is None else [text.get_text() for text in found.texts]) == (
            wanted.legend
        )


@every_figure
def test_what_a_figure_shows_lies_within_its_limits(drawn, name):
    """A log axis has a lower end that a score may pass; every other line is seen whole, but those
    that only mark a place.
    """
    for ax in drawn(name).axes[: len(FRAMES[name])]:
        if ax.get_yscale() == "log" or ax.get_xscale() == "log":
            continue
        (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
        for line in ax.get_lines():
            x, y = (np.asarray(data, dtype=float) for data in line.get_data())
            assert (left - 1e-9 <= x).all()
            assert (x <= right + 1e-9).all()
            assert (bottom - 1e-9 <= y).all()
            assert (y <= top + 1e-9).all()


@every_figure
def test_the_colours_of_a_legend_are_those_of_its_lines_and_the_same_in_both_panels(drawn, name):
    by_label = {}
    for ax in drawn(name).axes[: len(FRAMES[name])]:
        lines = [line for line in ax.get_lines() if not line.get_label().startswith("_")]
        for line in lines:
            # the same name has the same colour in both panels; a panel may have names of its own
            assert by_label.setdefault(line.get_label(), line.get_color()) == line.get_color()
        if ax.get_legend() is not None:
            for text in ax.get_legend().texts:
                assert text.get_color() == by_label[text.get_text()]
        coloured = [line.get_color() for line in lines if line.get_color() in SIX]
        assert len(set(coloured)) == len(coloured)
        if name != "decay":  # the right panel of `decay` goes on where its left panel stopped
            assert coloured == SIX[: len(coloured)]
    if name == "decay":
        assert list(by_label.values()) == SIX[1:3]


@pytest.mark.parametrize("name", ROUND)
def test_a_circle_is_round_and_a_map_is_square(drawn, name):
    assert drawn(name).axes[ROUND[name]].get_aspect() == 1


@pytest.mark.parametrize("name", BARS)
def test_a_colour_bar_says_what_the_colours_are(drawn, name):
    figure = drawn(name)
    assert figure.axes[1].get_ylabel() == BARS[name]
    if name == "tsne":
        assert figure.axes[0].collections[0].get_cmap().name == "cividis"
        ticks = [*figure.axes[0].get_xticklabels(), *figure.axes[0].get_yticklabels()]
        assert {label.get_text() for label in ticks} == {""}  # places on the plane have no unit
        return
    (image,) = figure.axes[0].images
    assert (tuple(image.get_extent()), image.origin) == (MAP * 2, "lower")
    values = np.asarray(image.get_array())
    if name == "inner_products":  # the colours of both signs are balanced
        limit = abs(values).max()
        assert (image.get_cmap().name, *image.get_clim()) == ("PuOr", -limit, limit)
    else:
        assert (image.get_cmap().name, *image.get_clim()) == ("cividis", values.min(), values.max())


def data(line):
    return [np.asarray(each, dtype=float).tolist() for each in line.get_data()]


def dashed(figure, at=0):
    return [data(line) for line in figure.axes[at].get_lines() if line.get_linestyle() == "--"]


def test_dashed_lines_mark_the_trained_length_one_turn_zero_and_the_rounding_of_bfloat16(drawn):
    assert dashed(drawn("spectrum"), 1) == [[[0, 1], [TRAINED, TRAINED]]]
    assert dashed(drawn("coverage")) == [[[0, 1], [1, 1]]]
    assert dashed(drawn("base_bound")) == [[[0, 1], [0, 0]]]
    # a number just below 1 has 8 bits, so it is off by at most half of 2^-8
    assert dashed(drawn("precision")) == [[[0, 1], [1 / 512, 1 / 512]]]


def test_the_line_of_tsne_goes_through_the_points_in_their_order(drawn):
    (ax, _) = drawn("tsne").axes
    points = np.asarray(ax.collections[0].get_offsets())
    assert np.asarray(ax.get_lines()[0].get_xydata()) == pytest.approx(points)


def test_the_vector_turns_on_the_unit_circle_and_the_variants_start_at_its_right(drawn):
    x, y = data(drawn("rotation").axes[0].get_lines()[0])
    assert np.hypot(x, y) == pytest.approx(np.ones(len(x)))
    assert (x[0], y[0]) == pytest.approx((x[-1], y[-1]))
    assert data(drawn("variants").axes[1].get_lines()[4]) == [[1], [0]]


def test_the_sums_of_cosines_go_from_distance_one_to_the_served_length(drawn):
    x, _ = data(drawn("base_bound").axes[0].get_lines()[0])
    assert x == list(range(1, SERVED + 1))


def test_the_precision_names_powers_of_ten_and_the_trained_lengths_of_models(drawn):
    (ax,) = drawn("precision").axes
    shown = dict(
        zip(ax.get_xticks(), (label.get_text() for label in ax.get_xticklabels()), strict=True)
    )
    assert shown == {
        **{1e3: "1k", 1e4: "10k", 128 * 1024: "128k", 1e6: "1M", 1e7: "10M", 1e9: "1G"},
        2**40: "$2^{40}$",
    }
    (note,) = (text for text in ax.texts if text.get_text() == "rounding to bfloat16")
    assert note.xy == (2**40, 1 / 512)


def test_the_trained_length_is_shaded_from_the_left_and_named_there(drawn):
    for ax, low in zip(drawn("beyond").axes, (0, TRAINED - 8), strict=True):
        (shade,) = ax.patches
        assert (shade.get_x(), shade.get_x() + shade.get_width()) == (low, TRAINED)
        (note,) = (text for text in ax.texts if text.get_text().strip() == "trained length")
        assert note.get_position() == (low, 1.12)


def test_the_subtitle_says_what_was_drawn_above_the_panel(drawn):
    for name in set(plots.FIGURES) - {"clocks"}:
        words = {text.get_text(): text for text in drawn(name).axes[0].texts}
        note = words["head_dim 16 · theta 100 · trained 32, read 128"]
        assert (note.xy, note.xycoords) == ((0, 1), "axes fraction")
        assert note.xyann == (0, 10)
        assert note.get_color() == look.LIGHT.quiet


def test_clocks_stand_under_their_wavelength_and_beside_their_position(drawn):
    (ax,) = drawn("clocks").axes
    words = {text.get_text(): text for text in ax.texts}
    pairs = (0, 1, 3, 4, 6, 7)
    for column, pair in enumerate(pairs):
        name = f"a turn in {plots.ladder.short(2 * math.pi * 100 ** (pair / 8))}"
        x, y = words[name].get_position()
        assert x == pytest.approx(1.4 * column)
        assert y > 0.5
        assert words[name].get_color() == SIX[column]
    for row, position in enumerate((0, 1, 4, 64)):
        x, y = words[f"position {position}"].get_position()
        assert x < -0.5
        assert y == pytest.approx(-1.2 * row)
    hands = [line for line in ax.get_lines() if len(line.get_xdata()) == 2]
    from_ = [tuple(line.get_xydata()[0]) for line in hands]
    places = [(1.4 * column, -1.2 * row) for column in range(6) for row in range(4)]
    assert np.array(from_) == pytest.approx(np.array(places))
    assert [line.get_color() for line in hands] == [SIX[i] for i in range(6) for _ in range(4)]
    circles = [each for each in ax.patches if hasattr(each, "get_radius")]
    shades = [each for each in ax.patches if hasattr(each, "theta2")]
    assert np.array([circle.center for circle in circles]) == pytest.approx(np.array(places))
    assert {circle.get_radius() for circle in circles} == {0.5}
    assert np.array([shade.center for shade in shades]) == pytest.approx(np.array(places))


#: dynamic NTK of factor 1 at the length s L is NTK of factor s; at the trained length it is plain
FOLLOWS = rw.RopeSpec(2 * PAIRS, theta=100.0, scaling=Dynamic(factor=1.0, original_length=TRAINED))
FIXED = rw.RopeSpec(2 * PAIRS, theta=100.0, scaling=Ntk(4.0))


@pytest.mark.parametrize("name", sorted(set(plots.FIGURES) - {"tsne", "precision", "variants"}))
def test_a_scaling_that_follows_the_length_is_shown_at_the_served_length(name):
    a, b = (plots.draw(name, plots.View(spec, TRAINED, SERVED)) for spec in (FOLLOWS, FIXED))
    for left, right in zip(a.axes, b.axes, strict=True):
        first, second = (
            {line.get_label(): data(line) for line in ax.get_lines()} for ax in (left, right)
        )
        found = [data(line) for line in left.get_lines()]
        wanted = [data(line) for line in right.get_lines()]
        if name == "scalings":  # a spec's own scaling comes last and takes the place of its name
            found, wanted = [first["dynamic"]], [second["ntk"]]
        for one, other in zip(found, wanted, strict=True):
            assert np.array(one) == pytest.approx(np.array(other), abs=1e-9, nan_ok=True)
        for one, other in zip(left.images, right.images, strict=True):
            assert np.asarray(one.get_array()) == pytest.approx(np.asarray(other.get_array()))


def test_a_scaled_spec_shows_the_turns_of_its_own_scaling():
    (ax,) = plots.draw("coverage", plots.View(FIXED, TRAINED, SERVED)).axes
    after = ax.get_lines()[2]
    assert after.get_label() == "after ntk"
    base = 100.0 * 4 ** (8 / 7)  # 100 * s^(d / (d - 2))
    assert after.get_ydata() == pytest.approx(
        [128 / (2 * math.pi) * base ** (-i / 8) for i in range(8)]
    )


def test_a_dot_marks_every_whole_turn_after_the_start(drawn):
    lines = drawn("periodicity").axes[0].get_lines()
    for pair, dots in enumerate(lines[1::2]):
        wave = 2 * math.pi * 100 ** (pair / 8)
        turns = [wave * turn for turn in range(1, 9) if wave * turn <= 48]
        assert data(dots) == [pytest.approx(turns), [1.0] * len(turns)]
        assert dots.get_color() == SIX[pair]


def test_the_errors_are_those_at_the_served_length(monkeypatch):
    asked = {}
    monkeypatch.setattr(rotation, "PRECISION_POINTS", 3)
    monkeypatch.setattr(
        rotation.analysis, "error_curves", lambda *given, **named: asked.update(named) or {}
    )
    monkeypatch.setattr(rotation, "legend", lambda *given, **named: None)
    plots.draw("precision", VIEW)
    assert asked == {"length": SERVED}


def test_a_frequency_is_drawn_by_its_size_and_a_still_pair_has_none():
    spec = rw.RopeSpec(6, scaling=rw.frequencies.Given((0.5, -0.1, 0.0)))
    left, right = plots.draw("spectrum", plots.View(spec, TRAINED, SERVED)).axes
    (_, sizes), (_, waves) = (data(ax.get_lines()[1]) for ax in (left, right))
    assert sizes == pytest.approx([0.5, 0.1, math.nan], nan_ok=True)
    assert waves == pytest.approx([4 * math.pi, 20 * math.pi, math.inf])


def test_equal_pairs_are_named_once():
    assert plots.ladder.pairs_with_turns(np.array([10.0, 1.0, 0.1]), (9, 8, 0.2, 0)[:3]) == [0, 2]
    # nearest by ratio, not by difference: 0.5 is half of 1 and five times 0.1
    assert plots.ladder.pairs_with_turns(np.array([1.0, 0.1]), (0.5,)) == [0]
    assert plots.ladder.pairs_with_turns(np.array([1.0, 0.0]), (0.5,)) == [0]


def test_a_model_served_shorter_than_it_was_trained_is_not_scaled():
    shorter = plots.View(VIEW.spec, 128, 32)
    assert {
        name: getattr(spec.scaling, "factor", None) for name, spec in shorter.stretched().items()
    } == {"linear": 1, "ntk": 1, "yarn": 1, "llama3": 1}
    norms = plots.draw("variants", shorter).axes[0].get_lines()[1]
    assert norms.get_label() == "yarn"
    assert norms.get_ydata() == pytest.approx(np.ones(400))


def test_the_defaults_of_a_view_are_those_the_captions_speak_of():
    view = plots.View()
    assert (view.spec, view.trained, view.served) == (rw.RopeSpec(128), 4096, 16_384)
    assert view.look == plots.Look(dark=False, language="en")
    assert "0.25 is four times slower" in plots.CAPTIONS["scalings"]  # 4096 / 16384
    assert {name: spec.scaling.factor for name, spec in view.stretched().items()} == dict.fromkeys(
        ("linear", "ntk", "yarn", "llama3"), 4
    )
    stretched = view.stretched()
    assert stretched["yarn"].scaling.original_length == 4096
    assert stretched["llama3"].scaling.original_length == 4096
    assert not view.scaled
    assert plots.View(FIXED).scaled
    assert f"{distance.TSNE_POSITIONS} positions" in plots.CAPTIONS["tsne"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (6.2832, "6.3"),
        (0.5, "0.5"),
        (2.0, "2"),
        (99.94, "99.9"),
        (408.2, "408"),
        (100.0, "100"),
        (999.4, "999"),
        (999.6, "1k"),
        (54_410, "54.4k"),
        (20_473_564, "20.5M"),
        (2e9, "2G"),
        (1.1e12, "1.1T"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (-1500, "-1.5k"),
    ],
)
def test_a_number_is_short(value, said):
    assert plots.ladder.short(value) == said


def of_legend(ax):
    return [text.get_text() for text in ax.get_legend().texts]


def test_distances_begin_with_the_diagonal_and_the_trained_length_is_dashed():
    (ax,) = methods.distance_lines({"a": ReRope(3)}, 7, trained=6).axes
    assert data(ax.get_lines()[0]) == [list(range(8)), list(range(8))]
    assert data(ax.get_lines()[1])[0] == list(range(8))
    assert dashed(ax.figure) == [[[0, 1], [6, 6]]]
    assert ax.get_ylim() == pytest.approx((0, 7.8))
    assert of_legend(ax) == ["RoPE", "a"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("true distance", "distance in the score")
    assert ax.get_title(loc="left") == "Distances that attention sees"
    assert dashed(methods.distance_lines({"a": ReRope(3)}, 7)) == []


def test_factors_are_drawn_at_their_positions():
    (ax,) = methods.temperature_lines({"log-n": LogN(4)}, 64).axes
    x, y = data(ax.get_lines()[0])
    assert (x[0], x[-1]) == (0, 63)
    # position p has p + 1 keys: log(p + 1) / log 4, and at least 1
    assert y == pytest.approx([max(1, math.log(p + 1) / math.log(4)) for p in x])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position", "factor")
    assert ax.get_title(loc="left") == "Factor on queries by position"
    assert of_legend(ax) == ["log-n"]


def test_lines_of_a_method_begin_with_a_thin_grey_baseline():
    series = {"plain": ([1, 2], [3, 4]), "a": ([1, 2], [5, 6]), "b": ([1, 2], [7, 8])}
    said = {"title": "T", "x": "X", "y": "Y"}
    (ax,) = methods.method_lines(series, **said, log_x=True).axes
    first, *others = ax.get_lines()
    assert [data(line) for line in ax.get_lines()] == [list(each) for each in series.values()]
    assert first.get_color() == look.LIGHT.quiet
    assert [line.get_color() for line in others] == SIX[:2]
    assert first.get_linewidth() < others[0].get_linewidth()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "linear")
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("T", "X", "Y")
    (ax,) = methods.method_lines(series, **said, log_y=True).axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")


def test_a_stripe_has_the_colours_of_its_numbers_from_left_to_right():
    rows = {"first": [0, -1, 1], "second": [1, 1, 0]}
    (ax,) = methods.stripes(rows, ["time", "height"], title="T", x="X").axes
    cells = {
        (round(p.get_y() + p.get_height() / 2), round(p.get_x())): to_hex(p.get_facecolor()).upper()
        for p in ax.patches
    }
    colour = {-1: look.LIGHT.grid.upper(), 0: SIX[0], 1: SIX[1]}
    assert cells == {
        (y, x): colour[i] for y, row in enumerate(rows.values()) for x, i in enumerate(row)
    }
    assert [label.get_text() for label in ax.get_yticklabels()] == ["first", "second"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first row is on top
    legend = ax.get_legend()
    assert {text.get_text(): text.get_color() for text in legend.texts} == {
        "time": SIX[0],
        "height": SIX[1],
    }


def test_bars_end_in_their_values_and_begin_on_top():
    (ax,) = methods.bars({"a": 1234.6, "b": 5.0}, title="T", x="X").axes
    assert [text.get_text() for text in ax.texts] == ["1,235", "5"]
    assert [bar.get_width() for bar in ax.patches] == [1234.6, 5.0]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == ("T", "X")


def test_directions_are_drawn_with_columns_to_the_right_and_a_colour_for_each_head():
    vectors = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]])
    (ax,) = methods.directions(vectors, title="T").axes
    assert [data(line) for line in ax.get_lines()] == [
        [[0, x], [0, y]] for x, y in vectors.flatten(0, 1).tolist()
    ]
    assert [line.get_color() for line in ax.get_lines()] == [SIX[0]] * 2 + [SIX[1]] * 2
    assert of_legend(ax) == ["head 0", "head 1"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("radians per column", "radians per row")
    assert ax.get_aspect() == 1


def test_maps_of_scores_have_queries_as_rows():
    scores = torch.arange(6.0).view(2, 3) - 4
    ax, *_ = methods.score_maps({"a": scores, "b": scores}, label="score").axes
    (image,) = ax.images
    assert np.asarray(image.get_array()).tolist() == scores.tolist()
    assert (list(image.get_extent()), image.origin) == ([0, 3, 0, 2], "lower")
    assert image.get_clim() == (-4, 4)
    assert (ax.get_title(loc="left"), ax.get_xlabel(), ax.get_ylabel()) == ("a", "key", "query")


BANDS = {
    "none": [LossBand(0, 1024, 3.0, 0.1), LossBand(1024, 4096, 6.0, 0.2)],
    "yarn": [LossBand(0, 1024, 3.2), LossBand(1024, 4096, 3.1)],
    "ntk": [LossBand(0, 1024, 3.1), LossBand(1024, 4096, 3.6)],
}


def test_the_loss_by_position_is_that_of_its_bands():
    (ax,) = loss_by_position(BANDS, 1024, "a model", "about it").axes
    assert ax.get_title(loc="left") == "a model, trained on 1,024 tokens, reads 4,096"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("position of the token", "loss, nats per token")
    assert ax.get_xlim() == (0, 4096)
    (shade,) = (each for each in ax.patches if not hasattr(each, "get_data"))
    assert (shade.get_x(), shade.get_width()) == (0, 1024)
    steps = [each for each in ax.patches if hasattr(each, "get_data")]
    assert [each.get_data().edges.tolist() for each in steps] == [[0, 1024, 4096]] * 3
    drawn = {
        tuple(e.get_data().values): (to_hex(e.get_edgecolor()).upper(), e.get_linewidth())
        for e in steps
    }
    # the best method in blue and the model as it is in vermilion, both thick and drawn last
    assert drawn == {
        (3.1, 3.6): (look.LIGHT.quiet.upper(), 1.1),
        (3.0, 6.0): (SIX[1], 2.6),
        (3.2, 3.1): (SIX[0], 2.6),
    }
    assert next(iter(drawn)) == (3.1, 3.6)
    words = {text.get_text(): text for text in ax.texts}
    assert set(words) == {"about it", "no scaling  6.00", "yarn  3.10", "ntk  3.60"}
    assert words["yarn  3.10"].get_color().upper() == SIX[0]
    assert words["no scaling  6.00"].get_color().upper() == SIX[1]
    assert all(words[each].xy[0] == 4096 for each in words if each != "about it")
    # one standard error up and one down, in the middle of each band
    marks = [segment for each in ax.collections for segment in each.get_segments()]
    spans = {(float(a[0]), round(float(b[1] - a[1]), 6)) for a, b in marks}
    assert {(512.0, 0.2), (2560.0, 0.4)} <= spans


class Pencil:
    """What a frame of the moving picture was asked to draw."""

    def __init__(self, width, height, look):
        self.width, self.height, self.look, self.calls = width, height, look, []

    def text(self, x, y, words, colour, anchor="mm", size=13):
        self.calls += [("text", words, colour), ("text at", x, y)]

    def ring(self, x, y, start, degrees, colour, width=7):
        self.calls += [("ring", start, degrees, colour), ("ring at", x, y)]

    def line(self, x, y, to_x, to_y, colour, width=3):
        self.calls.append(("line", x, y, to_x, to_y, colour))

    def dot(self, x, y, radius, colour):
        self.calls.append(("dot", x, colour))

    def finished(self):
        return self

    def of(self, kind):
        return [call[1:] for call in self.calls if call[0] == kind]


def test_a_dial_has_the_turns_of_its_pair_and_the_place_where_unseen_angles_begin():
    """The pairs of theta 100 in 16 dimensions make 5.09 to 0.09 turns in 32 trained tokens."""
    dials = motion.dials_of(VIEW.spec, TRAINED, SERVED)
    turns = [32 / (2 * math.pi) * 100 ** (-i / 8) for i in range(8)]
    assert [dial.pair for dial in dials] == [0, 2, 3, 4, 5, 6, 7]
    for dial in dials:
        assert dial.wavelength == pytest.approx(2 * math.pi * 100 ** (dial.pair / 8))
        assert dial.trained_turns == pytest.approx(turns[dial.pair])
        assert dial.served_turns == pytest.approx(4 * turns[dial.pair])
        assert dial.leaves_at == pytest.approx(1 if turns[dial.pair] >= 1 else 1 / 4)
    slow = motion.dials_of(VIEW.spec.with_(scaling=rw.frequencies.Linear(4.0)), TRAINED, SERVED)
    assert [dial.leaves_at for dial in slow] == [1.0] * 7
    assert slow[0].wavelength == pytest.approx(8 * math.pi)
    assert slow[0].served_turns == pytest.approx(slow[0].trained_turns)
    assert motion.Dial(0, 1.0, 1.0, 4.0).leaves_at == 1


@pytest.mark.parametrize(
    ("progress", "outside", "new"), [(0.25, False, None), (0.5, True, 90), (1.0, True, 270)]
)
def test_a_hand_turns_with_what_was_read_and_new_angles_are_coloured(progress, outside, new):
    """The pair makes a quarter turn in training and a whole turn when served."""
    pencil = Pencil(100, 100, look.LIGHT)
    motion._draw_dial(pencil, 50, 40, motion.Dial(3, 128.0, 0.25, 1.0), progress, SIX[1])
    rings = pencil.of("ring")
    assert rings[:2] == [(0, 360, look.LIGHT.grid), (0, 90, look.LIGHT.quiet)]
    assert rings[2:] == ([(90, pytest.approx(new), SIX[1])] if outside else [])
    ((x, y, to_x, to_y, colour),) = pencil.of("line")
    angle = 2 * math.pi * progress
    assert (x, y) == (50, 40)
    # up is towards 0 in a picture
    assert (to_x - x, y - to_y) == pytest.approx((26 * math.cos(angle), 26 * math.sin(angle)))
    assert colour == (SIX[1] if outside else SIX[0])
    assert [words for words, _ in pencil.of("text")] == ["pair 3", "a turn in 128"]
    # rings around the hand; words below them, one line under the other
    assert set(pencil.of("ring at")) == {(50, 40)}
    (first_x, first_y), (second_x, second_y) = pencil.of("text at")
    assert first_x == second_x == 50
    assert 40 + 36 < first_y < second_y


def test_a_fast_hand_makes_twelve_turns():
    pencil = Pencil(100, 100, look.LIGHT)
    motion._draw_dial(pencil, 0, 0, motion.Dial(0, 6.3, 100.0, 400.0), 0.5 / 12, SIX[1])
    assert pencil.of("ring") == [(0, 360, look.LIGHT.grid), (0, 360, look.LIGHT.quiet)]
    ((_, _, to_x, to_y, _),) = pencil.of("line")
    assert (to_x, to_y) == pytest.approx((-26, 0), abs=1e-9)


def test_a_frame_says_where_the_reading_is(monkeypatch):
    monkeypatch.setattr(motion, "_Canvas", Pencil)
    for progress, words, colour in ((0.125, "position 16", SIX[0]), (0.5, "position 64", SIX[1])):
        dials = motion.dials_of(VIEW.spec, TRAINED, SERVED)
        pencil = motion._frame(VIEW, {"row": dials}, progress)
        said = [each for each, _ in pencil.of("text")]
        assert said[0] == "Trained on 32 tokens, reading 128"
        assert said[1] == "row"
        assert words in said
        (x, found) = pencil.of("dot")[-1]
        left, right = 16, pencil.width - 16
        assert (x, found) == (pytest.approx(left + (right - left) * progress), colour)
        seen, rest = pencil.of("line")[-2:]
        middle = left + (right - left) / 4
        assert (seen[0], seen[2], seen[4]) == (left, pytest.approx(middle), look.LIGHT.quiet)
        assert (rest[0], rest[2], rest[4]) == (pytest.approx(middle), right, look.LIGHT.grid)


def test_the_moving_picture_has_a_row_without_scaling_and_one_with_it(monkeypatch):
    seen = []
    frame = motion._frame
    monkeypatch.setattr(motion, "_frame", lambda *given: seen.append(given[1:]) or frame(*given))
    scaled = plots.View(VIEW.spec.with_(scaling=Yarn(factor=4.0, original_length=32)), 32, 128)
    with Image.open(BytesIO(motion.reading(scaled))) as picture:
        assert picture.n_frames == 48
        assert picture.info["loop"] == 0
        times = [picture.seek(i) or picture.info["duration"] for i in range(48)]
    # eight seconds, and two more on the last frame; a GIF counts hundredths
    assert times == pytest.approx([8000 / 48] * 47 + [2000], abs=10)
    rows, progress = zip(*seen, strict=True)
    assert list(progress) == pytest.approx([(i + 1) / 48 for i in range(48)])
    assert list(rows[0]) == ["no scaling", "yarn"]
    slowest = [dials[-1] for dials in rows[0].values()]
    assert slowest[0].served_turns == pytest.approx(4 * slowest[1].served_turns)
    assert list(motion_rows(monkeypatch, VIEW)) == ["no scaling", "yarn"]


def motion_rows(monkeypatch, view):
    seen = []
    frame = motion._frame
    monkeypatch.setattr(motion, "FRAMES", 2)
    monkeypatch.setattr(motion, "_frame", lambda *given: seen.append(given[1]) or frame(*given))
    motion.reading(view)
    return seen[0]


def test_a_contact_sheet_has_four_in_a_row_and_the_folder_every_figure(monkeypatch, tmp_path):
    monkeypatch.setattr(plots, "FIGURES", {n: plots.FIGURES[n] for n in ("rotation", "angles")})
    monkeypatch.setattr(motion, "FRAMES", 2)
    paths = plots.write_all(tmp_path, VIEW)
    assert [path.name for path in paths] == [
        *("rotation.png", "angles.png", "reading.gif", "contact-sheet.png")
    ]
    assert all(path.is_file() for path in paths)
    assert [p.name for p in plots.write_all(tmp_path, VIEW, ["angles"], "svg")] == [
        *("angles.svg", "contact-sheet.png")
    ]
    figures = {str(i): plots.draw("angles", VIEW) for i in range(5)}
    sheet = plots.contact_sheet(figures)
    rows = sorted({round(ax.get_subplotspec().get_position(sheet).y0, 3) for ax in sheet.axes})
    assert len(rows) == 2
    assert tuple(sheet.get_size_inches()) == pytest.approx((16.8, 6.0))


def luminance(colour):
    """The relative luminance of WCAG, from 0 to 1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_notes_less_so_and_the_grid_hardly(dark):
    chosen = plots.Look(dark=dark)
    assert (luminance(chosen.paper) < 0.1) == dark
    ink, quiet, grid = (
        contrast(colour, chosen.paper) for colour in (chosen.ink, chosen.quiet, chosen.grid)
    )
    assert ink > 12
    assert 4 < quiet < 9  # 4.5 is what WCAG asks of text
    assert 1.1 < grid < 1.6
    # of two colours that the palette has on either paper, the lighter one is for the dark one
    assert chosen.colour(0) == ("#56B4E9" if dark else "#0072B2")
    assert chosen.colour(6) == chosen.colour(0)


def test_a_dark_figure_is_saved_dark(tmp_path):
    figure = plots.draw("rotation", plots.View(VIEW.spec, look=plots.Look(dark=True)))
    with Image.open(plots.save(figure, tmp_path / "dark.png")) as picture:
        assert max(picture.convert("RGB").getpixel((1, 1))) < 60
        assert picture.info["dpi"] == pytest.approx((200, 200), abs=0.1)


@pytest.mark.parametrize("name", sorted(plots.FIGURES))
def test_no_english_label_is_left_in_a_chinese_figure(monkeypatch, name):
    monkeypatch.setattr(look, "chinese_font", lambda: "DejaVu Sans")
    monkeypatch.setattr(distance, "TSNE_POSITIONS", 20)
    monkeypatch.setattr(rotation, "PRECISION_POINTS", 3)
    figure = plots.draw(name, plots.View(VIEW.spec, TRAINED, SERVED, plots.Look(language="zh")))
    english = [re.sub(r"\\\{\w+\\\}", ".+", re.escape(text)) for text in CHINESE]
    for text in figure.findobj(Text):
        said = text.get_text().strip()
        assert not any(re.fullmatch(pattern, said) for pattern in english), said


#: what a term is called in every label that has it
TERMS = {
    **{"query": "查询", "key": "键", "turn": "圈", "angle": "角度", "frequency": "频率"},
    **{"wavelength": "波长", "position": "位置", "distance": "距离", "similarity": "相似度"},
    **{"norm": "模长", "trained": "训练", "scores?": "分数", "radians": "弧度", "cosines?": "余弦"},
    **{"pairs?": "对", "loss": "损失", "rounding": "舍入", "inner products?": "内积"},
    **{"error": "误", "columns?": "列", "rows?": "行", "factor": "因子", "bound": "上界"},
    **{"coordinate": "坐标", "reads?|reading": "读", "windows": "窗口", "x": "x", "y": "y"},
}


def test_the_chinese_labels_use_the_terms_of_the_english_ones():
    for english, chinese in CHINESE.items():
        plain = re.sub(r"\{\w+\}", "", english)
        for term, word in TERMS.items():
            if re.search(rf"\b({term})\b", plain, re.IGNORECASE):
                assert word in chinese, (english, term)
        assert sorted(re.findall(r"\{\w+\}", english)) == sorted(re.findall(r"\{\w+\}", chinese))


def test_the_font_is_the_most_preferred_of_those_with_the_glyph(monkeypatch):
    from matplotlib import font_manager

    file = font_manager.findfont("DejaVu Sans")
    names = ["Some Other Font", "SimHei", "Noto Sans CJK SC", "WenQuanYi Zen Hei"]
    entries = [font_manager.FontEntry(fname=file, name=name) for name in names]
    monkeypatch.setattr(look, "SAMPLE", "A")
    assert look._chinese_among(entries) == "Noto Sans CJK SC"
    assert look._chinese_among(entries[:2]) == "SimHei"
    assert look._chinese_among(entries[:1]) == "Some Other Font"
