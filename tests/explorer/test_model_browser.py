"""The view of a model in a real browser: texts do not overlap, dragging reads again.

The model is tiny, with random weights. The docs show a real one, by the same test:

    ROPEWALK_MODEL=model.gguf ROPEWALK_SCREENSHOTS=build/screenshots pytest
    tests/explorer/test_model_browser.py
"""

import os

import pytest
from geometry import cut, overlaps

from browser import CHROMIUM
from ropewalk_lab.explorer.controls import LANGUAGES

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium; .ci/run installs it")
pytest.importorskip("websockets", reason="needs websockets, which streamlit brings along")
pytest.importorskip("transformers")
#: a short text; for a real model the page's own 16,384 skipped positions, and a head of SmolLM2
#: that finds the pass key
LINK = (
    "&model.layer=20&model.head=5"
    if os.environ.get("ROPEWALK_MODEL")
    else "&model.tokens=300&model.gap=100"
)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_view_of_a_model(browser, server, pictures, language):
    # tall enough for all that the view shows
    browser.send(
        "Emulation.setDeviceMetricsOverride",
        width=1280,
        height=1640,
        deviceScaleFactor=1,
        mobile=False,
    )
    browser.open(f"{server}/?language={language}&view=model{LINK}")
    charts = "document.querySelectorAll('[data-testid=stVegaLiteChart] svg').length"
    browser.wait(f"{charts} === 3", "two maps and the losses", seconds=180.0)
    browser.settle()
    assert overlaps(browser) == []
    assert cut(browser) == []
    assert (
        browser.js(
            "document.querySelectorAll('[data-testid=stException], "
            "[data-testid=stAlertContentError]').length"
        )
        == 0
    )
    table = "document.querySelector('[data-testid=stMain] table').innerText"
    browser.wait(f"{table}.includes('yarn 4x')", "the first factor")
    before = browser.js(table)
    browser.picture(pictures / f"model-{language}.png")
    browser.focus(".st-key-model-factor [role=slider], .st-key-model-factor input")
    browser.key("ArrowRight", 39)
    browser.wait(f"{table}.includes('yarn 6x')", "the next factor")
    browser.settle()
    assert "model.factor=6" in browser.link()
    assert browser.js(table) != before
    browser.send("Emulation.clearDeviceMetricsOverride")
