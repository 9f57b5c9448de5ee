"""Every figure shows the numbers it claims to show: its lines and maps are compared with formulas
written out here.
"""

import math
import struct
from pathlib import Path

import numpy as np
import pytest

import ropewalk as rw
from ropewalk import axes
from ropewalk.frequencies import Dynamic, Given, LongRope, Ntk, Proportional, XPos, Yarn
from ropewalk_lab import plots
from ropewalk_lab.plots import distance, look, rotation, words

PAIRS, THETA, TRAINED, SERVED = 8, 100.0, 32, 128
VIEW = plots.View(rw.RopeSpec(2 * PAIRS, theta=THETA), TRAINED, SERVED)
OMEGA = np.array([THETA ** (-i / PAIRS) for i in range(PAIRS)])
SPECS = {
    "one pair": rw.RopeSpec(2),
    "still pairs": rw.RopeSpec(12, scaling=Proportional(1.0, fraction=0.5)),
    "given": rw.RopeSpec(6, scaling=Given((0.5, -0.1, 0.0))),
    "longrope": rw.RopeSpec(6, scaling=LongRope((1.0,) * 3, (1.0, 2.0, 3.0), original_length=32)),
    "axes": rw.RopeSpec(10, axes=axes.chunked([2, 1, 2])),
    "yarn": rw.RopeSpec(16, scaling=Yarn(factor=4.0, original_length=32, beta_fast=4.0)),
}

every_figure = pytest.mark.parametrize("name", plots.FIGURES)


@pytest.fixture(scope="module")
def drawn():
    """Each figure of the small view, drawn once when first asked for."""
    kept = {}

    def of(name):
        if name not in kept:
            kept[name] = plots.draw(name, VIEW)
        return kept[name]

    return of


@pytest.fixture
def few_points(drawn, monkeypatch):
    """Draw the slow figures with fewer points, for tests that do not look at their numbers. The
    fixture `drawn` has drawn its t-SNE figure in full before.
    """
    drawn("tsne")
    monkeypatch.setattr(distance, "TSNE_POSITIONS", 20)
    monkeypatch.setattr(rotation, "PRECISION_POINTS", 3)


def line(figure, index, panel=0):
    return figure.axes[panel].get_lines()[index]


def curve(figure, index, panel=0):
    found = line(figure, index, panel)
    return np.asarray(found.get_xdata(), dtype=float), np.asarray(found.get_ydata(), dtype=float)


def labels(figure, panel=0):
    return [
        each.get_label()
        for each in figure.axes[panel].get_lines()
        if not each.get_label().startswith("_")
    ]


def cosines(distance_, theta=None):
    theta = THETA if theta is None else theta
    return sum(math.cos(distance_ * theta ** (-i / PAIRS)) for i in range(PAIRS))


def check_rotation(figure):
    for position in range(6):
        x, y = curve(figure, 1 + position)
        assert (x, y) == (
            pytest.approx([0, math.cos(position)]),
            pytest.approx([0, math.sin(position)]),
        )


def check_clocks(figure):
    hands = [each for each in figure.axes[0].get_lines() if len(each.get_xdata()) == 2]
    chosen = [0, 1, 3, 4, 6, 7]
    angles = [position * OMEGA[pair] for pair in chosen for position in (0, 1, 4, 64)]
    assert len(hands) == len(angles)
    for hand, angle in zip(hands, angles, strict=True):
        (x0, x1), (y0, y1) = hand.get_data()
        assert (x1 - x0, y1 - y0) == (
            pytest.approx(0.43 * math.cos(angle)),
            pytest.approx(0.43 * math.sin(angle)),
        )
    shades = [each for each in figure.axes[0].patches if hasattr(each, "theta2")]
    for shade, angle in zip(shades, angles, strict=True):
        # the path of the hand, which is the whole clock after one turn
        assert (shade.theta1, shade.theta2) == (0, pytest.approx(min(math.degrees(angle), 360)))
    assert "a turn in 6.3" in {text.get_text() for text in figure.axes[0].texts}


def check_spectrum(figure):
    assert curve(figure, 0)[1] == pytest.approx(OMEGA)
    assert curve(figure, 0, 1)[1] == pytest.approx(2 * np.pi / OMEGA)
    assert curve(figure, 1, 1)[1] == pytest.approx([TRAINED, TRAINED])
    assert figure.axes[0].get_ylabel() == "inv_freq, radians per token"


def check_angles(figure):
    for i, position in enumerate((0, 1, 4, 8)):
        assert curve(figure, i)[1] == pytest.approx(position * OMEGA / (2 * np.pi))
        assert curve(figure, i, 1)[1] == pytest.approx(position * OMEGA)
    assert labels(figure) == ["position 0", "position 1", "position 4", "position 8"]
    wide = plots.draw("angles", plots.View(rw.RopeSpec(128)))
    assert curve(wide, 3, 1)[1] == pytest.approx([8 * 10_000 ** (-i / 64) for i in range(32)])
    assert len(curve(wide, 3)[1]) == 64


def check_periodicity(figure):
    for pair in range(3):
        x, y = curve(figure, 2 * pair)
        assert y == pytest.approx(np.cos(x * OMEGA[pair]))
        returns, tops = curve(figure, 2 * pair + 1)
        assert np.cos(returns * OMEGA[pair]) == pytest.approx(tops)
        assert len(returns) == int(48 * OMEGA[pair] / (2 * np.pi))
    assert labels(figure)[0] == "pair 0: a turn in 6.3"


def check_tsne(figure):
    points = np.asarray(figure.axes[0].collections[0].get_offsets())
    assert points.shape == (128, 2)
    near = np.linalg.norm(np.diff(points, axis=0), axis=1)
    far = np.linalg.norm(points[64:] - points[:64], axis=1)
    assert np.median(near) < np.median(far) / 3
    assert np.asarray(figure.axes[0].collections[0].get_array()) == pytest.approx(np.arange(128))


def check_variants(figure):
    norms = dict(zip(labels(figure), (curve(figure, i) for i in range(4)), strict=True))
    assert list(norms) == ["default", "yarn", "xpos", "added encoding"]
    x = norms["default"][0]
    assert (x[0], x[-1]) == (0, pytest.approx(2 * np.pi / OMEGA[4]))
    assert norms["default"][1] == pytest.approx(np.ones(400))
    assert norms["yarn"][1] == pytest.approx(np.full(400, 0.1 * math.log(4) + 1))
    zeta = (2 * np.arange(PAIRS) + 0.4 * 2 * PAIRS) / (1.4 * 2 * PAIRS)
    assert norms["xpos"][1] == pytest.approx([math.sqrt((zeta ** (2 * p / 512)).mean()) for p in x])
    added = [math.sqrt((np.abs(1 + np.exp(1j * p * OMEGA)) ** 2).mean()) for p in x]
    assert norms["added encoding"][1] == pytest.approx(added)
    paths = [curve(figure, i, 1) for i in range(4)]
    assert paths[0][0] == pytest.approx(np.cos(x * OMEGA[4]))
    assert paths[0][1] == pytest.approx(np.sin(x * OMEGA[4]))
    # YaRN: a larger circle; xPos: a spiral, as queries shrink; added: a circle around (1, 0)
    assert np.hypot(*paths[1]) == pytest.approx(np.full(400, 0.1 * math.log(4) + 1))
    shrinks = zeta[4] ** (x / 512)
    assert paths[2][0] == pytest.approx(shrinks * np.cos(x * OMEGA[4]))
    assert paths[2][1] == pytest.approx(shrinks * np.sin(x * OMEGA[4]))
    assert paths[3][0] == pytest.approx(1 + np.cos(x * OMEGA[4]))
    assert paths[3][1] == pytest.approx(np.sin(x * OMEGA[4]))


def check_beyond(figure):
    # of each number of turns within the trained length, the pair that is nearest by its ratio
    turns = OMEGA * TRAINED / (2 * np.pi)
    nearest = [np.abs(np.log(turns / wanted)).argmin() for wanted in (2, 0.5, 0.25, 0.1)]
    assert labels(figure) == [f"pair {pair}" for pair in nearest]
    for index, label in enumerate(labels(figure)):
        x, y = curve(figure, index)
        assert y == pytest.approx(np.cos(x * OMEGA[int(label.removeprefix("pair "))]))
        assert (x[0], x[-1]) == (0, SERVED)
    for dimension, value in enumerate((np.cos, np.sin)):
        x, y = curve(figure, dimension, 1)
        assert y == pytest.approx(value(x))  # the fastest pair rotates by one radian a position
        assert x[0] < TRAINED < x[-1]
    assert labels(figure, 1) == ["dimension 0", "dimension 1"]
    for ax in figure.axes:
        (shade,) = ax.patches
        assert shade.get_x() + shade.get_width() == pytest.approx(TRAINED)


def check_coverage(figure):
    assert curve(figure, 0)[1] == pytest.approx(OMEGA * TRAINED / (2 * np.pi))
    assert curve(figure, 1)[1] == pytest.approx(OMEGA * SERVED / (2 * np.pi))
    after = curve(figure, 2)[1]
    assert (after[0], after[-1]) == (
        pytest.approx(SERVED / (2 * np.pi)),
        pytest.approx(OMEGA[-1] * TRAINED / (2 * np.pi)),
    )
    assert labels(figure)[2] == "after yarn"


def check_scalings(figure):
    found = dict(zip(labels(figure), (curve(figure, i)[1] for i in range(4)), strict=True))
    assert list(found) == ["linear", "ntk", "yarn", "llama3"]
    assert found["linear"] == pytest.approx(np.full(PAIRS, 0.25))
    assert found["ntk"] == pytest.approx([4.0 ** (-i / (PAIRS - 1)) for i in range(PAIRS)])
    for name in ("yarn", "llama3"):
        assert (found[name][0], found[name][-1]) == (pytest.approx(1), pytest.approx(0.25))


def check_decay(figure):
    x, y = curve(figure, 0)
    assert x == pytest.approx(np.arange(257))
    sums = lambda d: np.abs(np.cumsum(np.exp(1j * d * OMEGA)))
    assert y == pytest.approx([sums(d).mean() for d in range(257)])
    bound, score = curve(figure, 0, 1)[1], curve(figure, 1, 1)[1]
    assert labels(figure, 1) == ["Abel bound", "|⟨q, k⟩|"]
    q, k = (np.random.default_rng(0).normal(size=(2, 2 * PAIRS))[i] for i in range(2))
    h = (q[:PAIRS] + 1j * q[PAIRS:]) * (k[:PAIRS] - 1j * k[PAIRS:])
    assert score == pytest.approx(
        [abs((h * np.exp(1j * d * OMEGA)).sum().real) for d in range(257)], abs=1e-9
    )
    assert (score <= bound + 1e-12).all()
    assert bound[9] == pytest.approx(np.abs(np.diff(np.append(h, 0))).max() * sums(9).sum())


def check_similarity(figure):
    x, y = curve(figure, 0)
    assert y == pytest.approx([cosines(d) / PAIRS for d in x])
    assert x[-1] == 512


def image(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def check_similarity_map(figure):
    assert image(figure).shape == (128, 128)
    assert image(figure)[5, 17] == pytest.approx(cosines(12) / PAIRS)
    assert np.diag(image(figure)) == pytest.approx(np.ones(128))


def check_inner_products(figure):
    q, k = distance.random_pair(2 * PAIRS)
    h = (q[:PAIRS] + 1j * q[PAIRS:]) * (k[:PAIRS] - 1j * k[PAIRS:])
    # row: the query's position, column: the key's
    assert image(figure)[17, 5] == pytest.approx((h * np.exp(12j * OMEGA)).sum().real)
    assert image(figure)[30, 18] == pytest.approx(image(figure)[17, 5])


def check_base_bound(figure):
    for index, theta in enumerate((1e3, 1e4, 1e5, 1e6)):
        x, y = curve(figure, index)
        assert y == pytest.approx([cosines(d, theta) for d in x])
        assert labels(figure)[index] == f"theta {theta:,.0f}"
    assert curve(figure, 4)[1] == pytest.approx([0, 0])


def check_precision(figure):
    found = dict(zip(labels(figure), (curve(figure, i)[1] for i in range(6)), strict=True))
    assert list(found)[:3] == ["exact", "hf_frequencies", "hf"]
    assert found["exact"].max() < 3e-7
    assert found["hf_frequencies"][0] < 1e-3 < found["hf_frequencies"][-1]
    assert found["bfloat16 positions"].min() > 0.05
    x = curve(figure, 0)[0]
    assert (x[0], x[-1]) == (1000, 2**40)


PAIR = "pair, fastest first"
#: what the axes of every panel say: (x, y); the clocks have none
AXES = {
    "rotation": [("x", "y")],
    "spectrum": [(PAIR, "inv_freq, radians per token"), (PAIR, "tokens per turn")],
    "angles": [(PAIR, "angle, in turns"), (PAIR, "angle, in radians")],
    "periodicity": [("position", "cos of the angle")],
    "beyond": [("position", "cos of the angle"), ("position", "(1, 0), rotated")],
    "coverage": [(PAIR, "turns")],
    "scalings": [(PAIR, "frequency / plain frequency")],
    "decay": [("distance", "mean of |S_j|"), ("distance", "inner product")],
    "similarity": [("distance", "similarity")],
    "similarity_map": [("key position", "query position")],
    "inner_products": [("key position", "query position")],
    "tsne": [("first coordinate", "second coordinate")],
    "base_bound": [("distance", "sum of cos(m ω)")],
    "variants": [("position", "norm / norm before"), ("x", "y")],
    "precision": [("position", "largest error of cos and sin")],
}

CHECKS = {
    name.removeprefix("check_"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}


@every_figure
def test_a_figure_shows_the_numbers_of_its_formulas(drawn, name):
    CHECKS[name](drawn(name))


@pytest.mark.parametrize("name", AXES)
def test_axis_labels_are_those_written_out_here(drawn, name):
    """`CHECKS` compares the numbers of each axis with their formula; these are their names."""
    panels = zip(drawn(name).axes, AXES[name], strict=False)  # colour bars follow the panels
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax, _ in panels] == AXES[name]


def test_every_figure_but_the_clocks_has_its_axis_labels_written_out_here():
    assert set(AXES) == set(plots.FIGURES) - {"clocks"}


def test_the_map_of_tsne_is_of_the_cosines_and_the_sines(monkeypatch):
    given = []
    monkeypatch.setattr(
        distance, "map_to_plane", lambda points: given.append(points) or points[:, :2]
    )
    plots.draw("tsne", VIEW)
    (points,) = given
    for position in (0, 1, 5, 127):
        angles = position * OMEGA
        assert points[position] == pytest.approx([*np.cos(angles), *np.sin(angles)], abs=1e-12)


#: the figures of a spec's own frequencies, the scaled ones if it has a scaling
OF_THE_SPEC = [
    *("rotation", "clocks", "angles", "periodicity", "beyond"),
    *("decay", "similarity", "similarity_map", "inner_products"),
]


@pytest.mark.parametrize("name", OF_THE_SPEC)
@pytest.mark.parametrize(
    ("scaling", "stretch"),
    # four times the trained length: 4 * 4 - (4 - 1)
    [(Ntk(4.0), 4), (Dynamic(factor=4.0, original_length=TRAINED), 13)],
    ids=["ntk", "dynamic"],
)
def test_a_figure_of_a_scaled_spec_shows_the_scaled_frequencies(
    monkeypatch, name, scaling, stretch
):
    """NTK that stretches by s is a plain rope of base theta * s^(d/(d-2)), so its figures are
    those; dynamic NTK has the stretch of the served length.
    """
    base = THETA * stretch ** (2 * PAIRS / (2 * PAIRS - 2))
    monkeypatch.setitem(globals(), "THETA", base)
    monkeypatch.setitem(globals(), "OMEGA", np.array([base ** (-i / PAIRS) for i in range(PAIRS)]))
    scaled = VIEW.spec.with_(scaling=scaling)
    CHECKS[name](plots.draw(name, plots.View(scaled, TRAINED, SERVED)))


@every_figure
def test_a_figure_is_a_small_picture_with_a_title_and_axis_labels(drawn, name, tmp_path):
    figure = drawn(name)
    path = plots.save(figure, tmp_path / "new" / f"{name}.png")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert 5_000 < len(data) < 300_000
    width, height = struct.unpack(">II", data[16:24])
    # twice the pixels of a screen
    assert (width, height) == tuple(round(200 * side) for side in figure.get_size_inches())
    if name != "clocks":
        assert figure.axes[0].get_title(loc="left")
    if name != "clocks":
        assert figure.axes[0].get_xlabel()
        assert figure.axes[0].get_ylabel()


@pytest.mark.sampled
@every_figure
@pytest.mark.parametrize("spec", SPECS)
def test_every_figure_is_drawn_for_every_kind_of_spec(few_points, name, spec):
    plots.draw(name, plots.View(SPECS[spec], 32, 64))


def test_a_spec_with_a_scaling_shows_it_beside_the_plain_one():
    view = plots.View(SPECS["yarn"], 32, 128)
    spectrum = plots.draw("spectrum", view)
    assert labels(spectrum, 1)[:2] == ["default", "yarn"]
    slowest = 10_000 ** (-7 / 8)
    assert [curve(spectrum, i)[1][-1] for i in (0, 1)] == pytest.approx([slowest, slowest / 4])
    waves = [curve(spectrum, i, 1)[1][-1] for i in (0, 1)]
    assert waves == pytest.approx([2 * np.pi / slowest, 8 * np.pi / slowest])
    own = plots.View(rw.RopeSpec(16, scaling=XPos(scale_base=64.0)), 32, 128)
    variants = plots.draw("variants", own)
    assert labels(variants) == ["default", "yarn", "xpos", "added encoding"]
    x, norm = curve(variants, 2)
    zeta = (2 * np.arange(8) + 0.4 * 16) / (1.4 * 16)
    assert norm[-1] == pytest.approx(math.sqrt((zeta ** (2 * x[-1] / 64)).mean()))
    assert labels(plots.draw("scalings", view)) == ["linear", "ntk", "llama3", "yarn"]
    assert labels(plots.draw("coverage", view))[2] == "after yarn"


def test_among_the_variants_only_the_specs_own_is_scaled():
    scaling = Dynamic(factor=4.0, original_length=TRAINED)
    own = OMEGA[4] / 13 ** (4 / (PAIRS - 1))  # at 128 tokens theta is 13^(8/7) times as large
    spec = rw.RopeSpec(2 * PAIRS, theta=THETA, scaling=scaling)
    figure = plots.draw("variants", plots.View(spec, TRAINED, SERVED))
    assert labels(figure) == ["default", "yarn", "xpos", "dynamic", "added encoding"]
    x = curve(figure, 0)[0]
    assert x[-1] == pytest.approx(2 * np.pi / OMEGA[4])
    turned = lambda omega: np.stack([np.cos(x * omega), np.sin(x * omega)])
    path = lambda index: np.stack(curve(figure, index, 1))
    assert path(0) == pytest.approx(turned(OMEGA[4]))
    assert path(3) == pytest.approx(turned(own))
    assert path(4) - [[1], [0]] == pytest.approx(turned(OMEGA[4]))
    added = [math.sqrt((np.abs(1 + np.exp(1j * p * OMEGA)) ** 2).mean()) for p in x]
    assert curve(figure, 4)[1] == pytest.approx(added)


def test_a_clock_of_frequency_0_says_that_it_does_not_rotate():
    figure = plots.clock_faces([1.0, 0.0], (0, 7))
    assert "does not rotate" in {text.get_text() for text in figure.axes[0].texts}


@pytest.mark.parametrize(
    ("angle", "degrees"), [(0.5, 28.65), (-0.5, 28.65), (7.0, 360), (-7.0, 360)]
)
def test_a_clock_shades_the_path_of_its_hand_in_either_direction(angle, degrees):
    (wedge,) = (
        patch
        for patch in plots.clock_faces([angle], (1,)).axes[0].patches
        if hasattr(patch, "theta1")
    )
    assert wedge.theta2 - wedge.theta1 == pytest.approx(degrees, abs=0.01)
    y = (wedge.get_path().vertices[:-2] - wedge.center).mean(0)[1]  # without the centre
    assert abs(angle) > 6 or y * angle > 0  # on the side to which the hand turns


@every_figure
def test_a_dark_figure_has_a_dark_background_and_light_words(drawn, few_points, name):
    figure = plots.draw(name, plots.View(VIEW.spec, TRAINED, SERVED, plots.Look(dark=True)))
    brightness = lambda colour: sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) / 3
    assert max(figure.get_facecolor()[:3]) < 0.2
    assert brightness(look.Look(dark=True).ink) > 200
    assert min(drawn(name).get_facecolor()[:3]) > 0.9


@every_figure
def test_chinese_labels_are_chinese(monkeypatch, few_points, name):
    monkeypatch.setattr(look, "chinese_font", lambda: "Some Font")
    figure = plots.draw(name, plots.View(VIEW.spec, TRAINED, SERVED, plots.Look(language="zh")))
    from matplotlib.text import Text

    chinese = [
        text for text in figure.findobj(Text) if any("一" <= c <= "鿿" for c in text.get_text())
    ]
    assert chinese
    assert all(text.get_fontfamily()[0] == "Some Font" for text in chinese)
    titles = [ax.get_title(loc="left") for ax in figure.axes] + [
        ax.get_xlabel() for ax in figure.axes
    ]
    assert not set(titles) & set(words.CHINESE)


@every_figure
@pytest.mark.parametrize("language", look.LANGUAGES)
def test_every_glyph_exists_and_the_margin_of_a_figure_is_blank(few_points, name, language):
    """A glyph that a face lacks is a warning of matplotlib's, and so an error here."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if language == "zh" and look.chinese_font() is None:
        pytest.skip("no font with Chinese glyphs")
    canvas = FigureCanvasAgg(plots.draw(name, plots.View(look=plots.Look(language=language))))
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    rim = np.ones(pixels.shape[:2], dtype=bool)
    rim[6:-6, 6:-6] = False
    assert (pixels[rim] == 255).all()
    assert not (pixels[~rim] == 255).all()


def test_a_font_installed_since_matplotlib_looked_is_found_and_one_removed_is_not(monkeypatch):
    from matplotlib import font_manager

    file = font_manager.findfont("DejaVu Sans")
    gone = font_manager.FontEntry(fname="/nowhere/gone.ttf", name="Noto Sans CJK SC")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [gone])
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [__file__, file])
    monkeypatch.setattr(look, "SAMPLE", "A")
    assert look.chinese_font.__wrapped__() == "DejaVu Sans"
    monkeypatch.setattr(look, "SAMPLE", "频")
    assert look.chinese_font.__wrapped__() is None


def test_without_a_font_chinese_falls_back_to_english(monkeypatch):
    monkeypatch.setattr(look, "chinese_font", lambda: None)
    figure = plots.draw("similarity", plots.View(look=plots.Look(language="zh")))
    assert figure.axes[0].get_xlabel() == "distance"


def test_the_font_is_one_with_the_glyphs_and_never_the_last_resort():
    from matplotlib.font_manager import fontManager
    from matplotlib.ft2font import FT2Font

    look.chinese_font.cache_clear()
    found = look.chinese_font()
    here = [entry for entry in fontManager.ttflist if Path(entry.fname).is_file()]
    able = {entry.name for entry in here if FT2Font(entry.fname).get_char_index(ord("频"))}
    able = {name for name in able if not name.startswith("Last Resort")}
    assert (found in able) if able else (found is None)


def test_colours_are_okabe_and_itos_and_differ():
    palette = {
        "#000000",
        "#E69F00",
        "#56B4E9",
        "#009E73",
        "#F0E442",
        "#0072B2",
        "#D55E00",
        "#CC79A7",
    }
    for colours in (look.ON_LIGHT, look.ON_DARK):
        assert set(colours) <= palette
        assert len(set(colours)) == len(colours)
    assert plots.Look().colour(7) == look.ON_LIGHT[1]


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(drawn, tmp_path, suffix):
    first, second = (
        plots.save(drawn("similarity"), tmp_path / f"{i}.{suffix}").read_bytes() for i in range(2)
    )
    assert first == second
    assert first[:4] == {"svg": b"<?xm", "pdf": b"%PDF"}[suffix]


def test_an_svg_keeps_its_words(drawn, tmp_path):
    assert "Similarity against distance" in plots.save(
        drawn("similarity"), tmp_path / "a.svg"
    ).read_text(encoding="utf-8")


def test_the_contact_sheet_holds_every_picture(drawn):
    figures = {name: drawn(name) for name in ("rotation", "angles", "similarity")}
    sheet = plots.contact_sheet(figures, across=2)
    assert [ax.get_title() for ax in sheet.axes] == list(figures)
    for ax, figure in zip(sheet.axes, figures.values(), strict=True):
        pixels = np.asarray(ax.images[0].get_array())
        assert pixels.shape[:2] == tuple(
            round(72 * side) for side in figure.get_size_inches()[::-1]
        )
        assert pixels[..., :3].std() > 5


def test_precision_lines_and_ratio_lines_draw_the_given_numbers():
    figure = plots.precision_lines({"mine": ([1000, 5000], [1e-5, 1e-4])})
    assert curve(figure, 0) == (pytest.approx([1000, 5000]), pytest.approx([1e-5, 1e-4]))
    figure = plots.ratio_lines({"linear": [0.5, 0.5, 0.5]})
    assert curve(figure, 0)[1] == pytest.approx([0.5] * 3)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: plots.draw("pie"), "figure: must be one of rotation"),
        (lambda: plots.Look(language="fr"), "language: must be one of en, zh"),
        (lambda: plots.View(trained=2), "trained: must be an integer"),
        (lambda: plots.save(None, Path("a.bmp")), "format: must be one of png, svg, pdf"),
    ],
)
def test_unknown_figures_languages_and_formats_and_too_short_lengths_are_refused(make, says):
    with pytest.raises(rw.RopeError, match=says):
        make()


@pytest.mark.parametrize(("signed", "limits"), [(True, (-3, 3)), (False, (-3, 1))])
def test_signed_colours_are_centred_on_zero(signed, limits):
    figure, (ax,) = look.blank(look.LIGHT)
    values, extent = np.array([[-3.0, 1.0]]), (0, 2, 0, 1)
    look.heat(figure, ax, look.LIGHT, values, signed=signed, label="", extent=extent)
    (image,) = ax.get_images()
    assert image.get_clim() == limits
