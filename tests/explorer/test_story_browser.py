"""The story in a real browser, step by step in both languages: no text lies on another; the
screenshots are those of the docs.
"""

import pytest
from geometry import cut, overlaps

from browser import CHROMIUM
from ropewalk_lab.explorer.controls import LANGUAGES, STEPS

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium; .ci/run installs it")
pytest.importorskip("websockets", reason="needs websockets, which streamlit brings along")
LLAMA = (
    "a.theta=500000&a.scaling=llama3&a.llama3.factor=8&a.llama3.original_length=8192&a.llama3.low_freq_factor=1"
    "&a.llama3.high_freq_factor=4&trained=8192&served=131072"
)


def drawn(browser, step: str) -> None:
    """Wait until a step and its pictures are there."""
    browser.wait(
        f"(new URLSearchParams(location.search).get('step') || 'question') === '{step}'",
        f"the step {step}",
    )
    browser.settle()
    shown = {"question": "img", "engines": "table"}.get(
        step, "[data-testid=stVegaLiteChart] svg text"
    )
    browser.wait(
        f"document.querySelector('[data-testid=stMain]').querySelector('{shown}') !== null",
        f"the picture of {step}",
    )
    assert (
        browser.js(
            "document.querySelectorAll('[data-testid=stException], "
            "[data-testid=stAlertContentError]').length"
        )
        == 0
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_whole_story_without_overlapping_texts(browser, server, pictures, language):
    browser.open(f"{server}/?language={language}")
    for place, step in enumerate(STEPS):
        drawn(browser, step)
        assert overlaps(browser) == [], step
        assert cut(browser) == [], step
        browser.picture(pictures / f"story-{place + 1}-{step}-{language}.png")
        if step == "question":
            # the answer: press yarn
            browser.js("document.querySelectorAll('.st-key-a-scaling button')[1].click()")
            browser.wait(
                "document.querySelector('[data-testid=stAlertContentSuccess]') !== null",
                "the remedy",
            )
            browser.wait("location.search.includes('a.yarn.factor=4')", "the factor in the link")
        if step != STEPS[-1]:
            browser.click(".st-key-next button")
    browser.click(".st-key-play button")
    browser.wait("new URLSearchParams(location.search).get('view') === 'ladder'", "free play")
    browser.settle()
    browser.wait(
        "document.querySelectorAll('[data-testid=stVegaLiteChart] svg text').length > 20",
        "the charts",
    )
    assert "a.scaling=yarn" in browser.link()
    assert overlaps(browser) == []
    assert cut(browser) == []


@pytest.mark.parametrize(
    "query", [f"view=clocks&{LLAMA}", f"view=ladder&compare=1&{LLAMA}", f"step=pairs&{LLAMA}"]
)
def test_long_wavelengths_do_not_collide(browser, server, query):
    # the slowest pair of Llama 3.1 takes 20,473,564 tokens for a turn
    browser.open(f"{server}/?{query}")
    browser.wait(
        "document.querySelector('[data-testid=stMain]').querySelector('img, svg text') !== null",
        "a picture",
    )
    assert overlaps(browser) == []


def test_a_narrow_screen_shows_the_first_step_whole(browser, server, pictures):
    browser.send(
        "Emulation.setDeviceMetricsOverride",
        width=390,
        height=844,
        deviceScaleFactor=1,
        mobile=True,
    )
    browser.open(server)
    drawn(browser, "question")
    assert browser.js("document.documentElement.scrollWidth") <= 390
    assert overlaps(browser) == []
    browser.picture(pictures / "story-narrow.png")
    browser.send("Emulation.clearDeviceMetricsOverride")
