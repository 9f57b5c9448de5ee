"""A Sphinx extension for test_site.py: only a few pages get the menu of all pages, because making
the menu takes longer than making most pages.
"""

#: every depth of folders, and the pages that a browser opens
WITH_MENU = (
    "index",
    "start",
    "formulas",
    "gallery",
    "benchmarks",
    "zh/start",
    "reference/ropewalk.attention",
)


def setup(app) -> None:
    app.connect("html-page-context", without_menu, priority=1)  # before the theme makes the menu


def without_menu(app, page, template, context, doctree) -> None:
    if page not in WITH_MENU:
        context.pop("toctree", None)
