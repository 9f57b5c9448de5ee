"""A Sphinx extension for test_site.py: few pages have the menu of all pages, which takes longer to
make than most pages.
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
