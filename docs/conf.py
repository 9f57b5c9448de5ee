"""Sphinx configuration of the site: `sphinx-build -W -n docs build/site`. The pages are plain
Markdown.

Each table of pages in `index.md` becomes a part of the menu, so a new page is one line there; its
link text is the name in the menu. A table with the column `page` on another page becomes the menu
below that page. Each row in the table of `api.md` becomes a page made from the
docstrings of its modules, in the folder `reference`, which is written here and not committed; the
public names are read from `ropewalk.__all__`. A name that several modules export is documented once
and linked from the others. Dark pages show `x-dark.png` instead of `x.png`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import ropewalk as rw

project = "ropewalk"
author = "The ropewalk maintainers"
release = version = rw.__version__

sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "chinese_search", "page_words"]
html_search_language = "en+zh"
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_dmath_allow_digits = False
html_math_renderer = "mathml"
myst_heading_anchors = 4
exclude_patterns = ["_build", "build"]
DOCS = Path(__file__).parent

html_theme = "furo"
html_title = f"ropewalk {release}"
html_static_path = ["site.css", "site.js", "search.js"]
html_css_files, html_js_files = ["site.css"], ["site.js"]
html_copy_source = False
html_show_sphinx = False

autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 110

ROW_LINK = re.compile(r"^\| \[(?P<name>[^\]]+)\]\((?P<page>[\w/-]+)\.md\)", re.MULTILINE)
#: how a table of the pages below a page begins
PAGE_TABLE = "| page | its question |"
ROW_MODULE = re.compile(
    r"^\| `(?P<module>ropewalk[\w.]*)` \| (?P<says>[^|]+) \| (?P<parts>[^|]*)\|$", re.MULTILINE
)


def setup(app: Any) -> None:
    """Register the hooks below with Sphinx."""
    write_reference(DOCS / "api.md", DOCS / "reference")
    app.connect("source-read", complete)
    # before Sphinx collects the pictures of a page
    app.connect("doctree-read", with_dark_pictures, priority=400)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("missing-reference", by_public_name, priority=400)


def complete(app: Any, page: str, source: list[str]) -> None:
    """Add to a page what Sphinx needs: the menu in the index, and the reference from docstrings in
    api.md.
    """
    up = r"\.\./" * (page.count("/") + 1)  # leads out of docs/
    text = re.sub(rf"\[(?P<text>[^\]]*)\]\({up}(?P<path>[^)#\s]+)\)", named_only, source[0])
    if page == "index":
        text = with_menu(text)
    elif PAGE_TABLE in text:
        text += "\n\n" + menu_part(text)
    if page == "api":
        text = with_reference(text)
    source[0] = text


def named_only(link: re.Match[str]) -> str:
    """Replace a link to a file of the repository, which is not part of the site, by its name."""
    return link["text"] if "`" in link["text"] else f"{link['text']} (`{link['path']}`)"


def with_menu(text: str) -> str:
    """Return the index with a menu part for every section whose table links pages."""
    title, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    menus = []
    for section in sections:
        if ROW_LINK.search(section):
            menus.append(menu_part(section, f":caption: {section.splitlines()[0]}"))
    return "## ".join([title, *sections]) + "\n\n" + "\n".join(menus)


def menu_part(text: str, *options: str) -> str:
    """Return the directive that puts the pages of a table into the menu."""
    pages = [f"{match['name']} <{match['page']}>" for match in ROW_LINK.finditer(text)]
    return "\n".join([":::{toctree}", ":hidden:", *options, "", *pages, ":::", ""])


def with_reference(text: str) -> str:
    """Return api.md with the docstrings of the public names below the table of modules, whose rows
    link their pages.
    """
    names = "\n\n".join(
        directive(name) for name in rw.__all__ if not isinstance(getattr(rw, name), ModuleType)
    )
    linked = ROW_MODULE.sub(
        lambda row: (
            f"| [`{row['module']}`](reference/{row['module']}.md) | {row['says']} | {row['parts']}|"
        ),
        text,
    )
    menu = [
        "",
        ":::{toctree}",
        ":hidden:",
        "",
        *(f"reference/{match['module']}" for match in ROW_MODULE.finditer(text)),
        ":::",
        "",
    ]
    return "\n".join([linked, "\n## Public names, in full\n", in_rst(names), *menu])


def write_reference(table: Path, folder: Path) -> None:
    """Write one page for each row of a table; a page that is the same stays, so that Sphinx does
    not read it again.
    """
    folder.mkdir(exist_ok=True)
    pages = {}
    #: id of a class, function or registry -> the name it is documented by
    documented = {id(getattr(rw, name)): f"ropewalk.{name}" for name in rw.__all__}
    for row in ROW_MODULE.finditer(table.read_text(encoding="utf-8")):
        first, *parts = modules_of(row)
        text = [f"# {first}", in_rst(of_module(first, documented))]
        for part in parts:
            text += [f"## {part}", in_rst(of_module(part, documented))]
        pages[f"{first}.md"] = "\n\n".join(text)
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")


def modules_of(row: re.Match[str]) -> list[str]:
    """Return the modules of a row: its first, and the parts that share its page, which are modules
    in it or beside it.
    """
    inside, beside = row["module"], row["module"].rpartition(".")[0]
    package = importlib.import_module(inside)
    parts = []
    for part in re.findall(r"`([\w.]+)`", row["parts"]):
        child = f"{inside}.{part.split('.')[0]}"
        within = hasattr(package, "__path__") and importlib.util.find_spec(child)
        parts.append(f"{inside if within else beside}.{part}")
    return [inside, *parts]


def with_dark_pictures(app: Any, doctree: Any) -> None:
    """Add the dark version of every picture that has one; the theme shows one of the two."""
    from docutils import nodes

    folder = (DOCS / app.env.docname).parent
    for image in list(doctree.findall(nodes.image)):
        path = Path(image["uri"])
        dark = path.with_name(f"{path.stem}-dark{path.suffix}")
        if not (folder / dark).is_file():
            continue
        other = image.deepcopy()
        other["uri"], other["classes"] = dark.as_posix(), [*image["classes"], "only-dark"]
        image["classes"] = [*image["classes"], "only-light"]
        image.parent.insert(image.parent.index(image) + 1, other)


def of_module(name: str, documented: dict[int, str]) -> str:
    """Return the directives for a module: its docstring, its registries with their entries, its
    other members, and links to those that `documented` already has. Add the others to `documented`.
    """
    module = importlib.import_module(name)
    registries, links = [], []
    for key in exported(module):
        value = getattr(module, key)
        here = f"{name}.{key}"
        if (target := documented.setdefault(id(value), here)) != here:
            links.append((key, target))
        elif isinstance(value, dict):
            registries.append(key)
    excluded = registries + [key for key, _ in links]
    members = [
        f".. automodule:: {name}",
        "   :members:",
        f"   :exclude-members: {', '.join(excluded)}" if excluded else "",
    ]
    shown = [f".. autodata:: {name}.{key}\n   :no-value:" for key in registries]
    if links:
        shown.append("Also here: " + ", ".join(f":py:obj:`{target}`" for _, target in links) + ".")
    return "\n\n".join(["\n".join(filter(None, members)), *shown])


def exported(module: ModuleType) -> list[str]:
    """Return the classes and functions that a module's `__all__` names, or that it defines if it
    has none, and its registries.
    """
    named, annotated = getattr(module, "__all__", ()), getattr(module, "__annotations__", {})
    found = []
    for key, value in vars(module).items():
        if key.startswith("_"):
            continue
        if isinstance(value, dict) and key.isupper():
            is_exported = key in named or key in annotated
        elif isinstance(value, type | FunctionType):
            is_exported = key in named if named else value.__module__ == module.__name__
        else:
            is_exported = False
        if is_exported:
            found.append(key)
    return found


def directive(name: str) -> str:
    """Return the autodoc directive for one public name."""
    value = getattr(rw, name)
    if inspect.isclass(value):
        return f".. autoclass:: ropewalk.{name}\n   :members:"
    if callable(value):
        return f".. autofunction:: ropewalk.{name}"
    return f".. autodata:: ropewalk.{name}\n   :no-value:"


def in_rst(text: str) -> str:
    """Return reStructuredText as a block of a Markdown page."""
    return f"```{{eval-rst}}\n{text}\n```\n"


def as_restructured_text(
    app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """Convert a docstring (plain text with `names`, lists and indented blocks) to reStructuredText,
    in place in `lines`.
    """
    if what == "data" and isinstance(value, dict):
        # not the docstring of dict itself
        docstring = [] if lines[:1] == (dict.__doc__ or "").split("\n")[:1] else lines
        lines[:] = [
            *docstring,
            "",
            "Entries: " + ", ".join(f"`{key}`" for key in value if isinstance(key, str)),
        ]
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    lines[:] = "\n\n".join(paragraph_in_rst(paragraph) for paragraph in paragraphs).split("\n")


def paragraph_in_rst(paragraph: str) -> str:
    """Return one paragraph: a list stays a list, indented lines and columns become a literal block,
    the rest is text.
    """
    rows = paragraph.split("\n")
    if rows[0].startswith("- "):
        return "\n".join(words(row) for row in rows)
    columns = re.compile(r"\S {2,}\S")  # "q, k       [B, H, S, D]"
    # the number of lines of text before the first indented line or row of columns
    text_lines = next(
        (n for n, row in enumerate(rows) if row.startswith(" ") or columns.search(row)), len(rows)
    )
    block = textwrap.indent(textwrap.dedent("\n".join(rows[text_lines:])), "   ")
    parts = [words("\n".join(rows[:text_lines])), f"::\n\n{block}" if block else ""]
    return "\n\n".join(filter(None, parts))


def words(text: str) -> str:
    """Escape characters that reStructuredText treats as markup, and set `names` as code."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(
        f"`{piece}`" if piece.startswith("`") else re.sub(r"([\\*|_`])", r"\\\1", piece)
        for piece in pieces
    )


def by_public_name(app: Any, env: Any, node: Any, content: Any) -> Any:
    """Return the link to a type by its public name; a type that is not on the page, such as
    torch's, stays plain text.
    """
    target = node.get("reftarget", "")
    module, _, name = target.rpartition(".")
    if node.get("refdomain") != "py" or node.get("refexplicit"):
        return None
    if name in rw.__all__ and target.startswith("ropewalk."):
        domain = env.get_domain("py")
        return domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"ropewalk.{name}", node, content
        )
    public = module in env.get_domain("py").modules and not name.startswith("_")
    on_page = public and inspect.isclass(getattr(sys.modules[module], name, None))
    return None if on_page else content
