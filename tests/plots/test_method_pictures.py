"""Every page about a method has a picture for light and for dark pages, of what the library
computes.
"""

import importlib.util
import math
import re
import sys
from pathlib import Path

import pytest

from ropewalk_lab.plots import Look

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of an installation")


@pytest.fixture(scope="module")
def pictures():
    spec = importlib.util.spec_from_file_location("method_pictures", DOCS / "method_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module.METHOD_PICTURES
    del sys.modules[spec.name]


@pytest.mark.parametrize(
    "page", [path.stem for path in sorted((DOCS / "methods").glob("*.md")) if path.stem != "index"]
)
def test_every_page_has_a_picture_on_light_and_dark_paper(page, pictures):
    shown = re.findall(
        r"!\[[^\]]{20,}\]\(\.\./images/([\w-]+)\.png\)",
        (DOCS / "methods" / f"{page}.md").read_text(encoding="utf-8"),
    )
    assert shown
    for name in shown:
        assert all((DOCS / "images" / f"{name}{suffix}.png").is_file() for suffix in ("", "-dark"))
        assert name.removeprefix("method-") in {*pictures, "remapping", "temperature"}


def lines(figure) -> dict[str, tuple[list, list]]:
    return {
        line.get_label(): (list(line.get_xdata()), list(line.get_ydata()))
        for line in figure.axes[0].get_lines()
    }


def test_pictures_of_methods_show_numbers_of_their_formulas(pictures):
    look = Look(dark=True)
    drawn = {name: draw(look) for name, draw in pictures.items()}
    assert all(figure.axes[0].get_title(loc="left") for figure in drawn.values())
    cope = lines(drawn["cope"])["CoPE, 20 pairs"][1]
    for pair, m in ((43, None), (44, 0), (50, 6), (62, 18)):
        taper = 1 if m is None else (1 + math.cos(math.pi * m / 19)) / 2
        assert cope[pair] == pytest.approx(10_000 ** (-pair / 64) * taper, rel=1e-9)
    pope = lines(drawn["pope"])["PoPE, 64 channels"][1]
    assert pope[9] == pytest.approx(
        sum(math.cos(9 * 10_000 ** (-c / 64)) for c in range(64)) / 64, rel=1e-9
    )
    imaginary = lines(drawn["rope-plus"])["imaginary"][1]
    assert imaginary[9] == pytest.approx(
        sum(math.sin(9 * 10_000 ** (-i / 32)) for i in range(32)) / 32, rel=1e-9
    )
    slowed = lines(drawn["riflex"])["RIFLEx, 66 frames"][1]
    assert slowed[5] == pytest.approx(math.cos(5 * 0.9 * 2 * math.pi / 66), rel=1e-9)
    assert [bar.get_width() for bar in drawn["latent-attention"].axes[0].patches] == [
        32768,
        2048,
        256,
        576,
    ]
