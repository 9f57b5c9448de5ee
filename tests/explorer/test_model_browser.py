"""The view of a model in a real browser, with the tiny model of random weights: texts do not overlap, dragging reads again."""

import pytest
from geometry import overlaps

from browser import CHROMIUM
from ropewalk.explorer.controls import LANGUAGES

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium; .ci/run installs it")
pytest.importorskip("websockets", reason="needs websockets, which streamlit brings along")
pytest.importorskip("transformers")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_view_of_a_model(browser, server, pictures, language):
    browser.open(f"{server}/?language={language}&view=model&model.tokens=300&model.gap=100")
    charts = "document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length"
    browser.wait(f"{charts} === 3", "two maps and the losses")
    browser.settle()
    assert overlaps(browser) == []
    assert browser.js("document.querySelectorAll('[data-testid=stException], [data-testid=stAlertContentError]').length") == 0
    before = browser.js("document.querySelector('[data-testid=stMain] table').innerText")
    assert "yarn 4x" in before
    browser.picture(pictures / f"model-{language}.png")
    browser.focus(".st-key-model-factor [role=slider], .st-key-model-factor input")
    browser.key("ArrowRight", 39)
    browser.wait("document.querySelector('[data-testid=stMain] table').innerText.includes('yarn 6x')", "the next factor")
    browser.settle()
    assert "model.factor=6" in browser.link()
    assert browser.js("document.querySelector('[data-testid=stMain] table').innerText") != before
