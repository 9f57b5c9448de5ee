"""The numbers that JavaScript draws are those of the definition, to the last digit shown."""

import json
import math
import random
from decimal import Decimal

import pytest

import ropewalk as rw
from ropewalk.analysis import Facts

SCALINGS = {
    "default": lambda trained, factor: rw.frequencies.Default(),
    "linear": lambda trained, factor: rw.frequencies.Linear(factor),
    "ntk": lambda trained, factor: rw.frequencies.Ntk(factor),
    "dynamic": lambda trained, factor: rw.frequencies.Dynamic(factor, trained),
    "yarn": lambda trained, factor: rw.frequencies.Yarn(trained, factor=factor),
    "llama3": lambda trained, factor: rw.frequencies.Llama3(factor, original_length=trained),
}


@pytest.fixture(scope="module")
def page(browser, local):
    browser.open(f"{local}/#methods?lang=en", "document.querySelector('main h1') !== null")
    browser.js(
        "Promise.all(['rope', 'numbers', 'story', 'state'].map((name) => "
        "import(`./js/${name}.js`).then((found) => { window[name] = found; }))).then(() => true)"
    )
    return browser


@pytest.mark.parametrize("name", SCALINGS)
def test_frequencies_have_the_digits_of_the_definition(page, name):
    draw = random.Random(name)
    for _ in range(12):
        dim, theta = draw.choice([32, 64, 96, 128, 256]), draw.choice([100, 10000, 500000, 10**7])
        trained = draw.choice([512, 2048, 4096, 40960, 131072])
        served = trained * draw.choice([1, 2, 3, 4, 5, 8, 32])
        asked = {"dim": dim, "theta": theta, "trained": trained, "served": served, "scaling": name}
        found = page.js(
            f"(() => {{ const found = rope.ropeOf({json.dumps(asked)}); return {{radians: "
            "found.radians, shown: found.radians.map((each) => numbers.digits(each, 4)), magnitude: "
            "numbers.digits(found.magnitude, 5), fresh: rope.newAngles(found)}; })()"
        )
        spec = rw.RopeSpec(
            dim, theta=float(theta), scaling=SCALINGS[name](trained, served / trained)
        )
        exact = spec.ladder_frequencies(served).digits
        for ours, digits, shown in zip(found["radians"], exact, found["shown"], strict=True):
            assert abs(Decimal(ours) / digits - 1) < Decimal("1e-12")
            assert shown == f"{digits:.4g}".replace("E", "e") or float(shown) == float(
                f"{float(digits):.4g}"
            )
        assert found["magnitude"] == f"{spec.magnitude(served):.5g}"
        facts = Facts(spec, trained, served)
        assert sum(found["fresh"]) == facts.new_angles


def test_numbers_are_written_as_python_writes_them(page):
    draw = random.Random(0)
    values = [
        draw.choice([-1, 1]) * draw.random() * 10 ** draw.randint(-12, 12) for _ in range(400)
    ]
    values += [0.0, 1.0, 10.0, 99995.0, 99994.9, 1e4, 1e-4, 1e-5, 0.1, 123456789.0, 1e300, 5e-324]
    for count in (3, 4, 5):
        found = page.js(f"{json.dumps(values)}.map((value) => numbers.digits(value, {count}))")
        assert found == [f"{value:.{count}g}" for value in values]


def test_the_score_in_javascript_is_the_mean_over_rotated_pairs(page):
    """q and k are vectors of ones; for the expected score both are rotated here as complex numbers."""
    for distance in (0, 1, 12, 255, 4095):
        radians = rw.RopeSpec(64).frequencies().radians
        shift = 77
        pairs = [
            complex(math.cos(w * (shift + distance)), math.sin(w * (shift + distance)))
            * complex(math.cos(w * shift), math.sin(w * shift)).conjugate()
            for w in radians
        ]
        mean = sum(pair.real for pair in pairs) / len(pairs)
        found = page.js(f"rope.score(rope.plain(64, 10000), {distance}).toFixed(3)")
        assert found == f"{mean:.3f}"


def test_javascript_scores_in_both_layouts_equal_those_of_the_library(page):
    torch = pytest.importorskip("torch")
    q = torch.tensor([0.9, -0.4, 0.3, 0.8, -0.6, 0.5, 0.2, 0.7], dtype=torch.float64)
    k = torch.tensor([0.5, 0.6, -0.7, 0.4, 0.3, 0.8, -0.2, 0.9], dtype=torch.float64)
    rope = rw.Rope(rw.RopeSpec(8, layout="interleaved"))
    for position in (0, 3, 1000):
        rotated = rope.rotate(q[None, None, None], torch.tensor([position]))
        expected = f"{float((rotated[0, 0, 0] * k).sum()):.5f}"
        found = page.js(
            f"story.scoresOfLayouts({position}, 10000).map((score) => score.toFixed(5))"
        )
        assert found == [expected, expected]


def test_the_error_of_float32_angles_is_that_of_numpy(page):
    numpy = pytest.importorskip("numpy")
    exact = rw.RopeSpec(64).ladder_frequencies(None).digits
    for position in (100, 4096, 131071, 1 << 20):
        angles = numpy.float32(position) * numpy.array(exact, dtype=float).astype(numpy.float32)
        worst = max(
            max(abs(math.cos(float(a)) - math.cos(t)), abs(math.sin(float(a)) - math.sin(t)))
            for a, t in zip(
                angles,
                [float(w * position % (2 * Decimal(str(math.pi)))) for w in exact],
                strict=True,
            )
        )
        found = page.js(f"rope.float32Error(rope.plain(64, 10000), {position})")
        assert found == pytest.approx(worst, rel=1e-4)


def test_javascript_reads_the_frequencies_of_a_plain_config_as_python_does(page):
    base = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 16384,
        "rope_theta": 500000.0,
    }
    for scaling in (
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ):
        config = {**base, "rope_scaling": scaling}
        found = page.js(f"rope.fromConfig({json.dumps(json.dumps(config))}, null)")
        spec = rw.from_hf(config).with_(precision="exact")
        assert found["radians"] == pytest.approx(
            spec.frequencies(found["served"]).radians, rel=1e-12
        )


def test_javascript_returns_null_for_what_is_no_plain_config(page):
    texts = [
        "",
        "[]",
        "null",
        "{}",
        '{"head_dim": "x"}',
        '{"head_dim": 1e9}',
        '{"head_dim": 64, "rope_scaling": 3}',
        '{"head_dim": 64, "rope_scaling": {"rope_type": "constructor"}}',
        '{"head_dim": 64, "rope_scaling": {"rope_type": "__proto__"}}',
    ]
    assert page.js(f"{json.dumps(texts)}.map((text) => rope.fromConfig(text, null))") == [None] * 9
