"""The site: it builds without a warning, and every public name, registry, page, picture and
measured table is on it.
"""

import ast
import functools
import http.server
import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zlib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import ropewalk as rw
from browser import CHROMIUM, Browser
from short_menus import WITH_MENU

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT / "tools"))

import site_screens  # noqa: E402

#: without the pages that the site makes from docstrings
PAGES = sorted(file for file in DOCS.rglob("*.md") if file.parent.name != "reference")
missing = [
    name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None
]
needs_sphinx = pytest.mark.skipif(
    bool(missing), reason=f"the site needs {', '.join(missing)}: pip install 'ropewalk[docs]'"
)
#: a speed as people claim it: "2.5x", "3 times faster", "12 us", "97 % of a copy", "快 3 倍"; a size,
#: "7 x 5", is none
SPEED = re.compile(
    r"\d\s*(?:x(?! ?\d|\w)|[%倍]|(?:us|µs|ms|微秒|毫秒)(?![a-z])|(?:GB|tokens)/s"
    r"|(?:times|per cent) (?:faster|slower|quicker|as fast|of (?:a|the) (?:flat )?copy))"
)
#: where a claim's numbers come from: rows, the page of tables made of them, or a command to run
SOURCE = re.compile(r"results/|benchmarks[\w-]*\.md|`(?:ropewalk|python|make) [\w-]")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: a table that docs/tables.py wrote
MADE = re.compile(
    r"^<!-- (?P<name>[\w-]+): start -->$.*?^<!-- (?P=name): end -->$", re.MULTILINE | re.DOTALL
)


WIDTHS = (390, 1280, 1600)
#: pages with long lines, wide tables, pictures, signatures and Chinese text; --full opens every
#: page
SAMPLE = (
    *(page for page in WITH_MENU if page != "start"),
    *("api", "families", "results-pretrained", "scalings"),
)


class Links(HTMLParser):
    """What a page refers to, and the names by which it can be referred to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.targets += [found[key] for key in ("href", "src") if found.get(key)]
        self.names |= {found[key] for key in ("id", "name") if found.get(key)}


@pytest.fixture(scope="module")
def site(tmp_path_factory, request) -> Path:
    """Return the folder of the site, built once, in a process without the tests' type checks, which
    change signatures.

    To save time, the contents of a page list no functions and classes, which the menu of every page
    would repeat, and without --full only a few pages have the menu.
    """
    folder = tmp_path_factory.mktemp("site")
    options = [
        "-W",
        "--keep-going",
        "-n",
        "-q",
        "-D",
        "toc_object_entries=0",
        "-d",
        folder / "trees",
    ]
    if not request.config.getoption("--full"):
        options += [
            "-D",
            "extensions=myst_parser,sphinx.ext.autodoc,mathml,chinese_search,page_words,short_menus",
        ]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, folder / "html"]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        )
    }
    built = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=400, env=environment
    )
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.fixture(scope="module")
def parsed(site) -> dict[Path, Links]:
    found = {}
    for file in sorted(site.rglob("*.html")):
        found[file] = Links()
        found[file].feed(file.read_text(encoding="utf-8"))
    return found


@pytest.fixture(scope="module")
def documented(site) -> set[str]:
    """Every name the reference has an entry for, from the inventory that Sphinx writes for other
    sites.
    """
    raw = (site / "objects.inv").read_bytes()
    text = zlib.decompress(raw.split(b"\n", 4)[4]).decode()
    return {line.split(" py:")[0] for line in text.splitlines() if " py:" in line}


@needs_sphinx
def test_every_page_is_built_and_in_the_menu(site, parsed):
    menu = parsed[site / "index.html"].targets
    names = [page.relative_to(DOCS).with_suffix(".html").as_posix() for page in PAGES]
    assert [name for name in names if not (site / name).exists()] == []
    assert [name for name in names if name != "index.html" and name not in menu] == []


@needs_sphinx
def test_names_in_the_menu_have_at_most_24_characters(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    names = re.findall(
        r'<li class="toctree-l1[^"]*"><a class="reference internal" href="[^"]+">([^<]+)</a>', text
    )
    listed = re.findall(r"^\| \[", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(names) == len(listed)
    assert [name for name in names if len(name) > 24] == []


@needs_sphinx
def test_every_row_of_the_table_of_modules_has_a_page(site):
    names = [first for first, _ in LISTED.findall((DOCS / "api.md").read_text(encoding="utf-8"))]
    assert [name for name in names if not (site / "reference" / f"{name}.html").exists()] == []


@needs_sphinx
def test_pictures_have_their_dark_version_beside_them(site):
    text = (site / "figures.html").read_text(encoding="utf-8")
    shown = re.findall(r'<img[^>]*class="only-(light|dark)"[^>]*src="_images/([\w-]+)\.png"', text)
    light, dark = ({name for kind, name in shown if kind == wanted} for wanted in ("light", "dark"))
    assert light
    assert dark == {f"{name}-dark" for name in light}


@needs_sphinx
def test_no_link_of_the_site_is_broken(site, parsed):
    broken = []
    for file, links in parsed.items():
        for target in links.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            linked = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            names = parsed[linked].names if linked in parsed else None
            if not linked.exists() or (
                parts.fragment and names is not None and unquote(parts.fragment) not in names
            ):
                broken.append(f"{file.name}: {target}")
    assert broken == []


@needs_sphinx
def test_no_page_loads_anything_from_another_host(parsed):
    """Nothing is fetched from another host to show a page."""
    fetched = re.compile(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")
    assert [file.name for file in parsed if fetched.search(file.read_text(encoding="utf-8"))] == []


@needs_sphinx
def test_every_public_name_is_in_the_reference(documented):
    assert [name for name in rw.__all__ if f"ropewalk.{name}" not in documented] == []


@needs_sphinx
@pytest.mark.parametrize(
    "name", ["Rope.rotate", "Rope.rerotate", "RopeSpec.frequencies", "KVCache.shift"]
)
def test_methods_are_in_the_reference(documented, name):
    assert f"ropewalk.{name}" in documented


@needs_sphinx
def test_every_registry_of_a_listed_module_is_in_the_reference(documented):
    found = [name for module in listed_modules() for name in registries(module)]
    assert len(found) >= 8
    missing = []
    for path in found:
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        if not any(value is other for other in entries(name, documented)):
            missing.append(path)
    assert missing == []


@needs_sphinx
def test_every_name_that_a_page_imports_is_in_the_reference(documented):
    """Left out are constants, which have no entry, modules, which have a page, and the names of
    ropewalk.jax and ropewalk.mlx, which need JAX and MLX.
    """
    missing = {}
    for page in PAGES:
        for module, name in imported_names(page):
            if module in ("ropewalk.jax", "ropewalk.mlx"):
                continue
            value = getattr(importlib.import_module(module), name, None)
            if callable(value) and not any(value is other for other in entries(name, documented)):
                missing[f"{module}.{name}"] = page.name
    assert missing == {}


def entries(name: str, documented: set[str]) -> list[object]:
    """Every object of this name that the reference has an entry for, in any module."""
    modules = [entry.rpartition(".")[0] for entry in documented if entry.endswith(f".{name}")]
    # the entry of a method has a class before its name, not a module, so it is left out
    found = [sys.modules[module] for module in modules if module in sys.modules]
    return [getattr(module, name) for module in found]


def test_the_table_of_modules_is_short():
    assert len(LISTED.findall((DOCS / "api.md").read_text(encoding="utf-8"))) <= 40


def imported_names(page: Path) -> set[tuple[str, str]]:
    """(module, name) of all that the Python of a page imports from the packages."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    nodes = [node for block in blocks for node in ast.walk(ast.parse(block))]
    return {
        (node.module, alias.name)
        for node in nodes
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ropewalk")
        for alias in node.names
    }


#: a row of the table of modules: the module, and the cell with those that share its page
LISTED = re.compile(r"^\| `(ropewalk[\w.]*)` \|[^|]*\|([^|]*)\|$", re.MULTILINE)


def listed_modules() -> list[str]:
    """Every module of the table."""
    found = []
    for first, cell in LISTED.findall((DOCS / "api.md").read_text(encoding="utf-8")):
        folder = ROOT / "src" / first.replace(".", "/")
        for part in re.findall(r"`([\w.]+)`", cell):
            file = folder / f"{part.replace('.', '/')}.py"
            package = first if file.exists() else first.rpartition(".")[0]
            found.append(f"{package}.{part}")
        found.append(first)
    return found


def registries(module: str) -> list[str]:
    """Public dicts that a module defines: NAME: dict[str, ...] = ..."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    typed = [
        node
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    named = [(node.target.id, ast.unparse(node.annotation)) for node in typed]
    return [
        f"{module}.{name}"
        for name, kind in named
        if name.isupper() and name[0] != "_" and kind.startswith("dict[str")
    ]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that prints nothing."""

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def address(site):
    """The site, served from this machine."""
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@needs_sphinx
@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium; .ci/run installs it")
def test_pages_fit_every_screen_and_the_menu_opens(site, address, full, tmp_path):
    pytest.importorskip("websockets", reason="needs websockets")
    every = [
        path.relative_to(site).with_suffix("").as_posix() for path in sorted(site.rglob("*.html"))
    ]
    assert set(SAMPLE) <= set(every)
    browser, faults = Browser(tmp_path), {}

    def show(page: str, width: int) -> None:
        browser.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        browser.send("Page.navigate", url=f"{address}/{page}.html")
        browser.wait(
            f"location.href === '{address}/{page}.html' && document.readyState === 'complete'", page
        )

    try:
        for name in every if full else SAMPLE:
            for width in WIDTHS:
                show(name, width)
                seen = browser.js(site_screens.MEASURE)
                screens = seen["height"] / site_screens.SCREEN
                if seen["cut"] or screens > site_screens.MOST:
                    faults[name, width] = (screens, seen["cut"])
        assert faults == {}
        show("start", 390)
        menu = "document.querySelector('.sidebar-drawer').getBoundingClientRect()"
        assert browser.js(f"{menu}.right") <= 0
        browser.js("document.querySelector('.mobile-header label[for=__navigation]').click()")
        browser.wait(f"{menu}.left >= 0 && {menu}.right <= 390 && {menu}.width > 150", "the menu")
        assert browser.js(
            "document.querySelectorAll('div.highlight').length === "
            "document.querySelectorAll('button.copy').length"
        )
    finally:
        browser.close()


@needs_sphinx
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("language", ["english", "chinese"])
def test_the_search_finds_the_right_page_first(site, language):
    """Words that people may search for, given to the site's own search and index."""
    asked = tomllib.loads((ROOT / "tests" / "search_queries.toml").read_text(encoding="utf-8"))
    assert len(asked[language]) >= 30
    done = subprocess.run(
        ["node", str(ROOT / "tests" / "site_search.js"), str(site)],
        input=json.dumps(list(asked[language])),
        capture_output=True,
        text=True,
        check=True,
    )
    found = [pages[0][0] if pages else None for pages in json.loads(done.stdout)]
    wrong = {
        query: (page, first)
        for (query, page), first in zip(asked[language].items(), found, strict=True)
        if first != page
    }
    assert wrong == {}


def test_every_public_name_has_a_docstring():
    kept_elsewhere = (dict,)  # the reference describes registries, which have no docstring
    bare = [
        name
        for name in rw.__all__
        if not isinstance(getattr(rw, name), kept_elsewhere) and not getattr(rw, name).__doc__
    ]
    assert bare == []


def test_every_picture_is_shown_somewhere():
    text = "".join(page.read_text(encoding="utf-8") for page in [*PAGES, ROOT / "README.md"])
    assert [
        picture.name
        for picture in (DOCS / "images").glob("*.png")
        if picture.name.replace("-dark", "") not in text
    ] == []


@pytest.mark.parametrize(
    "path", [*PAGES, ROOT / "README.md", ROOT / "README.zh.md"], ids=lambda path: path.name
)
def test_a_speed_stands_beside_its_source(path):
    paragraphs = re.split(r"\n\s*\n", MADE.sub("", FENCE.sub("", path.read_text(encoding="utf-8"))))
    assert [claim for claim in paragraphs if SPEED.search(claim) and not SOURCE.search(claim)] == []


@pytest.mark.parametrize(
    "claim",
    [
        "is 2.5x faster",
        "26 x",
        "3 times faster",
        "takes 12 us",
        "97 % of a flat copy",
        "4 ms a step",
        "快 3 倍",
        "只要 12 微秒",
        "9 tokens/s",
    ],
)
def test_a_claim_of_speed_is_recognised(claim):
    assert SPEED.search(claim)


@pytest.mark.parametrize(
    "text", ["1024 x 1024", "7x5", "16 times its first length", "round 9 times", "4 msgs", "0x1f"]
)
def test_a_size_or_a_count_is_no_claim_of_speed(text):
    assert not SPEED.search(text)
