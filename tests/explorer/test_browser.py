"""The page in a real browser: every kind of control by hand, both languages, a dropped config good
and bad, a link restored.
"""

import json
import re
import time
from urllib.parse import parse_qsl

import pytest

from browser import CHROMIUM
from ropewalk.config.examples import EXAMPLES
from ropewalk_lab.explorer import controls
from ropewalk_lab.explorer.state import layers_of

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium; .ci/run installs it")
pytest.importorskip("websockets", reason="needs websockets, which streamlit brings along")
VIEWS = [view for view in controls.VIEWS if view not in ("story", "report")]
HAN = re.compile("[\u4e00-\u9fff]")


def link(browser) -> dict[str, str]:
    """What the address says beside the first view of free play."""
    found = parse_qsl(browser.link().removeprefix("?"), keep_blank_values=True)
    return {name: text for name, text in found if (name, text) != ("view", "clocks")}


def healthy(browser) -> None:
    assert browser.js("document.querySelectorAll('[data-testid=stException]').length") == 0
    assert browser.js("document.querySelectorAll('[data-testid=stAlert]').length") == 0


def of(name: str) -> str:
    """The place of a control on the page."""
    return ".st-key-" + name.replace(".", "-")


def change(browser, name: str) -> None:
    """Turn a control as a hand would, by what it is."""
    place = of(name)
    browser.wait(f"document.querySelector('{place} input') !== null", f"the control {name}")
    kind = browser.js(f"document.querySelector('{place} [data-testid]').dataset.testid")
    before = browser.link()
    if kind == "stSlider":
        browser.focus(f"{place} input[type=range]")
        # a weight starts at its largest
        browser.key(*(("ArrowLeft", 37) if name.endswith("_weight") else ("ArrowRight", 39)))
    elif kind == "stSelectbox":
        browser.focus(f"{place} input")
        browser.key("ArrowDown", 40)
        browser.key("ArrowDown", 40)
        browser.key("Enter", 13, "\r")
    elif kind == "stNumberInput":
        browser.focus(f"{place} input")
        browser.write("1.5")
    elif kind == "stTextInput":
        browser.focus(f"{place} input")
        browser.write("3,2")
    elif kind == "stRadio":
        browser.click(f"{place} label:has(input:not(:checked))")
    else:
        browser.click(f"{place} input")
    browser.wait(f"location.search !== {json.dumps(before)}", f"{name} to be answered")
    browser.settle()
    healthy(browser)
    assert name in link(browser) or name in before


def test_a_longer_target_leaves_the_position_alone(browser, server):
    browser.open(f"{server}/?position=77&a.rotary_dim=32&view=plane&pair=7")
    change(browser, "served")
    change(browser, "a.head_dim")
    change(browser, "language")
    assert {name: link(browser)[name] for name in ("position", "a.rotary_dim", "pair", "view")} == {
        "position": "77",
        "a.rotary_dim": "32",
        "pair": "7",
        "view": "plane",
    }
    change(browser, "position")
    # the slider is logarithmic: eight positions in an octave
    assert link(browser)["position"] == "83"


def test_every_control_is_turned_by_hand(browser, server, pictures):
    browser.open(f"{server}/?view=clocks&a.scaling=yarn&compare=1&b.scaling=ntk_by_parts")
    scalings = {"a": "yarn", "b": "ntk_by_parts"}
    fields = [f"{side}.{name}.{field}" for side, name in scalings.items() for field in scaled(name)]
    names = [
        "trained",
        "served",
        "position",
        "a.head_dim",
        "a.theta",
        "b.head_dim",
        "b.theta",
        *fields,
        "animate",
    ]
    for name in names:
        change(browser, name)
    more = ("rotary_dim", "layout", "precision", "magnitude_on")
    for place, side in enumerate(controls.SIDES):
        browser.js(f"document.querySelectorAll('[data-testid=stPopover] button')[{place}].click()")
        for name in more:
            change(browser, f"{side}.{name}")
        browser.key("Escape", 27)
    for name in ("a.scaling", "b.scaling"):
        change(browser, name)
    change(browser, "compare")
    assert browser.picture(pictures / "every-control.png").startswith(b"\x89PNG")


def scaled(name: str) -> list[str]:
    from ropewalk.frequencies import SCALINGS

    return list(controls.scaling_controls(SCALINGS[name]))


@pytest.mark.parametrize("language", controls.LANGUAGES)
def test_every_view_in_every_language(browser, server, pictures, language):
    browser.open(
        f"{server}/?view=clocks&a.scaling=yarn&a.yarn.factor=4&a.yarn.original_length=4096&position=9"
    )
    if language == "zh":
        change(browser, "language")
    for place, view in enumerate(VIEWS):
        browser.js(f"document.querySelectorAll('.st-key-view input')[{place + 1}].click()")
        browser.wait(
            f"(new URLSearchParams(location.search).get('view')) === '{view}'", f"the view {view}"
        )
        browser.settle()
        shown = {"clocks": "img", "plane": "img", "code": "code"}.get(
            view, "canvas, [data-testid=stVegaLiteChart] svg"
        )
        browser.wait(
            f"document.querySelector('[data-testid=stMain]').querySelector('{shown}') !== null",
            f"the drawing of {view}",
        )
        healthy(browser)
        assert bool(HAN.search(browser.text().replace("语言", "").replace("中文", ""))) == (
            language == "zh"
        )
        browser.picture(pictures / f"{view}-{language}.png")
    browser.wait(
        "document.body.innerText.includes('rw.RopeSpec(head_dim=128, scaling=Yarn(')",
        "the text of the code",
    )


def test_a_link_is_restored(browser, server):
    wanted = {
        "view": "plane",
        "position": "77",
        "pair": "5",
        "served": "262144",
        "a.theta": "123456.7",
        "a.scaling": "llama3",
        "a.llama3.factor": "8",
        "compare": "1",
        "b.scaling": "longrope",
        "b.longrope.long_factor": "1,9",
    }
    browser.open(f"{server}/?" + "&".join(f"{name}={text}" for name, text in wanted.items()))
    browser.wait("document.body.innerText.includes('theta 123,457')", "the spec of the link")
    assert link(browser) == wanted
    browser.wait(
        f"document.querySelector('{of('a.theta')} input').getAttribute('aria-valuetext') === "
        "'123,457'",
        "the slider",
    )
    browser.wait(
        f"document.querySelector('{of('b.longrope.long_factor')} input').value === '1,9'",
        "the factors",
    )
    healthy(browser)


def test_a_dropped_config_fills_the_page_and_a_bad_one_does_not_end_it(
    browser, server, tmp_path, pictures
):
    bad, good = tmp_path / "bad.json", tmp_path / "config.json"
    bad.write_text('{"model_type": "llama", "rope_theta": NaN}', encoding="utf-8")
    good.write_text(json.dumps(EXAMPLES["DeepSeek-V3"]), encoding="utf-8")
    browser.open(f"{server}/?view=clocks&a.theta=500")
    browser.drop(bad)
    browser.wait("document.body.innerText.includes('must be finite')", "the message")
    assert link(browser) == {"a.theta": "500"}
    browser.picture(pictures / "bad-config.png")
    browser.focus(f"{of('a.theta')} input[type=range]")
    browser.key("ArrowRight", 39)
    browser.wait("location.search === '?view=clocks&a.theta=1000'", "the page to go on")
    browser.drop(good)
    browser.wait("location.search.includes('a.scaling=yarn')", "the good config")
    browser.settle()
    healthy(browser)
    assert link(browser) == controls.to_link(
        controls.defaults() | layers_of(EXAMPLES["DeepSeek-V3"])["full_attention"]
    )


def test_a_preset_is_chosen_by_its_name(browser, server, pictures):
    browser.open(f"{server}/?view=ladder&compare=1")
    browser.focus(f"{of('preset')} input")
    browser.write("Phi-3-vision-128k")
    browser.wait("location.search.includes('longrope')", "the preset")
    browser.settle()
    healthy(browser)
    browser.picture(pictures / "preset.png")


def test_the_report_opens_from_the_page(browser, server):
    browser.open(f"{server}/?view=report")
    browser.wait("document.querySelector('iframe')?.src.startsWith('data:text/html')", "the report")
    # its origin is its own: the page cannot look in, nor it out
    assert browser.js("document.querySelector('iframe').contentDocument === null")


def test_nothing_is_fetched_from_elsewhere(browser, server):
    browser.open(f"{server}/?view=distance")
    browser.wait("document.querySelector('[data-testid=stVegaLiteChart]') !== null", "a chart")
    time.sleep(0.5)
    fetched = browser.js("performance.getEntriesByType('resource').map(entry => entry.name)")
    assert fetched
    assert [name for name in fetched if not name.startswith((server, "data:", "blob:"))] == []
