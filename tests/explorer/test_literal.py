"""What a link or a config says is shown character by character: never as Markdown, HTML or a
picture from elsewhere.
"""

import random
import re
from html import unescape
from pathlib import Path

import pytest

from ropewalk_lab.explorer import controls

testing = pytest.importorskip(
    "streamlit.testing.v1", reason="needs streamlit: pip install 'ropewalk[explorer]'"
)
markdown = pytest.importorskip(
    "markdown_it", reason="needs markdown-it-py, which myst-parser brings along"
)
from ropewalk_lab.explorer.widgets import literal  # noqa: E402 - it imports streamlit

PAGE = Path(controls.__file__).with_name("page.py")
HOSTILE = [
    "**x**<img src=x onerror=alert(1)>",
    "![x](http://evil.example/x.png)",
    "[x](javascript:alert(1))",
    "`x`",
    "```\nx\n```",
    "<script>alert(1)</script>",
    "$\\frac{1}{0}$",
    ":red[x] :material/delete:",
    "# x\n\n- y\n\n| a |\n|---|",
    "http://evil.example",
    "&lt;b&gt;",
    "\\`x\\`",
    "~~~\nx",
    "` ",
    "",
]
PARSER = markdown.MarkdownIt("commonmark", {"html": True})


def shown(text: str) -> str:
    """The characters that a Markdown renderer shows, if it shows one code span and nothing else."""
    found = re.fullmatch(r"<p><code>(.*)</code></p>\n", PARSER.render(text))
    assert found, text
    assert "<" not in found[1]
    return unescape(found[1])


@pytest.mark.parametrize("text", HOSTILE)
def test_a_literal_is_one_code_span(text):
    assert shown(literal(f"got {text!r}")) == f"got {text!r}"
    assert shown(literal(f"got {text}")).split() == f"got {text}".split()


def test_random_texts_are_one_code_span():
    drawn = random.Random(7)
    for _ in range(500):
        text = "x" + "".join(
            drawn.choices("`~*_[]()<>!\\&#|$:\n\r\t -é\u2028", k=drawn.randint(1, 30))
        )
        assert shown(literal(text)).split() == text.split()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", ["a.scaling", "a.theta", "view", "a.axes", "served", "animate"])
def test_a_hostile_link_is_refused_with_its_text_as_it_is(name):
    for text in HOSTILE[:4]:
        app = testing.AppTest.from_file(str(PAGE), default_timeout=60)
        app.query_params[name] = text
        app.run()
        assert [error.value for error in app.exception] == []
        assert shown(app.error[0].value).startswith(f"{name}: must ")
        others = [*app.markdown, *app.caption, *app.subheader, *app.title]
        assert [
            each.value
            for each in others
            if "evil" in each.value or "x**" in each.value or "onerror" in each.value
        ] == []
