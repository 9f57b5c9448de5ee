"""Sphinx extension: the search ranks pages by how much they are about the words of a query.

Sphinx's own index says which pages have a word, not how often. Here each word of a page gets a
weight by BM25: a word in the title, in the menu's name of the page, in its question or in a heading
counts more often than one in its text, and one in a table or a measured block less. `search.js`
reads the weights and ranks by them. Pages made from docstrings have none: they come after the
others.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

from chinese_search import EnglishAndChinese
from docutils import nodes
from sphinx import addnodes

#: how often a word counts, by where it stands
TITLE, QUESTION, HEADING, TEXT, TABLE = 48, 16, 12, 4, 1
#: BM25: how soon more of the same word stops to count, and how much long pages are held back
SATURATION, LENGTH = 8.0 * TEXT, 0.5
#: weights below this are left out: they decide no rank
LEAST = 0.5
WEIGHTS = "page_words.js"


def setup(app: Any) -> dict[str, bool]:
    """Register the hooks below with Sphinx."""
    app.connect("builder-inited", prepare)
    app.connect("doctree-read", count)
    app.connect("env-purge-doc", forget)
    app.connect("env-updated", write)
    app.connect("html-page-context", add_scripts)
    return {"parallel_read_safe": False}


def prepare(app: Any) -> None:
    """Make room for the counts; Sphinx stores them with its other facts about pages."""
    for name in ("page_words", "menu_names"):
        if not hasattr(app.env, name):
            setattr(app.env, name, {})


def forget(app: Any, env: Any, page: str) -> None:
    """Drop the counts of a page that is read again or gone."""
    getattr(env, "page_words", {}).pop(page, None)


def count(app: Any, doctree: Any) -> None:
    """Count the words of a page, and note the names that its menu gives to others."""
    env = app.env
    page = env.docname
    for menu in doctree.findall(addnodes.toctree):
        env.menu_names |= {target: name for name, target in menu["entries"] if name}
    if page.startswith("reference/"):
        return
    found = Counter[str]()
    for number, title in enumerate(doctree.findall(nodes.title)):
        _add(found, title.astext(), HEADING if number else TITLE)
    question = next(iter(doctree.findall(nodes.emphasis)), None)
    if question is not None and question.parent.index(question) == 0:
        _add(found, question.astext(), QUESTION)
    written = Counter[str]()
    _add(written, doctree.astext(), TEXT)
    measured = list(_measured(doctree))
    within = {id(table) for part in measured for table in part.findall(nodes.table)}
    tables = [table for table in doctree.findall(nodes.table) if id(table) not in within]
    for part in [*measured, *tables]:
        _add(written, part.astext(), TABLE - TEXT)
    env.page_words[page] = (dict(found + written), written.total())


def _measured(doctree: Any) -> Iterator[Any]:
    """Yield what `docs/tables.py` wrote: all that stands between the comments of a start and an end."""
    for mark in doctree.findall(nodes.raw):
        if mark.astext().strip().endswith(": start -->"):
            after = mark.parent[mark.parent.index(mark) + 1 :]
            yield from takewhile(
                lambda node: not node.astext().strip().endswith(": end -->"), after
            )


def _add(counts: Counter[str], text: str, times: int) -> None:
    """Count the words of a text, `times` each."""
    language = EnglishAndChinese({})
    for word in language.split(text):
        if language.word_filter(word.lower()) and not word.isdecimal():
            counts[language.stem(word.lower())] += times


def weights(pages: dict[str, tuple[dict[str, int], int]]) -> dict[str, dict[str, float]]:
    """Return {word: {page: weight}} by BM25, from {page: (counts, length)}."""
    mean = sum(length for _, length in pages.values()) / max(1, len(pages))
    spread = Counter(word for counts, _ in pages.values() for word in counts)
    found: dict[str, dict[str, float]] = {}
    for page, (counts, length) in pages.items():
        held = SATURATION * (1 - LENGTH + LENGTH * length / mean)
        for word, times in counts.items():
            rare = math.log(1 + (len(pages) - spread[word] + 0.5) / (spread[word] + 0.5))
            weight = rare * times * (SATURATION / TEXT + 1) / (times + held)
            found.setdefault(word, {})[page] = round(weight, 1)
    return found


def write(app: Any, env: Any) -> None:
    """Write the weights into the site."""
    if app.builder.format != "html":
        return
    pages = {}
    for page, (counts, length) in env.page_words.items():
        named = Counter[str]()
        _add(named, env.menu_names.get(page, ""), TITLE)
        pages[page] = (dict(Counter(counts) + named), length)
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    names = list(pages)
    words = {
        word: [
            value
            for page, weight in found.items()
            if weight >= LEAST
            for value in (names.index(page), weight)
        ]
        for word, found in weights(pages).items()
    }
    kept = {word: values for word, values in words.items() if values}
    menu = [env.menu_names.get(page, "") for page in names]
    text = json.dumps(
        {"pages": names, "menu": menu, "words": kept}, ensure_ascii=False, separators=(",", ":")
    )
    (folder / WEIGHTS).write_text(f"var pageWords = {text};\n", encoding="utf-8")


def add_scripts(app: Any, page: str, template: str, context: Any, doctree: Any) -> None:
    """Add the weights and the ranking to the page that searches."""
    if page == "search":
        app.add_js_file(WEIGHTS)
        app.add_js_file("search.js")
