"""The page in Chromium, in both languages, as wide as a phone and as a desk."""

import json
import math
import re
import struct
import time

import pytest

import ropewalk as rw
from ropewalk.gguf import to_gguf_metadata

LANGUAGES, WIDTHS = ("en", "zh"), (390, 1440)
HAN = re.compile("[\u4e00-\u9fff]")
ANSWERED = "document.documentElement.dataset.answered > 0"
#: view, and an expression that is true once it is drawn
VIEWS = {
    "doctor": ANSWERED,
    **{
        f"story?step={step}": "document.querySelector('.picture svg, .picture canvas') !== null"
        for step in range(1, 7)
    },
    "story?step=7": "document.querySelector('.engine') !== null",
    "engines": "document.querySelector('.matrix tbody tr') !== null && "
    "document.querySelector('.engine') !== null",
    "methods": "document.querySelector('svg.chart') !== null",
    "model": "document.querySelector('button.primary') !== null",
}
#: elements that a person can use and that have no name for a screen reader
UNNAMED = """[...document.querySelectorAll(
  'button, a[href], input, select, textarea, canvas, svg[role=img], [role=tab]')]
.filter((each) => !each.closest('[hidden]') && each.checkVisibility())
.filter((each) => !(each.getAttribute('aria-label') || each.textContent.trim()
  || (each.id && document.querySelector(`label[for="${each.id}"]`)?.textContent.trim())))
.map((each) => each.outerHTML.slice(0, 120))"""
#: elements that reach beyond the right edge of the window, but for those inside what scrolls
OUTSIDE = """[...document.querySelectorAll('main *, header *, footer *')]
.filter((each) => !each.closest('.scroll, nav, pre, .visually-hidden, svg'))
.filter((each) => each.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
.map((each) => each.outerHTML.slice(0, 120))"""
FIRST = """document.querySelector('.picture').getBoundingClientRect().top
< document.querySelector('.words').getBoundingClientRect().top"""
ROWS = """[...document.querySelectorAll('details tbody tr')]
.map((row) => [...row.children].map((cell) => cell.textContent))"""
FOCUSED = "document.activeElement.tagName + (document.activeElement.getAttribute('role') ?? '')"
PAIR = "document.querySelector('figcaption output').textContent.startsWith('Pair {}:')"


def show(browser, address, width, hash_, until="document.querySelector('main h1') !== null"):
    browser.size(width)
    browser.open(f"{address}/#{hash_}", until)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_is_drawn_named_and_fits(browser, local, pictures, language, width):
    browser.watch()
    for view, until in VIEWS.items():
        show(browser, local, width, f"{view}{'&' if '?' in view else '?'}lang={language}", until)
        name = re.sub(r"\W", "-", view)
        browser.picture(pictures / f"{name}-{language}-{width}.png")
        assert browser.js(UNNAMED) == [], view
        assert browser.js(OUTSIDE) == [], view
        assert browser.js("document.documentElement.scrollWidth") <= width, view
        title = browser.js("document.querySelector('main h1').textContent")
        assert bool(HAN.search(title)) == (language == "zh"), view
        assert (
            browser.js("document.documentElement.lang") == {"en": "en", "zh": "zh-Hans"}[language]
        )
        left = browser.js("document.body.innerText.match(/\\b[a-z]+\\.[a-z]+(\\.[a-z0-9]+)+\\b/g)")
        assert not left or all("config" in each or "rope_" in each for each in left), view
    assert browser.errors() == []
    own = [each for each in browser.requests() if not each.startswith(("about:", "blob:", "data:"))]
    assert len(own) > 20
    assert [each for each in own if not each.startswith(f"{local}/")] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_ground_differ_enough_in_both_themes(browser, local, theme):
    """The contrast of WCAG is at least 4.5 for text, muted text and the colours of states."""
    show(browser, local, 1440, "doctor", ANSWERED)
    browser.js(f"document.documentElement.dataset.theme = '{theme}'")
    colours = browser.js(
        "Object.fromEntries(['paper', 'card', 'soft', 'ink', 'mute', 'good', 'good-soft', 'bad', "
        "'bad-soft', 'warn', 'warn-soft'].map((name) => [name, getComputedStyle("
        "document.documentElement).getPropertyValue('--' + name).trim()]))"
    )

    def light(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a, b):
        high, low = sorted((light(colours[a]), light(colours[b])), reverse=True)
        return (high + 0.05) / (low + 0.05)

    pairs = [(text, ground) for text in ("ink", "mute") for ground in ("paper", "card", "soft")]
    pairs += [
        (name, ground) for name in ("good", "bad", "warn") for ground in ("card", f"{name}-soft")
    ]
    assert {pair: contrast(*pair) for pair in pairs if contrast(*pair) < 4.5} == {}


def test_the_doctor_answers_what_is_typed_and_the_link_carries_it(browser, local):
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama-3",
            "factor": "8.0",
            "low_freq_factor": 4.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
    }
    show(browser, local, 1440, "doctor?lang=en", ANSWERED)
    browser.focus("textarea")
    browser.js("document.activeElement.select()")
    browser.send("Input.insertText", text=json.dumps(config, indent=2))
    found = "document.querySelectorAll('.finding code')[1]?.textContent"
    browser.wait(f"{found} === 'rope_type_misspelled'", "the findings")
    ids = browser.texts(".finding code")
    assert ids == [each.id for each in rw.doctor(config).findings]
    causes = browser.texts(".finding h3")
    assert causes == [each.cause for each in rw.doctor(config).findings]
    link = browser.link()
    # the same state from the link alone, in the other language
    show(browser, local, 390, link[1:].replace("lang=en", "") + "&lang=zh", ANSWERED)
    assert json.loads(browser.js("document.querySelector('textarea').value")) == config
    assert browser.js("document.querySelectorAll('.finding').length") == 3
    browser.press("[role=tab]", "config.json")
    assert json.loads(browser.js("document.querySelector('[role=tabpanel] pre').textContent")) == (
        rw.doctor(config).corrected
    )


def test_the_engine_and_the_length_are_asked_for(browser, local):
    show(browser, local, 1440, "doctor?model=Qwen3-8B&engine=vllm&length=131072&lang=en", ANSWERED)
    found = rw.doctor(
        json.loads(browser.js("document.querySelector('textarea').value")), "vllm", 131072
    )
    ids = browser.texts(".finding code")
    assert ids == [each.id for each in found.findings]
    assert (
        browser.js("document.querySelector('[role=tabpanel] pre').textContent")
        == found.flags["vllm"]
    )
    assert browser.js("document.querySelector('select').value") == "Qwen3-8B"


def test_a_shared_link_of_a_local_page_opens_the_static_one(browser, local):
    show(browser, local, 1440, "doctor?model=Qwen3-8B&lang=en", ANSWERED)
    browser.js(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: (text) => { window.copied = "
        "text; return Promise.resolve(); }}}); [...document.querySelectorAll('button')].find((each) => "
        "each.textContent === 'Copy the link').click()"
    )
    copied = browser.wait("window.copied", "the link")
    assert copied == "https://page.example/rope/#doctor?model=Qwen3-8B&lang=en"


def gguf(keys, tensors, padding=0) -> bytes:
    """Return the bytes of a GGUF file with these keys, a long tokenizer, and tensors of float32."""

    def text(value):
        return len(value.encode()).to_bytes(8, "little") + value.encode()

    def value(each):
        if isinstance(each, str):
            return struct.pack("<I", 8) + text(each)
        if isinstance(each, bool):
            return struct.pack("<IB", 7, each)
        if isinstance(each, int):
            return struct.pack("<II", 4, each)
        if isinstance(each, float):
            return struct.pack("<If", 6, each)
        inner = b"".join(map(text, each))
        return struct.pack("<IIQ", 9, 8, len(each)) + inner

    keys = {**keys, "tokenizer.ggml.tokens": [f"token {i:040}" for i in range(padding)]}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(text(key) + value(each) for key, each in keys.items())
    offset, body = 0, b""
    for name, numbers in tensors.items():
        head += text(name) + struct.pack("<IQIQ", 1, len(numbers), 0, offset)
        data = struct.pack(f"<{len(numbers)}f", *numbers)
        data += b"\0" * (-len(data) % 32)
        body, offset = body + data, offset + len(data)
    return head + b"\0" * (-len(head) % 32) + body


@pytest.mark.parametrize("padding", [0, 40_000])
def test_the_page_reads_the_header_of_a_gguf_file(browser, local, tmp_path, padding):
    spec = rw.RopeSpec(
        128,
        theta=500000.0,
        scaling=rw.frequencies.Llama3(8.0, 1.0, 4.0, 8192),
        layout="interleaved",
    )
    written = to_gguf_metadata(spec, context_length=131072)
    keys = {"general.architecture": "llama", **written.keys}
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf(keys, {name: list(each) for name, each in written.tensors.items()}, padding)
    )
    assert rw.doctor(path).findings == ()  # the file is one for Python too
    show(browser, local, 1440, "doctor?lang=en", ANSWERED)
    browser.drop(path)
    browser.wait("document.querySelector('textarea').value.includes('gguf')", "the file")
    browser.wait("document.documentElement.dataset.answered > 1", "an answer")
    shown = json.loads(browser.js("document.querySelector('textarea').value"))
    assert shown["gguf"] == {
        key: pytest.approx(each) if isinstance(each, float) else each for key, each in keys.items()
    }
    assert shown["tensors"]["rope_freqs.weight"] == pytest.approx(
        list(written.tensors["rope_freqs.weight"])
    )
    assert browser.js("document.querySelector('.verdict h2').textContent") == "Nothing to change."


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.gguf", b"GGUF\3\0\0\0" + b"\xff" * 40), ("a.json", b"x" * 200_000), ("b.gguf", b"GGUF")],
)
def test_the_page_says_so_if_a_dropped_file_is_no_model_file(browser, local, tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    show(browser, local, 1440, "doctor?lang=en", ANSWERED)
    browser.drop(tmp_path / name)
    browser.wait("document.querySelector('.verdict h2').textContent.match(/file/)", "the words")


def test_views_that_were_left_are_freed(browser, local):
    browser.open(f"{local}/#doctor", "document.querySelector('textarea') !== null")
    browser.send("Performance.enable")

    def nodes():
        browser.send("HeapProfiler.collectGarbage")
        metrics = browser.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "Nodes")

    before = nodes()
    browser.js(
        """(() => { for (let i = 0; i < 100; i++) {
          history.replaceState(null, "", i % 2 ? "#doctor" : "#story");
          dispatchEvent(new HashChangeEvent("hashchange"));
        } return 0; })()"""
    )
    time.sleep(0.5)
    assert nodes() < 20 * before


def test_the_keyboard_reaches_everything(browser, local):
    show(browser, local, 1440, "doctor?lang=en", ANSWERED)
    seen = []
    for _ in range(24):
        browser.key("Tab", 9)
        seen.append(browser.js(FOCUSED))
    assert {"A", "BUTTON", "SELECT", "TEXTAREA", "INPUT", "CANVASimg", "BUTTONtab", "PRE"} <= set(
        seen
    )
    browser.focus("canvas")
    browser.key("ArrowRight", 39)
    browser.wait(PAIR.format(0), "a pair")
    browser.key("ArrowRight", 39)
    browser.wait(PAIR.format(1), "the next")
    browser.focus("[role=tab][aria-selected=true]")
    before = browser.js("document.activeElement.textContent")
    browser.key("ArrowRight", 39)
    assert browser.js("document.activeElement.getAttribute('aria-selected')") == "true"
    assert browser.js("document.activeElement.textContent") != before


@pytest.mark.parametrize("width", WIDTHS)
def test_each_step_of_the_story_scrolls_to_the_top_and_a_phone_shows_the_picture_first(
    browser, local, width
):
    show(browser, local, width, "story?lang=en", "document.querySelector('.go .primary') !== null")
    for step in range(2, 8):
        browser.js("scrollTo(0, 400); document.querySelector('.go .primary').click()")
        browser.wait(
            f"document.querySelector('[aria-current=step] b').textContent === '{step}'", "a step"
        )
        assert browser.js("scrollY") == 0
        assert browser.js("document.activeElement.tagName") == "H1"
        assert f"step={step}" in browser.link()
        first = browser.js(FIRST)
        assert first == (width < 800)


def test_the_score_changes_with_the_distance_and_not_if_q_and_k_move_together(browser, local):
    show(browser, local, 1440, "story?step=2&lang=en", "document.querySelector('.fact b') !== null")
    score = "document.querySelector('.fact b').textContent"
    radians = rw.RopeSpec(64).frequencies().radians[8]
    assert browser.js(score) == f"{math.cos(12 * radians):.3f}"
    browser.js("document.querySelector('[aria-label=\"Distance of q and k: one more\"]').click()")
    assert browser.js(score) == f"{math.cos(13 * radians):.3f}"
    browser.js(
        "document.querySelector('[aria-label=\"Position of k: both move: one more\"]').click()"
    )
    assert browser.js(score) == f"{math.cos(13 * radians):.3f}"
    assert "distance=13" in browser.link()
    assert "shift=1" in browser.link()


def test_step_seven_begins_with_a_config_on_which_engines_differ(browser, local):
    show(browser, local, 1440, "story?step=7&lang=en", VIEWS["story?step=7"])
    assert browser.js("document.querySelectorAll('.engine .factor, .engine .differs').length") >= 2


def test_the_matrix_is_filtered_and_a_cell_opens_its_config_and_fix(browser, local):
    show(browser, local, 1440, "engines?lang=en", VIEWS["engines"])
    rows = "document.querySelectorAll('.matrix tbody tr').length"
    browser.js("document.getElementById('differing').click()")
    counted = browser.js(
        "document.body.innerText.match(/of ([0-9]+) configs shown, ([0-9]+) run/).slice(1)"
    )
    assert counted[0] == counted[1]
    show(
        browser,
        local,
        1440,
        "engines?lang=en&stack=mlx-lm&kind=yarn&family=llama&all=1",
        VIEWS["engines"],
    )
    assert 1 < browser.js(rows) < 60
    assert browser.js("document.querySelectorAll('.matrix thead th').length") == 2
    show(browser, local, 1440, "engines?lang=en", VIEWS["engines"])
    browser.js("document.querySelector('.matrix td button.differs').click()")
    browser.wait("document.querySelector('dialog[open] pre') !== null", "the cell")
    browser.wait("document.querySelector('dialog .finding') !== null", "the finding")
    text = browser.js("document.querySelector('dialog').innerText")
    assert "was run with this config" in text
    assert "mlx-lm" in text
    assert browser.js("document.querySelector('dialog [role=tabpanel] pre') !== null")
    assert "cell=" in browser.link()
    browser.key("Escape", 27)
    browser.wait("document.querySelector('dialog[open]') === null", "it to close")


def test_the_matrix_has_the_stacks_with_their_reasons(browser, local):
    link = "engines?lang=en&stack=litgpt&version=0.5.13"
    show(browser, local, 1440, link, VIEWS["engines"])
    heads = browser.js("[...document.querySelectorAll('.matrix thead th')].map((e) => e.innerText)")
    assert len(heads) == 2
    assert "litgpt" in heads[1]
    assert "2026-11-18" in heads[1]
    browser.js("document.querySelector('.matrix td button.differs').click()")
    browser.wait("document.querySelector('dialog[open] pre') !== null", "the cell")
    text = browser.js("document.querySelector('dialog').textContent")
    assert "litgpt 0.5.13" in text
    assert '"model_type"' in text
    assert "numbers differ" in text
    browser.key("Escape", 27)
    browser.wait("document.querySelector('dialog[open]') === null", "it to close")
    # the page without a filter has no column without a cell
    show(browser, local, 1440, "engines?lang=en&find=yarn/x4&all=1", VIEWS["engines"])
    heads = browser.js("document.querySelectorAll('.matrix thead th').length")
    assert heads == 21


def test_every_part_of_a_finding_is_in_chinese(browser, local):
    show(browser, local, 1440, "doctor?lang=zh", VIEWS["doctor"])
    parts = browser.js(
        "[...document.querySelectorAll('.finding h3, .finding dd')].map((e) => e.innerText)"
    )
    assert len(parts) >= 8
    assert [part for part in parts if not re.search("[\u4e00-\u9fff]", part)] == []


def test_the_view_of_methods_shows_the_committed_shares_of_pass_keys(browser, local):
    show(
        browser,
        local,
        1440,
        "methods?study=h200_fit&metric=found&methods=none~yarn&lang=en",
        VIEWS["methods"],
    )
    browser.js("document.querySelector('details').open = true")
    cells = browser.js(ROWS)
    assert [row[0] for row in cells] == ["no scaling", "yarn"]
    assert cells[0][1:4] == ["100 %", "90 %", "90 %"]


def test_the_view_of_a_model_shows_both_readings(browser, local):
    show(browser, local, 1440, "model?lang=en", VIEWS["model"])
    browser.js("document.querySelector('button.primary').click()")
    browser.wait("document.querySelectorAll('.prose').length === 2", "the readings")
    text = browser.text()
    assert "Probability of the pass key" in text
    assert "with yarn" in text
    assert browser.js("document.querySelectorAll('.pairwise figure svg').length") == 2
